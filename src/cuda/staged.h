// Weights of mapped files for devices that share the host's memory: read to two pinned buffers by turns, from
// which kernels take them, and gone from the OS's cache behind. Neither the mapping nor a second copy takes
// memory, and the device never reads the mapping, which is slow there.
#pragma once
#include "base/read_mapped.h"
#include "cuda/host_part.h"

namespace carat::cuda {

class Staged {
 public:
  static constexpr int64_t kBytes = int64_t{32} << 20;  // of a buffer

  explicit Staged(Stream s) : stream_(s) {}
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    sync(stream_);
    for (Turn& t : turns_) destroy_event(t.used);
  }
  // Where the device reads what is mapped at [p, p + n), n at most kBytes, by launches before the next
  // used(). null: no mapped file's.
  const std::byte* take(const std::byte* p, int64_t n) {
    Turn& t = turns_[next_];
    sleep_until(t.used);
    return read_mapped(t.memory.data(), p, static_cast<size_t>(n), true) ? t.memory.data() : nullptr;
  }
  void used() {
    record_event(turns_[next_].used, stream_);
    next_ = 1 - next_;
  }

 private:
  struct Turn {
    Pinned memory{static_cast<size_t>(kBytes)};
    Event used = make_event();
  };
  Stream stream_;
  Turn turns_[2];
  int next_ = 0;
};

}  // namespace carat::cuda
