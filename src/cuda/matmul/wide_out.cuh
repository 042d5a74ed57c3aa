// What becomes of the sums of a tile of wide_tiles.cuh. The two warpgroups that multiply bring them to shared
// memory, from where rows are written four outputs a thread. What models multiply most, sums alone, a
// residual, gate and up, has short loops of its own beside the one that has every activation, bias and soft
// cap in it.
#pragma once
#include <type_traits>

#include "cuda/device/warpgroup.cuh"
#include "cuda/matmul/packed_tiles.cuh"

namespace carat::cuda {

inline constexpr int kWideConsumers = 256;
// Sums on their way out: rows are apart so that what a warp writes at once falls into different banks.
inline constexpr int kOutPitch = 128 + 4;

// Sums' way out of shared memory, of `rows` of the tile's from `first` on.
template <class Row>
struct WideWay {
  const TileJob& a;
  const float* sums;
  int32_t n;  // of outputs, the tile's first
  int outs, first, rows, thread;
  Row row;
};
// Four outputs at a time, where they are made of nothing but sums, factors and, added at last, what lies at
// `plus` (asked for AHEAD rows at once). make(v, up): one.
template <int AHEAD, class Row, class Make>
CARAT_D void write_fours(const WideWay<Row>& way, const Tensor& plus, Make make) {
  const int column = way.thread * 4 % way.outs, step = kWideConsumers * 4 / way.outs;
  if (way.n + column >= way.a.m.w.rows) return;
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
      const float* at = way.sums + m * kOutPitch + column;
      const float4 v = *reinterpret_cast<const float4*>(at),
                   up = way.outs == 64 ? *reinterpret_cast<const float4*>(at + 64) : v;
      float4 y{make(v.x, up.x), make(v.y, up.y), make(v.z, up.z), make(v.w, up.w)};
      if (plus.data) y = {y.x + more[i].x, y.y + more[i].y, y.z + more[i].z, y.w + more[i].w};
      *reinterpret_cast<float4*>(row_of<float>(way.a.m.y, way.row(way.first + m)) + way.n + column) = y;
    }
  }
}
template <class Row>
CARAT_D void write_any(const WideWay<Row>& way, int32_t slice) {
  const int up = way.outs == 64 ? 64 : 0, column = way.thread % way.outs;
  const int32_t n = way.n + column;
  if (n >= way.a.m.w.rows) return;
#pragma unroll 1
  for (int m = way.thread / way.outs; m < way.rows; m += kWideConsumers / way.outs)
    finish_tile(way.a, slice, way.row(way.first + m), n, way.sums[m * kOutPitch + column],
                way.sums[m * kOutPitch + column + up]);
}
CARAT_D bool in_fours(const Tensor& t) {
  return (reinterpret_cast<uintptr_t>(t.data) | static_cast<uintptr_t>(t.pitch)) % 16 == 0;
}
template <bool kExperts, class Row>
CARAT_D void write_rows(const WideWay<Row>& way, int32_t slice) {
  const TileJob& a = way.a;
  const float f = kExperts ? expert_scale(a.expert_scales, slice) : a.m.scale;
  if (!in_fours(a.m.y) || !in_fours(a.m.residual) || a.m.w.rows % 4 != 0) return write_any(way, slice);
  if (a.paired()) {
    const float g = kExperts ? expert_scale(a.other_scales, slice) : a.other_scale;
    const auto gated = [&](auto act) {
      write_fours<1>(way, Tensor{}, [&](float v, float up) { return activate(act, v * f) * (up * g); });
    };
    if (a.m.act == Act::gelu_tanh) return gated(std::integral_constant<Act, Act::gelu_tanh>());
    if (a.m.act == Act::silu) return gated(std::integral_constant<Act, Act::silu>());
  } else if (kExperts || (!a.m.bias.data && a.m.act == Act::none && a.m.softcap <= 0 && !a.m.mul.data)) {
    return write_fours<2>(way, kExperts ? Tensor{} : a.m.residual, [&](float v, float) { return v * f; });
  }
  write_any(way, slice);
}

// Sums of both warpgroups meet in shared memory, ROWS of the tile's at a time, so that those of gate and up
// come together and rows are written whole. row(m): of the output, by the tile's rows.
template <int ROWS, bool kExperts, int N, class Row>
CARAT_D void write_wide(const TileJob& a, int32_t tile, int32_t slice, const int32_t& count,
                        const float (&acc)[N], uint8_t* memory, Row row) {
  constexpr int kEach = ROWS / 2;  // of acc
  auto* sums = reinterpret_cast<float*>(memory);
  const int thread = threadIdx.x, lane = thread % 32, outs = a.paired() ? 64 : 128;
  float* mine = sums + lane % 4 * 2 * kOutPitch + thread / 32 * 16 + lane / 4;
#pragma unroll 1
  for (int first = 0; first < 2 * N; first += ROWS) {
    turn_wait(3, kWideConsumers);  // nobody needs what was there
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i / kEach * ROWS == first) mine[(i % kEach / 4 * 8 + i % 2) * kOutPitch + i % 4 / 2 * 8] = acc[i];
    turn_wait(3, kWideConsumers);
    const int32_t left = count - first;
    write_rows<kExperts>(
        WideWay<Row>{a, sums, tile * outs, outs, first, left < ROWS ? left : ROWS, thread, row}, slice);
  }
}

}  // namespace carat::cuda
