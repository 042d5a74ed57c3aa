#include "apps/traffic.h"

#include <algorithm>

namespace carat {
namespace {

double tensor_bytes(const Tensor& t) {
  return t.valid() ? static_cast<double>(row_bytes(t.type, t.cols)) * t.rows * t.slices : 0;
}

double kv_bytes(const KvView& kv, int32_t depth) {
  const int32_t seen = kv.spec.window > 0 ? std::min(kv.spec.window, depth + 1) : depth + 1;
  const auto row = kv.spec.k_bytes() + kv.spec.v_bytes();
  return static_cast<double>(seen) * kv.spec.heads * static_cast<double>(row);
}

double products(const Tensor& w) { return 2.0 * w.rows * w.cols; }

double attention_operations(const AttentionArgs& a, int32_t rows, int32_t depth) {
  double seen = 0;
  for (int32_t r = 0; r < rows; ++r)
    seen += a.kv.spec.window > 0 ? std::min(a.kv.spec.window, depth + r + 1) : depth + r + 1;
  return 4.0 * seen * a.q.cols;
}

}  // namespace

double op_read_bytes(const OpRecord& op, int32_t rows, int32_t depth) {
  switch (op.op) {
    case Op::Embed: {
      const Tensor& t = op.as<EmbedArgs>().table;
      return static_cast<double>(row_bytes(t.type, t.cols)) * rows;
    }
    case Op::Matmul: return tensor_bytes(op.as<MatmulArgs>().w);
    case Op::GateUp: return tensor_bytes(op.as<GateUpArgs>().gate) + tensor_bytes(op.as<GateUpArgs>().up);
    case Op::Experts: {
      const auto& a = op.as<ExpertsArgs>();
      const double share = std::min(1.0, static_cast<double>(rows) * a.experts.cols / a.gate.slices);
      return share * (tensor_bytes(a.gate) + tensor_bytes(a.up) + tensor_bytes(a.down));
    }
    case Op::SliceMatmul: {
      const auto& a = op.as<SliceMatmulArgs>();
      return std::min(1.0, static_cast<double>(rows) * a.chosen.cols / a.w.slices) * tensor_bytes(a.w);
    }
    case Op::Attention: return kv_bytes(op.as<AttentionArgs>().kv, depth);
    default: return 0;
  }
}

double op_operations(const OpRecord& op, int32_t rows, int32_t depth) {
  switch (op.op) {
    case Op::Matmul: return rows * products(op.as<MatmulArgs>().w);
    case Op::GateUp: return rows * (products(op.as<GateUpArgs>().gate) + products(op.as<GateUpArgs>().up));
    case Op::Experts: {
      const auto& a = op.as<ExpertsArgs>();
      return static_cast<double>(rows) * a.experts.cols *
             (products(a.gate) + products(a.up) + products(a.down));
    }
    case Op::SliceMatmul: {
      const auto& a = op.as<SliceMatmulArgs>();
      return static_cast<double>(rows) * a.chosen.cols * products(a.w);
    }
    case Op::Attention: return attention_operations(op.as<AttentionArgs>(), rows, depth);
    default: return 0;
  }
}

double step_read_bytes(const Program& program, int32_t rows, int32_t depth) {
  double sum = 0;
  for (const OpRecord& op : program.ops()) sum += op_read_bytes(op, rows, depth);
  return sum;
}

}  // namespace carat
