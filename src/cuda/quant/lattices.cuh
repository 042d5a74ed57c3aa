// Lattices (iq2_*, iq3_*; docs/formats.md section 4): a row of a tile as codes and scales. `words`: its bytes
// behind d as words; word(i) is the i-th.
#pragma once
#include "core/codec_tables.h"
#include "cuda/quant/packed.h"
#include "cuda/quant/weights.cuh"

namespace carat::cuda {

template <int N>
struct alignas(8) BookWords {
  uint32_t w[N];
};
// A code book, four magnitudes a word.
template <class Grid>
constexpr auto book_words(const Grid& grid) {
  constexpr int kEach = static_cast<int>(sizeof(grid[0]) / 4);
  BookWords<static_cast<int>(sizeof(Grid) / 4)> book{};
  for (size_t i = 0; i < sizeof(Grid) / 4; ++i)
    for (size_t k = 0; k < 4; ++k)
      book.w[i] |= uint32_t{static_cast<uint8_t>(grid[i / kEach][i % kEach * 4 + k])} << 8 * k;
  return book;
}
template <DType T>
constexpr auto book_of() {
  if constexpr (T == DType::iq2_xxs)
    return book_words(kIq2xxs);
  else if constexpr (T == DType::iq2_xs)
    return book_words(kIq2xs);
  else if constexpr (T == DType::iq2_s)
    return book_words(kIq2s);
  else if constexpr (T == DType::iq3_xxs)
    return book_words(kIq3xxs);
  else
    return book_words(kIq3s);
}
template <DType T>
__device__ const auto kBook = book_of<T>();

template <class Words>
CARAT_D uint32_t byte_at(const Words& words, int i) {
  return words.word(i / 4) >> 8 * (i % 4) & 255;
}

// Which of 32 columns are negative, a bit each. Files leave out the last bit of eight that are an even
// number.
template <DType T, class Words>
CARAT_D uint32_t lattice_signs(const Words& words, int group) {
  if constexpr (T == DType::iq2_s) return words.word(8 + group);
  if constexpr (T == DType::iq3_s) return words.word(18 + group);
  uint32_t sevens;  // a byte each
  if constexpr (T == DType::iq2_xs) {
    sevens = permute_bytes(words.word(2 * group), words.word(2 * group + 1), 0x7531) >> 1 & 0x7f7f7f7fu;
  } else {
    const uint32_t w = words.word(T == DType::iq2_xxs ? 2 * group + 1 : 16 + group);
    sevens = (w & 0x7fu) | (w << 1 & 0x7f00u) | (w << 2 & 0x7f0000u) | (w << 3 & 0x7f000000u);
  }
  uint32_t p = sevens ^ sevens >> 4;
  p ^= p >> 2, p ^= p >> 1;
  return sevens | (p & 0x01010101u) << 7;
}
// The book's word for columns 32 group + 4 piece and on.
template <DType T, class Words>
CARAT_D uint32_t lattice_entry(const Words& words, int group, int piece) {
  const int eight = piece / 2;
  if constexpr (T == DType::iq2_xxs) return 2 * byte_at(words, 8 * group + eight) + piece % 2;
  if constexpr (T == DType::iq2_xs)
    return 2 * (words.word(2 * group + eight / 2) >> 16 * (eight % 2) & 511) + piece % 2;
  if constexpr (T == DType::iq2_s) {
    const uint32_t high = byte_at(words, 64 + group) >> 2 * eight & 3;
    return 2 * (byte_at(words, 4 * group + eight) | high << 8) + piece % 2;
  }
  const uint32_t low = byte_at(words, 8 * group + piece);
  return T == DType::iq3_xxs ? low : low | (byte_at(words, 64 + group) >> piece & 1) << 8;
}
// Magnitudes (none is 0, so that nothing is carried from byte to byte) with the signs of a nibble.
CARAT_D uint32_t with_signs(uint32_t magnitudes, uint32_t nibble) {
  const uint32_t ones = spread4(nibble);
  return (magnitudes ^ ones * 255) + ones;
}
// Codes of columns 32 group + 4 piece and on, a byte each.
template <DType T, class Words>
CARAT_D uint32_t lattice_codes(const Words& words, int group, int piece) {
  return with_signs(kBook<T>.w[lattice_entry<T>(words, group, piece)],
                    lattice_signs<T>(words, group) >> 4 * piece & 15);
}
// Of columns 32 group + 16 half and on.
template <DType T, class Words>
CARAT_D uint4 lattice_sixteen(const Words& words, int group, int half) {
  const uint32_t signs = lattice_signs<T>(words, group) >> 16 * half;
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t entry = lattice_entry<T>(words, group, 4 * half + i);
    if constexpr (T == DType::iq3_xxs || T == DType::iq3_s) {
      w[i] = kBook<T>.w[entry];
    } else if (i % 2 == 0) {  // two words are one entry
      const uint2 both = *reinterpret_cast<const uint2*>(&kBook<T>.w[entry]);
      w[i] = both.x, w[i + 1] = both.y;
    }
  }
  return {with_signs(w[0], signs & 15), with_signs(w[1], signs >> 4 & 15), with_signs(w[2], signs >> 8 & 15),
          with_signs(w[3], signs >> 12 & 15)};
}
// The scale of columns 16 k .. 16 k + 15.
template <DType T, class Words>
CARAT_D int32_t lattice_scale(const Words& words, int k) {
  const auto odd = [](uint32_t s) { return static_cast<int32_t>(2 * s + 1); };
  if constexpr (T == DType::iq2_xxs) return odd(words.word(k / 2 * 2 + 1) >> 28);
  if constexpr (T == DType::iq3_xxs) return odd(words.word(16 + k / 2) >> 28);
  if constexpr (T == DType::iq3_s) return odd(byte_at(words, 104 + k / 4) >> k / 2 % 2 * 4 & 15);
  return odd(byte_at(words, (T == DType::iq2_s ? 72 : 64) + k / 2) >> k % 2 * 4 & 15);
}
// What a block's sum is multiplied with, of its d.
template <DType T>
CARAT_D float lattice_factor(float d) {
  return T == DType::iq3_s ? d : T == DType::iq3_xxs ? d / 4 : d / 8;
}

// The row as it lies in a tile: `units` and `tail`, its own.
template <DType T>
struct LatticeRow {
  const uint8_t *units, *tail;
  CARAT_D LatticeRow(const uint8_t* tile, int row)
      : units(tile + 16 * row), tail(tile + 512 * packed_units(T, 256) + packed_tail(T) * row) {}
  CARAT_D uint32_t word(int i) const {
    if (T == DType::iq2_xs && i >= 16) return u32_at_even(tail + 4 * (i - 16));
    return u32_at(units + 512 * (i / 4) + 4 * (i % 4));
  }
  CARAT_D float factor() const { return lattice_factor<T>(half_at(tail + packed_tail(T) - 2)); }
};

}  // namespace carat::cuda
