// Turns of two backends on one device: the model's, whose steps come first, and a guest's (cuda/guest.h),
// which gets at most as much time as the model. One program of the guest runs between two of the model's; the
// next one runs once the model has had as long, or has asked for nothing for a while.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace carat::cuda {

class Turns {
 public:
  using Clock = std::chrono::steady_clock;
  // idle: how long the model must have asked for nothing, for a guest to go on at once.
  explicit Turns(Clock::duration idle = std::chrono::milliseconds(2)) : idle_(idle) {}

  class Turn {  // from when it is made, which waits, until it goes
   public:
    Turn() = default;
    Turn(std::shared_ptr<Turns> turns, bool guest) : turns_(std::move(turns)), guest_(guest) {
      turns_->take(guest);
      began_ = Clock::now();
    }
    Turn(Turn&&) noexcept = default;
    Turn& operator=(Turn&& o) noexcept {
      std::swap(turns_, o.turns_), std::swap(guest_, o.guest_), std::swap(began_, o.began_);
      return *this;
    }
    ~Turn() {
      if (turns_) turns_->give(guest_, Clock::now() - began_);
    }

   private:
    std::shared_ptr<Turns> turns_;
    bool guest_ = false;
    Clock::time_point began_;
  };

 private:
  bool owes() const { return owed_ > Clock::duration::zero(); }
  void take(bool guest) {
    std::unique_lock lock(mutex_);
    if (guest) {
      ++waiting_;
      while (taken_ || (owes() && Clock::now() < last_ + idle_))
        taken_ ? changed_.wait(lock) : (void)changed_.wait_until(lock, last_ + idle_);
      --waiting_;
    } else {
      changed_.wait(lock, [&] { return !taken_ && (waiting_ == 0 || owes()); });
    }
    taken_ = true;
  }
  void give(bool guest, Clock::duration took) {
    {
      const std::lock_guard lock(mutex_);
      taken_ = false;
      owed_ = guest ? owed_ + took : std::max(owed_ - took, Clock::duration::zero());
      if (!guest) last_ = Clock::now();
    }
    changed_.notify_all();
  }

  const Clock::duration idle_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool taken_ = false;
  int waiting_ = 0;                                 // guests
  Clock::duration owed_ = Clock::duration::zero();  // what guests have had more than the model since
  Clock::time_point last_;                          // when the model's last turn ended
};

}  // namespace carat::cuda
