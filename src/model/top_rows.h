// The best columns of rows of logits, found where the rows are: of most rows the host needs no more, and a
// whole one is a megabyte.
#pragma once
#include <span>

#include "core/host_rows.h"
#include "model/model.h"

namespace carat {

class TopRows {
 public:
  // A row's: best first, ties by column; all empty if it holds a NaN or +inf, or nothing above -inf.
  struct Row {
    std::span<const int32_t> column;
    std::span<const float> value;  // empty where only the best column is known
    float share = 0;               // what the row's softmax gives the best, if it was recorded
  };
  // 64 are kept by Gemma 4's own sampling settings; the rest tells whether others tie with the last of them.
  static constexpr int32_t kMost = 80;

  TopRows() = default;
  // Recorded behind what computes `logits`, over the same rows: one column where the host reads memory in
  // place, kMost elsewhere.
  TopRows(Program& program, Arena& arena, const Backend& backend, const Tensor& logits, RowSet set,
          bool share = true)
      : rows_(logits.rows), k_(backend.host_memory() ? 1 : std::min(kMost, logits.cols)), share_(share) {
    words_ = arena.take(1, rows_ * width(), DType::i32);
    program.at_rows(set);
    program.push(TopArgs{part(0, k_, DType::i32), k_ > 1 ? part(k_, k_, DType::f32) : Tensor{},
                         share ? part(2 * k_, 1, DType::f32) : Tensor{}, logits});
  }
  Row row(HostRows& host, int32_t i) const {
    const int32_t* at = host.row<int32_t>(words_, 0) + int64_t{i} * width();
    const auto* floats = reinterpret_cast<const float*>(at);
    int32_t n = 0;
    while (n < k_ && at[n] >= 0) ++n;
    const auto count = static_cast<size_t>(n);
    return {{at, count}, {floats + k_, k_ > 1 ? count : 0}, share_ ? floats[2 * k_] : 0};
  }

 private:
  int32_t width() const { return 2 * k_ + 1; }
  Tensor part(int32_t first, int32_t cols, DType type) const {
    Tensor t = make_tensor(words_.data + 4 * first, type, rows_, cols);
    t.pitch = 4 * int64_t{width()};
    t.slice_pitch = t.pitch * rows_;
    return t;
  }
  int32_t rows_ = 0, k_ = 0;
  bool share_ = false;
  Tensor words_;  // [1, rows * width]: columns, values and share of a row, in one copy to the host
};

}  // namespace carat
