#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace carat {

// The checksum of saved texts. Of bytes in pieces of any size: words in four lanes, as one would read several
// times slower than a disk does.
class SavedSum {
 public:
  void add(const std::byte* p, size_t n) {
    for (; n > 0 && filled_ > 0; ++p, --n) {
      block_[filled_++] = *p;
      if (filled_ == kBlock) take(block_), filled_ = 0;
    }
    for (; n >= kBlock; p += kBlock, n -= kBlock) take(p);
    if (n > 0) std::memcpy(block_, p, n), filled_ = n;
  }
  uint64_t value() const {
    SavedSum s = *this;
    std::memset(s.block_ + filled_, 0, kBlock - filled_);
    s.take(s.block_);
    uint64_t all = filled_;
    for (const uint64_t lane : s.lanes_) all = mixed(all, lane ^ lane >> 29);
    return all;
  }

 private:
  static constexpr size_t kBlock = 32;
  static uint64_t mixed(uint64_t h, uint64_t word) { return (h ^ word) * 0x9E3779B97F4A7C15u; }
  void take(const std::byte* p) {
    for (size_t i = 0; i < 4; ++i) {
      uint64_t word;
      std::memcpy(&word, p + 8 * i, 8);
      lanes_[i] = mixed(lanes_[i], word);
    }
  }
  uint64_t lanes_[4] = {1, 2, 3, 4};
  std::byte block_[kBlock];
  size_t filled_ = 0;
};

}  // namespace carat
