// To packed.h's layout, from the file's or from the host's strips (core/strips.h).
#include "core/strips.h"
#include "cuda/quant/packed.h"
#include "cuda/quant/weights.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256;

// In a block of the file.
constexpr int scale_at(DType t) { return t == DType::q6_k ? 208 : t == DType::q3_k ? 108 : 0; }
constexpr int words_at(DType t) {
  if (t == DType::mxfp4) return 1;
  return lattice(t) || (grouped(t) && t != DType::nvfp4 && !group_mins(t)) ? 2 : 0;
}
constexpr int fifth_at(DType t) { return t == DType::q5_1 ? 1 : 0; }  // words

// A row's blocks from one on, as the file has them; fifth bits as strips have them.
struct FileRow {
  DType type;
  const uint8_t* p;
  int bytes;  // of a block
  CARAT_D uint32_t word(int block, int i) const {
    const uint8_t* w = p + int64_t{block} * bytes + words_at(type) + 4 * i;
    return w[0] | w[1] << 8 | w[2] << 16 | static_cast<uint32_t>(w[3]) << 24;
  }
  CARAT_D uint32_t fifth_bits(int block) const {
    const uint32_t bits = word(block, fifth_at(type));
    uint32_t spread = 0;
    for (int e = 0; e < 32; ++e) spread |= (bits >> e & 1) << fifth_bit(e);
    return spread;
  }
  CARAT_D uint32_t scale(int block) const {
    const uint8_t* d = p + int64_t{block} * bytes + scale_at(type);
    return d[0] | (type == DType::mxfp4 ? 0 : d[1] << 8);
  }
};
// The same out of a strip: lines and scales of its row.
struct StripRow {
  DType type;
  const uint8_t *lines, *scales;
  CARAT_D uint32_t word(int block, int i) const {
    const int64_t line = int64_t{block} * pack_shape(type).lines + strip_line(type, i);
    return *reinterpret_cast<const uint32_t*>(lines + 64 * line);
  }
  CARAT_D uint32_t fifth_bits(int block) const { return word(block, fifth_at(type)); }
  CARAT_D uint32_t scale(int block) const {
    if (type == DType::mxfp4) return scales[int64_t{kStripRows} * block];
    return *reinterpret_cast<const uint16_t*>(scales + int64_t{2 * kStripRows} * block);
  }
};

// The lower and the upper four bits of four bytes, side by side.
CARAT_D uint32_t lower_codes(uint32_t w) {
  w &= 0x0f0f0f0fu;
  w = (w | w >> 4) & 0x00ff00ffu;
  return (w | w >> 8) & 0xffffu;
}
CARAT_D uint32_t upper_codes(uint32_t w) { return lower_codes(w >> 4); }

// Word k of the codes of a group of 32 columns.
template <class Row>
CARAT_D uint32_t code_word(const Row& row, int block, int group, int k) {
  if (row.type == DType::nvfp4) {  // 8 bytes for 16 columns: those of the first eight are the lower bits
    const int from = 1 + group % 2 * 4 + k % 2;
    const uint32_t w = row.word(block + group / 2, from), w2 = row.word(block + group / 2, from + 2);
    return k < 2 ? lower_codes(w) | lower_codes(w2) << 16 : upper_codes(w) | upper_codes(w2) << 16;
  }
  const uint32_t w =
      row.type == DType::iq4_xs ? row.word(block, 2 + 4 * group + k) : row.word(block + group, k);
  return lower_codes(w) | upper_codes(w) << 16;
}
// Four scales of nvfp4 from the k-th block on; what is not a number counts as 0, and there is no sign.
CARAT_D uint32_t unsigned_scales(uint32_t four) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 8) {
    const uint32_t s = four >> i & 127;
    out |= (s == 127 ? 0 : s) << i;
  }
  return out;
}
// Scales 4 k .. 4 k + 3 of q3_k, less 32, a byte each.
template <class Row>
CARAT_D uint32_t q3_scales(const Row& row, int block, int k) {
  const uint32_t low = row.word(block, 24 + k % 2) >> k / 2 * 4 & 0x0f0f0f0fu,
                 high = row.word(block, 26) >> 2 * k & 0x03030303u;
  return minus4(low | high << 4, 0x20202020u);
}

// Word k of a unit of q2_k or q3_k.
template <class Row>
CARAT_D uint32_t plane_word(const Row& row, int block, int unit, int k) {
  if (row.type == DType::q2_k) return row.word(block, unit < 4 ? 4 + 4 * unit + k : k);
  if (unit == 6) return q3_scales(row, block, k);
  return row.word(block, unit < 4 ? 8 + 4 * unit + k : 4 * (unit - 4) + k);
}
// Word k of a unit with codes of 32 columns each, or 16 of q8_0.
template <class Row>
CARAT_D uint32_t group_word(const Row& row, int block, int unit, int k) {
  switch (row.type) {
    case DType::q8_0: return row.word(block + unit / 2, 4 * (unit % 2) + k);
    case DType::q4_0: return row.word(block + unit, k);
    case DType::q4_1:
    case DType::q5_0: return row.word(block + unit, 1 + k);
    case DType::q5_1: return row.word(block + unit, 2 + k);
    default: return code_word(row, block, unit, k);
  }
}
// Word k of a unit, of n columns from a block on.
template <class Row>
CARAT_D uint32_t unit_word(const Row& row, int block, int n, int unit, int k) {
  const DType t = row.type;
  const int groups = n / 32, codes = t == DType::q8_0 ? 2 * groups : groups;
  if (t == DType::q2_k || t == DType::q3_k) return plane_word(row, block, unit, k);
  if (t == DType::iq3_s && 4 * unit + k == 27) return 0;  // behind the block
  if (!grouped(t) && !coded(t)) return row.word(block, 4 * unit + k);
  if (unit < codes) return group_word(row, block, unit, k);
  if (t == DType::nvfp4) return 2 * k < groups ? unsigned_scales(row.word(block + k, 0)) : 0;
  const int left = packed_units(t, n) - unit, wide = 4 * (unit - codes) + k;  // a group of fifth bits
  if (left > (group_mins(t) ? 2 : 1)) return wide < groups ? row.fifth_bits(block + wide) : 0;
  const auto half = [&](int group) {
    if (group >= groups) return uint32_t{0};
    if (!group_mins(t)) return row.scale(block + group);
    const uint32_t two = row.word(block + group, 0);
    return left == 2 ? two & 0xffffu : two >> 16;
  };
  return half(2 * k) | half(2 * k + 1) << 16;
}
// Half word k of what is behind the units.
template <class Row>
CARAT_D uint32_t tail_half(const Row& row, int block, int n, int k) {
  if (row.type == DType::iq4_xs) return row.word(block, k / 2) >> k % 2 * 16 & 0xffffu;
  if (row.type == DType::q2_k) return row.word(block, 20) >> 16 * k & 0xffffu;
  if (row.type == DType::iq2_xs && k < 4) return row.word(block, 16 + k / 2) >> k % 2 * 16 & 0xffffu;
  if (row.type != DType::mxfp4) return row.scale(block);
  const auto scale = [&](int group) { return 32 * group < n ? row.scale(block + group) : 0; };
  return scale(2 * k) | scale(2 * k + 1) << 8;
}

// A tile. at(r): a row of it.
template <class At>
CARAT_D void pack_tile(const Tensor& w, int32_t slice, int32_t group, int32_t b, At at) {
  const int n = w.cols - 256 * b < 256 ? w.cols - 256 * b : 256, units = packed_units(w.type, n),
            block = w.type == DType::nvfp4 ? 4 * b
                    : grouped(w.type)      ? 8 * b
                                           : b;
  auto* tile = reinterpret_cast<uint8_t*>(w.data) + slice * w.slice_pitch + group * kGroup * w.pitch +
               int64_t{b} * packed_tile(w.type, 256);
  for (int i = threadIdx.x; i < kGroup * units; i += kThreads) {
    const int unit = i / kGroup, r = i % kGroup;
    uint32_t out[4] = {};
    if (group * kGroup + r < w.rows) {
#pragma unroll
      for (int k = 0; k < 4; ++k) out[k] = unit_word(at(r), block, n, unit, k);
    }
    *reinterpret_cast<uint4*>(tile + 512 * unit + 16 * r) = uint4{out[0], out[1], out[2], out[3]};
  }
  auto* tails = reinterpret_cast<uint16_t*>(tile + 512 * units);
  const int halves = packed_tail(w.type) / 2;
  for (int i = threadIdx.x; i < kGroup * halves; i += kThreads) {
    const int r = i / halves;
    tails[i] =
        static_cast<uint16_t>(group * kGroup + r < w.rows ? tail_half(at(r), block, n, i % halves) : 0);
  }
}

__global__ void __launch_bounds__(kThreads) pack_kernel(const Tensor w, int32_t slice, const uint8_t* raw,
                                                        int64_t raw_pitch, int32_t first, int bytes) {
  begin_kernel();
  pack_tile(w, slice, first + blockIdx.x, blockIdx.y, [&](int r) {
    return FileRow{w.type, raw + (int64_t{blockIdx.x} * kGroup + r) * raw_pitch, bytes};
  });
}

// size: of a strip; head: of its beginning.
__global__ void __launch_bounds__(kThreads)
    repack_kernel(const Tensor w, int32_t slice, const uint8_t* raw, int64_t slice_pitch, int32_t first,
                  int64_t size, int64_t head) {
  begin_kernel();
  const uint8_t* strips = raw + blockIdx.z * slice_pitch;
  pack_tile(w, slice + blockIdx.z, first + blockIdx.x, blockIdx.y, [&](int r) {
    const int32_t row = blockIdx.x * kGroup + r;
    const uint8_t* strip = strips + row / kStripRows * size;
    const int scale = w.type == DType::mxfp4 ? 1 : 2;  // bytes
    return StripRow{w.type, strip + head + 4 * (row % kStripRows), strip + scale * (row % kStripRows)};
  });
}

// Whether one of n weights in bf16 is too large for a half times kBf16Scale; the halves.
__global__ void __launch_bounds__(kThreads) check_bf16_kernel(const uint16_t* p, int64_t n, uint32_t* found) {
  begin_kernel();
  constexpr uint32_t kLeast = 0x4480;  // 1024
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    if ((p[i] & 0x7fffu) >= kLeast) *found = 1;
}
__global__ void __launch_bounds__(kThreads) bf16_to_f16_kernel(uint16_t* p, int64_t n) {
  begin_kernel();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    p[i] = static_cast<uint16_t>(pack_halves(as_float(uint32_t{p[i]} << 16) * kBf16Scale, 0));
}

dim3 grid_of(const Tensor& w, int32_t groups, int32_t slices) {
  return dim3(static_cast<unsigned>(groups), static_cast<unsigned>((w.cols + 255) / 256),
              static_cast<unsigned>(slices));
}

}  // namespace

int kernels_code() { return compiled_for(pack_kernel); }
void pack_rows(const Launcher& l, const Tensor& packed, int32_t slice, const std::byte* raw,
               int64_t raw_pitch, int32_t first, int32_t count) {
  launch(l, "packing weights", pack_kernel, grid_of(packed, count, 1), kThreads, 0, packed, slice,
         reinterpret_cast<const uint8_t*>(raw), raw_pitch, first, static_cast<int>(info(packed.type).bytes));
}
void repack_strips(const Launcher& l, const Tensor& packed, int32_t slice, int32_t slices, int32_t first,
                   int32_t count, const std::byte* strips, int64_t slice_pitch) {
  launch(l, "packing weights", repack_kernel, grid_of(packed, count, slices), kThreads, 0, packed, slice,
         reinterpret_cast<const uint8_t*>(strips), slice_pitch, first, strip_bytes(packed.type, packed.cols),
         head_bytes(packed.type, packed.cols));
}

bool bf16_to_f16(const Launcher& l, std::byte* p, int64_t n, uint32_t* scratch) {
  const dim3 grid(static_cast<unsigned>(4 * l.sms));
  auto* values = reinterpret_cast<uint16_t*>(p);
  uint32_t found = 0;
  zero_async(scratch, sizeof found, l.stream);
  launch(l, "weights as halves", check_bf16_kernel, grid, kThreads, 0, values, n, scratch);
  copy_async(&found, scratch, sizeof found, l.stream);
  sync(l.stream);
  if (found) return false;
  launch(l, "weights as halves", bf16_to_f16_kernel, grid, kThreads, 0, values, n);
  return true;
}

}  // namespace carat::cuda
