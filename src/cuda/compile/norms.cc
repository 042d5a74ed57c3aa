// Norms, and the recurrent operations that take some along.
#include <algorithm>

#include "cuda/compile/builder.h"

namespace carat::cuda {
namespace {

// Columns of one matrix, of which none are shared.
bool side_by_side(const Tensor& a, const Tensor& b) {
  const auto [left, right] = a.data < b.data ? std::pair(&a, &b) : std::pair(&b, &a);
  const std::ptrdiff_t apart = right->data - left->data;
  return a.pitch == b.pitch && a.rows == b.rows && apart >= int64_t{left->cols} * 4 &&
         apart + int64_t{right->cols} * 4 <= a.pitch;
}

// Whether one kernel can compute both: as many rows and groups, and neither reads or writes what the other
// writes.
bool one_kernel(const RmsNormArgs& a, const RmsNormArgs& b) {
  if (a.y.rows != b.y.rows || a.y.cols != b.y.cols || a.width != b.width) return false;
  const auto read = [](const RmsNormArgs& n, const Tensor& y) {
    for (const Tensor& t : {n.x, n.residual, n.mul})
      if (t.valid() && meet(t, y) && !side_by_side(t, y)) return true;
    return false;
  };
  return !read(b, a.y) && !read(a, b.y) && (!meet(a.y, b.y) || side_by_side(a.y, b.y));
}

}  // namespace

// Whether the next operation's products compute these norms of a single row by themselves.
bool Builder::goes_ahead(const RowNorms& norms, RowSet rows) const {
  const auto& ops = program_.ops();
  const auto next = static_cast<size_t>(index_) + 1;
  if (norms.n == 0 || next >= ops.size() || ops[next].rows != rows) return false;
  const OpRecord& op = ops[next];
  if (!follow({op.op}, next)) return false;
  if (op.op == Op::GateUp) return norms_fit(norms, op.as<GateUpArgs>(), device_);
  return op.op == Op::Matmul && norms_fit(norms, op.as<MatmulArgs>(), device_);
}

void Builder::add(const RmsNormArgs& a, RowSet rows) {
  NormChain chain;
  const auto& ops = program_.ops();
  if (!chain.add(a)) {
    std::optional<RmsNormArgs> second;
    if (const auto i = static_cast<size_t>(index_); follow({Op::RmsNorm, Op::RmsNorm}, i)) {
      const auto& b = ops[i + 1].as<RmsNormArgs>();
      if (one_kernel(a, b) && !NormChain().add(b)) second = b, done_ = static_cast<std::ptrdiff_t>(i) + 2;
    }
    push([=](const Context& c) { rms_norm(c, a, second ? &*second : nullptr, rows); });
    if (second) scratch_.writes(second->y);
    return scratch_.writes(a.y);
  }
  while (static_cast<size_t>(index_) + 1 < ops.size()) {
    const OpRecord& next = ops[static_cast<size_t>(index_) + 1];
    if (next.op != Op::RmsNorm || next.rows != rows || !chain.add(next.as<RmsNormArgs>())) break;
    done_ = ++index_ + 1;
  }
  for (int k = 0; k < chain.n; ++k) scratch_.writes(chain.step[k].y);
  int32_t slot = 0;
  for (int k = 0; k < chain.n; ++k) {
    const Tensor& y = chain.step[k].y;
    const bool stays = std::none_of(chain.step + k + 1, chain.step + chain.n,
                                    [&](const RmsNormArgs& later) { return meet(later.y, y); });
    if (!stays || !chain.rounds(k) || !rounded_soon(y, rows) || !scratch_.has_room(slot, y)) continue;
    chain.out[k] = scratch_.slot(slot, y);
    scratch_.holds(y, rows, slot++);
  }
  if (const RowNorms ahead = row_norms(chain); goes_ahead(ahead, rows))
    ahead_ = ahead;
  else
    push([=](const Context& c) { norms(c, chain, rows); });
}

// With the norms of queries and keys behind it, of few rows.
void Builder::add(const ConvArgs& a, RowSet) {
  HeadNorms norms;
  if (const auto i = static_cast<size_t>(index_); follow({Op::Conv, Op::RmsNorm, Op::RmsNorm}, i)) {
    const auto& ops = program_.ops();
    norms = head_norms(a, ops[i + 1].as<RmsNormArgs>(), ops[i + 2].as<RmsNormArgs>());
    if (norms.width > 0) done_ = static_cast<std::ptrdiff_t>(i) + 3;
  }
  push([=](const Context& c) { conv(c, a, norms); });
  scratch_.writes(a.y);
}

void Builder::add(const DeltaNetArgs& a, RowSet) {
  const auto i = static_cast<size_t>(index_);
  if (follow({Op::DeltaNet, Op::RmsNorm}, i)) {
    const auto& norm = program_.ops()[i + 1].as<RmsNormArgs>();
    if (delta_row_fits(a, norm)) {
      push([=](const Context& c) { delta_row(c, a, norm); });
      done_ = static_cast<std::ptrdiff_t>(i) + 2;
      scratch_.writes(a.y);
      return scratch_.writes(norm.y);
    }
  }
  push([=](const Context& c) { delta_net(c, a); });
  scratch_.writes(a.y);
}

}  // namespace carat::cuda
