// Rows of a program's results where the host can read them: in place where memory is shared, else copied when
// they are asked for. A copy takes its time whatever it brings, so rows that are read together come together.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
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
  // Row r of t's first n, which come in one copy: the others will be asked for, too.
  template <class T>
  const T* row_of(const Tensor& t, int64_t r, int64_t n) {
    if (!backend_ || backend_->host_memory()) return t.row<const T>(r);
    const auto bytes = static_cast<size_t>((n - 1) * t.pitch + row_bytes(t.type, t.cols));
    const auto* rows = static_cast<const std::byte*>(copied(t.row<const T>(0), bytes));
    return reinterpret_cast<const T*>(rows + r * t.pitch);
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

// The host's rows to t's first ones: in place where memory is shared, else in one copy, which leaves zeros
// between rows of t.
inline void put_rows(Backend& backend, const Tensor& t, std::span<const float* const> rows) {
  if (rows.empty()) return;
  const auto width = static_cast<size_t>(t.cols) * sizeof(float), pitch = static_cast<size_t>(t.pitch);
  if (backend.host_memory()) {
    for (size_t i = 0; i < rows.size(); ++i)
      backend.copy(t.row<float>(static_cast<int64_t>(i)), rows[i], width);
    return;
  }
  std::vector<std::byte> all((rows.size() - 1) * pitch + width);
  for (size_t i = 0; i < rows.size(); ++i) std::memcpy(&all[i * pitch], rows[i], width);
  backend.copy(t.row<float>(0), all.data(), all.size());
}

}  // namespace carat
