#include "apps/generate.h"

#include <csignal>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace carat {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) {
  if (g_interrupted.exchange(true)) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
}

struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Event> events;
};

}  // namespace

Generated generate(Engine& engine, Request request, const std::function<void(const Event&)>& on_event,
                   const std::atomic<bool>* stop) {
  using Clock = std::chrono::steady_clock;
  const auto box = std::make_shared<Mailbox>();
  request.sink = [box](const Event& e) {
    const std::lock_guard lock(box->mutex);
    box->events.push_back(e);
    box->changed.notify_one();
  };
  Generated result;
  result.prompt_tokens = request.prompt.size();
  const auto began = Clock::now();
  auto first = began;
  bool cancelled = false;
  const uint64_t id = engine.submit(std::move(request));
  while (result.finish == Finish::none) {
    Event e;
    bool came = false;
    {
      std::unique_lock lock(box->mutex);
      // A timeout, since a signal handler may set the flag but not notify.
      box->changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return !box->events.empty(); });
      came = !box->events.empty();
      if (came) {
        e = std::move(box->events.front());
        box->events.pop_front();
      }
    }
    if (stop && *stop && !cancelled) {
      engine.cancel(id);
      cancelled = true;
    }
    if (!e.tokens.empty() && result.tokens.empty()) first = Clock::now();
    result.tokens.insert(result.tokens.end(), e.tokens.begin(), e.tokens.end());
    result.finish = e.finish;
    if (e.spec) result.spec = e.spec;
    if (e.finish == Finish::error) throw Error(e.error, e.hint);
    if (came && !cancelled) on_event(e);
  }
  const auto end = Clock::now();
  if (result.tokens.empty()) first = end;
  result.prompt_seconds = std::chrono::duration<double>(first - began).count();
  result.seconds = std::chrono::duration<double>(end - first).count();
  return result;
}

InterruptFlag::InterruptFlag() {
  g_interrupted = false;
  std::signal(SIGINT, on_interrupt);
}
InterruptFlag::~InterruptFlag() { std::signal(SIGINT, SIG_DFL); }
const std::atomic<bool>* InterruptFlag::flag() const { return &g_interrupted; }
void InterruptFlag::clear() { g_interrupted = false; }

}  // namespace carat
