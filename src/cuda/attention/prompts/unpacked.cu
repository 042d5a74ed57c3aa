// Packed caches under prompts: what a step's rows see is decoded to halves once, some tiles at a time, and
// the kernels of f16 caches attend to it. So reading a prompt costs what it costs over f16, whatever the
// format.
#include "cuda/attention/prompts/prompts.cuh"

namespace carat::cuda {
namespace {

constexpr int kUnpackThreads = 256, kTurnWarps = 8;

// a.unpacked.part's tiles of the keys and values that DevStep::unpacked names.
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const AttentionPart a, const DevStep* s, const Tables* tables) {
  begin_kernel();
  const UnpackedTiles& u = a.unpacked;
  const int32_t key_units = u.key_columns / 8, units = key_units + a.kv.dim / 8, key_dim = a.copies.key_dim;
  for (int32_t task = blockIdx.x; task < u.tiles * a.kv.heads; task += gridDim.x) {
    const int32_t tile = task / a.kv.heads, head = task - tile * a.kv.heads, nth = u.part * u.tiles + tile;
    const UnpackedRun* run = s->unpacked[a.span];
    const UnpackedRun* end = run + s->n_unpacked[a.span];
    while (run < end && (nth < run->at || nth >= run->at + run->count)) ++run;
    if (run == end) continue;
    const SeqView& seq = s->seqs[run->seq];
    const int32_t begin = (run->first + nth - run->at) * kKvTile;
    const int64_t row = (int64_t{tile} * a.kv.heads + head) * kKvTile;
    for (int32_t i = threadIdx.x; i < kKvTile * units; i += kUnpackThreads) {
      const int32_t at = i / units, unit = i - at * units, p = begin + at;
      if (p < run->from || p > run->to) continue;
      const bool key = unit < key_units;
      const int32_t k = key ? unit : unit - key_units;
      uint4 v{0, 0, 0, 0};
      if (!key)
        v = kv_halves8(a.kv.v_type, kv_fetch8(a.kv.v_type, v_row(a.kv, seq, p, head), a.kv.dim, k), a.kv.dim,
                       k, *tables);
      else if (8 * k < key_dim)
        v = kv_halves8(a.kv.k_type, kv_fetch8(a.kv.k_type, k_row(a.kv, seq, p, head), key_dim, k), key_dim, k,
                       *tables);
      uint8_t* to = key ? u.k + (row + at) * 2 * u.key_columns : u.v + (row + at) * 2 * a.kv.dim;
      *reinterpret_cast<uint4*>(to + 16 * k) = v;
    }
  }
}

// y out of the domain of the values, a warp a head: of rows that were unpacked.
__global__ void __launch_bounds__(32 * kTurnWarps)
    turn_kernel(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
  let_next_start();
  constexpr int kEach = kMaxHead / 32;
  const int lane = threadIdx.x % 32;
  const int32_t m = blockIdx.x, head = blockIdx.y * kTurnWarps + threadIdx.x / 32, dim = a.kv.dim;
  const Rotation<kEach> rotation(device_rotation(a.kv.v_type), true, dim, *tables, lane);
  wait_inputs();
  if (m >= row_count(s, set) || head >= a.heads || !unpacked_run(a, s, step_row(s, set, m))) return;
  float* y = row_of<float>(a.y, m) + int64_t{head} * dim;
  float v[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) v[k] = lane + 32 * k < dim ? y[lane + 32 * k] : 0;
  rotation.turn(v, lane);
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (lane + 32 * k < dim) y[lane + 32 * k] = v[k];
}

int32_t key_columns(const KvSpec& kv) { return kv.pairs ? kKeyColumns : kv.dim; }

}  // namespace

bool unpacks(const AttentionArgs& a) {
  const KvSpec& kv = a.kv.spec;
  const bool halves = kv.k == DType::f16 && kv.v == DType::f16,
             floats = kv.k == DType::f32 || kv.v == DType::f32;
  const bool wide = kv.pairs ? kv.dim == 512 && kv.key_dim() % 8 == 0 && kv.key_dim() <= kKeyColumns
                             : kv.dim == 256 || kv.dim == 512;
  return a.y.rows >= kPromptRows && wide && !floats && (kv.pairs || !halves) && !a.both_ways &&
         a.softcap <= 0 && in_pairs(a.y);
}
int64_t unpacked_bytes(const AttentionArgs& a, int32_t tiles) {
  const KvSpec& kv = a.kv.spec;
  return int64_t{tiles} * kKvTile * kv.heads * 2 * (key_columns(kv) + kv.dim) +
         int64_t{a.y.rows} * (a.q.cols / kv.dim) * static_cast<int64_t>(sizeof(float2));
}
UnpackedTiles unpacked_at(const AttentionArgs& a, std::byte* to, int32_t tiles) {
  const KvSpec& kv = a.kv.spec;
  UnpackedTiles u;
  u.tiles = tiles, u.key_columns = key_columns(kv);
  const int64_t rows = int64_t{tiles} * kKvTile * kv.heads;
  u.k = reinterpret_cast<uint8_t*>(to);
  u.v = u.k + rows * 2 * u.key_columns;
  u.states = reinterpret_cast<float2*>(u.v + rows * 2 * kv.dim);
  return u;
}

void attend_unpacked(const Context& c, AttentionPart a, int32_t rows, RowSet set, int32_t parts) {
  a.cut_heads(16);
  const int64_t tasks = int64_t{a.unpacked.tiles} * a.kv.heads;
  for (int32_t part = 0; part < parts; ++part) {
    a.unpacked.part = part;
    launch(c.launcher, "unpacking a cache", unpack_kernel,
           dim3(static_cast<unsigned>(std::min<int64_t>(tasks, int64_t{8} * c.launcher.sms))), kUnpackThreads,
           size_t{0}, a, c.step, c.tables);
    if (a.copies.protect.any())
      attend_protected(c, a, rows, set);
    else
      attend_decoded<false>(c, a, rows, set);
  }
  if (device_rotation(a.kv.v_type) != KvRotation::none && parts > 0)
    launch(c.launcher, "turning attention", turn_kernel,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>((a.heads + kTurnWarps - 1) / kTurnWarps)),
           32 * kTurnWarps, size_t{0}, a, c.step, c.tables, set);
}

}  // namespace carat::cuda
