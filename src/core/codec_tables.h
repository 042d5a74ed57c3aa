// Constants of the formats: code books and small floats (docs/formats.md sections 3 and 4). Private to core's
// codec sources.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace carat {

#include "core/iq_grids.inc"

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
// E2M1 times two; bit 3 is the sign.
inline constexpr int8_t kE2m1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline constexpr std::array<int8_t, 4> kIq2Levels = {8, 25, 43, 0};
inline constexpr std::array<int8_t, 8> kIq3xxsLevels = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr std::array<int8_t, 8> kIq3sLevels = {1, 3, 5, 7, 9, 11, 13, 15};

template <size_t kLength, size_t kEntries, size_t kLevels>
constexpr auto expand_grid(const uint16_t (&packed)[kEntries], const std::array<int8_t, kLevels>& levels) {
  constexpr int kBits = std::bit_width(kLevels - 1);
  std::array<std::array<int8_t, kLength>, kEntries> grid{};
  for (size_t i = 0; i < kEntries; ++i)
    for (size_t j = 0; j < kLength; ++j) grid[i][j] = levels[packed[i] >> kBits * j & (kLevels - 1)];
  return grid;
}

inline constexpr auto kIq2xxs = expand_grid<8>(kPacked_iq2xxs, kIq2Levels);
inline constexpr auto kIq2xs = expand_grid<8>(kPacked_iq2xs, kIq2Levels);
inline constexpr auto kIq2s = expand_grid<8>(kPacked_iq2s, kIq2Levels);
inline constexpr auto kIq3xxs = expand_grid<4>(kPacked_iq3xxs, kIq3xxsLevels);
inline constexpr auto kIq3s = expand_grid<4>(kPacked_iq3s, kIq3sLevels);

// 2^(b - 127), every byte; 0 gives the subnormal 2^-127.
constexpr float e8m0_to_f32(uint8_t b) {
  return std::bit_cast<float>(b == 0 ? uint32_t{0x00400000} : uint32_t{b} << 23);
}
// Unsigned E4M3 as block scale: the sign bit is ignored and 0x7f, not a number elsewhere, counts as 0.
constexpr float ue4m3_to_f32(uint8_t b) {
  const int e = b >> 3 & 15, m = b & 7;
  if ((b & 127) == 127) return 0;
  if (e == 0) return static_cast<float>(m) / 512;
  return std::bit_cast<float>(static_cast<uint32_t>(e - 7 + 127) << 23 | static_cast<uint32_t>(m) << 20);
}

}  // namespace carat
