#include "serve/http/run_stream.h"

#include <utility>

namespace carat {

RunningStream::RunningStream(std::shared_ptr<Exchange> exchange, HttpResponse response, Workers& workers,
                             std::function<void(bool, const std::exception*)> done)
    : exchange_(std::move(exchange)),
      response_(std::move(response)),
      workers_(workers),
      done_(std::move(done)),
      write_([this](std::string_view piece) { return heard_ = heard_ && exchange_->write(piece); }) {}

void RunningStream::start() {
  exchange_->begin(response_);
  body_ = response_.stream(write_);
  body_.on_wake([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake();
  });
  exchange_->on_wake([self = shared_from_this()] { self->wake(); });  // keeps it until it is over
  wake();
}

void RunningStream::wake() {
  // Locked as long as it adds: the workers are there while it is not over, and may be gone a moment later.
  const std::lock_guard lock(mutex_);
  if (over_) return;
  again_ = true;
  if (std::exchange(queued_, true)) return;
  try {
    workers_.add([self = shared_from_this()] { self->work(); });
  } catch (const std::bad_alloc&) {  // the loop wakes it again in a while; this may be the engine's thread
    queued_ = false;
  }
}

void RunningStream::work() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
      if (!std::exchange(again_, false)) {
        queued_ = false;
        return;
      }
    }
    // One that does not read is waited for; the loop wakes this when it has read, or cuts it off.
    if (exchange_->unsent() > kStreamAhead && !exchange_->gone()) continue;
    if (!resume()) break;
  }
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  body_ = {};
  response_ = {};  // lets go of the request, and of the model
  const std::shared_ptr<Exchange> e = std::move(exchange_);
  e->on_wake(nullptr);
}

// False: it is over, and said so.
bool RunningStream::resume() {
  try {
    try {
      if (body_.resume()) return true;
      exchange_->end(heard_);
      done_(heard_, nullptr);
    } catch (const std::exception& e) {  // a body without its end tells the client
      exchange_->end(false);
      done_(false, &e);
    }
  } catch (const std::bad_alloc&) {
    exchange_->abandon();
  }
  return false;
}

}  // namespace carat
