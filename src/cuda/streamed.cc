#include "cuda/streamed.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "core/strips.h"
#include "cuda/quant/packed.h"

namespace carat::cuda {
namespace {

// Rows of the smallest step's bucket for which it takes less time than the host's products (docs/lab).
constexpr int32_t kStreamedRows = 256;
constexpr int64_t kPiece = int64_t{32} << 20;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t packed_size(const Tensor& t) {
  return aligned(packed_group(t.type, t.cols) * groups_of(t.rows) * t.slices);
}
int64_t group_strips(const Tensor& t) { return kGroup / kStripRows * strip_bytes(t.type, t.cols); }

std::vector<Tensor*> weights_of(OpRecord& op) {
  switch (op.op) {
    case Op::Matmul: return {&op.as<MatmulArgs>().w};
    case Op::GateUp: return {&op.as<GateUpArgs>().gate, &op.as<GateUpArgs>().up};
    case Op::Experts: {
      auto& a = op.as<ExpertsArgs>();
      return {&a.gate, &a.up, &a.down};
    }
    default: return {};
  }
}
int32_t rows_of(const OpRecord& op) {
  switch (op.op) {
    case Op::Matmul: return op.as<MatmulArgs>().y.rows;
    case Op::GateUp: return op.as<GateUpArgs>().y.rows;
    case Op::Experts: return op.as<ExpertsArgs>().y.rows;
    default: return 0;
  }
}

}  // namespace

void bring_weight(const Launcher& l, const Streamed::Weight& w, const Memory& memory) {
  std::byte* const piece = memory.data() + memory.size() - kPiece;
  const int64_t group = group_strips(w.from), slice = w.from.slice_pitch;
  const int32_t groups = groups_of(w.from.rows);
  const bool whole = slice <= kPiece;  // slices, or else groups of one
  const auto at_once = static_cast<int32_t>(
      std::min<int64_t>(whole ? kPiece / slice : kPiece / group, whole ? w.from.slices : groups));
  for (int32_t s = 0; s < w.from.slices; s += whole ? at_once : 1) {
    const int32_t slices = whole ? std::min(at_once, w.from.slices - s) : 1;
    for (int32_t g = 0; g < groups; g += whole ? groups : at_once) {
      const int32_t count = whole ? groups : std::min(at_once, groups - g);
      const int64_t bytes = whole ? slices * slice : std::min(count * group, slice - g * group);
      copy_async(piece, w.from.data + s * slice + g * group, static_cast<size_t>(bytes), l.stream);
      repack_strips(l, w.to, s, slices, g, count, piece, slice);
    }
  }
}

Streamed stream_weights(const Program& program, HostPart& host) {
  Streamed out;
  for (const OpRecord& op : program.ops()) out.program.push(op);
  if (!host.backend()) return out;
  int64_t most = 0;
  std::vector<int32_t> chosen;
  const auto ops = out.program.ops();
  for (size_t i = 0; i < ops.size(); ++i) {
    OpRecord op = ops[i];
    const std::vector<Tensor*> weights = weights_of(op);
    if (weights.empty() || rows_of(op) < kStreamedRows ||
        !std::all_of(weights.begin(), weights.end(), [&](const Tensor* t) { return host.sends(*t); }))
      continue;
    int64_t bytes = 0;
    for (const Tensor* t : weights) bytes += packed_size(*t);
    most = std::max(most, bytes);
    chosen.push_back(static_cast<int32_t>(i));
  }
  if (chosen.empty()) return out;
  try {
    out.memory = host.room(static_cast<size_t>(most + kPiece));
  } catch (const Error& e) {
    log_warn("prompts are multiplied by the CPU where it has the weights: {}", e.what());
    return out;
  }
  Program streamed;
  for (size_t i = 0, next = 0; i < ops.size(); ++i) {
    OpRecord op = ops[i];
    if (next < chosen.size() && chosen[next] == static_cast<int32_t>(i)) {
      ++next;
      std::byte* at = out.memory->data();
      for (Tensor* t : weights_of(op)) {
        const Tensor to = packed_at(*t, at);
        out.weights.push_back({static_cast<int32_t>(i), *t, to});
        at += packed_size(*t);
        *t = to;
      }
    }
    streamed.push(op);
  }
  out.program = std::move(streamed);
  return out;
}

}  // namespace carat::cuda
