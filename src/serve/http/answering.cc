#include "serve/http/answering.h"

#include <fmt/format.h>

#include "serve/http/status.h"

namespace carat {

void Answering::send(HttpResponse response) {
  const bool keep = can_keep_ && !loop_->closing && !loop_->stopping;
  std::string text = head_text(response, {false, version_1_0_, keep, loop_->config.idle_seconds});
  if (!head_only_ && has_body(response.status)) text += response.body;
  const std::lock_guard lock(mutex_);
  pending_ += text;
  unsent_ += text.size();
  hand_over(true, keep);
}

void Answering::begin(const HttpResponse& head) {
  const bool keep = can_keep_ && !version_1_0_ && !loop_->closing && !loop_->stopping;
  chunked_ = !version_1_0_;
  can_keep_ = keep;
  const std::string text = head_text(head, {true, version_1_0_, keep, loop_->config.idle_seconds});
  const std::lock_guard lock(mutex_);
  pending_ += text;
  unsent_ += text.size();
  hand_over(false, keep);
}

bool Answering::write(std::string_view piece) {
  if (gone_) return false;
  if (piece.empty() || head_only_) return true;
  const std::lock_guard lock(mutex_);
  const size_t before = pending_.size();
  if (chunked_) fmt::format_to(std::back_inserter(pending_), "{:x}\r\n", piece.size());
  pending_ += piece;
  if (chunked_) pending_ += "\r\n";
  unsent_ += pending_.size() - before;
  hand_over(false, false);
  return true;
}

void Answering::end(bool whole) {
  const std::lock_guard lock(mutex_);
  if (whole && chunked_ && !head_only_) {
    pending_ += "0\r\n\r\n";
    unsent_ += 5;
  }
  hand_over(true, whole && can_keep_);
}

void Answering::on_wake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void Answering::wake() {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    wake = wake_;
  }
  if (wake) wake();
}

// With the lock.
void Answering::hand_over(bool last, bool keep) {
  if (last) last_ = true, keep_ = keep;
  if (std::exchange(posted_, true)) return;
  try {
    boost::asio::post(loop_->io, [self = shared_from_this()] { self->take(); });
  } catch (const std::bad_alloc&) {
    abandon();
  }
}

void Answering::take() {
  std::string text;
  bool last = false, keep = false;
  {
    const std::lock_guard lock(mutex_);
    text = std::exchange(pending_, {});
    posted_ = false;
    last = last_;
    keep = keep_;
  }
  const std::shared_ptr<Connection> c = connection_;
  if (!c) return;
  try {
    if (!text.empty()) c->out(std::move(text));
  } catch (const std::bad_alloc&) {
    return c->close();
  }
  if (last) {
    connection_.reset();
    c->finish(keep);
  }
}

}  // namespace carat
