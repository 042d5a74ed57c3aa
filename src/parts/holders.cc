#include "parts/holders.h"

#include <algorithm>

namespace carat::parts {

void Holders::set(const Tensor& t, int32_t first, int32_t cols, Mask mask) {
  if (cols == 0) return;
  const int64_t size = row_bytes(t.type, 1);
  put({t.data + first * size, cols * size, t.pitch, t.rows, mask});
}

// What e covers of others is forgotten: its columns of a matrix of which both are views. (Matrices of one
// program share no memory otherwise; where they do, what is met is forgotten by rows.)
void Holders::put(const Entry& e) {
  std::vector<Entry> left;
  for (const Entry& o : entries_) {
    if (o.end() <= e.begin || e.end() <= o.begin) {
      left.push_back(o);
      continue;
    }
    // Columns of o that come before e's and behind them, if both are views of one matrix.
    const int64_t from = e.begin - o.begin;
    if (o.pitch != e.pitch || from <= -o.pitch || from >= o.pitch) {
      // Rows of o that e does not meet stay.
      const int64_t above = e.begin <= o.begin ? 0 : (e.begin - o.begin) / o.pitch,
                    below = std::min(o.rows, (e.end() - 1 - o.begin) / o.pitch + 1);
      if (above > 0) left.push_back({o.begin, o.width, o.pitch, above, o.mask});
      if (below < o.rows)
        left.push_back({o.begin + below * o.pitch, o.width, o.pitch, o.rows - below, o.mask});
      continue;
    }
    if (from > 0) left.push_back({o.begin, std::min(from, o.width), o.pitch, o.rows, o.mask});
    const int64_t behind = from + e.width;
    if (behind < o.width)
      left.push_back({o.begin + std::max<int64_t>(behind, 0), o.width - std::max<int64_t>(behind, 0), o.pitch,
                      o.rows, o.mask});
    if (o.rows > e.rows) {  // the rows behind e's
      const int64_t first = std::max<int64_t>(from, 0), last = std::min(behind, o.width);
      if (first < last)
        left.push_back({o.begin + e.rows * o.pitch + first, last - first, o.pitch, o.rows - e.rows, o.mask});
    }
  }
  entries_ = std::move(left);
  entries_.push_back(e);
}

Holders::Piece Holders::piece_at(const std::byte* p, size_t bytes) const {
  size_t until = bytes;  // of what no entry covers
  for (const Entry& e : entries_) {
    if (p >= e.end()) continue;
    if (p < e.begin) {
      until = std::min(until, static_cast<size_t>(e.begin - p));
      continue;
    }
    const int64_t row = (p - e.begin) / e.pitch, at = (p - e.begin) % e.pitch;
    if (at < e.width) return {std::min(bytes, static_cast<size_t>(e.width - at)), e.mask, true};
    if (row + 1 < e.rows) until = std::min(until, static_cast<size_t>(e.pitch - at));
  }
  return {until, all_, false};
}

}  // namespace carat::parts
