// Memory of several devices under addresses of one: a range of addresses is, on each device that needs it, a
// piece of memory of its own. Caches are there for a device's heads only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "parts/holders.h"

namespace carat::parts {

// What each device has of every record (a page, a slot) of a range: one run of its bytes.
struct Layout {
  int64_t record = 0;
  struct Run {
    int64_t first = 0, bytes = 0;
    bool operator==(const Run&) const = default;
  };
  std::vector<Run> runs;  // by device
  bool operator==(const Layout&) const = default;
};

class Memory {
 public:
  explicit Memory(std::vector<std::shared_ptr<Backend>> devices);
  int32_t devices() const { return static_cast<int32_t>(devices_.size()); }
  Backend& device(int32_t d) const { return *devices_[static_cast<size_t>(d)]; }

  // The addresses are zeros on the host, without memory behind them until they are written: what is copied
  // there before a device needs the range waits there.
  Buffer alloc(const std::shared_ptr<Memory>& self, size_t bytes);
  // A weight that lies at these addresses of the host, or of a range; gone with `owner`. copies: so many
  // devices will have all of it.
  void place(const std::shared_ptr<Memory>& self, const Tensor& host, int32_t copies, Buffer& owner);
  // Bytes of weights that no program has asked for yet.
  int64_t pending() const { return std::max<int64_t>(0, expected_ - there_); }

  void write(void* to, const void* from, size_t bytes);
  void read(void* to, const void* from, size_t bytes);
  void move(void* to, const void* from, size_t bytes);
  bool ours(const void* p) const { return find(p) != nullptr; }
  // What the program that has been started leaves where.
  void ran(const std::shared_ptr<const Holders>& left);

  // Where device d has what `p` names; with a layout: its part of the record that begins there.
  std::byte* local(int32_t d, const void* p);
  template <class T>
  T* local_of(int32_t d, T* p) {
    return p ? reinterpret_cast<T*>(local(d, p)) : nullptr;
  }
  void lay_out(const void* p, const Layout& layout);
  // The device that alone has the range of p; -1: none has, or several do.
  int32_t owner(const void* p) const;

  // The weight as device d wants it; t is a view of what place() was told, or of other memory.
  Tensor weight(int32_t d, const Tensor& t, WeightUse use);
  bool is_weight(const Tensor& t) const;
  int32_t weight_device(const Tensor& t, WeightUse use) const;  // one that has a part of it; -1: none yet

 private:
  struct Range {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    bool touched = false;  // the host's bytes are not zeros
    Layout layout;
    std::vector<Buffer> locals;
    int64_t local_bytes(int32_t d) const;
  };
  Range* find(const void* p) const;
  Buffer& local_buffer(Range& r, int32_t d);
  // f(device, at, address of the device, bytes) over what devices have of [at, at + bytes).
  template <class F>
  void each_run(Range& r, size_t at, size_t bytes, F&& f);
  // f(at, bytes, mask) over the pieces of [p, p + bytes).
  template <class F>
  void where(const std::byte* p, size_t bytes, F&& f) const;
  void fill(Range& r, int32_t d);
  void free(std::byte* p);

  std::vector<std::shared_ptr<Backend>> devices_;
  std::map<const std::byte*, std::unique_ptr<Range>> ranges_;  // by their ends
  // What programs have left, the newest first; of those that are gone nothing is asked any more.
  std::list<std::weak_ptr<const Holders>> left_;

  using Key = std::tuple<int32_t, const std::byte*, int32_t, int32_t, int32_t, int64_t, int64_t, WeightUse>;
  struct Weight {
    Tensor t;
    Buffer owner;
    int64_t bytes = 0;
  };
  std::map<Key, Weight> weights_;
  std::multimap<const std::byte*, const std::byte*> placed_;  // begin, end
  int64_t expected_ = 0, there_ = 0;
};

}  // namespace carat::parts
