// The loop: take what came, admit, run a step (round.h), tell. The mutex guards what other threads touch
// (waiting, cancels, stats); running sequences belong to the loop alone.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/prefix/kept_texts.h"
#include "engine/round.h"
#include "engine/setup.h"

namespace carat {
namespace {

constexpr std::chrono::milliseconds kIdleBeforeSaving{1000};
constexpr std::chrono::seconds kPatience{120};

struct Waiting {
  uint64_t id = 0;
  Request request;
};

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void send(const Request& request, const Event& event) {
  try {
    request.sink(event);
  } catch (const std::exception& e) {
    log_error("a request's receiver failed: {}", e.what());
  }
}

Event ended(Finish finish, int32_t prompt_done) {
  Event e;
  e.prompt_done = prompt_done;
  e.finish = finish;
  return e;
}

Event begun(const Running& r) {
  Event e;
  e.prompt_done = r.prompt_done;
  e.cached = r.cached;
  e.slot = r.slot;
  return e;
}

std::shared_ptr<Speculator> speculator_of(const EngineConfig& c) {
  return c.drafters.empty() ? nullptr : std::make_shared<Speculator>(c.drafters, c.spec);
}

Listen listen_of(const Speculator* s) {
  Listen l;
  if (!s) return l;
  l.taps.assign(s->taps().begin(), s->taps().end());
  l.hidden_all = s->wants_hidden();
  return l;
}

}  // namespace

struct Engine::Impl {
  Impl(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> m, const EngineConfig& c)
      : config(resolve(c, m->spec, !c.drafters.empty(), backend->info(), allowed_by(*backend))),
        model(std::move(m)),
        spec(speculator_of(config)),
        stepper(backend, model, pool_limits(config, model->spec, spec != nullptr), formats_of(config),
                listen_of(spec.get())),
        rounds(stepper, spec.get(), config),
        texts(backend, stepper, *model, config) {
    // The largest step that is not a special wish, so that what does not fit fails here and not under load.
    stepper.prepare(limits_of(config, spec != nullptr).step_rows,
                    spec ? std::max(config.sequences, config.spec.max_rows) : config.sequences);
    if (spec) spec->attach({std::move(backend), model, &stepper.kv()});
    rounds.profile();
    publish();
    thread = std::thread([this] { loop(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_one();
    thread.join();
  }

  uint64_t submit(Request request);
  void cancel(uint64_t id);
  void check(const Request& request) const;

  void loop();
  std::vector<std::unique_ptr<Running>> take_out(std::vector<Waiting>& cancelled);
  void end_cancelled(std::vector<std::unique_ptr<Running>> gone, std::vector<Waiting>& cancelled);
  void take_in();
  bool has_room(int32_t tokens);
  void admit(std::unique_ptr<Running> r);
  void make_room();
  void step();
  void start(Running& r);
  void begin(Running& r);
  SlotResult wish(std::function<SlotResult()> what);
  SlotResult wish_of_texts(const std::function<SlotResult(KeptTexts&)>& what);
  void speculate(std::shared_ptr<Speculator> s);
  void fail_all(const std::exception& e);
  void collect();
  void tell();
  void end_everything();
  void publish();

  const EngineConfig config;
  const std::shared_ptr<const Model> model;
  std::shared_ptr<Speculator> spec;  // outlives the sessions
  Stepper stepper;
  Rounds rounds;
  KeptTexts texts;

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<Waiting> waiting;                           // guarded
  std::vector<uint64_t> cancels;                         // guarded
  std::vector<std::packaged_task<SlotResult()>> wishes;  // guarded: for the engine's thread, between steps
  EngineStats shown;                                     // guarded
  int64_t memory = 0;                                    // guarded
  uint64_t last_id = 0;                                  // guarded
  std::string broken;                                    // guarded: why the device is gone
  bool stop = false;                                     // guarded
  std::atomic<int64_t> step_began{0};                    // ticks of the steady clock; 0: no step runs

  // The loop's own. In order of precedence: priority, then age.
  std::vector<std::unique_ptr<Running>> running;
  std::vector<std::unique_ptr<Running>> paused;  // without a sequence, until there are pages again
  // What requests are yet to hear of the last step; of those that ended all that is left.
  std::vector<std::pair<const Request*, Event>> events;
  std::vector<std::pair<Request, Event>> last_events;
  EngineStats stats;
  std::thread thread;
};

void Engine::Impl::check(const Request& r) const {
  CARAT_CHECK(r.sink, "a request needs a sink");
  if (r.prompt.empty()) throw Error("the prompt is empty", "it needs at least one token");
  if (r.prompt.size() > static_cast<size_t>(config.context))
    throw Error(
        fmt::format("the prompt has {} tokens, the context holds {}", r.prompt.size(), config.context),
        "shorten the prompt or start with a larger context (-c)");
  const auto in_vocab = [&](Token t) { return t >= 0 && t < model->spec.vocab; };
  for (const Token t : r.prompt)
    if (!in_vocab(t))
      throw Error(fmt::format("token {} of the prompt is not in the vocabulary of {}", t, model->spec.vocab));
  check_soft(r.soft, r.prompt.size(), model->spec.dim);
  if (!r.soft.empty() && !stepper.backend().takes_soft_rows())
    throw Error(fmt::format("{} takes no pictures yet", stepper.backend().info().name),
                "start with --device cpu for them");
  if (!r.soft.empty() && r.prompt_logprobs)
    throw Error("a prompt with pictures or sounds has no log probabilities of its own",
                "ask for those of the answer");
  for (const SoftRows& s : r.soft)
    if (model->spec.blocks && s.rows > config.prefill_chunk)
      throw Error(
          fmt::format("a picture of {} tokens, but a step reads {} at most", s.rows, config.prefill_chunk),
          "ask for a smaller picture, or start with a larger -b");
  check_params(r.sample);
  for (const auto& [token, bias] : r.sample.logit_bias)
    if (!in_vocab(token))
      throw Error(
          fmt::format("logit_bias: token {} is not in the vocabulary of {}", token, model->spec.vocab));
  if (r.max_tokens < -1) throw Error(fmt::format("max_tokens is {}", r.max_tokens), "use -1 for no limit");
  if (r.slot < -1 || r.slot >= config.sequences)
    throw Error(fmt::format("id_slot: there is no slot {}", r.slot),
                fmt::format("choose one from 0 to {}, or -1 for any", config.sequences - 1));
  if (r.logprobs < -1 || r.logprobs > model->spec.vocab)
    throw Error(fmt::format("logprobs is {}", r.logprobs), "use -1 for none");
}

uint64_t Engine::Impl::submit(Request request) {
  check(request);
  for (SoftRows& s : request.soft) s.whole = model->spec.blocks;
  // Before anything else, for drafters too.
  for (const Token t : model->suppressed)
    request.sample.logit_bias.emplace_back(t, -std::numeric_limits<float>::infinity());
  const std::lock_guard lock(mutex);
  if (!broken.empty()) throw Unavailable("the device has failed: " + broken, "restart the server");
  if (waiting.size() >= config.max_queue)
    throw QueueFull(fmt::format("{} requests are waiting already", waiting.size()), "try again later");
  const auto before = [](int32_t priority, const Waiting& w) { return priority < w.request.priority; };
  waiting.insert(std::upper_bound(waiting.begin(), waiting.end(), request.priority, before),
                 {++last_id, std::move(request)});
  wake.notify_one();
  return last_id;
}

void Engine::Impl::cancel(uint64_t id) {
  const std::lock_guard lock(mutex);
  cancels.push_back(id);
  wake.notify_one();
}

void Engine::Impl::loop() {
  for (;;) {
    if (running.empty()) tell();
    std::vector<Waiting> cancelled;
    std::vector<std::unique_ptr<Running>> gone;
    std::vector<std::packaged_task<SlotResult()>> tasks;
    bool idle = false;
    {
      std::unique_lock lock(mutex);
      const auto busy = [&] {
        return stop || !cancels.empty() || !waiting.empty() || !running.empty() || !paused.empty() ||
               !wishes.empty();
      };
      if (!texts.unsaved())
        wake.wait(lock, busy);
      else if (!wake.wait_for(lock, kIdleBeforeSaving, busy))
        idle = true;
      if (stop) break;
      gone = take_out(cancelled);
      tasks.swap(wishes);
    }
    if (!gone.empty() || !tasks.empty()) tell();
    for (auto& task : tasks) task();
    if (idle) texts.save_newest();
    for (const auto& r : gone) texts.keep_end(*r);
    end_cancelled(std::move(gone), cancelled);
    take_in();
    publish();
    texts.tell_changes(running.empty());
    for (const auto& r : running)
      if (!r->sequence) start(*r);
    if (std::any_of(running.begin(), running.end(), [](const auto& r) { return r->tell; })) collect();
    if (running.empty()) continue;
    step();
    texts.keep_along(running);
    collect();
    texts.tell_changes(running.empty());
  }
  end_everything();
  while (texts.unsaved()) texts.save_newest();
}

// Under the mutex: cancelled requests out.
std::vector<std::unique_ptr<Running>> Engine::Impl::take_out(std::vector<Waiting>& cancelled) {
  std::vector<std::unique_ptr<Running>> gone;
  for (const uint64_t id : std::exchange(cancels, {})) {
    for (auto* list : {&running, &paused})
      for (auto& r : *list)
        if (r && r->id == id) gone.push_back(std::move(r));
    std::erase(running, nullptr);
    std::erase(paused, nullptr);
    const auto is_it = [id](const Waiting& w) { return w.id == id; };
    if (const auto w = std::find_if(waiting.begin(), waiting.end(), is_it); w != waiting.end()) {
      cancelled.push_back(std::move(*w));
      waiting.erase(w);
    }
  }
  return gone;
}

void Engine::Impl::end_cancelled(std::vector<std::unique_ptr<Running>> gone,
                                 std::vector<Waiting>& cancelled) {
  for (auto& r : gone) {
    Event event = ended(Finish::cancelled, 0);
    if (r->spec || r->spec_before.rounds) event.spec = std::make_shared<SpecStats>(r->spec_stats());
    const Request request = std::move(r->request);
    r.reset();
    publish();
    send(request, event);
  }
  for (const Waiting& w : cancelled) send(w.request, ended(Finish::cancelled, 0));
}

// Whether there are pages to read this far, and one more for everybody who runs: else it would soon be paused
// again.
bool Engine::Impl::has_room(int32_t tokens) {
  if (running.empty()) return true;  // a whole context always fits
  const PagePool& pages = stepper.pages();
  PageCount need = pages.pages_of(tokens + 1);
  for (const auto& r : running)
    need += r->sequence ? r->sequence->pages_for(pages.limits().page_tokens) : pages.pages_of(1);
  return need.fits(pages.room());
}

// The paused first, then those that wait, in order; nobody overtakes.
void Engine::Impl::take_in() {
  while (!paused.empty() && has_room(paused.front()->read_until)) {
    admit(std::move(paused.front()));
    paused.erase(paused.begin());
  }
  const std::lock_guard lock(mutex);
  while (paused.empty() && !waiting.empty() && running.size() < static_cast<size_t>(config.sequences) &&
         has_room(static_cast<int32_t>(waiting.front().request.prompt.size()))) {
    Waiting w = std::move(waiting.front());
    waiting.pop_front();
    admit(std::make_unique<Running>(w.id, std::move(w.request)));
    ++stats.requests;
  }
}

// Among those that run, in order of precedence.
void Engine::Impl::admit(std::unique_ptr<Running> r) {
  const auto before = [](const auto& a, const auto& b) {
    return std::pair(a->request.priority, a->id) < std::pair(b->request.priority, b->id);
  };
  running.insert(std::upper_bound(running.begin(), running.end(), r, before), std::move(r));
}

// Sees that everybody has the page of his next row. Who comes last in precedence gives up his pages, and
// reads again when there is room: what the prefix cache still has of him he need not read.
void Engine::Impl::make_room() {
  for (;;) {
    PageCount need;
    for (const auto& r : running) need += r->sequence->pages_for(r->least_rows());
    if (need.fits(stepper.pages().room())) return;
    CARAT_CHECK(running.size() > 1, "{} pages and {} of rings are missing", need.paged, need.ring);
    std::unique_ptr<Running> r = std::move(running.back());
    running.pop_back();
    texts.keep(*r);
    r->let_go();
    ++stats.preemptions;
    paused.insert(paused.begin(), std::move(r));
  }
}

void Engine::Impl::start(Running& r) {
  try {
    begin(r);
  } catch (const std::exception& e) {
    fail(r.event, e);
    r.tell = true;
  }
}

// From a file, or from what others have read.
void Engine::Impl::begin(Running& r) {
  r.sequence.emplace(stepper.pages());
  const bool first = !std::exchange(r.greeted, true);
  if (first) r.slot = texts.slot_for(r, running, paused);
  texts.begin(r, first);
  if (first && !r.tell) send(r.request, begun(r));
}

// Done by the engine's thread, between steps.
SlotResult Engine::Impl::wish(std::function<SlotResult()> what) {
  std::packaged_task<SlotResult()> task(std::move(what));
  std::future<SlotResult> done = task.get_future();
  {
    const std::lock_guard lock(mutex);
    if (!broken.empty()) throw Unavailable("the device has failed: " + broken, "restart the server");
    wishes.push_back(std::move(task));
  }
  wake.notify_one();
  try {
    if (done.wait_for(kPatience) == std::future_status::ready) return done.get();
  } catch (const std::future_error&) {
    throw Unavailable("the server is ending");
  }
  throw Unavailable("the engine is busy", "try again later");
}

SlotResult Engine::Impl::wish_of_texts(const std::function<SlotResult(KeptTexts&)>& what) {
  if (!texts.on()) throw Error("slots keep nothing without a prefix cache", "leave out --no-prefix-cache");
  return wish([this, what] { return what(texts); });
}

void Engine::Impl::speculate(std::shared_ptr<Speculator> s) {
  if (s && (config.drafters.empty() || s->config().max_rows > config.spec.max_rows))
    throw Error("the engine was not made for such drafts");
  wish([this, s] {
    const std::lock_guard lock(mutex);
    if (!running.empty() || !paused.empty() || !waiting.empty()) throw Error("requests run");
    spec = s;
    rounds.use(spec.get());
    return SlotResult{};
  });
}

void Engine::Impl::step() {
  const auto began = std::chrono::steady_clock::now();
  step_began = began.time_since_epoch().count();
  struct Ended {
    std::atomic<int64_t>& began;
    ~Ended() { began = 0; }
  } const ended_{step_began};
  try {
    make_room();
    // While the device computes, the step before is told of; where the host computes, there is no such time.
    if (stepper.backend().host_memory()) tell();
    const bool runs = rounds.begin(running, stats);
    tell();
    if (runs) rounds.end(stats);
  } catch (const std::exception& e) {
    fail_all(e);
    return;
  }
  ++stats.steps;
  stats.busy_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  stats.last_step_unix = unix_time();
}

// The step itself failed: nobody's state can be trusted.
void Engine::Impl::fail_all(const std::exception& e) {
  log_error("a step failed: {}", e.what());
  for (const auto& r : running) {
    r->event = ended(Finish::error, r->prompt_done);
    fail(r->event, e);
    r->tell = true;
  }
  if (!dynamic_cast<const DeviceError*>(&e)) return;
  for (auto& r : paused) running.push_back(std::move(r));
  paused.clear();
  for (const auto& r : running) {
    fail(r->event, e);
    r->tell = true;
  }
  std::deque<Waiting> left;
  {
    const std::lock_guard lock(mutex);
    broken = e.what();
    left.swap(waiting);
  }
  for (const Waiting& w : left) {
    Event event;
    fail(event, e);
    send(w.request, event);
  }
}

// Gathers what there is to tell. What ended is freed before its request is told, so that a client which hears
// of the end may count on the room.
void Engine::Impl::collect() {
  tell();
  for (auto& r : running) {
    if (!std::exchange(r->tell, false)) continue;
    Event event = std::exchange(r->event, {});
    if (r->spec || r->spec_before.rounds) event.spec = std::make_shared<SpecStats>(r->spec_stats());
    if (event.finish != Finish::none) {
      texts.save_state(*r, event);
      if (event.finish != Finish::error) texts.keep_end(*r);
      last_events.emplace_back(std::move(r->request), std::move(event));
      r.reset();
    } else {
      events.emplace_back(&r->request, std::move(event));
    }
  }
  std::erase(running, nullptr);
  publish();
}

void Engine::Impl::tell() {
  for (const auto& [request, event] : events) send(*request, event);
  for (const auto& [request, event] : last_events) send(request, event);
  events.clear();
  last_events.clear();
}

void Engine::Impl::end_everything() {
  tell();
  std::vector<Request> left;
  for (const auto& r : running) texts.keep_end(*r);
  for (auto* list : {&running, &paused}) {
    for (auto& r : *list) left.push_back(std::move(r->request));
    list->clear();
  }
  {
    const std::lock_guard lock(mutex);
    for (Waiting& w : waiting) left.push_back(std::move(w.request));
    waiting.clear();
  }
  publish();
  for (const Request& r : left) send(r, ended(Finish::cancelled, 0));
}

void Engine::Impl::publish() {
  stats.running = static_cast<int32_t>(running.size());
  stats.paused = static_cast<int32_t>(paused.size());
  const PagePool& pages = stepper.pages();
  stats.kv_pages_total = pages.total_pages();
  stats.kv_pages_used = pages.total_pages() - pages.free_pages() - pages.idle_pages();
  stats.prefix = texts.stats();
  stats.device_seconds = stepper.backend().device_seconds();
  const int64_t bytes = stepper.memory_bytes() + texts.memory_bytes() + (spec ? spec->memory_bytes() : 0);
  const std::lock_guard lock(mutex);
  shown = stats;
  memory = bytes;
}

Engine::Engine(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> model,
               const EngineConfig& config)
    : impl_(std::make_unique<Impl>(std::move(backend), std::move(model), config)) {}
Engine::~Engine() = default;
uint64_t Engine::submit(Request request) { return impl_->submit(std::move(request)); }
void Engine::cancel(uint64_t id) { impl_->cancel(id); }
SlotResult Engine::save_slot(int32_t slot, const std::string& path) {
  return impl_->wish_of_texts([slot, path](KeptTexts& t) { return t.save_slot(slot, path); });
}
SlotResult Engine::restore_slot(int32_t slot, const std::string& path) {
  return impl_->wish_of_texts([slot, path](KeptTexts& t) { return t.restore_slot(slot, path); });
}
SlotResult Engine::erase_slot(int32_t slot) {
  return impl_->wish_of_texts([slot](KeptTexts& t) { return t.erase_slot(slot); });
}
void Engine::speculate(std::shared_ptr<Speculator> s) { impl_->speculate(std::move(s)); }
const EngineConfig& Engine::config() const { return impl_->config; }
EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStats s = impl_->shown;
  s.waiting = static_cast<int32_t>(impl_->waiting.size()) + s.paused;
  s.failed = !impl_->broken.empty();
  using Clock = std::chrono::steady_clock;
  if (const int64_t began = impl_->step_began)
    s.step_seconds =
        std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(began)).count();
  return s;
}
int64_t Engine::memory_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->memory;
}

}  // namespace carat
