// How the two warpgroups of a tile of wide_tiles.cuh that multiply bring their sums to shared memory
// (tile_out.cuh).
#pragma once
#include "cuda/device/warpgroup.cuh"
#include "cuda/matmul/packed_tiles.cuh"

namespace carat::cuda {

inline constexpr int kWideConsumers = 256;

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
    write_rows<kExperts>(WayOut<Row>{a, m, sums, tile * outs, outs, first, left < ROWS ? left : ROWS, thread,
                                     row, kOutPitch, kWideConsumers},
                         slice);
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
  write_rows<false>(WayOut<Row>{a, m, sums, tile * outs, outs, 0, count, thread, row, kNarrowPitch, threads},
                    0);
}

}  // namespace carat::cuda
