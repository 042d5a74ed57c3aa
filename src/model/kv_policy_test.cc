#include "model/kv_policy.h"

#include <doctest/doctest.h>

#include "base/error.h"

using namespace carat;

namespace {

// One sliding layer, one global layer, and one that reads each of them.
ModelSpec spec_of(int32_t dim) {
  ModelSpec s;
  for (int i = 0; i < 4; ++i) {
    LayerSpec l;
    l.kv_heads = 2, l.heads = 4, l.head_dim = dim, l.window = i % 2 ? 0 : 64, l.kv_from = i % 2;
    s.layers.push_back(l);
  }
  return s;
}
constexpr KvLimits kLimits{65536, 1, 64, 64};

}  // namespace

TEST_CASE("auto takes the most precise caches that fit, and says why") {
  const ModelSpec s = spec_of(128);
  const int64_t f16 = choose_kv("precise", s, kLimits, 0).bytes,
                small = choose_kv("small", s, kLimits, 0).bytes;
  CHECK(choose_kv("auto", s, kLimits, f16).formats.k == DType::f16);
  const KvChoice q8 = choose_kv("auto", s, kLimits, f16 - 1);
  CHECK(q8.formats.text() == "q8_0/q8_0");
  CHECK(q8.why.find("f16/f16 would take") != std::string::npos);
  CHECK(choose_kv("auto", s, kLimits, small).formats.text() == "kv4/kv4, sliding q8_0/q8_0");
  // Where it may, it protects first and recent positions before it takes smaller types for all.
  const KvAllowed can{.protect = true};
  const KvChoice kept = choose_kv("auto", s, kLimits, small * 11 / 10, can);
  CHECK(kept.formats.text() == "kv4/kv4, sliding q8_0/q8_0, f16 for the first 4 and last 128");
  CHECK(kept.bytes > small);
  CHECK(kept.bytes == plan_kv(kv_layers(s, kept.formats), kLimits).bytes());
  CHECK(choose_kv("auto", s, kLimits, small - 1, can).formats.text() ==
        "kv4/tq3, sliding q8_0/q8_0, f16 for the first 4 and last 128");
  CHECK_FALSE(choose_kv("auto", s, kLimits, f16, can).formats.protect.any());
  const KvChoice mine = choose_kv("auto", s, kLimits, f16 - 1, {.fixed = KvProtect{0, 64}});
  CHECK(mine.formats.text() == "q8_0/q8_0");  // eight bits need none
  CHECK(choose_kv("small", s, kLimits, 0, {.fixed = KvProtect{0, 64}}).formats.text() ==
        "kv4/kv4, sliding q8_0/q8_0, f16 for the last 64");
  const int64_t smallest = choose_kv("smallest", s, kLimits, 0).bytes;
  CHECK(choose_kv("auto", s, kLimits, smallest - 1).formats.text() == "tq3/tq3, sliding q8_0/q8_0");
  const KvChoice none = choose_kv("auto", s, kLimits, 1000);
  CHECK(none.formats.text() == "tq3/tq3, sliding kv4/kv4");
  CHECK(none.why.find("only") != std::string::npos);
  CHECK_THROWS_AS(choose_kv("best", s, kLimits, f16), Error);
  CHECK_THROWS_AS(choose_kv("", s, kLimits, f16), Error);
}

TEST_CASE("auto passes over formats that the heads do not allow") {
  CHECK(choose_kv("auto", spec_of(16), kLimits, 1000).formats.k == DType::f16);
}

TEST_CASE("the ladder goes down in size, and every rung can be planned") {
  const ModelSpec s = spec_of(256);
  int64_t last = INT64_MAX;
  for (const char* p : {"precise", "balanced", "small", "smallest"}) {
    const int64_t bytes = choose_kv(p, s, kLimits, 0).bytes;
    CHECK(bytes < last);
    last = bytes;
  }
}

TEST_CASE("kinds of layers have formats of their own; a reader has its donor's") {
  const auto layers = kv_layers(spec_of(64), KvFormats{DType::tq4, DType::tq3, DType::q8_0, DType::fp8});
  CHECK(layers[0].kv.k == DType::q8_0);
  CHECK(layers[2].kv.v == DType::fp8);
  CHECK(layers[1].kv.k == DType::tq4);
  CHECK(layers[3].kv.v == DType::tq3);
}

TEST_CASE("a single layer can have formats of its own, with whoever reads it") {
  KvFormats f{DType::tq3, DType::tq3, DType::q8_0, DType::q8_0};
  f.layers = {{1, DType::f16, DType::q8_0}};
  const auto layers = kv_layers(spec_of(64), f);
  CHECK(layers[1].kv.k == DType::f16);
  CHECK(layers[3].kv.v == DType::q8_0);
  CHECK(layers[0].kv.k == DType::q8_0);
  CHECK(f.text() == "tq3/tq3, sliding q8_0/q8_0, layer 1 f16/q8_0");
  for (const int32_t wrong : {-1, 3, 4}) {
    f.layers = {{wrong, DType::f16, DType::f16}};
    CHECK_THROWS_AS(kv_layers(spec_of(64), f), Error);
  }
}

TEST_CASE("small caches of layers that see everything are protected, no others") {
  const auto protected_layers = [](KvFormats f) {
    f.protect = {4, 128};
    std::vector<int> out;
    for (const KvLayerSpec& l : kv_layers(spec_of(128), f)) out.push_back(l.kv.protect.any());
    return out;
  };
  using enum DType;
  CHECK(protected_layers({tq3, tq3, tq3, tq3}) == std::vector{0, 1, 0, 1});
  CHECK(protected_layers({q8_0, kv4, q8_0, q8_0}) == std::vector{0, 1, 0, 1});
  CHECK(protected_layers({q8_0, fp8, tq3, tq3}) == std::vector{0, 0, 0, 0});
  CHECK(protected_layers({f16, f16, kv4, kv4, false, {{1, tq4, tq4}}}) == std::vector{0, 1, 0, 1});
}

TEST_CASE("one copy of K = V where keys are functions of values, and nowhere else") {
  ModelSpec s = spec_of(256);
  CHECK(!has_single_copies(s));
  KvFormats f;
  f.single = true;
  const int64_t two = plan_kv(kv_layers(s, f), kLimits).bytes();
  for (LayerSpec& l : s.layers)
    if (l.window == 0) l.k_is_v = true, l.rope_pairs = 32;
  CHECK(has_single_copies(s));
  const auto layers = kv_layers(s, f);
  CHECK(layers[0].kv.pairs == 0);
  CHECK(layers[1].kv.pairs == 32);
  CHECK(layers[3].kv.pairs == 32);
  const int64_t one = plan_kv(layers, kLimits).bytes(), global = int64_t{65536} * 2 * 256 * 2;
  CHECK(two - one == global - global / 4);
  for (LayerSpec& l : s.layers) l.rope_pairs = 128;  // every element is rotated: nothing to share
  CHECK(!has_single_copies(s));
  CHECK(plan_kv(kv_layers(s, f), kLimits).bytes() == two);
}
