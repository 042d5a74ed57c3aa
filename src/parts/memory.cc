#include "parts/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace carat::parts {
namespace {

size_t extent(const Tensor& t) {
  return static_cast<size_t>((t.slices - 1) * t.slice_pitch + (t.rows - 1) * t.pitch +
                             row_bytes(t.type, t.cols));
}

int64_t size_of(const Tensor& t) { return row_bytes(t.type, t.cols) * t.rows * t.slices; }

}  // namespace

int64_t Memory::Range::local_bytes(int32_t d) const {
  if (!layout.record) return static_cast<int64_t>(bytes);
  return static_cast<int64_t>(bytes) / layout.record * layout.runs[static_cast<size_t>(d)].bytes;
}

Memory::Memory(std::vector<std::shared_ptr<Backend>> devices) : devices_(std::move(devices)) {}

void Memory::ran(const std::shared_ptr<const Holders>& left) {
  left_.remove_if([&](const std::weak_ptr<const Holders>& w) { return w.expired() || w.lock() == left; });
  left_.push_front(left);
}

template <class F>
void Memory::where(const std::byte* p, size_t bytes, F&& f) const {
  const auto look = [&](const auto& self, auto from, size_t at, size_t n) -> void {
    std::shared_ptr<const Holders> left;
    while (from != left_.end() && !(left = from->lock())) ++from;
    if (!left) return f(at, n, bit(devices()) - 1);
    left->each(p + at, n, [&](size_t piece, size_t size, Mask mask, bool known) {
      if (known)
        f(at + piece, size, mask);
      else
        self(self, std::next(from), at + piece, size);
    });
  };
  look(look, left_.begin(), 0, bytes);
}

Buffer Memory::alloc(const std::shared_ptr<Memory>& self, size_t bytes) {
  if (bytes == 0) return {};
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw Error(fmt::format("cannot reserve {} MiB of addresses: {}", bytes >> 20, std::strerror(errno)),
                "use a smaller context or a smaller model");
  auto r = std::make_unique<Range>();
  r->begin = static_cast<std::byte*>(p), r->bytes = bytes;
  r->locals.resize(devices_.size());
  std::byte* const begin = r->begin;
  ranges_.emplace(begin + bytes, std::move(r));
  return {begin, bytes, [self](std::byte* q) { self->free(q); }};
}

void Memory::free(std::byte* p) {
  const auto it = ranges_.upper_bound(p);
  CARAT_CHECK(it != ranges_.end() && it->second->begin == p, "memory that this group has not allocated");
  munmap(p, it->second->bytes);
  ranges_.erase(it);
}

Memory::Range* Memory::find(const void* p) const {
  const auto* at = static_cast<const std::byte*>(p);
  const auto it = ranges_.upper_bound(at);
  return it != ranges_.end() && it->second->begin <= at ? it->second.get() : nullptr;
}

Buffer& Memory::local_buffer(Range& r, int32_t d) {
  Buffer& b = r.locals[static_cast<size_t>(d)];
  if (b.data() || r.local_bytes(d) == 0) return b;
  b = device(d).alloc(static_cast<size_t>(r.local_bytes(d)));
  if (r.touched) fill(r, d);
  return b;
}

template <class F>
void Memory::each_run(Range& r, size_t at, size_t bytes, F&& f) {
  if (!r.layout.record) {
    for (int32_t d = 0; d < devices(); ++d) f(d, at, local_buffer(r, d).data() + at, bytes);
    return;
  }
  const int64_t record = r.layout.record, begin = static_cast<int64_t>(at),
                end = begin + static_cast<int64_t>(bytes);
  for (int32_t d = 0; d < devices(); ++d) {
    const Layout::Run run = r.layout.runs[static_cast<size_t>(d)];
    if (run.bytes == 0) continue;
    std::byte* const mine = local_buffer(r, d).data();
    if (run.bytes == record) {
      f(d, at, mine + begin, bytes);
      continue;
    }
    for (int64_t i = begin / record; i * record < end; ++i) {
      const int64_t from = std::max(begin, i * record + run.first),
                    to = std::min(end, i * record + run.first + run.bytes);
      if (from < to)
        f(d, static_cast<size_t>(from), mine + i * run.bytes + (from - i * record - run.first),
          static_cast<size_t>(to - from));
    }
  }
}

// What has waited on the host.
void Memory::fill(Range& r, int32_t d) {
  if (!r.layout.record) {
    device(d).copy(r.locals[static_cast<size_t>(d)].data(), r.begin, r.bytes);
    return;
  }
  each_run(r, 0, r.bytes, [&](int32_t e, size_t at, std::byte* to, size_t n) {
    if (e == d) device(d).copy(to, r.begin + at, n);
  });
}

void Memory::write(void* to, const void* from, size_t bytes) {
  Range* const r = find(to);
  CARAT_CHECK(r, "a copy to memory that this group has not allocated");
  const auto at = static_cast<size_t>(static_cast<std::byte*>(to) - r->begin);
  const auto* source = static_cast<const std::byte*>(from);
  if (r->layout.record) {
    each_run(*r, at, bytes, [&](int32_t d, size_t piece, std::byte* local, size_t n) {
      device(d).copy(local, source + (piece - at), n);
    });
    return;
  }
  bool everywhere = true;
  for (int32_t d = 0; d < devices(); ++d) {
    const Buffer& b = r->locals[static_cast<size_t>(d)];
    if (b.data()) device(d).copy(b.data() + at, from, bytes);
    everywhere &= b.data() != nullptr;
  }
  if (everywhere) return;
  std::memcpy(to, from, bytes);
  r->touched = true;
}

void Memory::read(void* to, const void* from, size_t bytes) {
  Range* const r = find(from);
  CARAT_CHECK(r, "a copy of memory that this group has not allocated");
  const auto at = static_cast<size_t>(static_cast<const std::byte*>(from) - r->begin);
  auto* target = static_cast<std::byte*>(to);
  if (r->layout.record) {
    each_run(*r, at, bytes, [&](int32_t d, size_t piece, std::byte* local, size_t n) {
      device(d).copy(target + (piece - at), local, n);
    });
    return;
  }
  // Pieces of one device that follow each other are one copy.
  int32_t holder = -2;
  size_t first = 0, end = 0;
  const auto flush = [&] {
    if (first == end) return;
    if (holder < 0)
      std::memcpy(target + first, r->begin + at + first, end - first);
    else
      device(holder).copy(target + first, r->locals[static_cast<size_t>(holder)].data() + at + first,
                          end - first);
  };
  where(r->begin + at, bytes, [&](size_t piece, size_t n, Mask mask) {
    int32_t d = 0;
    while (d < devices() && (!(mask & bit(d)) || !r->locals[static_cast<size_t>(d)].data())) ++d;
    if (d == devices()) d = -1;  // nothing has been computed there
    if (d != holder) {
      flush();
      holder = d, first = piece;
    }
    end = piece + n;
  });
  flush();
}

void Memory::move(void* to, const void* from, size_t bytes) {
  Range *const t = find(to), *const f = find(from);
  CARAT_CHECK(t && f, "a copy within memory that this group has not allocated");
  const auto t_at = static_cast<size_t>(static_cast<std::byte*>(to) - t->begin),
             f_at = static_cast<size_t>(static_cast<const std::byte*>(from) - f->begin);
  if (t->layout.record && f->layout.record) {
    // Of the same place in both records: a head's row, or a whole page.
    CARAT_CHECK(t->layout == f->layout, "a copy between caches that are not alike");
    std::vector<std::tuple<int32_t, std::byte*, size_t>> sources;
    each_run(*f, f_at, bytes,
             [&](int32_t d, size_t, std::byte* p, size_t n) { sources.emplace_back(d, p, n); });
    size_t next = 0;
    each_run(*t, t_at, bytes, [&](int32_t d, size_t, std::byte* p, size_t n) {
      const auto& [device_of, source, size] = sources.at(next++);
      CARAT_CHECK(device_of == d && size == n, "a copy between heads of two devices");
      device(d).copy_within(p, source, n);
    });
    return;
  }
  if (f->layout.record) {
    each_run(*f, f_at, bytes, [&](int32_t d, size_t piece, std::byte* p, size_t n) {
      device(d).copy_within(local_buffer(*t, d).data() + t_at + (piece - f_at), p, n);
    });
    return;
  }
  if (t->layout.record) {
    each_run(*t, t_at, bytes, [&](int32_t d, size_t piece, std::byte* p, size_t n) {
      device(d).copy_within(p, local_buffer(*f, d).data() + f_at + (piece - t_at), n);
    });
    return;
  }
  where(f->begin + f_at, bytes, [&](size_t, size_t, Mask mask) {
    CARAT_CHECK(mask == bit(devices()) - 1, "a copy within memory that devices share");
  });
  bool held = false;
  for (int32_t d = 0; d < devices(); ++d) {
    const Buffer& b = f->locals[static_cast<size_t>(d)];
    if (!b.data()) continue;
    device(d).copy_within(local_buffer(*t, d).data() + t_at, b.data() + f_at, bytes);
    held = true;
  }
  if (!held) write(to, from, bytes);
}

std::byte* Memory::local(int32_t d, const void* p) {
  Range* const r = find(p);
  CARAT_CHECK(r, "an operand in memory that this group has not allocated");
  const int64_t at = static_cast<const std::byte*>(p) - r->begin;
  const Buffer& b = local_buffer(*r, d);
  if (!r->layout.record) return b.data() + at;
  CARAT_CHECK(at % r->layout.record == 0, "a cache that begins within a record");
  return b.data() + at / r->layout.record * r->layout.runs[static_cast<size_t>(d)].bytes;
}

void Memory::lay_out(const void* p, const Layout& layout) {
  Range* const r = find(p);
  CARAT_CHECK(r && layout.record > 0, "a cache in memory that this group has not allocated");
  if (r->layout == layout) return;
  CARAT_CHECK(!r->layout.record, "a cache that is split in two ways");
  for (const Buffer& b : r->locals) CARAT_CHECK(!b.data(), "a cache that has been used as a whole");
  r->layout = layout;
}

int32_t Memory::owner(const void* p) const {
  const Range* r = find(p);
  if (!r || !r->layout.record) return -1;
  int32_t one = -1;
  for (int32_t d = 0; d < devices(); ++d) {
    if (r->layout.runs[static_cast<size_t>(d)].bytes == 0) continue;
    if (one >= 0) return -1;
    one = d;
  }
  return one;
}

void Memory::place(const std::shared_ptr<Memory>& self, const Tensor& host, int32_t copies, Buffer& owner) {
  std::byte* const p = host.data;
  const size_t n = extent(host);
  const auto at = placed_.emplace(p, p + n);
  const int64_t bytes = size_of(host) * copies;
  expected_ += bytes;
  owner = Buffer(p, n, [self, at, bytes](std::byte*) {
    self->expected_ -= bytes;
    const std::byte *const begin = at->first, *const end = at->second;
    self->placed_.erase(at);
    std::erase_if(self->weights_, [&](const auto& w) {
      const std::byte* data = std::get<1>(w.first);
      if (data < begin || data >= end) return false;
      self->there_ -= w.second.bytes;
      return true;
    });
  });
}

bool Memory::is_weight(const Tensor& t) const {
  if (!find(t.data)) return true;  // the file's
  const auto after = placed_.upper_bound(t.data);
  return after != placed_.begin() && t.data < std::prev(after)->second;
}

int32_t Memory::weight_device(const Tensor& t, WeightUse use) const {
  for (const auto& [key, w] : weights_)
    if (std::get<1>(key) == t.data && std::get<7>(key) == use) return std::get<0>(key);
  return -1;
}

Tensor Memory::weight(int32_t d, const Tensor& t, WeightUse use) {
  const Key key{d, t.data, t.rows, t.cols, t.slices, t.pitch, t.slice_pitch, use};
  const auto it = weights_.find(key);
  if (it != weights_.end()) return it->second.t;
  Weight w;
  w.t = device(d).place_weight(t, use, w.owner);
  w.bytes = size_of(t);
  there_ += w.bytes;
  return weights_.emplace(key, std::move(w)).first->second.t;
}

}  // namespace carat::parts
