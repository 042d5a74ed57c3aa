#include "cuda/matmul/rings.h"

#include <doctest/doctest.h>

namespace carat::cuda {
namespace {

constexpr int64_t kConsumer = 99 << 10, kAmpere = 163 << 10, kHopper = 227 << 10;
constexpr DType kPackedTypes[] = {DType::q4_0,   DType::q4_1,  DType::q5_0,    DType::q5_1,   DType::q8_0,
                                  DType::q2_k,   DType::q3_k,  DType::q4_k,    DType::q5_k,   DType::q6_k,
                                  DType::mxfp4,  DType::nvfp4, DType::iq4_nl,  DType::iq4_xs, DType::iq2_xxs,
                                  DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s};
constexpr RowKind kRows[] = {RowKind::rounded, RowKind::normed, RowKind::floats};

int32_t scales_of(RowKind row, const Rings& r) {
  return row == RowKind::normed ? 13 : row == RowKind::floats ? task_scales(r) : 96;
}

TEST_CASE("a Hopper's rings of two slots fit there, and of 4 bits and more not into 99 KiB") {
  for (const DType t : kPackedTypes)
    for (const RowKind row : kRows) {
      CHECK((is_narrow(kConsumer) && is_narrow(kAmpere) && !is_narrow(kHopper)));
      CAPTURE(static_cast<int>(t));
      const Rings r;
      const int32_t bytes = stream_bytes(t, row, scales_of(row, r), r, r.slots);
      if (packed_tile(t, 256) > 4000) CHECK(bytes > kConsumer);
      // q8_0's row of floats does not: another kernel rounds it.
      CHECK((bytes <= kHopper) == !(t == DType::q8_0 && row == RowKind::floats));
    }
}

TEST_CASE("every format has rings for 99 KiB, of all twelve warps but where tiles are large") {
  for (const DType t : kPackedTypes)
    for (const RowKind row : kRows) {
      CAPTURE(static_cast<int>(t));
      CAPTURE(static_cast<int>(row));
      const Rings r = narrow_rings(t, row);
      CHECK(r.slots == 1);
      CHECK(stream_bytes(t, row, scales_of(row, r), r, 1) + 1024 <= kConsumer);  // and the kernel's variables
      const int most = t == DType::q8_0 ? 10 : 12;
      CHECK(r.warps <= most);
      CHECK(r.warps >= most - (row == RowKind::floats ? 1 : 0));
      // Norms ahead of 2,816 columns, eight a thread, with the warp that adds.
      if (row == RowKind::normed) CHECK(8 * 32 * (r.warps + 1) >= 2816);
    }
}

TEST_CASE("tiles have the bytes of the file's blocks") {
  for (const DType t : kPackedTypes) {
    CAPTURE(static_cast<int>(t));
    CHECK(packs(t));
    // q3_k's scales have a byte each, iq3_s's last unit is not full.
    const bool more = t == DType::q3_k || t == DType::iq3_s;
    CHECK(packed_tile(t, 256) == kGroup * (row_bytes(t, 256) + (more ? 4 : 0)));
    CHECK(packed_tile(t, 256) % 16 == 0);
  }
}

TEST_CASE("few rows in 99 KiB: six warps and more") {
  for (const DType t : kPackedTypes) {
    CAPTURE(static_cast<int>(t));
    const int bytes = packed_tile(t, 256);
    CHECK(narrow_rows(t).warps == (bytes > 8000   ? 6
                                   : bytes > 5500 ? 7
                                   : bytes > 4000 ? 8
                                   : bytes > 3000 ? 9
                                                  : 10));
  }
}

TEST_CASE("a mixture's down: eight experts of three blocks in 99 KiB") {
  for (const DType t : kPackedTypes) {
    const int warps = narrow_down_warps(t);
    CHECK(down_bytes(t, 24, warps, 1) <= kConsumer);
    CHECK(warps == (t == DType::q8_0 ? 10 : kDownWarps));
  }
}

}  // namespace
}  // namespace carat::cuda
