#include "engine/round.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>

#include "base/file.h"
#include "base/log.h"
#include "engine/speculate/proposal.h"
#include "engine/speculate/spec_rejection.h"

namespace carat {
namespace {

constexpr double kProfileSeconds = 2;  // what is not tried by then is learnt on the way
constexpr double kProfileAgain = 0.1;
// What a step waits for masks in all; a step that has nothing else to do looks up as often as this.
constexpr std::chrono::milliseconds kMaskPatience{2}, kIdlePatience{20};
constexpr const char* kWriteAnother =
    "start again; to change a served model's file, write another and rename it";
constexpr int32_t kLogprobRows = 32;  // per step if every row's logits are wanted: they are a megabyte each

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The longest start of a proposal whose tokens the target knows.
size_t known(const Proposal& p, int32_t vocab) {
  const auto end = std::find_if(p.token.begin(), p.token.end(), [&](Token t) { return t < 0 || t >= vocab; });
  return static_cast<size_t>(end - p.token.begin());
}

// What the request's grammar forces. A grammar that cannot tell fails the request when it is asked for a
// mask.
std::vector<Token> forced_by(TokenMask* mask, int32_t room) {
  if (!mask || room <= 0) return {};
  try {
    return mask->forced(static_cast<size_t>(std::min(room, kMaxDraft)));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

void fail(Event& event, const std::exception& e) {
  event.finish = Finish::error;
  event.error = e.what();
  if (const auto* error = dynamic_cast<const Error*>(&e)) event.hint = error->hint();
}

void Rounds::use(Speculator* speculator) {
  spec_ = speculator;
  ended_ = 0;
  if (spec_) spec_->resume();
  if (spec_ && !spec_->any_measured()) profile();
}

void Rounds::profile() {
  const bool by_cost = spec_ && spec_->config().adaptive;
  const int32_t slow = stepper_.backend().slow_runs();
  if (!by_cost && slow == 0) return;
  int32_t warm = 1;  // weights are read from the file
  double spent = 0;
  std::map<int32_t, double> least;  // seconds by rows: what else runs only makes a step longer
  const auto measure = [&](int32_t rows) {
    Sequence sequence(stepper_.pages());
    const std::vector<Token> tokens(static_cast<size_t>(rows), 0);
    if (spent > kProfileSeconds || !sequence.append(rows)) return false;
    stepper_.prepare(rows, rows);
    const Stepper::Part part{&sequence, tokens, Stepper::Wanted::all};
    for (int32_t i = std::max(slow, std::exchange(warm, 0)); i > 0; --i) stepper_.run({&part, 1});
    const double began = now();
    stepper_.run({&part, 1});
    const double seconds = now() - began;
    const auto it = least.try_emplace(rows, seconds).first;
    it->second = std::min(it->second, seconds);
    spent += seconds;
    return true;
  };
  if (!by_cost) {
    measure(1);
    return;
  }
  // Again where that is no time at all: the first of a kind may be slow.
  for (int pass = 0; pass < 3 && spent < kProfileAgain; ++pass)
    for (const int32_t rows : spec_->profile_rows(config_.sequences))
      if (!measure(rows)) break;
  for (int i = 0; i < 2; ++i)  // what is seen once is believed by half: it may have been a first run
    for (const auto& [rows, seconds] : least) spec_->measured(rows, seconds);
  spec_->rehearse();
}

bool Rounds::begin(std::span<const std::unique_ptr<Running>> running, EngineStats& stats) {
  patience_ends_ = std::chrono::steady_clock::now() + kMaskPatience;
  if (!settle(running, stats)) return false;
  seat(running);
  began_ = now();
  draft();
  drafted_ = now();
  run();
  return true;
}

void Rounds::end(EngineStats& stats) {
  stepper_.finish();
  patience_ends_ = std::chrono::steady_clock::now() + kMaskPatience;
  if (const std::string lost = lost_file(); !lost.empty())
    throw DeviceError(fmt::format("'{}' was cut while it was in use, so nothing computed since counts", lost),
                      kWriteAnother);
  if (const std::string changed = changed_file(); !changed.empty())
    throw DeviceError(
        fmt::format("'{}' was written to while it was in use, so nothing computed since counts", changed),
        kWriteAnother);
  const double verify = now() - started_;
  int32_t prompt_rows = 0;
  for (const Seat& s : seats_) prompt_rows += s.tokens.empty() ? s.rows : 0;
  cost_.ran(prompt_rows, verify);
  sample_seconds_ = 0;
  for (Seat& s : seats_) finish(s, stats);
  if (!spec_) return;
  StepFacts facts;
  facts.rows = stepper_.rows();
  facts.prompt = std::any_of(seats_.begin(), seats_.end(), [](const Seat& s) { return s.tokens.empty(); });
  facts.verify_seconds = verify;
  facts.sample_seconds = sample_seconds_;
  const double ended = now();
  if (ended_ > 0) facts.host_seconds = ended - ended_ - (drafted_ - began_) - verify - sample_seconds_;
  ended_ = ended;
  if (!turns_.empty()) spec_->verified(turns_, facts);
  stats.spec = spec_->totals();
}

// Prompt rows of one step: few if their logits are wanted, and no mark lies inside.
int32_t Rounds::most_rows(const Running& r) const {
  if (r.request.prompt_logprobs) return kLogprobRows;
  return r.marks.empty() ? config_.context : r.marks.front() - r.sequence->committed();
}

// Who runs how many rows; drafts come on top.
void Rounds::seat(std::span<const std::unique_ptr<Running>> running) {
  seats_.clear();
  turns_.clear();
  std::vector<Demand> demands;
  for (const auto& r : running) demands.push_back({std::max(0, r->left_to_read()), most_rows(*r)});
  const bool others = std::any_of(running.begin(), running.end(), [](const auto& r) { return !r->reads(); });
  const int32_t chunk =
      others ? cost_.prompt_rows(config_.prefill_chunk, config_.step_seconds) : config_.prefill_chunk;
  std::vector<int32_t> rows = plan_step(demands, chunk);
  keep_whole(running, rows);
  share_pages(running, rows);
  const auto anchors =
      std::count_if(running.begin(), running.end(), [](const auto& r) { return !r->reads(); });
  crowded_ = spec_ && anchors >= spec_->config().max_rows;
  for (size_t i = 0; i < running.size(); ++i) {
    Running& r = *running[i];
    open(r);
    if (rows[i] == 0 || r.owed || r.event.finish != Finish::none) continue;
    if (r.request.mask) r.request.mask->ready({});  // worked out while the step runs
    Seat& s = seats_.emplace_back();
    s.request = &r;
    s.rows = rows[i];
    if (r.reads()) continue;
    s.tokens.push_back(r.next);
    if (!r.spec || r.deaf || crowded_) continue;
    Turn t;
    t.session = r.spec.get();
    t.history = &r.history;
    t.pos = r.sequence->committed();
    // The token behind the last draft is picked too.
    t.room = std::min(config_.context - t.pos - 1, r.tokens_left() - 1);
    if (spec_->wants_forced() && !late(r.request.mask.get()))
      t.forced = forced_by(r.request.mask.get(), t.room);
    s.turn = static_cast<int32_t>(turns_.size());
    turns_.push_back(std::move(t));
  }
}

// A chunk ends before a picture whose rows see each other, or behind it. Who stands before one reads it with
// the rows of those that come after him.
void Rounds::keep_whole(std::span<const std::unique_ptr<Running>> running, std::vector<int32_t>& rows) const {
  int32_t spare = config_.prefill_chunk;
  for (size_t i = 0; i < running.size(); ++i)
    if (running[i]->reads()) spare -= rows[i] = running[i]->whole_rows(rows[i]);
  for (size_t i = 0; i < running.size(); ++i) {
    const int32_t least = running[i]->least_rows();
    if (least == 1 || rows[i] > 0) continue;
    for (size_t k = running.size(); --k > i && spare < least;)
      if (running[k]->reads()) spare += std::exchange(rows[k], 0);
    if (spare < least) continue;
    rows[i] = least;
    spare -= least;
  }
}

// Everybody gets the page of his next row (the engine has seen to that), readers as many as are left.
void Rounds::share_pages(std::span<const std::unique_ptr<Running>> running, std::vector<int32_t>& rows) {
  spare_pages_ = stepper_.pages().room();
  for (const auto& r : running) spare_pages_ -= r->sequence->pages_for(r->least_rows());
  for (size_t i = 0; i < running.size(); ++i) {
    const Sequence& s = *running[i]->sequence;
    spare_pages_ += s.pages_for(running[i]->least_rows());
    rows[i] = running[i]->whole_rows(std::min(rows[i], s.rows_in(spare_pages_)));
    spare_pages_ -= s.pages_for(std::max(1, rows[i]));
  }
}

void Rounds::open(Running& r) {
  if (!spec_ || !r.request.speculate || std::exchange(r.opened, true)) return;
  try {
    r.spec = spec_->open(*r.sequence, r.request.sample);
    // Of rows that another request has run nobody knows more than the tokens.
    if (r.sequence->committed() > 0) r.spec->committed({0, r.committed_tokens(), {}, {}});
  } catch (const std::exception& e) {
    log_error("nobody drafts for request {}: {}", r.id, e.what());
  }
}

void Rounds::draft() {
  if (turns_.empty() || broken_) return;
  try {
    spec_->draft(turns_);
  } catch (const DeviceError&) {
    throw;
  } catch (const std::exception& e) {
    log_error("a drafter failed, there will be no more drafts: {}", e.what());
    broken_ = true;
    for (Turn& t : turns_) t.draft = {}, t.drafter = -1;
  }
  int32_t anchors = 0;
  for (const Seat& s : seats_) anchors += s.tokens.empty() ? 0 : 1;
  int32_t spare = std::max(0, spec_->config().max_rows - anchors);
  for (Seat& s : seats_)
    if (s.turn >= 0) admit(s, spare);
}

// What of the draft is run: rows are few, and so may be the room.
void Rounds::admit(Seat& s, int32_t& spare) {
  Turn& t = turns_[static_cast<size_t>(s.turn)];
  const int32_t room = std::clamp(t.room, 0, spare);
  const size_t slots = static_cast<size_t>(std::clamp(config_.context - t.pos - 1, 0, spare));
  t.draft.shorten(std::min(known(t.draft, stepper_.model().spec.vocab), slots));
  if (is_chain(t.draft)) {
    t.draft.parent.clear();
    t.draft.shorten(static_cast<size_t>(room));
  }
  // Of pages there may be few, too.
  const Sequence& at = *s.request->sequence;
  spare_pages_ += at.pages_for(1);
  t.draft.shorten(static_cast<size_t>(std::max(0, at.rows_in(spare_pages_) - 1)));
  spare_pages_ -= at.pages_for(1 + static_cast<int32_t>(t.draft.token.size()));
  if (room == 0) t.draft = {};
  if (t.draft.empty()) t.drafter = -1;
  s.tokens.insert(s.tokens.end(), t.draft.token.begin(), t.draft.token.end());
  s.rows = static_cast<int32_t>(s.tokens.size());
  spare -= s.rows - 1;
  if (t.draft.parent.empty()) return;
  s.parents.push_back(-1);
  for (const int32_t p : t.draft.parent) s.parents.push_back(p + 1);
}

// Where positions have axes, a picture and all that follows it stand elsewhere than in their positions.
void Rounds::stand(Seat& s, Stepper::Part& part) const {
  if (!stepper_.model().spec.axes || s.request->request.soft.empty()) return;
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < s.rows; ++i) {
    const int32_t up = s.parents.empty() ? i - 1 : s.parents[static_cast<size_t>(i)];
    positions.push_back(up < 0 ? s.request->sequence->committed() : positions[static_cast<size_t>(up)] + 1);
  }
  s.place = places_of(s.request->request.soft, positions);
  part.place = s.place;
}

void Rounds::run() {
  std::vector<Stepper::Part> parts;
  int32_t row = 0, out = 0;
  for (Seat& s : seats_) {
    Running& r = *s.request;
    CARAT_CHECK(r.sequence->append(s.rows), "request {}: {} rows behind {}", r.id, s.rows,
                r.sequence->committed());
    s.first_row = row, s.first_out = out;
    row += s.rows;
    Stepper::Part part{&*r.sequence, s.tokens, Stepper::Wanted::all, s.parents};
    if (r.reads()) {
      part.tokens = r.next_tokens(s.rows);
      s.soft = soft_in(r.request.soft, r.sequence->committed(), s.rows);
      part.soft = s.soft;
      if (r.reads_again() || !r.request.prompt_logprobs)
        part.wanted =
            s.rows == r.left_to_read() && r.generated == 0 ? Stepper::Wanted::last : Stepper::Wanted::none;
    }
    stand(s, part);
    out += part.wanted == Stepper::Wanted::all ? s.rows : part.wanted == Stepper::Wanted::last ? 1 : 0;
    parts.push_back(part);
  }
  started_ = now();
  stepper_.start(parts);
}

// What the step meant for one request.
void Rounds::finish(Seat& s, EngineStats& stats) {
  Running& r = *s.request;
  r.tell = true;
  const size_t had = r.history.tokens().size();
  try {
    if (r.reads())
      read(s, stats);
    else
      walk(s, stats);
  } catch (const DeviceError&) {
    throw;
  } catch (const std::exception& e) {
    fail(r.event, e);
  }
  r.event.prompt_done = r.prompt_done;
  if (s.turn >= 0)
    turns_[static_cast<size_t>(s.turn)].emitted = static_cast<int32_t>(r.history.tokens().size() - had);
}

void Rounds::read(Seat& s, EngineStats& stats) {
  Running& r = *s.request;
  const int32_t pos = r.sequence->committed();
  const bool again = r.reads_again();
  if (r.request.prompt_logprobs && !again) take_prompt_logprobs(s);
  r.sequence->commit(s.rows);
  std::vector<int32_t> rows(static_cast<size_t>(s.rows));
  std::iota(rows.begin(), rows.end(), 0);
  tell_drafters(s, pos, rows);
  r.prompt_done = std::max(r.prompt_done, std::min(r.sequence->committed(), r.prompt_size()));
  stats.prompt_tokens += static_cast<uint64_t>(s.rows);
  if (r.reads() || again) return;
  r.event.prompt_logprobs = std::move(r.prompt_logprobs);
  if (r.request.max_tokens == 0)
    r.event.finish = Finish::length;
  else
    take_pick(s, r.request.prompt_logprobs ? s.rows - 1 : 0, r.sequence->committed(), stats);
}

// From the anchor down the draft, as long as it says what is picked.
void Rounds::walk(Seat& s, EngineStats& stats) {
  Running& r = *s.request;
  static const Proposal kNone;
  const Proposal& draft = s.turn < 0 ? kNone : turns_[static_cast<size_t>(s.turn)].draft;
  const int32_t pos = r.sequence->committed();
  std::vector<int32_t> path{0};
  const auto keep = [&] {
    r.sequence->commit(path, stepper_.kv());
    tell_drafters(s, pos, path);
  };
  try {
    for (;;) {
      const int32_t row = path.back();
      const Token token = take_pick(s, row, pos + static_cast<int32_t>(path.size()), stats);
      if (token < 0 || r.event.finish != Finish::none) break;
      const int32_t child = child_of(draft, row - 1, token);
      if (child < 0) {
        for (int32_t at = row - 1; (at = first_child(draft, at)) >= 0;)
          r.event.rejected.push_back(draft.token[static_cast<size_t>(at)]);
        break;
      }
      path.push_back(child + 1);
    }
  } catch (...) {
    keep();
    throw;
  }
  keep();
}

void Rounds::take_prompt_logprobs(const Seat& s) {
  Running& r = *s.request;
  for (int32_t i = 0; i < s.rows; ++i) {
    const auto next = static_cast<size_t>(r.sequence->committed() + i + 1);
    if (next < r.request.prompt.size())
      r.prompt_logprobs.push_back(
          logprobs(stepper_.logits(s.first_out + i), r.request.prompt[next], r.request.logprobs));
  }
}

bool Rounds::late(TokenMask* mask) const {
  using std::chrono::microseconds, std::chrono::duration_cast, std::chrono::steady_clock;
  if (!mask || mask->ready({})) return false;
  const auto left = duration_cast<microseconds>(patience_ends_ - steady_clock::now());
  return left <= microseconds(0) || !mask->ready(left);
}

// Picks that were owed and whose masks have come. Whether there is anything to run: where all wait for masks,
// the step is over after a while of that.
bool Rounds::settle(std::span<const std::unique_ptr<Running>> running, EngineStats& stats) {
  const auto owes = [](const auto& r) { return r->owed.has_value(); };
  const auto first = std::find_if(running.begin(), running.end(), owes);
  if (first == running.end()) return true;
  if (std::all_of(running.begin(), running.end(), owes)) (*first)->request.mask->ready(kIdlePatience);
  bool any = false;
  for (const auto& r : running) {
    if (r->event.finish != Finish::none) continue;
    if (r->owed && r->request.mask->ready({})) {
      const auto owed = std::move(*r->owed);
      r->owed.reset();
      r->tell = true;
      r->event.prompt_done = r->prompt_done;
      try {
        const auto allowed = r->request.mask->allowed();
        const Token token = pick(owed.logits, r->request.sample, r->history, owed.pos, allowed);
        took(*r, token, owed.logits, allowed, owed.pos, stats);
      } catch (const std::exception& e) {
        fail(r->event, e);
      }
    }
    any |= !r->owed && r->event.finish == Finish::none;
  }
  return any;
}

// The token at position `pos`, which the seat's wanted row `row` predicts; -1: it is owed.
Token Rounds::take_pick(Seat& s, int32_t row, int32_t pos, EngineStats& stats) {
  const double began = now();
  Running& r = *s.request;
  const Request& q = r.request;
  if (late(q.mask.get())) {
    const std::span<const float> logits = stepper_.logits(s.first_out + row);
    r.owed = {{logits.begin(), logits.end()}, pos};
    return -1;
  }
  const auto logits = [&] { return stepper_.logits(s.first_out + row); };  // a copy on some devices
  const std::span<const uint64_t> allowed = q.mask ? q.mask->allowed() : std::span<const uint64_t>();
  Token token = -1;
  if (s.turn >= 0 && spec_->config().rejection && allowed.empty())
    token =
        reject_or_keep(logits(), q.sample, r.history, pos, turns_[static_cast<size_t>(s.turn)].draft, row);
  if (token < 0 && allowed.empty()) {
    const TopRows::Row top = stepper_.top(s.first_out + row);
    token = pick_among(top.column, top.value, q.sample, pos).value_or(-1);
  }
  if (token < 0) token = pick(logits(), q.sample, r.history, pos, allowed);
  if (s.turn >= 0 && !spec_->config().synthetic.empty()) {
    const Turn& t = turns_[static_cast<size_t>(s.turn)];
    if (const int32_t child = first_child(t.draft, row - 1); child >= 0)
      token = synthetic_pick(spec_->config(), q.sample.seed, pos, pos - t.pos,
                             t.draft.token[static_cast<size_t>(child)], token, stepper_.model().spec.vocab);
  }
  const bool looks = q.logprobs >= 0 || q.sample.mirostat != 0;
  took(r, token, looks ? logits() : std::span<const float>(), allowed, pos, stats);
  sample_seconds_ += now() - began;
  return token;
}

void Rounds::took(Running& r, Token token, std::span<const float> logits, std::span<const uint64_t> allowed,
                  int32_t pos, EngineStats& stats) {
  const Request& q = r.request;
  if (q.logprobs >= 0) r.event.logprobs.push_back(logprobs(logits, token, q.logprobs));
  r.event.tokens.push_back(token);
  if (q.sample.mirostat != 0) learn(logits, q.sample, r.history, token, allowed);
  r.history.add(token);
  if (q.mask) q.mask->picked(token);
  r.next = token;
  ++r.generated;
  ++stats.generated_tokens;
  const bool ends = std::find(q.stop_tokens.begin(), q.stop_tokens.end(), token) != q.stop_tokens.end();
  if (ends && !q.ignore_eos)
    r.event.finish = Finish::stop;
  else if (r.generated == q.max_tokens || pos == config_.context)
    r.event.finish = Finish::length;
}

// `rows` of the seat, from position `pos` on, are committed.
void Rounds::tell_drafters(const Seat& s, int32_t pos, std::span<const int32_t> rows) {
  Running& r = *s.request;
  if (!r.spec || r.deaf) return;
  std::vector<Token> tokens;
  std::vector<const float*> hidden, taps;
  for (const int32_t row : rows) {
    tokens.push_back(s.tokens.empty() ? r.history.tokens()[static_cast<size_t>(pos + row)]
                                      : s.tokens[static_cast<size_t>(row)]);
    if (!crowded_ || spec_->wants_hidden()) hidden.push_back(stepper_.hidden_of(s.first_row + row));
    for (size_t t = 0; t < spec_->taps().size(); ++t) taps.push_back(stepper_.tap(s.first_row + row, t));
  }
  try {
    r.spec->committed({pos, tokens, hidden, taps});
  } catch (const DeviceError&) {
    throw;
  } catch (const std::exception& e) {
    log_error("nobody drafts for request {} any more: {}", r.id, e.what());
    r.deaf = true;
  }
}

}  // namespace carat
