// A request while it is answered: what its threads write is handed to the loop.
#pragma once
#include <boost/asio/post.hpp>

#include "serve/http/connection.h"

namespace carat {

class Answering : public Exchange, public std::enable_shared_from_this<Answering> {
 public:
  Answering(std::shared_ptr<LoopState> loop, std::shared_ptr<Connection> connection)
      : loop_(std::move(loop)), connection_(std::move(connection)) {
    ++loop_->exchanges;
  }
  ~Answering() override { --loop_->exchanges; }

  bool gone() const override { return gone_ || loop_->cut_off.passed(); }
  void send(HttpResponse response) override;
  void begin(const HttpResponse& head) override;
  bool write(std::string_view piece) override;
  void end(bool whole) override;
  void abandon() noexcept override { abandoned_ = true; }
  size_t unsent() const override { return unsent_; }
  void on_wake(std::function<void()> wake) override;

 private:
  friend class Connection;
  void hand_over(bool last, bool keep);
  void take();  // the loop's thread
  void wake();

  const std::shared_ptr<LoopState> loop_;
  std::shared_ptr<Connection> connection_;  // the loop's thread, and begin() and send()
  std::atomic<bool> gone_{false}, abandoned_{false};
  std::atomic<size_t> unsent_{0};
  bool chunked_ = false, head_only_ = false, version_1_0_ = false, can_keep_ = true;
  std::mutex mutex_;
  std::string pending_;
  bool posted_ = false, last_ = false, keep_ = false;
  std::function<void()> wake_;
};

}  // namespace carat
