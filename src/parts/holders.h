// Which devices have what of the matrices of one program: rectangles of memory, by columns.
#pragma once
#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace carat::parts {

using Mask = uint32_t;  // bit d: device d has it
inline constexpr Mask bit(int32_t d) { return Mask{1} << d; }

class Holders {
 public:
  explicit Holders(int32_t devices) : all_(bit(devices) - 1) {}
  Mask all() const { return all_; }

  // The columns [first, first + cols) of t, in all its rows, are now where `mask` says and nowhere else.
  void set(const Tensor& t, int32_t first, int32_t cols, Mask mask);
  // f(at, bytes, mask, known) over the pieces of [p, p + bytes); what is not known is everywhere.
  template <class F>
  void each(const std::byte* p, size_t bytes, F&& f) const {
    size_t at = 0;
    while (at < bytes) {
      const Piece piece = piece_at(p + at, bytes - at);
      f(at, piece.bytes, piece.mask, piece.known);
      at += piece.bytes;
    }
  }
  // The same over the columns of the first row of t: f(first, cols, mask).
  template <class F>
  void each_column(const Tensor& t, int32_t first, int32_t cols, F&& f) const {
    const int64_t size = row_bytes(t.type, 1);
    each(t.data + first * size, static_cast<size_t>(cols * size),
         [&](size_t at, size_t bytes, Mask mask, bool) {
           f(first + static_cast<int32_t>(static_cast<int64_t>(at) / size),
             static_cast<int32_t>(static_cast<int64_t>(bytes) / size), mask);
         });
  }

 private:
  struct Entry {  // `rows` rows of [begin, begin + width), pitch apart
    const std::byte* begin;
    int64_t width, pitch, rows;
    Mask mask;
    const std::byte* end() const { return begin + (rows - 1) * pitch + width; }
  };
  struct Piece {
    size_t bytes;
    Mask mask;
    bool known;
  };
  Piece piece_at(const std::byte* p, size_t bytes) const;
  void put(const Entry& e);

  Mask all_;
  std::vector<Entry> entries_;  // disjoint
};

}  // namespace carat::parts
