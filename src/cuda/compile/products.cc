// Products: rows that are rounded or split once, products at once, mixtures.
#include <utility>

#include "cuda/compile/builder.h"

namespace carat::cuda {

// x in parts for weights such as w, once for consecutive operations that read it.
Rounded Builder::split_once(const Tensor& x, const Tensor& w, Parts parts, RowSet rows) {
  if (parts == Parts::none) return {};
  Rounded r = scratch_.carve_parts(scratch_.parts_at(), x.rows, x.cols);
  r.chunks = parts == Parts::chunks;
  exe_->begun = exe_->begun || r.chunks;
  const std::tuple kind{w.type, parts, w.packing};
  if (scratch_.held(x, rows, 2) && kind == parts_kind_) return r;
  push([=](const Context& c) { split_rows(c, w, x, r, rows, 1); });
  scratch_.holds(x, rows, 2);
  parts_kind_ = kind;
  return r;
}

// x rounded to e4m3 as such weights see it, once for consecutive operations that read it.
Tensor Builder::e4m3_once(DType w, const Tensor& x, RowSet rows) {
  const Tensor y = make_tensor(scratch_.at(scratch_.e4m3_at()), DType::f32, x.rows, x.cols);
  if (scratch_.held(x, rows, 3) && e4m3_kind_ == w) return y;
  push([=](const Context& c) { round_to_e4m3(c, w, x, y, rows, 1); });
  e4m3_kind_ = w;
  scratch_.writes(y);
  scratch_.holds(x, rows, 3);
  return y;
}

// x rounded, once for consecutive operations that read it.
Rounded Builder::round_once(const Tensor& x, RowSet rows) {
  if (x.rows >= least_wide_rows(forced()) && device_.major == 9) exe_->begun = true;
  if (const int32_t slot = scratch_.slot_of(x, rows); slot >= 0) return scratch_.slot(slot, x);
  const Rounded r = scratch_.slot(0, x);
  push([=](const Context& c) { round_rows(c, x, r, rows, 1); });
  scratch_.holds(x, rows, 0);
  return r;
}

// Products know no gelu by erf: it comes behind.
bool Builder::by_erf(const MatmulArgs& a) { return a.act == Act::gelu; }

void Builder::add(MatmulArgs a, RowSet rows) {
  if (rounds_before(a)) a.x = e4m3_once(a.w.type, a.x, rows);
  if (by_erf(a)) {
    MatmulArgs sums = a;
    sums.act = Act::none, sums.mul = {};
    add(sums, rows);
    return add(PointwiseArgs{.y = a.y, .x = a.y, .add = {}, .mul = a.mul, .act = a.act}, rows);
  }
  std::vector<MatmulArgs> all = {a};
  const auto& ops = program_.ops();
  auto next = static_cast<size_t>(index_) + 1;
  for (; all.size() < kMatmulsAtOnce && reads_too(next, a, rows); ++next) {
    const auto& b = ops[next].as<MatmulArgs>();
    if (!matmuls_at_once(all, b, ahead_, device_) || meet(a.x, b.y) || weights_come(next)) break;
    if (ahead_.n > 0 && !norms_fit(ahead_, b, device_)) break;
    all.push_back(b);
    done_ = static_cast<std::ptrdiff_t>(next) + 1;
  }
  if (const RowNorms ahead = std::exchange(ahead_, {}); ahead.n > 0) {
    push([=](const Context& c) { matmuls(c, ahead, all, rows); });
  } else if (rounds(a.w) && all.size() == 1 && !alone_ && scratch_.slot_of(a.x, rows) < 0 &&
             !reads_too(next, a, rows) && rounds_itself(a, device_)) {
    push([=](const Context& c) { matmul_rounding(c, a, rows); });
  } else {
    const Rounded x =
        rounds(a.w) ? round_once(a.x, rows) : split_once(a.x, a.w, parts_of(device_, a.w, a.y.rows), rows);
    push([=](const Context& c) { matmuls(c, all, x, rows); });
  }
  for (const MatmulArgs& m : all) scratch_.writes(m.y);
}

// Whether operation i is a product of the same row.
bool Builder::reads_too(size_t i, const MatmulArgs& a, RowSet rows) const {
  if (i >= program_.ops().size()) return false;
  const OpRecord& op = program_.ops()[i];
  return op.op == Op::Matmul && op.rows == rows && !host_.computes(op) && !by_erf(op.as<MatmulArgs>()) &&
         key_of(op.as<MatmulArgs>().x, rows) == key_of(a.x, rows);
}

void Builder::add(GateUpArgs a, RowSet rows) {
  if (rounds_before(a)) a.x = e4m3_once(a.gate.type, a.x, rows);
  const Rounded x = rounds(a.gate) || rounds(a.up) ? round_once(a.x, rows)
                                                   : split_once(a.x, a.gate, parts_of(device_, a), rows);
  if (const RowNorms ahead = std::exchange(ahead_, {}); ahead.n > 0)
    push([=](const Context& c) { gate_up(c, ahead, a, rows); });
  else
    push([=](const Context& c) { gate_up(c, a, x, rows); });
  scratch_.writes(a.y);
}

void Builder::add(ExpertsArgs a, RowSet rows) {
  const bool rounded = rounds_before(a);
  if (rounded) a.x = e4m3_once(a.gate.type, a.x, rows);
  const Rounded x = rounds(a.gate) || rounds(a.up) ? round_once(a.x, rows)
                                                   : split_once(a.x, a.gate, parts_of(device_, a), rows);
  auto* hidden = reinterpret_cast<float*>(scratch_.at(scratch_.hidden_at()));
  const PairLists lists = pair_lists(device_, a, scratch_.at(scratch_.pairs_at()));
  if (lists.start) push([=](const Context& c) { list_pairs(c, a, lists, rows); });
  const bool chosen = a.y.rows == 1 && chosen_early();
  push([=](const Context& c) { experts_gate_up(c, a, x, hidden, lists, chosen, rows); });
  Rounded h;
  const int32_t pairs = a.y.rows * a.weights.cols, used = a.weights.cols;
  const Tensor all = make_tensor(hidden, DType::f32, pairs, a.gate.rows);
  if (rounded) push([=, w = a.down.type](const Context& c) { round_to_e4m3(c, w, all, all, rows, used); });
  if (const Parts parts = parts_of(device_, a); parts != Parts::none) {
    h = scratch_.carve_parts(scratch_.inner_at(), pairs, a.gate.rows);
    h.chunks = parts == Parts::chunks;
    push([=, w = a.down](const Context& c) { split_rows(c, w, all, h, rows, used); });
  }
  if (rounds(a.down)) {
    h = scratch_.carve(scratch_.inner_at(), pairs, a.gate.rows);
    push([=](const Context& c) { round_rows(c, all, h, rows, used); });
  }
  push([=](const Context& c) { experts_down(c, a, hidden, h, lists, rows); });
  scratch_.writes(a.y);
}

void Builder::add(SliceMatmulArgs a, RowSet rows) {
  if (rounds_before(a)) a.x = e4m3_once(a.w.type, a.x, rows);
  const Rounded x = rounds(a.w) ? round_once(a.x, rows) : Rounded{};
  push([=](const Context& c) { slice_matmul(c, a, x, rows); });
  scratch_.writes(a.y);
}

void Builder::mix(size_t i) {
  Mixture m = mixture_at(i);
  m.number = exe_->mixtures++;
  const RowSet rows = program_.ops()[i].rows;
  const auto of = [&](const Tensor& x) { return scratch_.slot(scratch_.slot_of(x, rows), x); };
  const Rounded dense = of(m.gate_up.x), chosen = of(m.experts.x);
  auto* hidden = reinterpret_cast<float*>(scratch_.at(scratch_.hidden_at()));
  index_ = static_cast<int32_t>(i) + 1;
  push([=](const Context& c) { mixture_up(c, m, dense, chosen, hidden, rows); });
  index_ = static_cast<int32_t>(i) + 3;
  push([=](const Context& c) { mixture_down(c, m, hidden, rows); });
  for (const Tensor& y : {m.route.weights, m.route.experts, m.gate_up.y, m.down.y, m.experts.y})
    scratch_.writes(y);
  done_ = static_cast<std::ptrdiff_t>(i) + (m.adds ? 5 : 4);
}

void Builder::branch(size_t i) {
  const auto turn = [](const Launcher& l, Stream later, Stream earlier) {
    if (!l.beside) return;
    record_event(l.turn, earlier);
    wait_event(later, l.turn);
  };
  push([=](const Context& c) { turn(c.launcher, c.launcher.beside, c.launcher.stream); });
  beside_ = true;
  add(i + 2), add(i + 3);
  beside_ = false;
  add(i), add(i + 1), add(i + 4);
  push([=](const Context& c) { turn(c.launcher, c.launcher.stream, c.launcher.beside); });
  done_ = static_cast<std::ptrdiff_t>(i) + 5;
}

}  // namespace carat::cuda
