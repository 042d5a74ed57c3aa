// Rows of a program's results where the host can read them: in place where memory is shared, else copied when
// they are asked for.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/backend.h"

namespace carat {

class HostRows {
 public:
  explicit HostRows(Backend& backend) : backend_(&backend) {}
  HostRows() = default;  // in place

  // Row r of t, after Backend::wait(). Valid until the program that computed it runs again and forget() said
  // so.
  template <class T>
  const T* row(const Tensor& t, int64_t r) {
    const T* p = t.row<const T>(r);
    if (!backend_ || backend_->host_memory()) return p;
    return static_cast<const T*>(copied(p, static_cast<size_t>(row_bytes(t.type, t.cols))));
  }
  void forget() { ++generation_; }

 private:
  struct Copy {
    uint64_t generation = 0;
    std::vector<std::byte> bytes;
  };
  const void* copied(const void* p, size_t bytes) {
    Copy& c = copies_[p];
    if (c.generation != generation_ || c.bytes.size() < bytes) {
      c.bytes.resize(bytes);
      backend_->copy(c.bytes.data(), p, bytes);
      c.generation = generation_;
    }
    return c.bytes.data();
  }

  Backend* backend_ = nullptr;
  uint64_t generation_ = 1;
  std::unordered_map<const void*, Copy> copies_;
};

}  // namespace carat
