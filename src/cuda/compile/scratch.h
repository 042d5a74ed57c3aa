// Scratch memory of a program: what operations leave for those behind them, and what it holds at the moment.
#pragma once
#include <algorithm>
#include <tuple>

#include "cuda/matmul/table.h"
#include "cuda/ops/ops.h"

namespace carat::cuda {

inline int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
inline bool meet(const Tensor& x, const Tensor& y) {
  return x.data < y.data + y.rows * y.pitch && y.data < x.data + x.rows * x.pitch;
}
using RowsKey = std::tuple<std::byte*, int32_t, int32_t, int64_t, RowSet>;
inline RowsKey key_of(const Tensor& x, RowSet rows) { return {x.data, x.rows, x.cols, x.pitch, rows}; }

struct Scratch {
  // Bytes, the most that an operation needs, one behind the other: two of rows that are rounded; what experts
  // leave between their products, and that rounded; their pairs; rows in parts; rows in e4m3.
  int64_t rounded = 0, second = 0, hidden = 0, inner = 0, pairs = 0, parts = 0, e4m3 = 0;
  std::byte* memory = nullptr;

  static void need(int64_t& most, int64_t bytes) { most = std::max(most, bytes); }
  std::byte* at(int64_t offset) const { return memory + offset; }
  int64_t hidden_at() const { return aligned(rounded) + aligned(second); }
  int64_t inner_at() const { return hidden_at() + aligned(hidden); }
  int64_t pairs_at() const { return inner_at() + aligned(inner); }
  int64_t parts_at() const { return pairs_at() + aligned(pairs); }
  int64_t e4m3_at() const { return parts_at() + aligned(parts); }
  int64_t end() const { return e4m3_at() + aligned(e4m3); }

  static int64_t blocks_of(int64_t cols) { return (cols + 255) / 256; }
  static int64_t rounded_bytes(int64_t rows, int64_t cols) {
    const int64_t n = rows * blocks_of(cols);
    return aligned(n * 256) + 2 * aligned(n * 32) + aligned(n * 4);
  }
  Rounded carve(int64_t offset, int64_t rows, int64_t cols) const {
    std::byte* p = at(offset);
    const int64_t n = rows * blocks_of(cols);
    std::byte *sums = p + aligned(n * 256), *d = sums + aligned(n * 32), *half_sums = d + aligned(n * 4);
    return {reinterpret_cast<int8_t*>(p), reinterpret_cast<int16_t*>(sums), reinterpret_cast<float*>(d),
            static_cast<int32_t>(blocks_of(cols)), reinterpret_cast<uint16_t*>(half_sums)};
  }
  // Of x's rows, in one of the first two parts.
  Rounded slot(int32_t i, const Tensor& x) const { return carve(i * aligned(rounded), x.rows, x.cols); }
  static int64_t parts_bytes(int64_t rows, int64_t cols) {
    rows = (rows + 7) / 8 * 8;
    return aligned(rows * blocks_of(cols) * 1024) + aligned(rows * blocks_of(cols) * 4);
  }
  Rounded carve_parts(int64_t offset, int64_t rows, int64_t cols) const {
    std::byte* p = at(offset);
    rows = (rows + 7) / 8 * 8;
    Rounded r;
    r.parts = reinterpret_cast<uint32_t*>(p), r.blocks = static_cast<int32_t>(blocks_of(cols));
    r.d = reinterpret_cast<float*>(p + aligned(rows * blocks_of(cols) * 1024));
    return r;
  }

  // What its parts hold, while it is true: 0 and 1 rounded rows, 2 rows in parts, 3 in e4m3.
  void holds(const Tensor& x, RowSet rows, int32_t slot) { key_[slot] = key_of(x, rows), cached_[slot] = x; }
  bool held(const Tensor& x, RowSet rows, int32_t slot) const {
    return cached_[slot].valid() && key_of(x, rows) == key_[slot];
  }
  // Where x lies rounded; -1: nowhere.
  int32_t slot_of(const Tensor& x, RowSet rows) const {
    return held(x, rows, 0) ? 0 : held(x, rows, 1) ? 1 : -1;
  }
  bool has_room(int32_t slot, const Tensor& x) const {
    return slot < 2 && rounded_bytes(x.rows, x.cols) <= (slot == 0 ? rounded : second);
  }
  void writes(const Tensor& y) {
    for (Tensor& t : cached_)
      if (t.valid() && meet(t, y)) t = {};
  }

 private:
  Tensor cached_[4];
  RowsKey key_[4];
};

}  // namespace carat::cuda
