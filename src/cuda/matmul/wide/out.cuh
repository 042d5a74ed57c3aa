// What becomes of the sums of a tile of wide/tiles.cuh. The two warpgroups that multiply bring them to
// shared memory, from where rows are written four outputs a thread. What models multiply most, sums alone, a
// residual, gate and up, has short loops of its own beside the one that has every activation, bias and soft
// cap in it.
#pragma once
#include <type_traits>

#include "cuda/device/warpgroup.cuh"
#include "cuda/matmul/packed/tiles.cuh"

namespace carat::cuda {

inline constexpr int kWideConsumers = 256;
// Sums on their way out: rows are apart so that what a warp writes at once falls into different banks.
inline constexpr int kOutPitch = 128 + 4, kNarrowPitch = 64 + 4;

// Sums' way out of shared memory, of `rows` of the tile's from `first` on.
template <class Row>
struct WideWay {
  const TileJob& a;
  const MatmulArgs& m;  // a's own, or another one of the same rows
  const float* sums;
  int32_t n;  // of outputs, the tile's first
  int outs, first, rows, thread;
  Row row;
  int pitch = kOutPitch, threads = kWideConsumers;

  CARAT_D int up() const { return a.paired() ? outs : 0; }  // from gate's sum to that of up
};
// Four outputs at a time, where they are made of nothing but sums, factors and, added at last, what lies at
// `plus` (asked for AHEAD rows at once). make(v, up): one.
template <int AHEAD, class Row, class Make>
CARAT_D void write_fours(const WideWay<Row>& way, const Tensor& plus, Make make) {
  const int column = way.thread * 4 % way.outs, step = way.threads * 4 / way.outs;
  if (way.n + column >= way.m.w.rows) return;
#pragma unroll 1
  for (int m0 = way.thread * 4 / way.outs; m0 < way.rows; m0 += AHEAD * step) {
    float4 more[AHEAD] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (plus.data && m0 + i * step < way.rows)
        more[i] = *reinterpret_cast<const float4*>(
            row_of<const float>(plus, way.row(way.first + m0 + i * step)) + way.n + column);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int m = m0 + i * step;
      if (m >= way.rows) break;
      const float* at = way.sums + m * way.pitch + column;
      const float4 v = *reinterpret_cast<const float4*>(at),
                   up = *reinterpret_cast<const float4*>(at + way.up());
      float4 y{make(v.x, up.x), make(v.y, up.y), make(v.z, up.z), make(v.w, up.w)};
      if (plus.data) y = {y.x + more[i].x, y.y + more[i].y, y.z + more[i].z, y.w + more[i].w};
      *reinterpret_cast<float4*>(row_of<float>(way.m.y, way.row(way.first + m)) + way.n + column) = y;
    }
  }
}
template <class Row>
CARAT_D void write_any(const WideWay<Row>& way, int32_t slice) {
  const int column = way.thread % way.outs;
  const int32_t n = way.n + column;
  if (n >= way.m.w.rows) return;
#pragma unroll 1
  for (int m = way.thread / way.outs; m < way.rows; m += way.threads / way.outs) {
    const float* at = way.sums + m * way.pitch + column;
    if (way.a.kind == TileJob::matmul)
      finish(way.m, way.row(way.first + m), n, at[0]);
    else
      finish_tile(way.a, slice, way.row(way.first + m), n, at[0], at[way.up()]);
  }
}
CARAT_D bool in_fours(const Tensor& t) {
  return (reinterpret_cast<uintptr_t>(t.data) | static_cast<uintptr_t>(t.pitch)) % 16 == 0;
}
template <bool kExperts, class Row>
CARAT_D void write_rows(const WideWay<Row>& way, int32_t slice) {
  const TileJob& a = way.a;
  const MatmulArgs& m = way.m;
  const float f = kExperts ? expert_scale(a.expert_scales, slice) : m.scale;
  if (!in_fours(m.y) || !in_fours(m.residual) || m.w.rows % 4 != 0) return write_any(way, slice);
  if (a.paired()) {
    const float g = kExperts ? expert_scale(a.other_scales, slice) : a.other_scale;
    const auto gated = [&](auto act) {
      write_fours<1>(way, Tensor{}, [&](float v, float up) { return activate(act, v * f) * (up * g); });
    };
    if (m.act == Act::gelu_tanh) return gated(std::integral_constant<Act, Act::gelu_tanh>());
    if (m.act == Act::silu) return gated(std::integral_constant<Act, Act::silu>());
  } else if (kExperts || (!m.bias.data && m.act == Act::none && m.softcap <= 0 && !m.mul.data)) {
    return write_fours<2>(way, kExperts ? Tensor{} : m.residual, [&](float v, float) { return v * f; });
  }
  write_any(way, slice);
}

// Sums of both warpgroups meet in shared memory, ROWS of the tile's at a time, so that those of gate and up
// come together and rows are written whole. row(m): of the output, by the tile's rows.
template <int ROWS, bool kExperts, int N, class Row>
CARAT_D void write_wide(const TileJob& a, const MatmulArgs& m, int32_t tile, int32_t slice,
                        const int32_t& count, const float (&acc)[N], uint8_t* memory, Row row) {
  constexpr int kEach = ROWS / 2;  // of acc
  auto* sums = reinterpret_cast<float*>(memory);
  const int thread = threadIdx.x, lane = thread % 32, outs = a.paired() ? 64 : 128;
  float* mine = sums + lane % 4 * 2 * kOutPitch + thread / 32 * 16 + lane / 4;
#pragma unroll 1
  for (int first = 0; first < 2 * N; first += ROWS) {
    turn_wait(3, kWideConsumers);  // all have used what was there
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i / kEach * ROWS == first) mine[(i % kEach / 4 * 8 + i % 2) * kOutPitch + i % 4 / 2 * 8] = acc[i];
    turn_wait(3, kWideConsumers);
    const int32_t left = count - first;
    write_rows<kExperts>(
        WideWay<Row>{a, m, sums, tile * outs, outs, first, left < ROWS ? left : ROWS, thread, row}, slice);
  }
}
// Of a tile of 64 outputs (of gate and up: 32 each) by `threads`, whose own sums are rows [from, from + 2 N).
template <int N, class Row>
CARAT_D void write_narrow(const TileJob& a, const MatmulArgs& m, int32_t tile, int32_t count, int from,
                          const float (&acc)[N], uint8_t* memory, int threads, Row row) {
  auto* sums = reinterpret_cast<float*>(memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32 % 4, outs = a.paired() ? 32 : 64;
  float* mine = sums + (from + lane % 4 * 2) * kNarrowPitch + warp * 16 + lane / 4;
  turn_wait(3, threads);  // all have used what was there
#pragma unroll
  for (int i = 0; i < N; ++i) mine[(i / 4 * 8 + i % 2) * kNarrowPitch + i % 4 / 2 * 8] = acc[i];
  turn_wait(3, threads);
  write_rows<false>(WideWay<Row>{a, m, sums, tile * outs, outs, 0, count, thread, row, kNarrowPitch, threads},
                    0);
}

}  // namespace carat::cuda
