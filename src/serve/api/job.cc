#include "serve/api/job.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "serve/api/constrain.h"
#include "serve/api/mask_work.h"
#include "serve/api/step_trace.h"
#include "serve/http/workers.h"
#include "serve/spec_report.h"

namespace carat {
namespace {

constexpr std::chrono::milliseconds kLookForClient{
    100};  // how often to see whether the client is still there

std::string id_of(std::string prefix, const std::string& asked) {
  if (asked.starts_with(prefix)) return asked;
  return std::move(prefix) + (asked.empty() ? random_id(24) : asked);
}

double seconds(Job::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

std::string random_id(size_t length) {
  static constexpr std::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::random_device device;
  std::string id;
  while (id.size() < length) id += kLetters[device() % kLetters.size()];
  return id;
}

std::string why_failed(const Choice& c) {
  return c.hint.empty() ? c.error : fmt::format("{} ({})", c.error, c.hint);
}

const char* Choice::finish_reason() const {
  switch (finish) {
    case Finish::none: return nullptr;
    case Finish::length: return "length";
    case Finish::stop: return !tools.empty() && !by_stop_string && by_stop_token < 0 ? "tool_calls" : "stop";
    case Finish::cancelled: return "abort";
    case Finish::error: return "error";
  }
  return nullptr;
}

Json Choice::prompt_progress() const {
  return {{"total", prompt.size()},
          {"cache", cached},
          {"processed", read},
          {"time_ms", static_cast<int64_t>(1e3 * seconds(last - started))}};
}

Json Choice::stop_reason() const {
  if (by_stop_string) return stop.matched();
  return by_stop_token >= 0 ? Json(by_stop_token) : Json();
}

Job::Job(const ServedModel& model, Metrics& metrics, std::string id_prefix, GenerateOptions options,
         double stuck_seconds)
    : model_(model),
      metrics_(metrics),
      id_(id_of(std::move(id_prefix), options.id)),
      created_(std::time(nullptr)),
      options_(std::move(options)),
      stuck_seconds_(stuck_seconds) {}

Job::~Job() {
  for (size_t i = 0; i < counted_.size(); ++i)
    if (!counted_[i]) count(choices_[i], "abort");
}

Choice& Job::add(std::vector<Token> prompt) {
  Choice& c = choices_.emplace_back();
  c.prompt = std::move(prompt);
  c.stop = StopFilter(options_.stop, options_.wishes.include_stop);
  if (options_.include_steps) c.trace = std::make_shared<StepTrace>();
  return c;
}

void Job::submit(bool prompt_logprobs) {
  generation_ = std::make_unique<Generation>(model_.engine);
  open_ = choices_.size();
  if (options_.include_steps && metrics_.joules)
    joules_before_ = metrics_.joules(), tokens_before_ = model_.engine.stats().generated_tokens;
  const Wishes& wishes = options_.wishes;
  // A grammar's end is the end.
  std::vector<Token> ends;
  if (!options_.ignore_eos || options_.grammar) {
    ends = model_.tokenizer.data().end_of_generation;
    ends.insert(ends.end(), options_.further_ends.begin(), options_.further_ends.end());
  }
  ends.insert(ends.end(), wishes.stop_token_ids.begin(), wishes.stop_token_ids.end());
  std::shared_ptr<const DryBreakers> breakers;
  if (options_.sample.dry_multiplier != 0) breakers = find_breakers(model_.tokenizer, wishes.dry_breakers);
  for (size_t i = 0; i < choices_.size(); ++i) {
    Request r;
    r.prompt = choices_[i].prompt;
    r.shared = choices_[i].shared;
    r.soft = choices_[i].soft;
    r.sample = options_.sample;
    r.sample.seed += i % static_cast<size_t>(options_.n);  // choices of one prompt differ, the whole repeats
    r.max_tokens = options_.max_tokens;
    r.salt = options_.salt;
    r.priority = options_.priority;
    r.slot = options_.slot;
    r.stop_tokens = ends;
    r.sample.dry_breakers = breakers;
    for (const auto& [text, bias] : wishes.text_bias)
      for (const Token t : model_.tokenizer.encode(text, false)) r.sample.logit_bias.emplace_back(t, bias);
    if (options_.grammar) choices_[i].mask = make_mask(options_.grammar);
    r.mask = restricted(choices_[i].mask, wishes, ends, options_.thought ? &*options_.thought : nullptr,
                        model_.tokenizer);
    r.logprobs = options_.logprobs;
    r.speculate = options_.speculate;
    r.prompt_logprobs = prompt_logprobs;
    generation_->submit(std::move(r));
    choices_[i].live = metrics_.begin(id_, static_cast<int64_t>(choices_[i].prompt.size()));
    counted_.push_back(false);
  }
}

bool Job::run(const std::function<bool()>& gone, const OnChange& on_change) {
  const Workers::Waits waits;
  auto look_at = Clock::now() + kLookForClient;
  for (bool going = open_ > 0; going;) {
    if (Clock::now() >= look_at) {
      if (!look(gone, on_change)) break;
      look_at = Clock::now() + kLookForClient;
    }
    Generation::Item item;
    if (generation_->next(item, kLookForClient)) going = hand_over(item, on_change) && open_ > 0;
  }
  generation_.reset();
  return open_ == 0;
}

std::optional<bool> Job::step(const std::function<bool()>& gone, const OnChange& on_change) {
  bool going = open_ > 0 && look(gone, on_change);
  Generation::Item item;
  while (going && generation_->next(item, std::chrono::milliseconds(0)))
    going = hand_over(item, on_change) && open_ > 0;
  if (going) return {};
  generation_.reset();
  return open_ == 0;
}

HttpStream::Pause Job::more() {
  return {[this](std::function<void()> wake) { generation_->on_event(std::move(wake)); }};
}

bool Job::look(const std::function<bool()>& gone, const OnChange& on_change) {
  if (gone()) return false;
  const double step = model_.engine.stats().step_seconds;
  if (step <= stuck_seconds_) return true;
  fail_stuck(step, on_change);
  open_ = 0;
  return false;
}

bool Job::hand_over(const Generation::Item& item, const OnChange& on_change) {
  Choice& c = choices_[static_cast<size_t>(item.choice)];
  if (c.finish != Finish::none) return true;  // it met a stop string; the engine heard of it later
  if (!take(c, item)) return true;
  if (c.finish != Finish::none) {
    --open_;
    count(c, c.finish_reason());
    c.live.reset();
    counted_[static_cast<size_t>(item.choice)] = true;
  }
  return on_change(item.choice);
}

// The engine's thread is gone or hangs in the device: nobody else can tell those who wait.
void Job::fail_stuck(double step_seconds, const OnChange& on_change) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& c = choices_[i];
    if (counted_[i]) continue;
    c.finish = Finish::error;
    c.error = fmt::format("the engine is stuck: one step takes {:.0f} s already", step_seconds);
    c.last = Clock::now();
    count(c, "error");
    counted_[i] = true;
    on_change(static_cast<int>(i));
  }
}

// Whether anything changed.
bool Job::take(Choice& c, const Generation::Item& item) {
  const Event& e = item.event;
  if (c.started == Clock::time_point{}) c.started = item.at;
  if (e.slot >= 0) c.slot = e.slot;
  if (c.live) c.live->slot = c.slot, c.live->running = true;
  if (c.generated > 0) metrics_.tokens(static_cast<int64_t>(e.tokens.size()), seconds(item.at - c.said));
  if (!e.tokens.empty()) c.said = item.at;
  c.last = item.at;
  if (e.spec) c.spec = e.spec;
  if (c.trace) c.trace->add(e, [&](Token t) { return model_.tokenizer.piece(t); });
  c.cached = std::max<int64_t>(c.cached, e.cached);
  if (options_.progress && c.generated == 0 && e.prompt_done > c.read) {
    c.read = e.prompt_done;
    c.progress_fresh = true;
  }
  if (!e.prompt_logprobs.empty()) c.prompt_logprobs = e.prompt_logprobs;
  if (!e.tokens.empty() && c.generated == 0) c.first = item.at;
  // A token at a time: what a draft brought behind a stop string was never said.
  for (size_t i = 0; i < e.tokens.size() && !c.stop.stopped(); ++i) {
    const Token t = e.tokens[i];
    ++c.generated;
    if (e.finish == Finish::stop && i + 1 == e.tokens.size()) {  // the end token is no content
      c.end_token = t;
      add_stop_token(c, t);
      break;
    }
    c.tokens.push_back(t);
    if (i < e.logprobs.size()) c.reports.push_back({model_.tokenizer.piece(t), e.logprobs[i]});
    const size_t thinking = c.thinking.size();
    take_token(c, t);
    c.thought += c.thinking.size() > thinking;
  }
  if (c.live) c.live->generated_tokens = c.generated;
  if (e.finish != Finish::none && !c.stop.stopped())
    take_end(c, e.finish != Finish::stop || c.by_stop_token >= 0);
  if (c.stop.stopped()) {
    c.finish = Finish::stop;
    c.by_stop_string = true;
    if (e.finish == Finish::none) generation_->cancel(item.choice);
    return true;
  }
  if (e.finish == Finish::none && ended_early(c)) {
    c.finish = Finish::length;
    generation_->cancel(item.choice);
    return true;
  }
  c.finish = e.finish;
  c.error = e.error;
  c.hint = e.hint;
  // A grammar that is too much is no fault of ours, and asking again would not help.
  if (c.finish == Finish::error && c.mask && mask_failed(*c.mask)) c.status = 400;
  return c.finish != Finish::none || !c.fresh.empty() || c.progress_fresh;
}

// Limits that look at lines: what is behind a line that has too little white space in front is cut off.
bool Job::ended_early(Choice& c) {
  const size_t line = c.content.rfind('\n');
  if (line == std::string::npos) return false;
  if (options_.max_predict_ms > 0 && 1e3 * seconds(c.last - c.first) > options_.max_predict_ms) return true;
  if (options_.indent == 0) return false;
  const size_t text = c.content.find_first_not_of(" \t", line + 1);
  if (text == std::string::npos || text - line - 1 >= static_cast<size_t>(options_.indent)) return false;
  c.content.resize(line);
  return true;
}

// A stop token of the request's own ends what was not finished.
void Job::add_stop_token(Choice& c, Token token) {
  const std::vector<Token>& own = options_.wishes.stop_token_ids;
  if (model_.tokenizer.is_end(token) || std::find(own.begin(), own.end(), token) == own.end()) return;
  c.by_stop_token = token;
  if (options_.wishes.include_stop) take_token(c, token);
}

// What the model said as a token of its own may be a tag; text that spells the same is text.
void Job::take_token(Choice& c, Token token) {
  const bool mark = c.parser && model_.tokenizer.is_mark(token);
  std::string text = model_.tokenizer.decode({&token, 1}, c.special);
  if (text.empty()) return;
  if (!c.parser) return add_delta(c, {ChatDelta::Kind::content, c.utf8.push(text), 0});
  for (ChatDelta& d : mark ? c.parser->push_mark(text) : c.parser->push(text)) add_delta(c, std::move(d));
}

void Job::take_end(Choice& c, bool cut) {
  if (!c.parser) {
    add_delta(c, {ChatDelta::Kind::content, c.utf8.finish(), 0});
  } else {
    for (ChatDelta& d : c.parser->finish(cut)) add_delta(c, std::move(d));
  }
  const std::string held = c.stop.finish();
  c.content += held;
  if (!held.empty()) c.fresh.push_back({ChatDelta::Kind::content, held, 0});
}

// Stop strings are looked for in content only: not in thoughts, not in tool calls.
void Job::add_delta(Choice& c, ChatDelta d) {
  if (c.stop.stopped()) return;
  if (d.kind != ChatDelta::Kind::content && !d.text.empty()) {  // no stop string goes on behind it
    const std::string held = c.stop.finish();
    c.content += held;
    if (!held.empty()) c.fresh.push_back({ChatDelta::Kind::content, held, 0});
  }
  switch (d.kind) {
    case ChatDelta::Kind::content:
      if (c.generated > options_.wishes.min_tokens) d.text = c.stop.push(d.text);
      c.content += d.text;
      break;
    case ChatDelta::Kind::thinking:
      c.thinking += d.text;
      if (!options_.wishes.include_reasoning) return;
      break;
    case ChatDelta::Kind::tool_end: c.tools.at(static_cast<size_t>(d.index)).whole = true; break;
    case ChatDelta::Kind::tool_name:
    case ChatDelta::Kind::tool_arguments: {
      const auto at = static_cast<size_t>(d.index);
      CARAT_CHECK(at <= c.tools.size(), "tool call {} behind {}", d.index, c.tools.size());
      if (at == c.tools.size()) c.tools.push_back({"call_" + random_id(24), {}, {}});
      ToolCall& call = c.tools[at];
      (d.kind == ChatDelta::Kind::tool_name ? call.name : call.arguments) += d.text;
      break;
    }
  }
  if (!d.text.empty()) c.fresh.push_back(std::move(d));
}

void Job::count(const Choice& c, const char* reason) {
  RequestFacts f;
  f.reason = reason;
  f.prompt_tokens = static_cast<int64_t>(c.prompt.size());
  f.generated_tokens = c.generated;
  const auto end = c.finish == Finish::none ? Clock::now() : c.last;
  f.total = seconds(end - began_);
  f.queue = c.started == Clock::time_point{} ? f.total : seconds(c.started - began_);
  f.first_token = c.generated ? seconds(c.first - began_) : 0;
  f.last_token = c.generated ? seconds(c.said - began_) : 0;
  f.cached_tokens = c.cached;
  f.max_tokens = options_.max_tokens >= 0
                     ? options_.max_tokens
                     : model_.engine.config().context - static_cast<int64_t>(c.prompt.size());
  metrics_.finished(f);
  if (++ended_ < choices_.size()) return;
  int64_t most = 0;
  for (const Choice& any : choices_) most = std::max(most, any.generated);
  metrics_.all_finished(options_.n, most);
}

Json Job::usage() const {
  int64_t prompt = 0, generated = 0, cached = 0, thought = 0, images = 0, sounds = 0, frames = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    thought += choices_[i].thought;
    if (i % static_cast<size_t>(options_.n) == 0) {
      prompt += static_cast<int64_t>(choices_[i].prompt.size());
      cached += choices_[i].cached;
      for (const SoftRows& s : choices_[i].soft) (s.heard ? sounds : s.filmed ? frames : images) += s.rows;
    }
    generated += choices_[i].generated;
  }
  Json of_prompt = {{"cached_tokens", cached}};
  if (images > 0) of_prompt["image_tokens"] = images;
  if (sounds > 0) of_prompt["audio_tokens"] = sounds;
  if (frames > 0) of_prompt["video_tokens"] = frames;
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", std::move(of_prompt)},
          {"completion_tokens_details", {{"reasoning_tokens", thought}}}};
}

double Job::elapsed() const { return seconds(Clock::now() - began_); }

// What the machine drew while this ran, for those who ask for steps; and by each of the tokens that all
// requests got meanwhile.
void Job::add_energy(Json& timings, int64_t generated) const {
  if (!options_.include_steps || !metrics_.joules) return;
  const double joules = metrics_.joules() - joules_before_;
  const uint64_t own = static_cast<uint64_t>(generated),  // which the engine's figure may lag behind
      tokens = std::max(own, model_.engine.stats().generated_tokens - tokens_before_);
  timings["energy_j"] = joules;
  if (tokens > 0) timings["energy_j_per_token"] = joules / static_cast<double>(tokens);
}

// llama.cpp's names. Reading the prompt ends with the first token, which is therefore not among those timed
// after it.
Json Job::timings() const {
  int64_t prompt = 0, generated = 0, cached = 0;
  double read = 0, wrote = 0;
  for (const Choice& c : choices_) {
    prompt += static_cast<int64_t>(c.prompt.size()) - c.cached;
    cached += c.cached;
    generated += c.generated;
    const auto first = c.generated ? c.first : c.last;
    read = std::max(read, 1e3 * seconds(first - c.started));
    wrote = std::max(wrote, 1e3 * seconds(c.last - first));
  }
  const int64_t timed = std::max<int64_t>(0, generated - static_cast<int64_t>(choices_.size()));
  const auto per = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  Json t = {{"cache_n", cached},
            {"prompt_n", prompt},
            {"prompt_ms", read},
            {"prompt_per_token_ms", per(read, static_cast<double>(prompt))},
            {"prompt_per_second", per(1e3 * static_cast<double>(prompt), read)},
            {"predicted_n", generated},
            {"predicted_ms", wrote},
            {"predicted_per_token_ms", per(wrote, static_cast<double>(timed))},
            {"predicted_per_second", per(1e3 * static_cast<double>(timed), wrote)}};
  add_energy(t, generated);
  SpecStats spec;
  bool speculated = false;
  for (const Choice& c : choices_)
    if (c.spec) spec.add(*c.spec), speculated = true;
  if (!speculated) return t;
  t["draft_n"] = spec.drafted;
  t["draft_n_accepted"] = spec.accepted;
  t["speculation"] = spec_json(spec, !model_.engine.config().spec.synthetic.empty());
  return t;
}

}  // namespace carat
