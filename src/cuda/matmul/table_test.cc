#include "cuda/matmul/table.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace carat::cuda {
namespace {

constexpr int64_t kAmpere = 163 << 10, kConsumer = 99 << 10, kHopper = 227 << 10;
const Generation kAll[] = {{80, kAmpere}, {86, kConsumer}, {89, kConsumer},
                           {90, kHopper}, {100, kHopper},  {120, kConsumer}};

ProductShape packed(DType type, int32_t rows) {
  return {.type = type, .packed = true, .rows = rows, .step_rows = rows, .outputs = 5376, .cols = 5376};
}
ProductShape floats(DType type, int32_t rows, Product op = Product::matmul) {
  return {.op = op, .type = type, .rows = rows, .step_rows = rows, .outputs = 5376, .cols = 5376};
}

TEST_CASE("packed weights: few rows, tiles, and warpgroups where there are any") {
  for (const Generation& g : kAll) {
    CAPTURE(g.capability);
    const bool hopper = g.capability == 90;
    for (const int32_t rows : {1, 2, 8, 16})
      CHECK(choose(packed(DType::q4_k, rows), g) == Kernel::packed_few);
    for (const DType t : {DType::q2_k, DType::q4_k, DType::q6_k, DType::iq4_xs, DType::q4_0, DType::q8_0,
                          DType::iq4_nl, DType::iq3_s, DType::mxfp4, DType::nvfp4})
      CHECK(choose(packed(t, 512), g) == (hopper ? Kernel::packed_wide : Kernel::packed_tiles));
    for (const DType t : {DType::q4_1, DType::q5_1}) CHECK(choose(packed(t, 512), g) == Kernel::packed_tiles);
  }
  CHECK(choose(packed(DType::q4_k, 512), {90, kConsumer}) == Kernel::packed_tiles);  // two stages do not fit
}

TEST_CASE("experts: by the step's rows and by those that one expert gets") {
  ProductShape s = packed(DType::q4_k, 0);
  s.op = Product::experts;
  for (const Generation& g : kAll) {
    s.step_rows = 16, s.rows = 1;
    CHECK(choose(s, g) == Kernel::packed_few);
    const Kernel wide = g.capability == 90 ? Kernel::packed_wide : Kernel::packed_tiles;
    s.step_rows = 128, s.rows = 8;
    CHECK(choose(s, g) == Kernel::packed_tiles);
    CHECK(choose(s, g, {.wide_rows = 8}) == wide);
    s.step_rows = 512, s.rows = 32;
    CHECK(choose(s, g) == wide);
    CHECK(choose(s, g, {.wide_rows = 33}) == Kernel::packed_tiles);
  }
}

TEST_CASE("weights as files have them, and float weights") {
  for (const Generation& g : kAll) {
    ProductShape s = floats(DType::iq3_s, 16);
    CHECK(choose(s, g) == Kernel::any_format);
    s.rows = s.step_rows = 17;
    CHECK(choose(s, g) == Kernel::int8_tiles);
    s.op = Product::experts;
    CHECK(choose(s, g) == Kernel::any_format);
    for (const int32_t rows : {1, 512}) {
      CHECK(choose(floats(DType::f32, rows), g) == Kernel::f32_rows);
      CHECK(choose(floats(DType::f32, rows, Product::gate_up), g) == Kernel::any_format);
      // What is no product of the tensor cores: routers, rows at odd addresses.
      for (ProductShape f : {floats(DType::bf16, rows), floats(DType::f16, rows)}) {
        const Kernel other = f.type == DType::bf16 ? Kernel::f32_rows : Kernel::any_format;
        CHECK(choose(f, g, {.float_f32 = true}) == other);
        f.outputs = 128;
        CHECK(choose(f, g) == other);
        f.outputs = 129, f.aligned = false;
        CHECK(choose(f, g) == other);
        CHECK(choose(f, g, {.float_mma = true}) == other);
      }
    }
  }
}

// By the tensor cores.
Kernel float_kernel(const Generation& g, int32_t rows, bool experts = false) {
  const int32_t few = experts ? kFewFloatExpertRows : kFewSplitRows;
  if (g.capability == 90) return rows > few ? Kernel::float_wide : Kernel::float_rows;
  return rows > (experts ? kFewFloatExpertRows : kFewFloatRows) ? Kernel::float_tiles : Kernel::float_rows;
}

TEST_CASE("a float weight keeps to one definition of its sums in steps of every size") {
  const Forced mma{.float_mma = true};
  for (const Generation& g : kAll)
    for (const DType t : {DType::bf16, DType::f16})
      for (const int32_t rows : {1, 8, 9, 32, kFewFloatRows, kFewFloatRows + 1, 2048}) {
        const Kernel tiles = rows > kFewFloatRows ? Kernel::float_tiles : Kernel::float_rows;
        for (const Product op : {Product::matmul, Product::gate_up}) {
          CHECK(choose(floats(t, rows, op), g) == float_kernel(g, rows));
          CHECK(choose(floats(t, rows, op), g, mma) == float_kernel(g, rows));
          for (const Forced& old : {Forced{.float_tiles = true}, Forced{.generation = 80}})
            CHECK(choose(floats(t, rows, op), g, old) == tiles);
        }
        const Kernel many = g.capability == 90 ? Kernel::float_wide : Kernel::float_tiles;
        CHECK(choose(floats(t, rows), g, {.float_rows = 32}) == (rows > 32 ? many : Kernel::float_rows));
        CHECK(choose(floats(t, rows, Product::experts), g, mma) == float_kernel(g, rows, true));
      }
  CHECK(choose(floats(DType::bf16, 512), {90, kConsumer}) == Kernel::float_tiles);  // three stages do not fit
  CHECK(choose(floats(DType::f32, 512), kAll[3], mma) == Kernel::f32_rows);
  for (const Generation& g : kAll)  // experts and few outputs, too
    for (const int32_t rows : {1, 128, 129}) {
      ProductShape s = floats(DType::fp8, rows);
      s.outputs = 16;  // small: few rows are more than those of large ones
      CHECK(choose(s, g) == float_kernel(g, rows));
      s.rows = 31;
      CHECK(choose(s, g) == Kernel::float_rows);
      s.rows = rows;
      const Kernel experts = float_kernel(g, rows, true);
      CHECK(choose(floats(DType::fp8, rows, Product::experts), g) == experts);
      CHECK(choose(floats(DType::f16, rows, Product::experts), g) == experts);
      CHECK(choose(floats(DType::bf16, rows, Product::experts), g) == Kernel::any_format);
      s.aligned = false;
      CHECK(choose(s, g) == Kernel::any_format);
    }
}

TEST_CASE(
    "4-bit weights with FP8 activations: block-scaled products of 12.x, or f32, at any number of rows") {
  for (const Generation& g : {kAll[0], kAll[3], kAll[4], kAll[5], Generation{121, kConsumer}})
    for (const DType t : {DType::mxfp4_a8, DType::nvfp4_a8})
      for (const int32_t rows : {1, 8, 9, 65, 2048})
        for (const Product op : {Product::matmul, Product::gate_up, Product::experts}) {
          CAPTURE(g.capability);
          const bool scaled = g.capability / 10 == 12;
          CHECK(choose(floats(t, rows, op), g) == (scaled ? Kernel::scaled_tiles : Kernel::any_format));
          CHECK(choose(floats(t, rows, op), g, {.generation = 80}) == Kernel::any_format);
        }
  ProductShape s = floats(DType::mxfp4_a8, 16);
  s.aligned = false;
  CHECK(choose(s, kAll[5]) == Kernel::any_format);
}

TEST_CASE("the band of 33 to 64 rows, and an older device's kernels") {
  const Forced tiles{.packed_tiles = true}, old{.generation = 80};
  for (const Generation& g : kAll) {
    CAPTURE(g.capability);
    const Kernel band = g.capability >= 90 ? Kernel::packed_few : Kernel::packed_tiles;
    const bool wide = g.capability == 90;
    for (const DType t : {DType::q4_1, DType::q8_0, DType::q4_k, DType::q6_k, DType::q2_k})
      for (const int32_t rows : {33, 64}) {
        CHECK(choose(packed(t, rows), g) == (wide && goes_wide(t) ? Kernel::packed_wide : band));
        CHECK(choose(packed(t, rows), g, tiles) == Kernel::packed_tiles);
        CHECK(choose(packed(t, rows), g, old) == Kernel::packed_tiles);
      }
    CHECK(choose(packed(DType::q4_1, 65), g) == Kernel::packed_tiles);
  }
  // Large products go there from 17 rows on, larger ones of q8_0 from 9, others from 33.
  ProductShape small = packed(DType::q4_k, 32);
  CHECK(choose(small, {90, kHopper}) == Kernel::packed_wide);
  small.cols = 2816;
  CHECK(choose(small, {90, kHopper}) == Kernel::packed_few);
  CHECK(choose(small, {90, kHopper}, {.wide_rows = 9}) == Kernel::packed_wide);
  for (const Forced& f : {Forced{}, Forced{.wide_rows = 9}, Forced{.wide_rows = 70}})
    for (const int32_t rows : {least_wide_rows(f) - 1, least_wide_rows(f)}) {
      ProductShape bytes = packed(DType::q8_0, rows);
      bytes.outputs = 8192;
      CHECK((choose(bytes, {90, kHopper}, f) == Kernel::packed_wide) == (rows >= least_wide_rows(f)));
    }
  for (const DType t : {DType::q4_k, DType::q4_0, DType::nvfp4, DType::q8_0}) {
    CHECK(choose(packed(t, 16), {90, kHopper}) == Kernel::packed_few);
    CHECK(choose(packed(t, 17), {90, kHopper}) == Kernel::packed_wide);
  }
  for (const DType t : {DType::iq4_xs, DType::iq2_xs}) {
    CHECK(choose(packed(t, 32), {90, kHopper}) == Kernel::packed_few);
    CHECK(choose(packed(t, 33), {90, kHopper}) == Kernel::packed_wide);
  }
  CHECK(choose(packed(DType::q4_k, 40), {90, kHopper}, {.wide_rows = 41}) == Kernel::packed_few);
  CHECK(choose(packed(DType::q4_k, 512), {90, kHopper}, old) == Kernel::packed_tiles);
}

TEST_CASE("a newer card than the kernels are compiled for: how to build for it is said") {
  const std::string text = older_code("GB10", {121, kConsumer}, 86);
  CHECK(text.find("12.1") != std::string::npos);
  CHECK(text.find("8.6") != std::string::npos);
  CHECK(text.find("-DCARAT_CUDA_ARCHITECTURES=121a-real") != std::string::npos);
  CHECK(older_code("RTX 5090", {120, kConsumer}, 120).empty());
  CHECK(older_code("H100", {90, kHopper}, 90).empty());
  CHECK(older_code("RTX 4090", {89, kConsumer}, 86).empty());
}

TEST_CASE("names: every kernel has its own; an unknown choice is refused with a hint") {
  for (int i = 0; i <= static_cast<int>(Kernel::packed_wide); ++i)
    for (int j = 0; j < i; ++j)
      CHECK(std::string(name_of(static_cast<Kernel>(i))) != name_of(static_cast<Kernel>(j)));
  force_kernels({"float-mma", "float-rows=128", "wide-rows=9", "sm_80"});
  CHECK((forced().float_mma && forced().float_rows == 128 && !forced().packed_tiles));
  CHECK((forced().generation == 80 && forced().shared == 0));
  CHECK(forced().wide_rows == 9);
  force_kernels({"shared=99"});
  CHECK((forced().generation == 0 && forced().shared == 99));
  CHECK(!forced().unified);
  force_kernels({"unified"});
  CHECK(forced().unified);
  force_kernels({"sm_121"});
  CHECK((forced().generation == 121 && forced().shared == 99));
  force_kernels({});
  CHECK(forced().float_rows == 0);
  for (const char* wrong : {"fast", "shared=", "shared=9", "float-rows=", "float-rows=x", "wide-rows=0"})
    CHECK_THROWS_AS(force_kernels({wrong}), Error);
}

}  // namespace
}  // namespace carat::cuda
