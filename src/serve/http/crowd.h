// When a crowd of clients has gone: then what it took of the heap is worth giving back.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>

namespace carat {

class Crowd {
 public:
  using Clock = std::chrono::steady_clock;

  // Told now and then how many clients there are. True when most of a crowd have been gone for a while; once
  // more later, as what was asked for them ends after they do.
  bool has_gone(size_t clients, Clock::time_point now) {
    most_ = std::max(most_, clients);
    if (again_ && now - gone_ > kAgain) return again_ = false, true;
    if (most_ < kCrowd || clients > most_ / 4) {
      fewer_ = false;
      return false;
    }
    if (!fewer_) since_ = now;
    fewer_ = true;
    if (now - since_ < kWhile) return false;
    fewer_ = false;
    again_ = true;
    gone_ = now;
    most_ = clients;
    return true;
  }

 private:
  static constexpr size_t kCrowd = 256;
  static constexpr std::chrono::seconds kWhile{2}, kAgain{10};
  size_t most_ = 0;
  bool fewer_ = false, again_ = false;
  Clock::time_point since_{}, gone_{};
};

}  // namespace carat
