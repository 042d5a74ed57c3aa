// The named tensors of an operation, for checking and printing.
#pragma once
#include "core/program.h"

namespace carat {

// Calls f(name, tensor) for every operand, outputs first, absent ones included. Record: OpRecord, const or
// not; so are the tensors.
template <class Record, class F>
void each_operand(Record& op, F&& f) {
  switch (op.op) {
    case Op::Embed: {
      auto& a = op.template as<EmbedArgs>();
      f("y", a.y), f("table", a.table);
      break;
    }
    case Op::Gather: {
      auto& a = op.template as<GatherArgs>();
      f("y", a.y), f("x", a.x);
      break;
    }
    case Op::RmsNorm: {
      auto& a = op.template as<RmsNormArgs>();
      f("y", a.y), f("x", a.x), f("weight", a.weight), f("residual", a.residual), f("gain", a.gain);
      f("mul", a.mul);
      break;
    }
    case Op::Pointwise: {
      auto& a = op.template as<PointwiseArgs>();
      f("y", a.y), f("x", a.x), f("add", a.add), f("mul", a.mul);
      break;
    }
    case Op::LayerNorm: {
      auto& a = op.template as<LayerNormArgs>();
      f("y", a.y), f("x", a.x), f("weight", a.weight), f("bias", a.bias);
      break;
    }
    case Op::Matmul: {
      auto& a = op.template as<MatmulArgs>();
      f("y", a.y), f("x", a.x), f("w", a.w), f("bias", a.bias), f("mul", a.mul), f("residual", a.residual);
      break;
    }
    case Op::Refine: {
      auto& a = op.template as<RefineArgs>();
      f("y", a.y), f("x", a.x);
      break;
    }
    case Op::Fold: {
      auto& a = op.template as<FoldArgs>();
      f("y", a.y), f("x", a.x);
      break;
    }
    case Op::GateUp: {
      auto& a = op.template as<GateUpArgs>();
      f("y", a.y), f("x", a.x), f("gate", a.gate), f("up", a.up);
      break;
    }
    case Op::Route: {
      auto& a = op.template as<RouteArgs>();
      f("weights", a.weights), f("experts", a.experts), f("logits", a.logits),
          f("expert_scale", a.expert_scale);
      break;
    }
    case Op::Experts: {
      auto& a = op.template as<ExpertsArgs>();
      f("y", a.y), f("x", a.x), f("gate", a.gate), f("up", a.up), f("down", a.down), f("weights", a.weights);
      f("experts", a.experts), f("gate_scale", a.gate_scale), f("up_scale", a.up_scale);
      f("down_scale", a.down_scale), f("residual", a.residual);
      break;
    }
    case Op::SliceMatmul: {
      auto& a = op.template as<SliceMatmulArgs>();
      f("y", a.y), f("x", a.x), f("w", a.w), f("chosen", a.chosen);
      break;
    }
    case Op::QkvPrep: {
      auto& a = op.template as<QkvPrepArgs>();
      f("q", a.q), f("k", a.k), f("v", a.v), f("q_norm", a.q_norm), f("k_norm", a.k_norm);
      break;
    }
    case Op::Attention: {
      auto& a = op.template as<AttentionArgs>();
      f("y", a.y), f("q", a.q);
      break;
    }
    case Op::BandAttention: {
      auto& a = op.template as<BandAttentionArgs>();
      f("y", a.y), f("q", a.q), f("k", a.k), f("v", a.v), f("ahead", a.ahead);
      break;
    }
    case Op::Conv: {
      auto& a = op.template as<ConvArgs>();
      f("y", a.y), f("x", a.x), f("weight", a.weight);
      break;
    }
    case Op::DeltaNet: {
      auto& a = op.template as<DeltaNetArgs>();
      f("y", a.y), f("q", a.q), f("k", a.k), f("v", a.v), f("a", a.a), f("beta", a.beta);
      f("rate", a.rate), f("bias", a.bias);
      break;
    }
    case Op::Top: {
      auto& a = op.template as<TopArgs>();
      f("column", a.column), f("value", a.value), f("share", a.share), f("x", a.x);
      break;
    }
    case Op::Share: {
      auto& a = op.template as<ShareArgs>();
      f("y", a.y);
      break;
    }
  }
}
// The first operand, whose rows are those that the operation has room for.
inline Tensor first_operand(const OpRecord& op) {
  Tensor y;
  each_operand(op, [&](const char*, const Tensor& t) {
    if (!y.valid()) y = t;
  });
  return y;
}

}  // namespace carat
