#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "state/layout.h"
#include "state/sequence.h"
#include "tests/heap_backend.h"

using namespace carat;
using carat::test::HeapBackend;

namespace {

struct CountingBackend : HeapBackend {
  size_t allocated = 0;
  Buffer alloc(size_t n) override {
    allocated += n;
    return HeapBackend::alloc(n);
  }
};

KvSpec spec(int32_t heads, int32_t dim, int32_t window, DType t = DType::f16) {
  return {t, t, heads, dim, window};
}

std::string error_of(const std::vector<KvLayerSpec>& layers, const KvLimits& limits) {
  try {
    plan_kv(layers, limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("plan_kv: bytes by hand") {
  // A sliding owner, a global owner, and one sharing layer of each kind.
  const std::vector<KvLayerSpec> layers{
      {spec(2, 16, 100), 0}, {spec(1, 32, 0), 1}, {spec(2, 16, 100), 0}, {spec(1, 32, 0), 1}};
  const KvPlan p = plan_kv(layers, {1000, 3, 50, 64});
  REQUIRE(p.layers.size() == 2);
  CHECK(p.layers[0].ring_tokens == 192);  // 100 + 50 rounded up to pages
  CHECK(p.layers[0].pages == 3 * 3);
  CHECK(p.layers[0].k_page_bytes == 2 * 64 * 16 * 2);
  CHECK(p.layers[1].ring_tokens == 0);
  CHECK(p.layers[1].pages == 3 * 16);  // 1000 positions are 16 pages
  CHECK(p.layers[1].v_page_bytes == 1 * 64 * 32 * 2);
  CHECK(p.bytes() == 9 * 2 * 4096 + 48 * 2 * 4096);
}

TEST_CASE("plan_kv: a ring that would not save anything is paged") {
  CHECK(plan_kv(std::vector<KvLayerSpec>{{spec(1, 16, 100), 0}}, {128, 1, 50, 64}).layers[0].ring_tokens ==
        0);
  CHECK(
      plan_kv(std::vector<KvLayerSpec>{{spec(1, 16, 1 << 20), 0}}, {128, 1, 50, 64}).layers[0].ring_tokens ==
      0);
}

TEST_CASE("plan_kv: what users may get wrong is one Error") {
  const std::vector<KvLayerSpec> good{{spec(1, 16, 0), 0}};
  CHECK(error_of(good, {100, 1, 10, 64}) == "");
  CHECK(error_of(good, {0, 1, 10, 64}) == "a context of 0 positions");
  CHECK(error_of(good, {-5, 1, 10, 64}) == "a context of -5 positions");
  CHECK(error_of(good, {100, 0, 10, 64}) == "0 sequences at once");
  CHECK(error_of(good, {100, 1, 1 << 30, 64}) == "steps of 1073741824 rows");
  CHECK(error_of({{spec(1, 16, 0, DType::q8_0), 0}}, {100, 1, 10, 64}).find("q8_0") != std::string::npos);
  CHECK(error_of({{spec(1, 16, 0, DType::i8), 0}}, {100, 1, 10, 64}) == "the KV cache cannot be i8");
}

TEST_CASE("KvPool: a sharing layer sees its donor's memory with its own window") {
  CountingBackend backend;
  const KvPool pool(backend, {{spec(1, 16, 40), 0}, {spec(1, 16, 0), 1}, {spec(1, 16, 30), 0}},
                    {512, 2, 8, 16});
  CHECK(pool.view(2).k == pool.view(0).k);
  CHECK(pool.view(2).v == pool.view(0).v);
  CHECK(pool.view(2).spec.window == 30);
  CHECK(pool.view(0).spec.window == 40);
  CHECK(pool.view(0).ring_tokens == 48);
  CHECK(pool.view(1).ring_tokens == 0);
  CHECK(pool.view(1).k != pool.view(0).k);
}

TEST_CASE("KvPool allocates what was planned, in every format") {
  for (const DType t :
       {DType::f16, DType::q8_0, DType::fp8, DType::kv4, DType::tq4, DType::tq3, DType::tq3_0, DType::tbq3}) {
    CountingBackend backend;
    const std::vector<KvLayerSpec> layers{{spec(2, 64, 100, t), 0}, {spec(1, 128, 0, t), 1}};
    const KvPool pool(backend, layers, {1000, 3, 50, 64});
    CHECK(static_cast<int64_t>(backend.allocated) == plan_kv(layers, {1000, 3, 50, 64}).bytes());
    CHECK(pool.plan().bytes() == 3 * 2 * (192 * 2 * row_bytes(t, 64) + 1024 * row_bytes(t, 128)));
  }
}

TEST_CASE("KvPool allocates the protected rows that were planned") {
  KvSpec kv = spec(2, 64, 0, DType::tq3);
  for (const KvProtect p : {KvProtect{4, 0}, KvProtect{0, 128}, KvProtect{4, 128}, KvProtect{4, 5000}}) {
    kv.protect = p;
    CountingBackend backend;
    const std::vector<KvLayerSpec> layers{{spec(1, 32, 100), 0}, {kv, 1}, {kv, 1}};
    const KvLimits limits{1000, 3, 50, 64};
    const KvPool pool(backend, layers, limits);
    CHECK(static_cast<int64_t>(backend.allocated) == plan_kv(layers, limits).bytes());
    const int64_t ring = std::min(p.recent + 50, 1000);  // no longer than the context
    CHECK(pool.plan().bytes() - 3 * 192 * 2 * 64 - 3 * 1024 * 2 * 2 * row_bytes(DType::tq3, 64) ==
          3 * (p.sinks + ring) * 2 * 2 * 128);
    CHECK(pool.view(2).k_edge == pool.view(1).k_edge);
    CHECK(pool.view(2).edge_ring == ring);
    CHECK(pool.view(0).k_edge == nullptr);
  }
}

TEST_CASE("Sequence: pages come with append, go with commit, and run out without harm") {
  const KvLimits limits{64, 2, 32, 16};
  PagePool pool(limits);
  REQUIRE(pool.free_pages() == 8);
  Sequence a(pool), b(pool);
  CHECK(a.view().slot != b.view().slot);
  CHECK_THROWS_AS(Sequence{pool}, Error);
  CHECK(a.append(17));
  CHECK(a.pages().size() == 2);
  CHECK_FALSE(a.append(16));  // 33 uncommitted rows, the largest step has 32
  CHECK(a.append(15));
  a.commit(3);
  CHECK(a.committed() == 3);
  CHECK(a.pages().size() == 1);
  CHECK(pool.free_pages() == 7);
  CHECK(a.append(32));
  a.commit(32);
  CHECK_FALSE(a.append(30));  // 65 positions
  CHECK(a.append(29));
  a.commit(29);
  CHECK(a.pages().size() == 4);
  CHECK(b.append(32));
  b.commit(32);
  int32_t page;
  while (pool.take_page(page)) {}
  CHECK_FALSE(b.append(1));
  CHECK(b.pages().size() == 2);
  CHECK(b.committed() == 32);
}

TEST_CASE("Sequence: a ring's pages come with its first turn, and few are enough for short texts") {
  KvLimits limits{1000, 3, 20, 10};
  limits.ring_pages = 15;
  const std::vector<KvLayerSpec> layers{{spec(1, 16, 80), 0}, {spec(1, 16, 0), 1}};
  const KvPlan plan = plan_kv(layers, limits);
  REQUIRE(plan.ring_tokens == 100);  // of 10 pages
  CHECK(plan.layers[0].pages == 15);
  CHECK(plan.layers[1].pages == 300);
  PagePool pool(limits, plan);
  Sequence a(pool);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(a.append(10));
    a.commit(10);
    CHECK(pool.room().ring == 15 - std::min(i + 1, 10));
  }
  Sequence b(pool);
  CHECK(b.pages_for(50).ring == 5);
  CHECK(b.rows_in(pool.room()) == 50);
  for (int i = 0; i < 5; ++i) {
    REQUIRE(b.append(10));
    b.commit(10);
  }
  CHECK_FALSE(b.append(1));  // nor has it taken a page of the other kind
  CHECK(b.pages().size() == 5);
  CHECK(a.rows_in(pool.room()) == 2750);
  Sequence c(pool);
  CHECK_FALSE(c.start_blank(25));
  CHECK(c.pages().empty());
  a.rewind(190);
  CHECK(a.append(10));  // a ring that has turned needs no more
}

TEST_CASE("random appends, commits and rollbacks: windows and pages keep what they need") {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 60; ++trial) {
    const int32_t page_tokens = 1 << rng() % 6, step = 1 + static_cast<int32_t>(rng() % 40);
    const int32_t window = 1 + static_cast<int32_t>(rng() % 70),
                  sequences = 1 + static_cast<int32_t>(rng() % 3);
    KvLimits limits{600, sequences, step, page_tokens};
    // Rings for all of them, or for little more than one.
    if (trial % 2) limits.ring_pages = 1 + (window + step) / page_tokens + static_cast<int32_t>(rng() % 3);
    KvSpec all = spec(1, 2, 0, DType::f32);
    all.protect = {static_cast<int32_t>(rng() % 9), static_cast<int32_t>(rng() % 60)};
    const std::vector<KvLayerSpec> layers{{spec(1, 1, window, DType::f32), 0}, {all, 1}};
    CountingBackend backend;
    const KvPool pool(backend, layers, limits);
    PagePool pages(limits, pool.plan());
    std::vector<std::unique_ptr<Sequence>> live;
    std::vector<std::vector<float>> log;  // what each sequence committed, by position
    std::vector<int32_t> furthest(static_cast<size_t>(sequences), 0);  // ever written
    float next = 1;
    for (int32_t s = 0; s < sequences; ++s)
      live.push_back(std::make_unique<Sequence>(pages)), log.emplace_back();
    for (int round = 0; round < 150; ++round) {
      const auto s = static_cast<size_t>(rng() % live.size());
      Sequence& q = *live[s];
      const int32_t n = 1 + static_cast<int32_t>(rng() % step);
      if (!q.append(n)) {  // full: starts again
        live[s].reset();
        live[s] = std::make_unique<Sequence>(pages);
        log[s].clear();
        furthest[s] = 0;
        continue;
      }
      const int32_t base = q.committed();
      std::vector<float> rows = log[s];
      const SeqView view = q.view();
      // All rows are written before any is read, as in a step.
      for (int32_t i = 0; i < n; ++i) {
        rows.push_back(next++);
        for (const int layer : {0, 1})
          *reinterpret_cast<float*>(pool.view(layer).k_row(view, base + i, 0)) = rows.back();
        if (all.protect.any())
          *reinterpret_cast<float*>(pool.view(1).k_edge_row(view, base + i, 0)) = rows.back();
      }
      bool intact = true;
      for (const int layer : {0, 1})
        for (int32_t i = base; i < base + n; ++i)
          for (int32_t p = layer == 0 ? std::max(0, i - window + 1) : 0; p <= i; ++p)
            intact &= *reinterpret_cast<float*>(pool.view(layer).k_row(view, p, 0)) == rows[p];
      for (int32_t i = base; i < base + n; ++i)
        for (int32_t p = 0; p <= i; ++p)
          if (all.protect.covers(i, p))
            intact &= *reinterpret_cast<float*>(pool.view(1).k_edge_row(view, p, 0)) == rows[p];
      REQUIRE(intact);
      const int32_t keep = static_cast<int32_t>(rng() % (n + 1));
      q.commit(keep);
      rows.resize(static_cast<size_t>(base + keep));
      if (rng() % 4 == 0) {
        const int32_t back = std::min(step - (n - keep), q.committed());
        const int32_t rewound = static_cast<int32_t>(rng() % (back + 1));
        if (base + n > furthest[s]) {
          q.rewind(q.committed() - rewound);
          rows.resize(static_cast<size_t>(q.committed()));
        }
      }
      furthest[s] = std::max(furthest[s], base + n);
      log[s] = rows;
    }
    live.clear();
    CHECK(pages.free_pages() == sequences * ((600 + page_tokens - 1) / page_tokens));
    CHECK(pages.room().ring == pool.plan().ring_pages(limits));
  }
}
