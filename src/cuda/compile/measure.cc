// How much scratch operations need, and what this backend refuses.
#include "base/error.h"
#include "core/kv_codec.h"
#include "cuda/compile/builder.h"
#include "cuda/quant/packed.h"

namespace carat::cuda {
namespace {

bool known_cache(DType t) {
  switch (t) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q8_0:
    case DType::fp8:
    case DType::kv4:
    case DType::tq4:
    case DType::tq3:
    case DType::tq3_0:
    case DType::tbq4:
    case DType::tbq3: return true;
    default: return false;
  }
}

}  // namespace

void Builder::require(bool ok, const std::string& what) const {
  if (ok) return;
  throw Error(fmt::format("{}{} on a CUDA device: {}", kOpNames[static_cast<size_t>(op_->op)],
                          op_->layer >= 0 ? fmt::format(" (layer {})", op_->layer) : std::string(), what),
              "use --device cpu for this model or these settings");
}

bool Builder::used_before(const OpRecord& op, const Tensor& y) const {
  bool used = false;
  for (const OpRecord* before = program_.ops().data(); before != &op; ++before)
    each_operand(*before, [&](const char*, const Tensor& t) { used = used || (t.valid() && meet(t, y)); });
  return used;
}

void Builder::room(const Tensor& y, RowSet rows) {
  int32_t& most = rows == RowSet::all ? exe_->max_rows : exe_->max_out;
  const int32_t here = y.rows / rows_in(rows, 1, 1);
  most = most == 0 ? here : std::min(most, here);
}

void Builder::plain(const Tensor& w) const {
  require(w.packing == 0 || (w.packing == kPacked && packs(w.type)) ||
              (w.packing == kBf16AsF16 && w.type == DType::f16),
          "the weight has another device's layout");
}

bool Builder::rounds_before(MatmulArgs& a) {
  return rounds_before(parts_of(device_, a.w, a.y.rows), a.x, a.w);
}

bool Builder::rounds_before(GateUpArgs& a) { return rounds_before(parts_of(device_, a), a.x, a.gate, a.up); }

bool Builder::rounds_before(ExpertsArgs& a) {
  return rounds_before(parts_of(device_, a), a.x, a.gate, a.up, a.down);
}

bool Builder::rounds_before(SliceMatmulArgs& a) { return rounds_before(Parts::none, a.x, a.w); }

void Builder::cache(const KvView& kv) {
  require(kv.spec.dim % 8 == 0 && kv.spec.dim <= kMaxHead,
          fmt::format("heads of {}, expected a multiple of 8 up to {}", kv.spec.dim, kMaxHead));
  for (const DType t : {kv.spec.k, kv.spec.v})
    require(known_cache(t), fmt::format("caches in {}", info(t).name));
  exe_->page_tokens = exe_->page_tokens ? std::min(exe_->page_tokens, kv.page_tokens) : kv.page_tokens;
  exe_->ring_pages = std::max(exe_->ring_pages, kv.ring_tokens / kv.page_tokens);
}

// Sizes of what operations share, and rules of this backend.
void Builder::measure(const OpRecord& op) {
  const auto rounded = [](int64_t& most, const Tensor& x) {
    Scratch::need(most, Scratch::rounded_bytes(x.rows, x.cols));
  };
  const auto parts = [&](const Tensor& x) {
    Scratch::need(scratch_.parts, Scratch::parts_bytes(x.rows, x.cols));
  };
  switch (op.op) {
    case Op::Embed: {
      const auto& a = op.as<EmbedArgs>();
      require(!a.soft || !used_before(op, a.y), "soft rows in memory that is used before");
      return room(a.y, op.rows);
    }
    case Op::Refine: {
      const auto& a = op.as<RefineArgs>();
      rounded(scratch_.rounded, a.y);
      return room(a.x, op.rows);
    }
    case Op::Route: {
      require(op.as<RouteArgs>().logits.cols <= 40 * 1024, "too many experts");
      return room(op.as<RouteArgs>().weights, op.rows);
    }
    case Op::Matmul: {
      auto a = op.as<MatmulArgs>();
      plain(a.w);
      rounds_before(a);
      require(!by_erf(a) || (a.softcap == 0 && !a.residual.valid()), "gelu by erf and more behind it");
      if (rounds(a.w)) rounded(scratch_.rounded, a.x);
      if (parts_of(device_, a.w, a.y.rows) != Parts::none) parts(a.x);
      return room(a.y, op.rows);
    }
    case Op::GateUp: {
      auto a = op.as<GateUpArgs>();
      plain(a.gate), plain(a.up);
      rounds_before(a);
      if (rounds(a.gate) || rounds(a.up)) rounded(scratch_.rounded, a.x);
      if (parts_of(device_, a) != Parts::none) parts(a.x);
      return room(a.y, op.rows);
    }
    case Op::Experts: {
      auto a = op.as<ExpertsArgs>();
      plain(a.gate), plain(a.up), plain(a.down);
      rounds_before(a);
      const int64_t pairs = int64_t{a.y.rows} * a.weights.cols;
      if (rounds(a.gate) || rounds(a.up)) {
        rounded(scratch_.rounded, a.x);
        rounded(scratch_.second, a.x);
      }
      Scratch::need(scratch_.hidden, pairs * a.gate.rows * 4);
      if (rounds(a.down)) Scratch::need(scratch_.inner, Scratch::rounded_bytes(pairs, a.gate.rows));
      if (parts_of(device_, a) != Parts::none)
        parts(a.x), Scratch::need(scratch_.inner, Scratch::parts_bytes(pairs, a.gate.rows));
      Scratch::need(scratch_.pairs, pair_bytes(device_, a));
      return room(a.y, op.rows);
    }
    case Op::SliceMatmul: {
      auto a = op.as<SliceMatmulArgs>();
      plain(a.w);
      rounds_before(a);
      if (rounds(a.w)) rounded(scratch_.rounded, a.x);
      return room(a.y, op.rows);
    }
    case Op::QkvPrep: {
      cache(op.as<QkvPrepArgs>().kv);
      return room(op.as<QkvPrepArgs>().q, op.rows);
    }
    case Op::Attention: {
      const auto& a = op.as<AttentionArgs>();
      cache(a.kv);
      exe_->chains = exe_->chains || attends_whole(a);
      exe_->blocks = exe_->blocks || a.blocks, both_ways_ = both_ways_ || a.both_ways;
      require(!exe_->blocks || !both_ways_, "rows that see later ones by two rules");
      if (unpacks(a)) unpacked_.push_back(a);
      return room(a.y, op.rows);
    }
    case Op::DeltaNet: {
      const auto& a = op.as<DeltaNetArgs>();
      require(delta_net_fits(a.state.spec),
              fmt::format("keys of {}, expected up to 256", a.state.spec.k_dim));
      return room(a.y, op.rows);
    }
    default: return room(first_operand(op), op.rows);
  }
}

}  // namespace carat::cuda
