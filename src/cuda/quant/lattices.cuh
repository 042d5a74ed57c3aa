// Lattices (iq2_*, iq3_*; docs/formats.md section 4): a row of a tile as codes and scales. `words`: its bytes
// behind d as words; word(i) is the i-th.
#pragma once
#include "core/codec_tables.h"
#include "cuda/quant/packed.h"
#include "cuda/quant/weights.cuh"

namespace carat::cuda {

template <int N>
struct BookWords {
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

// Codes of columns 32 group + 4 piece and on, a byte each.
template <DType T, class Words>
CARAT_D uint32_t lattice_codes(const Words& words, int group, int piece) {
  uint32_t entry, minus;  // a word of the book; signs of eight columns, a bit each
  const int eight = piece / 2;
  if constexpr (T == DType::iq2_xxs) {
    entry = 2 * byte_at(words, 8 * group + eight) + piece % 2;
    minus = even_signs(words.word(2 * group + 1) >> 7 * eight & 127);
  } else if constexpr (T == DType::iq2_xs) {
    const uint32_t x = words.word(2 * group + eight / 2) >> 16 * (eight % 2) & 0xffffu;
    entry = 2 * (x & 511) + piece % 2;
    minus = even_signs(x >> 9);
  } else if constexpr (T == DType::iq2_s) {
    const uint32_t high = byte_at(words, 64 + group) >> 2 * eight & 3;
    entry = 2 * (byte_at(words, 4 * group + eight) | high << 8) + piece % 2;
    minus = byte_at(words, 32 + 4 * group + eight);
  } else if constexpr (T == DType::iq3_xxs) {
    entry = byte_at(words, 8 * group + piece);
    minus = even_signs(words.word(16 + group) >> 7 * eight & 127);
  } else {
    static_assert(T == DType::iq3_s);
    entry = byte_at(words, 8 * group + piece) | (byte_at(words, 64 + group) >> piece & 1) << 8;
    minus = byte_at(words, 72 + 4 * group + eight);
  }
  return negate4(kBook<T>.w[entry], minus >> piece % 2 * 4 & 15);
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
