#include "engine/speculator.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <numeric>

#include "engine/depth.h"
#include "engine/proposal.h"

namespace carat {
namespace {

constexpr double kCheap = 0.02;     // share of a plain step below which a drafter is always asked
constexpr int32_t kFirstDepth = 3;  // of a drafter whose cost nobody knows
// Share of all time that may be lost by asking a drafter that is not expected to pay: texts change. A tenth
// of it where it would not if all it said were right: only costs may change.
constexpr double kLearn = 0.005, kHopeless = 10;
constexpr double kLook = 0.3;  // plain steps that a look at plain decoding counts for at the least
constexpr double kKeepRate = 1 - 1.0 / 32;
constexpr size_t kPending = 32;  // proposals per drafter whose truth is still open

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A proposal of which the text has not yet said everything.
struct Open {
  Proposal draft;
  size_t next;  // history place of the tokens below `node`
  int32_t node = -1, depth = 0;
};

// One drafter's side of one request.
struct Guest {
  Guest(std::unique_ptr<DraftSession> s, const Acceptance* general)
      : session(std::move(s)), acceptance(general) {}
  std::unique_ptr<DraftSession> session;
  Acceptance acceptance;
  std::deque<Open> open;
};

// What all requests have taught about one drafter.
struct Known {
  std::shared_ptr<Drafter> drafter;
  DraftCost cost;
  Acceptance acceptance;
  std::vector<size_t> taps;  // its taps' places among all
  uint64_t asked = 0;        // round in which it was last
  double saved = 0;          // time, in plain steps of one row, that may be lost by asking it
  bool rests = false;        // it has been told that nobody will ask soon
  void rest(bool now) { drafter->rest(rests = now); }
};

// Whom to ask how far, before anything is known of what will be said.
struct Plan {
  std::vector<int32_t> depth;  // by turn
  double gain = -1e9;          // tokens, over not asking
};

// Tokens per unit of time (StepCost's level) that steps of so many sequences bring.
struct Rate {
  double tokens = 0, time = 0;
};

std::vector<double> survival_of(const Proposal& p, const Acceptance& acceptance) {
  std::vector<double> s(p.token.size()), by_place;
  std::vector<int32_t> depth(p.token.size());
  if (p.confidence.empty()) by_place = acceptance.by_place(static_cast<int32_t>(s.size()));
  for (size_t i = 0; i < s.size(); ++i) {
    const int32_t parent = p.parent_of(static_cast<int32_t>(i));
    depth[i] = parent < 0 ? 0 : depth[static_cast<size_t>(parent)] + 1;
    const double above = parent < 0 ? 1 : s[static_cast<size_t>(parent)];
    s[i] = above * (p.confidence.empty() ? by_place[static_cast<size_t>(depth[i])]
                                         : acceptance.of(depth[i], p.confidence[i]));
  }
  return s;
}

}  // namespace

struct SpecSession::Impl {
  std::vector<Guest> guests;  // in the drafters' order
  const std::vector<Known>* known = nullptr;
  size_t all_taps = 0;
  SampleParams sample;
  SpecStats stats;
};

struct Speculator::Impl {
  explicit Impl(const SpecConfig& c) : config(c), cost(std::min(c.max_rows, StepCost::kRows)) {}
  SpecConfig config;
  std::vector<Known> known;
  std::vector<int32_t> taps;
  bool hidden = false;
  StepCost cost;
  std::vector<Rate> rates;  // by sequences
  SpecStats totals;
  uint64_t round = 0;
  double draft_seconds = 0;  // of this round
  double expected = 0;       // tokens of this round that drafts should bring
  bool looking = false;      // this round is plain to see what that costs
  double saved = 0;          // as Known::saved, for that

  bool synthetic() const { return !config.synthetic.empty(); }
  double time() const { return config.clock ? config.clock() : now(); }
  double rate(int32_t sequences) const;
  bool look_at_plain(int32_t sequences);
  int32_t room(const Turn& t, int32_t sequences) const;
  void ask(size_t drafter, std::span<Turn> turns, std::span<const int32_t> depth, std::vector<Proposal>& out);
  void take_first(std::span<Turn> turns);
  void choose(std::span<Turn> turns);
  void offer(size_t drafter, std::span<Turn> turns, std::vector<Proposal>& asked, std::vector<double>& value);
  Plan plan(size_t drafter, std::span<const Turn> turns, std::span<const double> value) const;
  bool hopeless(size_t drafter, int32_t sequences, int32_t most) const;
  bool rehearse(size_t drafter, int32_t depth);
  bool worth_asking(size_t drafter, std::span<const Turn> turns, const Plan& plan);
  void cut(std::span<Turn> turns);
  void drop_short(std::span<Turn> turns) const;
  void resolve(SpecSession::Impl& session, std::span<const Token> history);
  void count(const Turn& t, const StepFacts& facts, SpecStats& stats) const;
};

// ---- the round ----

double Speculator::Impl::rate(int32_t n) const {
  const double plain = n / cost.ratio(n);
  if (static_cast<size_t>(n) >= rates.size() || rates[static_cast<size_t>(n)].time <= 0) return plain;
  const Rate& r = rates[static_cast<size_t>(n)];
  return std::max(plain, r.tokens / r.time);
}

// What steps without drafts cost is looked at when unknown, and then like a drafter that does not pay.
bool Speculator::Impl::look_at_plain(int32_t n) {
  if (!cost.stale(n) && saved < std::max(kLook, cost.ratio(n) - n / rate(n))) return false;
  saved = 0;
  return true;
}

int32_t Speculator::Impl::room(const Turn& t, int32_t sequences) const {
  int32_t room = std::min({t.room, config.draft_max, config.max_rows - sequences});
  if (synthetic()) room = std::min(room, static_cast<int32_t>(config.synthetic.size()));
  return room;
}

// One pass of a drafter over the turns whose depth is not 0. What it says is kept until its truth is known.
void Speculator::Impl::ask(size_t d, std::span<Turn> turns, std::span<const int32_t> depth,
                           std::vector<Proposal>& out) {
  Known& k = known[d];
  std::vector<DraftAsk> asks;
  std::vector<size_t> who;
  int32_t deepest = 0;
  out.assign(turns.size(), {});
  for (size_t i = 0; i < turns.size(); ++i) {
    if (depth[i] <= 0) continue;
    DraftAsk a;
    a.session = turns[i].session->impl().guests[d].session.get();
    a.history = turns[i].history;
    a.anchor = turns[i].history->tokens().back();
    a.pos = turns[i].pos;
    a.max_depth = std::min(depth[i], k.drafter->max_depth());
    a.max_nodes = a.max_depth;
    if (k.drafter->makes_trees() && config.tree_nodes > a.max_depth)
      a.max_nodes = std::min(config.tree_nodes, config.max_rows - static_cast<int32_t>(turns.size()));
    a.max_nodes = std::max(a.max_nodes, a.max_depth);
    a.p_min = config.p_min;
    a.sample = &turns[i].session->impl().sample;
    a.rule = config.rejection ? DraftRule::sampled : config.rule;
    if (a.sample->temperature == 0) a.rule = DraftRule::best;
    a.forced = turns[i].forced;
    deepest = std::max(deepest, a.max_depth);
    asks.push_back(std::move(a));
    who.push_back(i);
  }
  if (asks.empty()) return;
  k.rests = false;
  const double began = time();
  k.drafter->propose(asks);
  const double seconds = time() - began;
  draft_seconds += seconds;
  const bool silent = std::all_of(asks.begin(), asks.end(), [](const DraftAsk& a) { return a.out.empty(); });
  const auto n = static_cast<int32_t>(asks.size());
  const double share = seconds / cost.level(), usual = k.cost.share(n, deepest);
  // Who was not asked for long may have to read first: no part of what a draft costs, but it is paid for.
  const bool cold = share > usual && k.asked + 1 < round;
  if (!k.cost.known() || !(silent || cold))
    k.cost.observe(n, deepest, share);
  else
    k.saved -= std::max(0.0, share - usual);
  k.asked = round;
  for (size_t j = 0; j < asks.size(); ++j) {
    make_sane(asks[j].out);
    if (synthetic()) asks[j].out.confidence.clear();  // dice do not know it
    out[who[j]] = std::move(asks[j].out);
    std::deque<Open>& open = turns[who[j]].session->impl().guests[d].open;
    if (out[who[j]].empty() || synthetic()) continue;
    if (open.size() == kPending) open.pop_front();
    open.push_back({out[who[j]], turns[who[j]].history->tokens().size()});
    open.back().draft.law.clear();
  }
}

// Without a controller: every drafter in its order, as far as allowed; the first that says anything.
void Speculator::Impl::take_first(std::span<Turn> turns) {
  const auto n = static_cast<int32_t>(turns.size());
  const int32_t share = std::max(0, (config.max_rows - n) / n);
  for (size_t d = 0; d < known.size(); ++d) {
    std::vector<int32_t> depth;
    for (const Turn& t : turns) depth.push_back(t.draft.empty() ? std::min(room(t, n), share) : 0);
    std::vector<Proposal> out;
    ask(d, turns, depth, out);
    for (size_t i = 0; i < turns.size(); ++i) {
      if (out[i].empty()) continue;
      std::vector<bool> keep(out[i].token.size());
      std::fill_n(keep.begin(), std::min(keep.size(), static_cast<size_t>(share)), true);
      turns[i].draft = keep_nodes(out[i], keep);
      turns[i].drafter = static_cast<int32_t>(d);
    }
  }
}

// Too dear even if all it says were right: there is nothing to learn from asking it but what it costs.
bool Speculator::Impl::hopeless(size_t d, int32_t n, int32_t most) const {
  const DraftCost& pass = known[d].cost;
  if (!pass.known()) return false;
  for (int32_t k = std::min(most, known[d].drafter->max_depth()); k > 0; --k)
    if (n * k > rate(n) * (cost.ratio(n * (k + 1)) - cost.ratio(n) + pass.share(n, k))) return false;
  return true;
}

// A drafter that is not expected to pay is asked all the same when the loss is small beside the time that
// went by since: often if it nearly pays, seldom if it is far from that.
bool Speculator::Impl::worth_asking(size_t d, std::span<const Turn> turns, const Plan& plan) {
  Known& k = known[d];
  if (plan.depth.empty()) return false;
  if (plan.gain > 0) return true;
  const auto n = static_cast<int32_t>(turns.size());
  const double loss = -plan.gain / rate(n);
  if (k.saved < loss) return false;
  int32_t most = 0;
  for (const Turn& t : turns) most = std::max(most, room(t, n));
  const bool never = hopeless(d, n, most);
  if (k.saved < loss * (never ? kHopeless : 1)) return false;
  k.saved = 0;
  if (never) k.rest(true);
  return !never || !rehearse(d, 1);
}

// What a draft of that depth costs, without reading anybody's text. False: it cannot be known so.
bool Speculator::Impl::rehearse(size_t d, int32_t depth) {
  const double began = time();
  if (!known[d].drafter->rehearse(depth)) return false;
  known[d].cost.observe(1, depth, (time() - began) / cost.level());
  return true;
}

// How far to ask a drafter whose pass costs something. All turns together, since they share the pass and the
// rows; what a turn has already is lost where it takes the new draft.
Plan Speculator::Impl::plan(size_t d, std::span<const Turn> turns, std::span<const double> value) const {
  const auto n = static_cast<int32_t>(turns.size());
  const double worth = rate(n), plain = cost.ratio(n);
  struct Node {
    double survival;
    size_t turn;
    int32_t place;
  };
  std::vector<Node> nodes;
  int32_t deepest = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    int32_t most = std::min(room(turns[i], n), known[d].drafter->max_depth());
    if (!known[d].cost.known()) most = std::min(most, kFirstDepth);
    if (most <= 0) continue;
    double survival = 1;
    int32_t place = 0;
    for (const double p : turns[i].session->impl().guests[d].acceptance.by_place(most))
      nodes.push_back({survival *= p, i, place++});
    deepest = std::max(deepest, most);
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.survival > b.survival; });
  Plan best;
  std::vector<int32_t> reached(turns.size());
  for (int32_t k = 1; k <= deepest; ++k) {
    std::fill(reached.begin(), reached.end(), 0);
    double sum = 0, pass = 0;
    int32_t rows = n, asked = 0;
    for (const Node& node : nodes) {
      if (node.place >= k) continue;
      if (rows == config.max_rows) break;
      sum += node.survival;
      if (node.place == 0) {
        pass = known[d].cost.share(++asked, k);
        sum -= value[node.turn];
      }
      reached[node.turn] = node.place + 1;
      // What is said need not be verified.
      const double gain = std::max(0.0, sum - worth * (cost.ratio(++rows) - plain)) - worth * pass;
      if (gain > best.gain) best.gain = gain, best.depth = reached;
    }
  }
  return best;
}

// Takes what is worth more than what a turn has.
void Speculator::Impl::offer(size_t d, std::span<Turn> turns, std::vector<Proposal>& asked,
                             std::vector<double>& value) {
  const auto n = static_cast<int32_t>(turns.size());
  const double worth = rate(n);
  for (size_t i = 0; i < turns.size(); ++i) {
    if (asked[i].empty()) continue;
    std::vector<double> s = survival_of(asked[i], turns[i].session->impl().guests[d].acceptance);
    std::sort(s.begin(), s.end(), std::greater<>());
    // As if all turns drafted so; if they do not, cut() knows better.
    const Worth alike = rows_worth(cost, n, n, s, worth, (config.max_rows - n) / n);
    const Worth alone = rows_worth(cost, n, 1, s, worth, config.max_rows - n);
    const double gain = std::max(alike.value, alone.value);
    if (gain <= value[i]) continue;
    value[i] = gain;
    turns[i].draft = std::move(asked[i]);
    turns[i].drafter = static_cast<int32_t>(d);
  }
}

// Cheap drafters first: what they say is known before a dear one is paid for.
void Speculator::Impl::choose(std::span<Turn> turns) {
  const auto n = static_cast<int32_t>(turns.size());
  looking = look_at_plain(n);
  std::vector<double> value(turns.size(), 0);
  std::vector<Proposal> out;
  const auto cheap = [&](size_t d) {
    return known[d].cost.known() && known[d].cost.share(n, kFirstDepth) < kCheap;
  };
  std::vector<bool> done(known.size(), false);
  for (const bool dear : {false, true}) {
    for (size_t d = 0; d < known.size(); ++d) {
      if (done[d] || (cheap(d) && dear) || (!cheap(d) && (!dear || looking))) continue;
      done[d] = true;
      std::vector<int32_t> depth;
      if (dear) {
        Plan asked = plan(d, turns, value);
        if (!worth_asking(d, turns, asked)) continue;
        depth = std::move(asked.depth);
      } else {
        for (const Turn& t : turns) depth.push_back(room(t, n));
      }
      ask(d, turns, depth, out);
      offer(d, turns, out, value);
    }
  }
  if (looking)
    for (Turn& t : turns) t.draft = {}, t.drafter = -1;
  cut(turns);
}

// Rows are shared: over all sequences the most probable tokens are kept, as many as pay for themselves.
void Speculator::Impl::cut(std::span<Turn> turns) {
  struct Node {
    double survival;
    size_t turn, node;
  };
  const auto n = static_cast<int32_t>(turns.size());
  std::vector<Node> nodes;
  std::vector<std::vector<bool>> keep(turns.size());
  for (size_t i = 0; i < turns.size(); ++i) {
    const Turn& t = turns[i];
    keep[i].resize(t.draft.token.size());
    if (t.draft.empty()) continue;
    const Acceptance& a = t.session->impl().guests[static_cast<size_t>(t.drafter)].acceptance;
    const std::vector<double> s = survival_of(t.draft, a);
    for (size_t j = 0; j < s.size(); ++j) nodes.push_back({s[j], i, j});
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.survival > b.survival; });
  std::vector<double> s;
  for (const Node& node : nodes) s.push_back(node.survival);
  const int32_t rows = rows_worth(cost, n, 1, s, rate(n), config.max_rows - n).rows;
  expected = std::accumulate(s.begin(), s.begin() + rows, 0.0);
  for (int32_t i = 0; i < rows; ++i)
    keep[nodes[static_cast<size_t>(i)].turn][nodes[static_cast<size_t>(i)].node] = true;
  for (size_t i = 0; i < turns.size(); ++i)
    if (!turns[i].draft.empty()) turns[i].draft = keep_nodes(turns[i].draft, keep[i]);
}

void Speculator::Impl::drop_short(std::span<Turn> turns) const {
  for (Turn& t : turns) {
    if (!t.draft.empty() && path_length(t.draft) < config.draft_min) t.draft = {};
    if (t.draft.empty()) t.drafter = -1;
  }
}

// Compares every open proposal with the text, verified or not: the text is what the target says, so a draft
// that was never run is judged as if it had been.
void Speculator::Impl::resolve(SpecSession::Impl& session, std::span<const Token> history) {
  for (size_t d = 0; d < known.size(); ++d) {
    Guest& guest = session.guests[d];
    const auto finished = [&](Open& o) {
      for (; o.next < history.size(); ++o.next, ++o.depth) {
        int32_t hit = -1;
        for (int32_t i = o.node + 1; i < static_cast<int32_t>(o.draft.token.size()); ++i) {
          if (o.draft.parent_of(i) != o.node) continue;
          const bool right = o.draft.token[static_cast<size_t>(i)] == history[o.next];
          if (right) hit = i;
          const float confidence =
              o.draft.confidence.empty() ? -1 : o.draft.confidence[static_cast<size_t>(i)];
          guest.acceptance.observe(o.depth, confidence, right);
          known[d].acceptance.observe(o.depth, confidence, right);
        }
        if (hit < 0) return true;
        o.node = hit;
      }
      return false;
    };
    std::erase_if(guest.open, finished);
  }
}

void Speculator::Impl::count(const Turn& t, const StepFacts& facts, SpecStats& stats) const {
  stats.verify_seconds += facts.verify_seconds;
  stats.sample_seconds += facts.sample_seconds;
  stats.draft_seconds += draft_seconds;
  if (t.draft.empty()) {
    ++stats.plain;
    return;
  }
  ++stats.rounds;
  stats.drafted += t.draft.token.size();
  const std::string_view name = known[static_cast<size_t>(t.drafter)].drafter->name();
  SpecShare& share = stats.shares.emplace_back(SpecShare{std::string(name), 1, t.draft.token.size(), 0});
  const std::span<const Token> text = t.history->tokens().last(static_cast<size_t>(t.emitted));
  int32_t node = -1;
  size_t depth = 0;
  const auto deepest = static_cast<size_t>(path_length(t.draft));
  for (size_t i = 0; i < deepest && i < kMaxDraft; ++i) ++stats.drafted_at[i];
  for (; depth < text.size(); ++depth) {
    int32_t child = -1;
    bool any = false;
    for (int32_t i = node + 1; i < static_cast<int32_t>(t.draft.token.size()); ++i)
      if (t.draft.parent_of(i) == node) {
        any = true;
        if (t.draft.token[static_cast<size_t>(i)] == text[depth]) child = i;
      }
    if (any && depth < kMaxDraft) ++stats.tried_at[depth];
    if (child < 0) break;
    node = child;
    ++stats.accepted;
    ++share.accepted;
    if (depth < kMaxDraft) ++stats.accepted_at[depth];
  }
}

// ---- the interface ----

void SpecStats::add(const SpecStats& o) {
  rounds += o.rounds, plain += o.plain, drafted += o.drafted, accepted += o.accepted;
  for (size_t i = 0; i < drafted_at.size(); ++i)
    drafted_at[i] += o.drafted_at[i], accepted_at[i] += o.accepted_at[i], tried_at[i] += o.tried_at[i];
  draft_seconds += o.draft_seconds, verify_seconds += o.verify_seconds, sample_seconds += o.sample_seconds;
  for (const SpecShare& theirs : o.shares) {
    const auto same = [&](const SpecShare& s) { return s.drafter == theirs.drafter; };
    auto mine = std::find_if(shares.begin(), shares.end(), same);
    if (mine == shares.end()) mine = shares.insert(mine, {theirs.drafter});
    mine->rounds += theirs.rounds, mine->drafted += theirs.drafted, mine->accepted += theirs.accepted;
  }
}

double SpecStats::accepted_length() const {
  const auto steps = static_cast<double>(rounds + plain);
  return steps > 0 ? 1 + static_cast<double>(accepted) / steps : 1;
}

Speculator::Speculator(std::vector<std::shared_ptr<Drafter>> drafters, const SpecConfig& config)
    : impl_(std::make_unique<Impl>(config)) {
  for (const auto& d : drafters) {
    impl_->hidden = impl_->hidden || d->wants_hidden();
    impl_->taps.insert(impl_->taps.end(), d->taps().begin(), d->taps().end());
    impl_->known.push_back({d, {}, Acceptance{}, {}});
  }
  std::vector<int32_t>& taps = impl_->taps;
  std::sort(taps.begin(), taps.end());
  taps.erase(std::unique(taps.begin(), taps.end()), taps.end());
  for (Known& k : impl_->known)
    for (const int32_t layer : k.drafter->taps())
      k.taps.push_back(static_cast<size_t>(std::find(taps.begin(), taps.end(), layer) - taps.begin()));
}
Speculator::~Speculator() = default;

const SpecConfig& Speculator::config() const { return impl_->config; }
std::span<const int32_t> Speculator::taps() const { return impl_->taps; }
bool Speculator::wants_hidden() const { return impl_->hidden; }
bool Speculator::wants_forced() const {
  return std::any_of(impl_->known.begin(), impl_->known.end(),
                     [](const Known& k) { return k.drafter->wants_forced(); });
}
SpecStats Speculator::totals() const { return impl_->totals; }

std::string Speculator::names() const {
  std::string all;
  for (const Known& k : impl_->known) {
    if (!all.empty()) all += ',';
    all += k.drafter->name();
  }
  return all;
}

void Speculator::attach(const DraftTarget& target) {
  for (const Known& k : impl_->known) k.drafter->attach(target);
}
int64_t Speculator::memory_bytes() const {
  int64_t sum = 0;
  for (const Known& k : impl_->known) sum += k.drafter->memory_bytes();
  return sum;
}

std::unique_ptr<SpecSession> Speculator::open(const Sequence& target, const SampleParams& params) {
  auto s = std::make_unique<SpecSession::Impl>();
  s->known = &impl_->known;
  s->all_taps = impl_->taps.size();
  s->sample = params;
  for (const Known& k : impl_->known) s->guests.emplace_back(k.drafter->open(target, params), &k.acceptance);
  return std::make_unique<SpecSession>(std::move(s));
}

void Speculator::draft(std::span<Turn> turns) {
  ++impl_->round;
  impl_->draft_seconds = impl_->expected = 0;
  impl_->looking = false;
  for (Turn& t : turns) t.draft = {}, t.drafter = -1;
  if (turns.empty() || static_cast<int32_t>(turns.size()) >= impl_->config.max_rows) return;
  const double began = impl_->time();
  if (impl_->config.adaptive)
    impl_->choose(turns);
  else
    impl_->take_first(turns);
  impl_->drop_short(turns);
  impl_->draft_seconds = impl_->time() - began;
}

void Speculator::resume() {
  for (Known& k : impl_->known) k.rest(k.rests);
}

void Speculator::measured(int32_t rows, double seconds) { impl_->cost.observe(rows, seconds); }

bool Speculator::any_measured() const { return impl_->cost.any(); }

std::vector<int32_t> Speculator::profile_rows(int32_t sequences) const {
  std::vector<int32_t> rows;
  const int32_t most = std::max(impl_->config.max_rows, sequences);
  for (int32_t r = 1; r <= most; r += r < 4 ? 1 : r < 8 ? 2 : r < 16 ? 4 : r / 2) rows.push_back(r);
  if (rows.back() != most) rows.push_back(most);
  return rows;
}

void Speculator::rehearse() {
  for (size_t d = 0; d < impl_->known.size(); ++d) {
    // The first one reads its weights; some devices are slow for another one.
    if (!impl_->known[d].drafter->rehearse(1) || !impl_->known[d].drafter->rehearse(1)) continue;
    for (const int32_t depth : {1, kFirstDepth}) impl_->rehearse(d, depth);
    if (impl_->hopeless(d, 1, std::min(impl_->config.draft_max, impl_->config.max_rows - 1)))
      impl_->known[d].rest(true);
  }
}

void Speculator::verified(std::span<const Turn> turns, const StepFacts& facts) {
  Impl& s = *impl_;
  const auto n = turns.size();
  if (!facts.prompt && n > 0) {
    s.cost.observe(facts.rows, facts.verify_seconds + facts.host_seconds);
    if (s.rates.size() <= n) s.rates.resize(n + 1);
    Rate& r = s.rates[n];
    r.tokens = kKeepRate * r.tokens + static_cast<double>(n) + s.expected;
    const double time = s.cost.ratio(facts.rows) + s.draft_seconds / s.cost.level();
    r.time = kKeepRate * r.time + time;
    for (Known& k : s.known) k.saved += kLearn * time;
    s.saved = static_cast<size_t>(facts.rows) == n ? 0 : s.saved + kLearn * time;
  }
  SpecStats round;
  for (const Turn& t : turns) {
    SpecSession::Impl& session = t.session->impl();
    SpecStats own;
    s.count(t, facts, own);
    session.stats.add(own);
    own.draft_seconds = own.verify_seconds = own.sample_seconds = 0;
    round.add(own);
    for (Guest& guest : session.guests) guest.acceptance.fade();
    if (s.synthetic() && t.drafter >= 0)  // only what was verified has a truth
      session.guests[static_cast<size_t>(t.drafter)].open = {
          Open{t.draft, t.history->tokens().size() - static_cast<size_t>(t.emitted)}};
    s.resolve(session, t.history->tokens());
    if (s.synthetic())
      for (Guest& guest : session.guests) guest.open.clear();
  }
  round.draft_seconds = s.draft_seconds;
  round.verify_seconds = facts.verify_seconds;
  round.sample_seconds = facts.sample_seconds;
  s.totals.add(round);
}

SpecSession::SpecSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SpecSession::~SpecSession() = default;
const SpecStats& SpecSession::stats() const { return impl_->stats; }

void SpecSession::committed(const CommittedRows& rows) {
  std::vector<const float*> taps;
  for (size_t d = 0; d < impl_->guests.size(); ++d) {
    const Known& k = (*impl_->known)[d];
    CommittedRows own = rows;
    own.taps = {};
    if (!k.taps.empty() && !rows.taps.empty()) {
      taps.clear();
      for (size_t row = 0; row < rows.token.size(); ++row)
        for (const size_t at : k.taps) taps.push_back(rows.taps[row * impl_->all_taps + at]);
      own.taps = taps;
    }
    impl_->guests[d].session->committed(own);
  }
}

}  // namespace carat
