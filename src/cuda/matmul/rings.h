// Rings of tiles in shared memory (packed/stream.cuh, experts/mixture.cuh): which a device has
// room for. Arithmetic alone, tested without a device.
#pragma once
#include "cuda/quant/packed.h"

namespace carat::cuda {

// Of a block of threads. Those of a card whose blocks have 99 KiB (8.6, 8.9, 12.0, 12.1; 163 KiB: 8.0) hold a
// tile each: a warp asks for the next as soon as this one is in its registers (early), where it fits there.
struct Rings {
  int warps = 12;  // that multiply: each has a ring
  int slots = 2;   // of a ring
  int rounds = 8;  // tiles of a warp that may wait to be added
  bool early = false;
};
enum class RowKind : uint8_t {
  rounded,  // a row that another kernel has rounded: what a tile multiplies comes beside it
  normed,   // a row that norms leave: in shared memory as a whole
  floats,   // a row of floats: a tile's columns come beside it and are rounded here
};
inline constexpr int kStreamStage = 256 + 32;  // codes and sums of a block of 256 columns (Stage<1>)
inline constexpr int kFloatsStage = 256 * 4;

constexpr int ring_slot(DType t, RowKind row) {
  return packed_tile(t, 256) + (row == RowKind::normed ? 0 : kStreamStage) +
         (row == RowKind::floats ? kFloatsStage : 0);
}
constexpr int32_t scales_bytes(int32_t scales) { return (scales + 3) / 4 * 16; }
// Of two slots a ring, used or not.
constexpr int gates_bytes(const Rings& r) { return (r.warps + r.rounds) * 16; }
// Scales of a row's blocks; of floats, of the tiles that wait to be added.
constexpr int32_t task_scales(const Rings& r) { return r.warps * r.rounds; }
// Bytes of shared memory, by the scales of activations and by how many slots of a ring are used.
constexpr int32_t stream_bytes(DType t, RowKind row, int32_t scales, const Rings& r, int slots) {
  return r.rounds * r.warps * 128 + scales_bytes(scales) + gates_bytes(r) +
         (row == RowKind::normed ? scales * kStreamStage : 0) + r.warps * slots * ring_slot(t, row);
}

// Bytes that a block may have: less than a Hopper's. Cards of 163 KiB (8.0) are faster with the smaller
// rings, too.
constexpr bool is_narrow(int64_t shared) { return shared <= 200 << 10; }
// The widest rows that a narrow device's rings are made for, in blocks, and what their kernels' own variables
// leave of 99 KiB.
inline constexpr int32_t kNarrowBlocks = 96, kNarrowNormed = 13, kNarrowBytes = 98 << 10;
constexpr Rings narrow_rings(DType t, RowKind row) {
  Rings r{12, 1, 8, t != DType::q8_0};
  const auto fits = [&] {
    const int32_t scales = row == RowKind::normed   ? kNarrowNormed
                           : row == RowKind::floats ? task_scales(r)
                                                    : kNarrowBlocks;
    return stream_bytes(t, row, scales, r, 1) <= kNarrowBytes;
  };
  for (; r.warps > 1; --r.warps)
    for (r.rounds = 8; r.rounds >= 4; r.rounds /= 2)
      if (fits()) return r;
  return r;
}

// Up to eight rows on the tensor cores (packed/stream_rows.cuh), whose warps bring a block of rows
// themselves: fewer warps of two tiles that wait to be added, a slot's tile and two blocks of eight rows with
// their sums.
inline constexpr int kNarrowRows = 8;
constexpr Rings narrow_rows(DType t) {
  Rings r{.warps = 12, .slots = 1, .rounds = 2};
  const int part = kNarrowRows * (256 + 16 + 32),
            warp = packed_tile(t, 256) + r.rounds * kNarrowRows * 128 + 2 * part;
  while (r.warps * warp + kNarrowRows * kNarrowBlocks * 4 + 64 > kNarrowBytes) --r.warps;
  return r;
}

// A mixture's down (experts/mixture.cuh): `most` tiles a block has at the most, a slot with what they
// multiply.
inline constexpr int kDownWarps = 12;
constexpr int64_t down_bytes(DType t, int32_t most, int warps, int32_t slots) {
  return int64_t{warps} * slots * (packed_tile(t, 256) + kStreamStage + 8) +
         (int64_t{most} * 33 + 3) / 4 * 16;
}
inline constexpr int32_t kNarrowDown = 32;  // tiles: eight experts of four blocks
constexpr int narrow_down_warps(DType t) {
  int warps = kDownWarps;
  while (warps > 1 && down_bytes(t, kNarrowDown, warps, 1) > kNarrowBytes) --warps;
  return warps;
}

}  // namespace carat::cuda
