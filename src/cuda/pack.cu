// From the file's layout to packed.h's.
#include "cuda/packed.h"
#include "cuda/weights.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256;

// 16 bytes of the unit, from a block row of n columns in the file's layout.
CARAT_D void unit_bytes(DType t, const uint8_t* from, int n, int unit, uint8_t* out) {
  if (t == DType::q8_0 || t == DType::q4_0 || t == DType::q5_0) {
    const int bytes = t == DType::q8_0 ? 34 : t == DType::q4_0 ? 18 : 22, groups = n / 32;
    const int codes = t == DType::q8_0 ? 2 * groups : groups;
    if (unit < codes) {
      from += t == DType::q8_0 ? 34 * (unit / 2) + 2 + 16 * (unit % 2) : bytes * (unit + 1) - 16;
      for (int i = 0; i < 16; ++i) out[i] = from[i];
    } else if (unit + 1 < packed_units(t, n)) {  // fifth bits
      const int first = 4 * (unit - codes);
      for (int i = 0; i < 16; ++i)
        out[i] = first + i / 4 < groups ? from[bytes * (first + i / 4) + 2 + i % 4] : 0;
    } else {
      for (int i = 0; i < 16; ++i) out[i] = i / 2 < groups ? from[bytes * (i / 2) + i % 2] : 0;
    }
  } else {
    for (int i = 0; i < 16; ++i) out[i] = from[16 * unit + i];
  }
}

__global__ void __launch_bounds__(kThreads) pack_kernel(const Tensor w, int32_t slice, const uint8_t* raw,
                                                        int64_t raw_pitch, int32_t first, int block) {
  begin_kernel();
  const int32_t group = first + blockIdx.x, b = blockIdx.y;
  const int n = w.cols - 256 * b < 256 ? w.cols - 256 * b : 256, units = packed_units(w.type, n);
  auto* tile = reinterpret_cast<uint8_t*>(w.data) + slice * w.slice_pitch + group * kGroup * w.pitch +
               int64_t{b} * packed_tile(w.type, 256);
  for (int i = threadIdx.x; i < kGroup * units; i += kThreads) {
    const int unit = i / kGroup, r = i % kGroup;
    const int32_t row = group * kGroup + r;
    uint8_t out[16] = {};
    if (row < w.rows)
      unit_bytes(w.type, raw + (row - int64_t{first} * kGroup) * raw_pitch + int64_t{b} * block, n, unit,
                 out);
    for (int k = 0; k < 16; ++k) tile[512 * unit + 16 * r + k] = out[k];
  }
  if (w.type != DType::q6_k || threadIdx.x >= kGroup) return;
  const int32_t r = threadIdx.x, row = group * kGroup + r;
  const uint8_t* from = raw + (row - int64_t{first} * kGroup) * raw_pitch + int64_t{b} * block + 208;
  for (int k = 0; k < 2; ++k) tile[512 * units + 2 * r + k] = row < w.rows ? from[k] : 0;
}

}  // namespace

void pack_rows(const Launcher& l, const Tensor& packed, int32_t slice, const std::byte* raw,
               int64_t raw_pitch, int32_t first, int32_t count) {
  launch(l, "packing weights", pack_kernel,
         dim3(static_cast<unsigned>(count), static_cast<unsigned>((packed.cols + 255) / 256)), kThreads, 0,
         packed, slice, reinterpret_cast<const uint8_t*>(raw), raw_pitch, first,
         static_cast<int>(row_bytes(packed.type, 256)));
}

}  // namespace carat::cuda
