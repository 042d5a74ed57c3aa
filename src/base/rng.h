// Counter-based noise: a value is a function of (seed, position, token) and of nothing else, so a draw does
// not depend on batch, chunking or speculation. Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011).
#pragma once
#include <array>
#include <cstdint>

namespace carat {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in (0, 1), never 0 or 1: 53 random bits, centred.
constexpr double uniform_noise(uint64_t seed, uint64_t pos, uint32_t token) {
  const auto r = philox4x32({static_cast<uint32_t>(pos), static_cast<uint32_t>(pos >> 32), token, 0},
                            static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (uint64_t{r[0]} << 32 | r[1]) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

}  // namespace carat
