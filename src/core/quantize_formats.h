// One encoder per format: one block from its columns. Private to core's quantizers; inputs are finite and
// fit.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/quantize_fit.h"

namespace carat::quant {

// The f16 next to s, and its neighbours below and above in magnitude.
std::array<uint16_t, 3> f16_around(float s);

// Sum of w * (x - s * code)^2 with the nearest codes, and the smallest UE4M3 code whose value is at least v.
double e2m1_error(const Group& g, float s);
int ue4m3_at_least(float v);

void encode_q4_0(const Group& g, std::byte* b);
void encode_q4_1(const Group& g, std::byte* b);
void encode_q5_0(const Group& g, std::byte* b);
void encode_q5_1(const Group& g, std::byte* b);
void encode_iq4_nl(const Group& g, std::byte* b);
void encode_mxfp4(const Group& g, std::byte* b);
void encode_nvfp4(const Group& g, std::byte* b);
void encode_q2_k(const Group& g, std::byte* b);
void encode_q3_k(const Group& g, std::byte* b);
void encode_q4_k(const Group& g, std::byte* b);
void encode_q5_k(const Group& g, std::byte* b);
void encode_q6_k(const Group& g, std::byte* b);
void encode_iq4_xs(const Group& g, std::byte* b);

}  // namespace carat::quant
