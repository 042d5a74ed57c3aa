#include "model/blocks.h"

#include <algorithm>

namespace carat {

void push_linear(Program& p, const Tensor& y, const Tensor& x, const Linear& w, const LinearOptions& o) {
  MatmulArgs a{.y = y, .x = x, .w = w.w, .bias = o.bias, .mul = o.mul};
  a.scale = o.scale * w.scale;
  a.softcap = o.softcap;
  a.act = o.act;
  a.residual = o.residual;
  p.push(a);
}

namespace {
// Bytes of products that wait to be folded. More rows take the head's outputs in pieces.
constexpr int64_t kMostUnfolded = int64_t{64} << 20;
constexpr int32_t kPlacedRows = 32;  // placed weights are cut at multiples of it
}  // namespace

void push_head(Program& p, Arena& arena, const Tensor& logits, const Tensor& hidden, const Linear& head,
               float softcap) {
  if (info(head.w.type).family != Family::block)
    return push_linear(p, logits, hidden, head, {.softcap = softcap});
  const int32_t rows = 2 * hidden.rows, outputs = logits.cols;
  const auto most = static_cast<int32_t>(kMostUnfolded / 4 / rows / kPlacedRows * kPlacedRows);
  const int32_t each = std::min(std::max(most, kPlacedRows), outputs);
  const Tensor refined = arena.take(rows, hidden.cols), products = arena.take(rows, each);
  p.push(RefineArgs{refined, hidden});
  for (int32_t first = 0; first < outputs; first += each) {
    const int32_t n = std::min(each, outputs - first);
    const Tensor some = products.columns(0, n);
    p.at_rows(RowSet::refined);
    push_linear(p, some, refined, {head.w.row_range(first, n), head.scale});
    p.at_rows(RowSet::out);
    p.push(FoldArgs{logits.columns(first, n), some, softcap});
  }
}

void push_norm(Program& p, const Tensor& y, const Tensor& x, const Tensor& weight, float eps,
               const NormOptions& o) {
  p.push(RmsNormArgs{y, x, weight, o.residual, o.gain, o.width, eps, o.scale, o.mul, o.act});
}

void push_mlp(Program& p, const Tensor& y, const Tensor& x, const Tensor& h, const GatedMlp& w, Act act) {
  p.push(GateUpArgs{h, x, w.gate.w, w.up.w, w.gate.scale, w.up.scale, act});
  push_linear(p, y, h, w.down);
}

}  // namespace carat
