// What follows an operation, and which operations a mixture's kernels have together.
#include <cmath>

#include "cuda/compile/builder.h"
#include "cuda/quant/packed.h"

namespace carat::cuda {

// Whether operations of these kinds begin at i, for the same rows, and all the device's own.
bool Builder::follow(std::initializer_list<Op> kinds, size_t i) const {
  const auto& ops = program_.ops();
  if (i + kinds.size() > ops.size()) return false;
  for (size_t k = 0; k < kinds.size(); ++k)
    if (ops[i + k].op != kinds.begin()[k] || ops[i + k].rows != ops[i].rows || host_.computes(ops[i + k]))
      return false;
  return !weights_come(i, kinds.size());
}

// Whether weights of operations [i, i + n) come from the host, one operation's at a time.
bool Builder::weights_come(size_t i, size_t n) const {
  return std::any_of(streamed_.weights.begin(), streamed_.weights.end(), [&](const Streamed::Weight& w) {
    return static_cast<size_t>(w.op) >= i && static_cast<size_t>(w.op) < i + n;
  });
}

// Choice, dense branch and experts of few rows as two kernels, with the sum of both behind them.
bool Builder::mixes(size_t i) const {
  const auto& ops = program_.ops();
  if (!follow({Op::Route, Op::GateUp, Op::Matmul, Op::Experts}, i)) return false;
  const Mixture m = mixture_at(i);
  return apart(m.gate_up, m.down, m.experts, ops[i].rows) && mixture_fits(m, device_);
}

// Whether operation i adds a mixture's dense branch to its experts, and does nothing else.
bool Builder::adds_branch(size_t i, const Mixture& m, RowSet rows) const {
  if (!follow({Op::Pointwise}, i) || program_.ops()[i].rows != rows) return false;
  const auto& sum = program_.ops()[i].as<PointwiseArgs>();
  const auto same = [](const Tensor& t, const Tensor& u) { return t.data == u.data && t.cols == u.cols; };
  return same(sum.y, m.experts.y) && same(sum.x, m.experts.y) && same(sum.add, m.down.y) &&
         !sum.mul.valid() && sum.act == Act::none && std::isinf(sum.low) && std::isinf(sum.high);
}

// Whether inputs of a dense branch and of experts are there, rounded, and neither writes what the other
// reads or writes: their order is free.
bool Builder::apart(const GateUpArgs& gate, const MatmulArgs& down, const ExpertsArgs& experts,
                    RowSet rows) const {
  if (scratch_.slot_of(gate.x, rows) < 0 || scratch_.slot_of(experts.x, rows) < 0) return false;
  for (const Tensor& y : {gate.y, down.y})
    for (const Tensor& t : {experts.x, experts.y, experts.residual})
      if (meet(t, y)) return false;
  return !meet(gate.x, experts.y) && !meet(down.mul, experts.y) && !meet(down.residual, experts.y);
}

Mixture Builder::mixture_at(size_t i) const {
  const auto& ops = program_.ops();
  Mixture m{ops[i].as<RouteArgs>(), ops[i + 1].as<GateUpArgs>(), ops[i + 2].as<MatmulArgs>(),
            ops[i + 3].as<ExpertsArgs>()};
  m.adds = adds_branch(i + 4, m, ops[i].rows);
  return m;
}

// Router, choice, dense branch, experts of a few rows: the branch runs beside the others, which leave most
// of the device idle. What it writes, rounded inputs included, is none of theirs. (Of fewer rows see
// mixes(), or experts ask for weights early.)
bool Builder::branches(size_t i) const {
  const auto& ops = program_.ops();
  if (!follow({Op::Matmul, Op::Route, Op::GateUp, Op::Matmul, Op::Experts}, i) || mixes(i + 1)) return false;
  const auto& router = ops[i].as<MatmulArgs>();
  const auto& gate = ops[i + 2].as<GateUpArgs>();
  const auto& down = ops[i + 3].as<MatmulArgs>();
  const auto& experts = ops[i + 4].as<ExpertsArgs>();
  if (gate.x.rows < 2 || gate.x.rows > kSplitRows || rounds(router.w)) return false;
  for (const Tensor& y : {gate.y, down.y})
    if (meet(router.x, y) || meet(router.y, y)) return false;
  return apart(gate, down, experts, ops[i].rows);
}

// Whether one of the next operations reads y rounded.
bool Builder::rounded_soon(const Tensor& y, RowSet rows) const {
  const auto reads = [&](const Tensor& x, const Tensor& w) {
    return rounds(w) && !host_.has(w) && key_of(x, rows) == key_of(y, rows);
  };
  const auto& ops = program_.ops();
  for (size_t i = static_cast<size_t>(index_) + 1; i < ops.size() && i <= static_cast<size_t>(index_) + 6;
       ++i) {
    const OpRecord& op = ops[i];
    if (op.rows != rows) return false;
    if (op.op == Op::Matmul && reads(op.as<MatmulArgs>().x, op.as<MatmulArgs>().w)) return true;
    if (op.op == Op::GateUp && reads(op.as<GateUpArgs>().x, op.as<GateUpArgs>().gate)) return true;
    if (op.op == Op::Experts && reads(op.as<ExpertsArgs>().x, op.as<ExpertsArgs>().gate)) return true;
  }
  return false;
}

// Whether experts were chosen before the operation before, whose kernels let the next one start when they
// have waited for their inputs (packed products of one row, which fit).
bool Builder::chosen_early() const {
  const OpRecord* const op = program_.ops().data() + index_ - 1;
  if (index_ == 0 || op->op != Op::Matmul || host_.computes(*op)) return false;
  const Tensor& w = op->as<MatmulArgs>().w;
  return w.packing == kPacked && w.cols <= 64 * 256;
}

}  // namespace carat::cuda
