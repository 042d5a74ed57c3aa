// To packed.h's layout, from the file's or from the host's strips (core/strips.h).
#include "core/strips.h"
#include "cuda/quant/packed.h"
#include "cuda/quant/weights.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256;

// In a block of the file.
constexpr int scale_at(DType t) { return t == DType::q6_k ? 208 : 0; }
constexpr int words_at(DType t) { return grouped(t) ? 2 : 0; }

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
    const uint32_t bits = word(block, 0);
    uint32_t spread = 0;
    for (int e = 0; e < 32; ++e) spread |= (bits >> e & 1) << fifth_bit(e);
    return spread;
  }
  CARAT_D uint32_t scale(int block) const {
    const uint8_t* d = p + int64_t{block} * bytes + scale_at(type);
    return d[0] | d[1] << 8;
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
  CARAT_D uint32_t fifth_bits(int block) const { return word(block, 0); }
  CARAT_D uint32_t scale(int block) const {
    return *reinterpret_cast<const uint16_t*>(scales + int64_t{2 * kStripRows} * block);
  }
};

// 16 bytes of the unit, of n columns from a block on.
template <class Row>
CARAT_D void unit_words(const Row& row, int block, int n, int unit, uint32_t (&out)[4]) {
  const DType t = row.type;
  const int groups = n / 32, codes = t == DType::q8_0 ? 2 * groups : groups;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int wide = 4 * (unit - codes) + k;  // the group behind the codes; of scales two a word
    if (!grouped(t))
      out[k] = row.word(block, 4 * unit + k);
    else if (unit < codes)
      out[k] = t == DType::q8_0   ? row.word(block + unit / 2, 4 * (unit % 2) + k)
               : t == DType::q5_0 ? row.word(block + unit, 1 + k)
                                  : row.word(block + unit, k);
    else if (unit + 1 < packed_units(t, n))
      out[k] = wide < groups ? row.fifth_bits(block + wide) : 0;
    else
      out[k] = (2 * k < groups ? row.scale(block + 2 * k) : 0) |
               (2 * k + 1 < groups ? row.scale(block + 2 * k + 1) << 16 : 0);
  }
}

// A tile. at(r): a row of it.
template <class At>
CARAT_D void pack_tile(const Tensor& w, int32_t slice, int32_t group, int32_t b, At at) {
  const int n = w.cols - 256 * b < 256 ? w.cols - 256 * b : 256, units = packed_units(w.type, n),
            block = grouped(w.type) ? 8 * b : b;
  auto* tile = reinterpret_cast<uint8_t*>(w.data) + slice * w.slice_pitch + group * kGroup * w.pitch +
               int64_t{b} * packed_tile(w.type, 256);
  for (int i = threadIdx.x; i < kGroup * units; i += kThreads) {
    const int unit = i / kGroup, r = i % kGroup;
    uint32_t out[4] = {};
    if (group * kGroup + r < w.rows) unit_words(at(r), block, n, unit, out);
    *reinterpret_cast<uint4*>(tile + 512 * unit + 16 * r) = uint4{out[0], out[1], out[2], out[3]};
  }
  const int r = threadIdx.x;
  if (w.type == DType::q6_k && r < kGroup)
    *reinterpret_cast<uint16_t*>(tile + 512 * units + 2 * r) =
        static_cast<uint16_t>(group * kGroup + r < w.rows ? at(r).scale(block) : 0);
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
    return StripRow{w.type, strip + head + 4 * (row % kStripRows), strip + 2 * (row % kStripRows)};
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
