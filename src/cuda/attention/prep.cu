// QkvPrep: a warp a head. Norm, rotary embedding, rotation of the cache's format, and the cache itself.
#include "cuda/attention/prep.cuh"

namespace carat::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

struct PrepArgs {
  Tensor q, k, v, q_norm, k_norm;
  Rope rope;
  float eps;
  bool v_norm;
  int32_t q_heads, kv_heads;  // kv_heads: that are stored
  DevKv kv;
  DevCopies copies;
};

// EACH: elements of a head a lane, at most.
template <int EACH>
CARAT_D void put_head(const float (&v)[EACH], float* x, int32_t dim, int lane) {
#pragma unroll
  for (int k = 0; k < EACH; ++k)
    if (lane + 32 * k < dim) x[lane + 32 * k] = v[k];
  sync_warp();
}

template <int EACH>
struct Angles {
  float2 of[EACH / 2];
};
template <int EACH>
CARAT_D void rope_head(const Rope& rope, const Angles<EACH>& angles, float* x, int lane) {
#pragma unroll
  for (int k = 0; k < EACH / 2; ++k) {
    const int32_t i = lane + 32 * k;
    if (i < rope.pairs) turn_pair(angles.of[k], x[i], x[i + rope.offset]);
  }
  sync_warp();
}

template <int EACH>
CARAT_D void rotate_head(const Rotation<EACH>& rotation, float* x, int32_t dim, int lane) {
  if (rotation.n == 0) return;
  float v[EACH];
  load_head(x, dim, lane, v);
  rotation.turn(v, lane);
  put_head(v, x, dim, lane);
}

// A key becomes what is stored of it: i and i + dim / 2, i < pairs.
CARAT_D void rotary_part(float* x, int32_t dim, int32_t pairs, int lane) {
  for (int32_t i = 0; i < pairs; i += 32) {
    const float v = i + lane < pairs ? x[dim / 2 + i + lane] : 0;
    sync_warp();
    if (i + lane < pairs) x[pairs + i + lane] = v;
    sync_warp();
  }
}

// COPIES: single copies of K = V, protected rows.
template <int EACH, bool COPIES>
__global__ void __launch_bounds__(kThreads)
    prep_kernel(const PrepArgs a, const DevStep* s, const Tables* tables, RowSet set) {
  CARAT_SHARED(memory);
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t dim = a.kv.dim, q_heads = a.q_heads, kv_heads = a.kv_heads;
  const int32_t m = blockIdx.x, h = blockIdx.y * kWarps + warp;
  const bool some = m < row_count(s, set) && h < q_heads + 2 * kv_heads, is_q = h < q_heads,
             is_k = !is_q && h < q_heads + kv_heads;
  const int32_t row = some ? step_row(s, set, m) : 0, pos = some ? pos_of(s, row) : 0;
  // What the step and the weights say, before the inputs are there.
  const Tensor& weight = is_q ? a.q_norm : a.k_norm;
  const bool turns = some && (is_q || is_k);
  Angles<EACH> angles{};
  float w[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int32_t i = lane + 32 * k;
    w[k] = turns && weight.data && i < dim ? row_of<const float>(weight, 0)[i] : 1;
  }
#pragma unroll
  for (int k = 0; k < EACH / 2; ++k) {
    if (!turns || lane + 32 * k >= a.rope.pairs) continue;
    angles.of[k] = angle_of(s, a.rope, row, pos, lane + 32 * k);
  }
  const DType type = is_q || is_k ? a.kv.k_type : a.kv.v_type;
  const int32_t size = COPIES && is_k ? a.copies.key_dim : dim;  // of what is stored
  const Rotation<EACH> rotation(COPIES && is_q && a.copies.pairs ? KvRotation::none : device_rotation(type),
                                false, size, *tables, lane);
  const float level = level_of(type, *tables, lane);
  const int32_t head = is_q ? h : is_k ? h - q_heads : some ? h - q_heads - kv_heads : 0;
  float* const from = row_of<float>(is_q ? a.q : is_k ? a.k : a.v, m) + head * dim;
  uint8_t *stored = nullptr, *edge = nullptr;
  if (some && !is_q) {
    const SeqView& seq = *seq_of(s, row);
    const int32_t slot = s->slot ? s->slot[row] : pos;
    stored = is_k ? k_row(a.kv, seq, slot, head) : v_row(a.kv, seq, slot, head);
    if (COPIES && a.copies.protect.any())
      edge = is_k ? k_edge_row(a.kv, a.copies, seq, slot, head) : v_edge_row(a.kv, a.copies, seq, slot, head);
  }
  wait_inputs();
  if (!some) return;
  auto* x = reinterpret_cast<float*>(memory) + static_cast<int64_t>(warp) * dim;
  uint8_t* code = memory + int64_t{4} * kWarps * dim + static_cast<int64_t>(warp) * dim;
  float v[EACH];
  load_head(from, dim, lane, v);
  norm_head(turns ? weight.data != nullptr : a.v_norm, w, a.eps, dim, lane, v);
  put_head(v, x, dim, lane);
  if (turns) rope_head(a.rope, angles, x, lane);
  if (COPIES && is_k && a.copies.pairs) rotary_part(x, dim, a.copies.pairs, lane);
  rotate_head(rotation, x, size, lane);
  if (is_q)
    for (int32_t i = lane; i < dim; i += 32) from[i] = x[i];
  else
    kv_store(type, x, code, stored, size, level, lane);
  if (COPIES && edge) kv_store(DType::f16, x, code, edge, size, level, lane);
}

}  // namespace

void qkv_prep(const Context& c, const QkvPrepArgs& a, RowSet rows) {
  const int32_t dim = a.kv.spec.dim, q_heads = a.q.cols / dim, kv_heads = a.k.valid() ? a.kv.spec.heads : 0,
                heads = q_heads + 2 * kv_heads;
  const PrepArgs args{a.q,   a.k,      a.v,     a.q_norm, a.k_norm,     a.rope,
                      a.eps, a.v_norm, q_heads, kv_heads, dev_kv(a.kv), dev_copies(a.kv)};
  const auto kernel = args.copies.any() ? prep_kernel<kMaxHead / 32, true>
                      : dim <= 128      ? prep_kernel<4, false>  // towers', of thousands of rows
                      : dim <= 256      ? prep_kernel<8, false>
                                        : prep_kernel<kMaxHead / 32, false>;
  launch(c.launcher, "prep", kernel,
         dim3(static_cast<unsigned>(a.q.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
         kThreads, static_cast<size_t>(kWarps) * dim * 5, args, c.step, c.tables, rows);
}

}  // namespace carat::cuda
