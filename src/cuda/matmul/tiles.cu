// Products of many rows on the tensor cores: a block has MT rows of activations and NT outputs, and goes
// through the columns 256 at a time. Codes of both sides stand in shared memory as bytes, whatever the
// format; integer sums of a group are exact, t and the sums over blocks follow the contract's order. So a row
// has the bits that the small products give it (docs/numerics.md).
#include "cuda/matmul/matmul.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPitch = 256 + 16;  // bytes a row of codes: eight rows' words fall into different banks

template <int MT, int NT>
struct Shape {
  static constexpr int kAcross = NT / 16, kDown = kWarps / kAcross,
                       kTiles = MT / 8 / kDown;  // warps; tiles of 16 x 8
  static constexpr int kW = 0, kX = kW + NT * kPitch, kScale = kX + MT * kPitch, kMin = kScale + NT * 16 * 4,
                       kSum = kMin + NT * 16 * 4, kD = kSum + MT * 16 * 4, kActD = kD + NT * 8,
                       kBytes = kActD + MT * 4;
  static_assert(kTiles * 8 * kDown == MT && kAcross * 16 == NT);
};

// What a group's factor is kept as: an integer or a float in the same place.
union Factor {
  int32_t i;
  float f;
};

// Codes and factors of NT rows of w, columns [256 b, 256 b + n).
template <int NT>
CARAT_D void load_weights(const AnyFormat& format, const Tensor& w, int32_t first, int32_t b, int n,
                          uint8_t* codes, Factor* scale, Factor* min, float2* d, const Tables& tables) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Sums sums = format.sums();
  const bool scaled = sums == Sums::scaled || sums == Sums::scaled_min;
  for (int r = warp; r < NT; r += kWarps) {
    Part p;
    if (first + r < w.rows && 8 * lane < n)
      p = part_of(format, weight_row(w, 0, first + r), b, n, lane, tables);
    *reinterpret_cast<uint2*>(codes + r * kPitch + 8 * lane) = uint2{p.low, p.high};
    if (lane % 2 == 0) {  // by 16 columns; wider groups have two alike
      if (scaled)
        scale[r * 16 + lane / 2].i = p.scale, min[r * 16 + lane / 2].i = p.min;
      else
        scale[r * 16 + lane / 2].f = p.d, min[r * 16 + lane / 2].f = p.m;
    }
    if (lane == 0) d[r] = float2{p.d, p.m};
  }
}

// Codes of MT rows of x, their sums by 16 columns, and their scale.
template <int MT>
CARAT_D void load_rows(const Rounded& x, int32_t first, int32_t rows, int32_t b, uint8_t* codes, int32_t* sum,
                       float* d) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int r = warp; r < MT; r += kWarps) {
    const int64_t at = int64_t{first + r} * x.blocks + b;
    uint2 v{0, 0};
    if (r < rows) v = *reinterpret_cast<const uint2*>(x.q + at * 256 + 8 * lane);
    *reinterpret_cast<uint2*>(codes + r * kPitch + 8 * lane) = v;
    int32_t s = dot4(0x01010101u, v.y, dot4(0x01010101u, v.x, 0));
    s += shuffle_xor(s, 1);
    if (lane % 2 == 0) sum[r * 16 + lane / 2] = s;
    if (lane == 0) d[r] = r < rows ? x.d[at] : 0;
  }
}

// acc = x w^T of the block's tile; acc[i] is that of mma's c.
template <int MT, int NT>
CARAT_D void tile_products(const Tensor& w, const Rounded& x, int32_t n0, int32_t m0, int32_t rows,
                           uint8_t* memory, const Tables& tables, float (&acc)[Shape<MT, NT>::kTiles][4]) {
  using S = Shape<MT, NT>;
  uint8_t *wc = memory + S::kW, *xc = memory + S::kX;
  auto* scale = reinterpret_cast<Factor*>(memory + S::kScale);
  auto* min = reinterpret_cast<Factor*>(memory + S::kMin);
  auto* sum = reinterpret_cast<int32_t*>(memory + S::kSum);
  auto* d = reinterpret_cast<float2*>(memory + S::kD);
  auto* act_d = reinterpret_cast<float*>(memory + S::kActD);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int wn = warp % S::kAcross * 16, wm = warp / S::kAcross * S::kTiles * 8;
  const AnyFormat format(w.type);
  const Sums sums = format.sums();
  const bool scaled = sums == Sums::scaled || sums == Sums::scaled_min,
             mins = sums == Sums::scaled_min || sums == Sums::grouped_min;
  const bool halves = small_groups(w.type);
#pragma unroll
  for (int j = 0; j < S::kTiles; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[j][i] = 0;
  for (int32_t b = 0; b < x.blocks; ++b) {
    const int n = w.cols - 256 * b < 256 ? w.cols - 256 * b : 256;
    sync_block();  // nobody reads the last block's codes any more
    load_weights<NT>(format, w, n0, b, n, wc, scale, min, d, tables);
    load_rows<MT>(x, m0, rows, b, xc, sum, act_d);
    sync_block();
    int32_t s[S::kTiles][4], low[S::kTiles][4];
    float f[S::kTiles][4];
#pragma unroll
    for (int j = 0; j < S::kTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = low[j][i] = 0, f[j][i] = 0;
    for (int k = 0; k < n; k += 32) {
      const uint8_t* a = wc + (wn + g) * kPitch + k + 4 * t;
      const uint32_t a0 = u32_at(a), a1 = u32_at(a + 8 * kPitch), a2 = u32_at(a + 16),
                     a3 = u32_at(a + 8 * kPitch + 16);
#pragma unroll
      for (int j = 0; j < S::kTiles; ++j) {
        const uint8_t* v = xc + (wm + 8 * j + g) * kPitch + k + 4 * t;
        const uint32_t b0 = u32_at(v), b1 = u32_at(v + 16);
        for (int half = 0; half < (halves ? 2 : 1); ++half) {
          int32_t c[4];
          if (!halves)
            mma_s8(c, a0, a1, a2, a3, b0, b1);
          else if (half == 0)
            mma_s8(c, a0, a1, 0, 0, b0, b1);
          else
            mma_s8(c, 0, 0, a2, a3, b0, b1);
          const int group = k / 16 + half;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = (wn + g + i / 2 * 8) * 16 + group, row = (wm + 8 * j + 2 * t + i % 2) * 16 + group;
            const int32_t ones = !mins ? 0 : halves ? sum[row] : sum[row] + sum[row + 1];
            if (scaled) {
              s[j][i] += scale[at].i * c[i];
              if (mins) low[j][i] += min[at].i * ones;
            } else {
              f[j][i] = fmaf(scale[at].f, static_cast<float>(c[i]), f[j][i]);
              if (mins) f[j][i] = fmaf(min[at].f, static_cast<float>(ones), f[j][i]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < S::kTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v = f[j][i];
        if (scaled) {
          const float2 of = d[wn + g + i / 2 * 8];
          v = of.x * static_cast<float>(s[j][i]);
          if (mins) v = fmaf(-of.y, static_cast<float>(low[j][i]), v);
        }
        acc[j][i] = fmaf(act_d[wm + 8 * j + 2 * t + i % 2], v, acc[j][i]);
      }
  }
}

// f(row of the step, output, i, j) for the tile's elements that exist.
template <int MT, int NT, class F>
CARAT_D void each_output(int32_t n0, int32_t m0, int32_t rows, int32_t outputs, F f) {
  using S = Shape<MT, NT>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < S::kTiles; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = warp / S::kAcross * S::kTiles * 8 + 8 * j + 2 * t + i % 2;
      const int32_t n = n0 + warp % S::kAcross * 16 + g + i / 2 * 8;
      if (m < rows && n < outputs) f(m0 + m, n, j, i);
    }
}

template <int MT, int NT>
__global__ void __launch_bounds__(kThreads)
    tile_matmul(const MatmulArgs a, const Rounded x, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  const int32_t n0 = blockIdx.x * NT, m0 = blockIdx.y * MT, rows = row_count(s, set) - m0;
  if (rows <= 0) return;
  float acc[Shape<MT, NT>::kTiles][4];
  tile_products<MT, NT>(a.w, x, n0, m0, rows, memory, *tables, acc);
  each_output<MT, NT>(n0, m0, rows, a.w.rows,
                      [&](int32_t m, int32_t n, int j, int i) { finish(a, m, n, acc[j][i]); });
}

template <int MT, int NT>
__global__ void __launch_bounds__(kThreads)
    tile_gate_up(const GateUpArgs a, const Rounded x, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  const int32_t n0 = blockIdx.x * NT, m0 = blockIdx.y * MT, rows = row_count(s, set) - m0;
  if (rows <= 0) return;
  float gate[Shape<MT, NT>::kTiles][4], up[Shape<MT, NT>::kTiles][4];
  tile_products<MT, NT>(a.gate, x, n0, m0, rows, memory, *tables, gate);
  tile_products<MT, NT>(a.up, x, n0, m0, rows, memory, *tables, up);
  each_output<MT, NT>(n0, m0, rows, a.gate.rows, [&](int32_t m, int32_t n, int j, int i) {
    const float g = activate(a.act, gate[j][i] * a.gate_scale);
    row_of<float>(a.y, m)[n] = g * (up[j][i] * a.up_scale);
  });
}

template <int MT, int NT>
dim3 grid_of(int32_t outputs, int32_t rows) {
  return dim3(static_cast<unsigned>((outputs + NT - 1) / NT), static_cast<unsigned>((rows + MT - 1) / MT));
}

}  // namespace

void matmul_tiles(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  if (a.y.rows <= 32)
    launch(c.launcher, "matmul", tile_matmul<32, 32>, grid_of<32, 32>(a.w.rows, a.y.rows), kThreads,
           Shape<32, 32>::kBytes, a, x, c.step, c.tables, rows);
  else
    launch(c.launcher, "matmul", tile_matmul<64, 64>, grid_of<64, 64>(a.w.rows, a.y.rows), kThreads,
           Shape<64, 64>::kBytes, a, x, c.step, c.tables, rows);
}

void gate_up_tiles(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  if (a.y.rows <= 32)
    launch(c.launcher, "gate-up", tile_gate_up<32, 32>, grid_of<32, 32>(a.gate.rows, a.y.rows), kThreads,
           Shape<32, 32>::kBytes, a, x, c.step, c.tables, rows);
  else
    launch(c.launcher, "gate-up", tile_gate_up<64, 64>, grid_of<64, 64>(a.gate.rows, a.y.rows), kThreads,
           Shape<64, 64>::kBytes, a, x, c.step, c.tables, rows);
}

}  // namespace carat::cuda
