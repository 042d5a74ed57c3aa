#include "engine/setup.h"

#include <doctest/doctest.h>

using namespace carat;

namespace {

// Sliding layers take most of a short text's memory, the other one most of a long text's: as in Gemma 4 31B.
ModelSpec sliding_model() {
  ModelSpec s;
  s.context = 262144;
  for (int i = 0; i < 6; ++i) {
    LayerSpec l;
    l.heads = 16, l.kv_heads = i < 5 ? 8 : 2, l.head_dim = 128, l.window = i < 5 ? 1024 : 0, l.kv_from = i;
    s.layers.push_back(l);
  }
  return s;
}
EngineConfig by_plan(int32_t context, int64_t free, int64_t kv_tokens = 0) {
  EngineConfig c;
  c.context = context, c.sequences = 0, c.kv_tokens = kv_tokens;
  return resolve(c, sliding_model(), false, {"device", 2 * free, free}, {});
}
int64_t bytes_of(const EngineConfig& c) {
  return plan_kv(kv_layers(sliding_model(), formats_of(c)), limits_of(c, false)).bytes();
}

}  // namespace

TEST_CASE("sequences by plan: whole contexts where 64 fit, else as many as have 2,048 tokens each") {
  const int64_t one = bytes_of(by_plan(65536, 0));
  const EngineConfig all = by_plan(65536, 200 * one);
  CHECK(all.sequences == 64);
  CHECK(all.kv_tokens == 0);
  for (const int64_t contexts : {4, 10, 30}) {
    CAPTURE(contexts);
    const int64_t free = 2 * contexts * one;
    const EngineConfig c = by_plan(65536, free);
    CHECK(c.sequences > contexts);
    CHECK(c.sequences <= 64);
    CHECK(c.kv_tokens >= c.sequences * 2048);
    CHECK(c.kv_tokens < int64_t{c.sequences} * 65536);
    CHECK(bytes_of(c) <= free / 2);
    EngineConfig more = c;
    more.kv_tokens += 256;
    CHECK(bytes_of(more) > free / 2);
  }
}

TEST_CASE("sequences by plan: a short context and a wish for tokens stand") {
  const int64_t one = bytes_of(by_plan(2048, 0));
  const EngineConfig brief = by_plan(2048, 20 * one);
  CHECK(brief.kv_tokens == 0);
  CHECK(brief.sequences < 64);
  const EngineConfig asked = by_plan(8192, 40 * one, 16384);
  CHECK(asked.kv_tokens == 16384);
  CHECK(by_plan(8192, 0).sequences == 1);
  CHECK(by_plan(8192, 0).kv_tokens == 0);
}
