// Repacking weights into strips (core/strips.h).
#pragma once
#include "core/strips.h"

namespace carat::cpu {

constexpr int kQuarter6 = 13 * 64;  // bytes of a quarter of a q6_k block
constexpr bool can_pack(const Tensor& t) { return pack_shape(t.type).lines > 0 && t.packing == 0; }

// The packed tensor over `data` (slices * strips * strip_bytes bytes); the bytes are written by pack_strip().
Tensor packed_view(const Tensor& host, std::byte* data);
int64_t packed_bytes(const Tensor& host);
// Strip s of slice i of `packed` from the rows of `host`.
void pack_strip(const Tensor& host, const Tensor& packed, int32_t slice, int64_t strip);

// Strips [first, last) of all slices, counted through, and lets go of the file behind them.
void pack_strips(const Tensor& host, const Tensor& packed, int64_t first, int64_t last);

}  // namespace carat::cpu
