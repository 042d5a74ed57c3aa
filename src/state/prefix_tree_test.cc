#include "state/prefix_tree.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "base/error.h"
#include "tests/heap_backend.h"

using namespace carat;
using carat::test::HeapBackend;

namespace {

// What a row of a position holds is a function of all tokens up to it: as in a model.
struct Machine {
  Machine(std::vector<KvLayerSpec> layers, const KvLimits& l, bool checkpoints)
      : limits(l),
        pool(backend, std::move(layers), l),
        pages(l, pool.plan()),
        tree(pages, pool.plan().page_bytes(), checkpoints) {
    pages.set_reclaimer([this] { return tree.free_page(); });
  }
  ~Machine() { pages.set_reclaimer({}); }

  static uint64_t value(std::span<const int32_t> tokens) {
    uint64_t h = 7;
    for (const int32_t t : tokens) h = (h ^ static_cast<uint64_t>(t)) * 0x100000001b3;
    return h;
  }
  template <class F>
  void each_row(const Sequence& s, int32_t pos, F&& f) const {
    const SeqView view = s.view();
    for (const KvPlan::Layer& l : pool.plan().layers) {
      const KvView v = pool.view(l.layer);
      for (int32_t h = 0; h < v.spec.heads; ++h) {
        const int place = (l.layer * 8 + h) * 2;
        f(v.k_row(view, pos, h), place), f(v.v_row(view, pos, h), place + 1);
        if (!v.spec.protect.any()) continue;
        f(v.k_edge_row(view, pos, h), place + 500), f(v.v_edge_row(view, pos, h), place + 501);
      }
    }
  }
  // Runs tokens behind what is committed, `step` rows at a time.
  void run(Sequence& s, std::span<const int32_t> tokens, int32_t step) {
    while (s.committed() < static_cast<int32_t>(tokens.size())) {
      const int32_t n = std::min(step, static_cast<int32_t>(tokens.size()) - s.committed());
      REQUIRE(s.append(n));
      for (int32_t i = 0; i < n; ++i) {
        const int32_t pos = s.committed() + i;
        const uint64_t v = value(tokens.first(static_cast<size_t>(pos) + 1));
        each_row(s, pos, [&](std::byte* p, int place) {
          const uint64_t mine = v + static_cast<uint64_t>(place);
          std::memcpy(p, &mine, 8);
        });
      }
      s.commit(n);
    }
  }
  // Everything that the next row would read is right.
  bool right(const Sequence& s, std::span<const int32_t> tokens) const {
    bool ok = true;
    for (const KvPlan::Layer& l : pool.plan().layers) {
      const int32_t window = pool.view(l.layer).spec.window;
      const int32_t first = window ? std::max(0, s.committed() - window + 1) : 0;
      for (int32_t pos = first; pos < s.committed(); ++pos) {
        const uint64_t v = value(tokens.first(static_cast<size_t>(pos) + 1));
        const SeqView view = s.view();
        const KvView kv = pool.view(l.layer);
        for (int32_t h = 0; h < kv.spec.heads; ++h) {
          uint64_t k, value_row;
          std::memcpy(&k, kv.k_row(view, pos, h), 8);
          std::memcpy(&value_row, kv.v_row(view, pos, h), 8);
          const auto place = static_cast<uint64_t>(l.layer * 8 + h) * 2;
          ok = ok && k == v + place && value_row == v + place + 1;
          if (!kv.spec.protect.covers(s.committed(), pos)) continue;
          std::memcpy(&k, kv.k_edge_row(view, pos, h), 8);
          std::memcpy(&value_row, kv.v_edge_row(view, pos, h), 8);
          ok = ok && k == v + place + 500 && value_row == v + place + 501;
        }
      }
    }
    return ok;
  }
  int32_t start(Sequence& s, std::span<const int32_t> tokens) {
    const PrefixTree::Match m = tree.match(tokens);
    CHECK(m.start <= m.known);
    if (m.start == 0) return 0;
    if (!s.start_from(m.pages, m.start, pool, m.checkpoint ? Restart(*m.checkpoint) : Restart())) return 0;
    if (m.checkpoint) restore_checkpoint(backend, pool, s, *m.checkpoint);
    return m.start;
  }
  void keep(const Sequence& s, std::span<const int32_t> tokens, int32_t span) {
    tree.insert(tokens, s.pages());
    if (!needs_checkpoint(pool.plan()) || tree.covers(tokens)) return;
    Checkpoint c = take_checkpoint(backend, pool, s, span, memory.get());
    while (memory && !c.blocks && tree.free_checkpoint())
      c = take_checkpoint(backend, pool, s, span, memory.get());
    CHECK((c.blocks != nullptr) == (memory != nullptr));
    tree.add(tokens, std::move(c));
  }

  HeapBackend backend;
  KvLimits limits;
  KvPool pool;
  PagePool pages;
  std::unique_ptr<CheckpointMemory> memory;  // null: checkpoints go to the host
  PrefixTree tree;
};

// Somebody who hears of changes, and what the contract with him is (serve/kv_events.h).
struct Listener {
  std::map<uint64_t, std::vector<int32_t>> held;  // a page's hash: all tokens up to its end
  void hear(const PrefixChanges& c, int32_t page) {
    if (c.anew) held.clear();
    for (const uint64_t h : c.removed) REQUIRE(held.erase(h) == 1);
    for (const PrefixRun& run : c.stored) {
      REQUIRE(run.tokens.size() == run.hashes.size() * static_cast<size_t>(page));
      REQUIRE((run.parent == 0 || held.contains(run.parent)));
      std::vector<int32_t> text = run.parent ? held.at(run.parent) : std::vector<int32_t>();
      for (size_t i = 0; i < run.hashes.size(); ++i) {
        const auto at = run.tokens.begin() + static_cast<ptrdiff_t>(i) * page;
        text.insert(text.end(), at, at + page);
        REQUIRE(run.hashes[i] != 0);
        REQUIRE(held.emplace(run.hashes[i], text).second);
      }
    }
  }
  // How much of a text he believes to be known.
  int32_t known(std::span<const int32_t> text) const {
    int32_t most = 0;
    for (const auto& [hash, t] : held)
      if (t.size() <= text.size() && std::equal(t.begin(), t.end(), text.begin()))
        most = std::max(most, static_cast<int32_t>(t.size()));
    return most;
  }
};

std::vector<KvLayerSpec> global() { return {{{DType::f16, DType::f16, 2, 16, 0}, 0}}; }
std::vector<KvLayerSpec> sliding() {
  return {{{DType::f16, DType::q8_0, 2, 32, 40}, 0}, {{DType::f16, DType::f16, 1, 16, 0}, 1}};
}
std::vector<KvLayerSpec> protect(std::vector<KvLayerSpec> layers, KvProtect protect) {
  layers.back().kv.protect = protect;  // the last sees everything
  return layers;
}

std::vector<int32_t> text(int n, int salt) {
  std::vector<int32_t> t;
  for (int i = 0; i < n; ++i) t.push_back(i * 31 + salt * 1000);
  return t;
}
std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Random texts that begin alike, each started from what is known and kept.
constexpr int64_t kFewBlocks = 5;
void check_at_random(bool protects, int64_t blocks = 0) {
  std::mt19937 rng(5);
  Machine m(protects ? protect(sliding(), {6, 50}) : sliding(),
            {.context = 200, .sequences = 4, .step_rows = 24, .page_tokens = 16, .pages = 60}, true);
  if (blocks) m.memory = std::make_unique<CheckpointMemory>(m.backend, blocks * CheckpointMemory::kBlock);
  std::vector<std::vector<int32_t>> texts{text(30, 0)};
  int found = 0;
  Listener listener;
  for (int round = 0; round < 300; ++round) {
    const auto& from = texts[rng() % texts.size()];
    auto t = joined({from.begin(), from.begin() + static_cast<ptrdiff_t>(rng() % (from.size() + 1))},
                    text(1 + static_cast<int>(rng() % 60), static_cast<int>(rng() % 3)));
    t.resize(std::min<size_t>(t.size(), 180));
    Sequence s(m.pages);
    found += m.start(s, t) > 0;
    REQUIRE(m.right(s, t));
    m.run(s, t, 1 + static_cast<int32_t>(rng() % 24));
    REQUIRE(m.right(s, t));
    m.keep(s, t, 20);
    if (round % 7 == 0) m.tree.trim(m.tree.bytes() / 2);
    if (round % 11 == 0) m.tree.erase(texts[rng() % texts.size()]);
    texts.push_back(std::move(t));
    if (round % 3 == 0) {
      PrefixChanges c = m.tree.changes();
      if (round % 50 == 49) {  // what was told is lost
        m.tree.tell_anew();
        c = m.tree.changes();
        c.anew = true;
      }
      listener.hear(c, 16);
      CHECK_FALSE(m.tree.changed());
      // What is told of a text is where it can be started, in whole pages; others may go on where it ends.
      for (int i = 0; i < 5; ++i) {
        const auto& any = texts[rng() % texts.size()];
        CHECK(listener.known(any) >= m.tree.match(any).start / 16 * 16);
      }
      for (const auto& [hash, held] : listener.held)
        REQUIRE(m.tree.match(held).known == static_cast<int32_t>(held.size()));
    }
    REQUIRE(m.pages.free_pages() + m.tree.pages() + (s.pages().size() > 0 ? 0 : 0) <= 60);
  }
  CHECK(found > (blocks == kFewBlocks ? 30 : 60));  // few checkpoints: fewer starts
  m.tree.trim(0);
  CHECK(m.pages.free_pages() == 60);
  if (blocks) CHECK(m.memory->take(blocks * CheckpointMemory::kBlock));  // all of them came back
}

}  // namespace

TEST_CASE("a text is found to the token, shared by pages, and its sequence stays its own") {
  Machine m(global(), {.context = 256, .sequences = 3, .step_rows = 32, .page_tokens = 16, .pages = 64},
            false);
  const auto base = text(100, 1);
  {
    Sequence a(m.pages);
    m.run(a, base, 7);
    m.keep(a, base, 0);
  }
  CHECK(m.tree.pages() == 7);
  CHECK(m.pages.idle_pages() == 7);
  for (const int32_t common : {0, 1, 15, 16, 17, 80, 99, 100}) {
    CAPTURE(common);
    const auto other = joined({base.begin(), base.begin() + common}, text(40, 2));
    Sequence b(m.pages);
    CHECK(m.start(b, other) == common);
    CHECK(m.right(b, other));
    m.run(b, other, 9);
    CHECK(m.right(b, other));
    Sequence c(m.pages);  // the first text is as it was
    CHECK(m.start(c, base) == 100);
    CHECK(m.right(c, base));
  }
  CHECK(m.pages.free_pages() + m.pages.idle_pages() == 64);
}

TEST_CASE("a text that goes on replaces its end; texts that part share what they have in common") {
  Machine m(global(), {.context = 256, .sequences = 2, .step_rows = 32, .page_tokens = 16, .pages = 64},
            false);
  auto t = text(20, 1);
  for (int turn = 0; turn < 8; ++turn) {
    Sequence s(m.pages);
    CHECK(m.start(s, t) == (turn ? static_cast<int32_t>(t.size()) - 13 : 0));
    m.run(s, t, 5);
    m.keep(s, t, 0);
    m.keep(s, t, 0);
    CHECK(m.tree.pages() == (static_cast<int64_t>(t.size()) + 15) / 16);
    t = joined(t, text(13, turn + 2));
  }
  t.resize(40);
  const auto branch = joined(t, text(30, 77));
  Sequence s(m.pages);
  CHECK(m.start(s, branch) == 40);
  m.run(s, branch, 32);
  m.keep(s, branch, 0);
  CHECK(m.tree.pages() == 7 + 1 + 1 + 1 + (20 + 7 * 13 + 15) / 16 - 7);
  CHECK(m.tree.erase(branch));
  CHECK_FALSE(m.tree.erase(branch));
  CHECK(m.tree.match(branch).known == 40);
}

TEST_CASE("sliding layers start wherever a checkpoint has their window") {
  const KvLimits limits{.context = 400, .sequences = 2, .step_rows = 24, .page_tokens = 16, .pages = 100};
  for (const int32_t step : {1, 5, 24}) {
    Machine m(sliding(), limits, true);
    REQUIRE(m.pool.plan().layers[0].ring_tokens > 0);
    const auto base = text(200, 1);
    {
      Sequence a(m.pages);
      m.run(a, base, step);
      m.keep(a, base, 20);
    }
    for (const int32_t common : {10, 150, 179, 180, 185, 199, 200}) {
      CAPTURE(common);
      const auto other = joined({base.begin(), base.begin() + common}, text(100, 2));
      Sequence b(m.pages);
      CHECK(m.start(b, other) == (common < 180 ? 0 : common));
      CHECK(m.tree.match(other).known == common);
      CHECK(m.right(b, other));
      m.run(b, other, step);
      CHECK(m.right(b, other));
      // A checkpoint of a sequence that started from one holds no more than that.
      Sequence c(m.pages);
      if (m.start(c, {other.begin(), other.begin() + common}) == 0) continue;
      const Checkpoint again = take_checkpoint(m.backend, m.pool, c, 20);
      CHECK(again.to == common);
      CHECK(again.from >= (common == 200 ? 180 : common - 20));
    }
  }
}

TEST_CASE(
    "pages are told as far as a start is possible, and taken back with the last checkpoint behind them") {
  Machine m(sliding(), {.context = 400, .sequences = 2, .step_rows = 24, .page_tokens = 16, .pages = 60},
            true);
  const auto base = text(100, 1);
  Listener listener;
  const auto known = [&] {
    listener.hear(m.tree.changes(), 16);
    return listener.known(base);
  };
  CHECK(known() == 0);
  Sequence s(m.pages);
  m.run(s, {base.begin(), base.begin() + 70}, 24);
  m.tree.insert({base.begin(), base.begin() + 70}, s.pages());
  CHECK(m.tree.changed());
  CHECK(known() == 0);  // pages without a checkpoint are of no use
  m.keep(s, {base.begin(), base.begin() + 70}, 20);
  CHECK(known() == 64);
  CHECK(m.tree.match(base).start == 70);
  m.run(s, base, 24);
  m.keep(s, base, 20);
  CHECK(known() == 96);
  const size_t pages = listener.held.size();
  CHECK(pages == 6);
  CHECK(m.tree.changes().empty());
  // Names that are no tokens are nobody's business.
  auto secret = text(100, 3);
  secret[0] = -5;
  Sequence other(m.pages);
  m.run(other, secret, 24);
  m.keep(other, secret, 20);
  CHECK(m.tree.changed());
  CHECK(m.tree.changes().empty());
  m.tree.trim(0);
  CHECK(known() == 0);
  CHECK(listener.held.empty());
}

TEST_CASE("checkpoints that others make useless go; what is left is forgotten by use") {
  Machine m(sliding(), {.context = 400, .sequences = 2, .step_rows = 24, .page_tokens = 16, .pages = 60},
            true);
  auto t = text(100, 1);
  for (int turn = 0; turn < 6; ++turn) {
    Sequence s(m.pages);
    m.start(s, t);
    m.run(s, t, 24);
    m.keep(s, t, 24);
    t = joined(t, text(3, turn + 2));
  }
  CHECK(m.tree.checkpoints() <= 3);  // every one covers most of the one before
  const int64_t one = m.tree.bytes();
  const auto old = t;
  for (int salt = 20; salt < 24; ++salt) {
    t = text(100, salt);
    Sequence s(m.pages);
    m.run(s, t, 24);
    m.keep(s, t, 24);
  }
  CHECK(m.tree.bytes() > one * 3);
  m.tree.trim(one * 2);
  CHECK(m.tree.bytes() <= one * 2);
  CHECK(m.tree.match(t).start == 100);  // the last one is there
  CHECK(m.tree.match(text(100, 20)).start == 0);
  m.tree.trim(0);
  CHECK(m.tree.bytes() == 0);
  CHECK(m.tree.checkpoints() == 0);
  CHECK(m.pages.free_pages() == 60);
}

TEST_CASE("pages that nobody works with are given to who needs them, the oldest text's first") {
  Machine m(global(), {.context = 160, .sequences = 2, .step_rows = 32, .page_tokens = 16, .pages = 20},
            false);
  for (int salt = 0; salt < 2; ++salt) {
    Sequence s(m.pages);
    const auto t = text(160, salt);
    m.run(s, t, 32);
    m.keep(s, t, 0);
  }
  CHECK(m.pages.free_pages() == 0);
  CHECK(m.pages.idle_pages() == 20);
  Sequence a(m.pages), b(m.pages);
  const auto mine = joined(text(64, 1), text(90, 5)), fresh = text(100, 6);
  CHECK(m.start(a, mine) == 64);
  m.run(b, fresh, 32);
  CHECK(m.tree.match(text(160, 1)).known == 160);
  CHECK(m.tree.match(text(160, 0)).known < 80);
  m.run(a, mine, 32);
  CHECK(m.right(a, mine));
  CHECK(m.right(b, fresh));
  CHECK_FALSE(a.append(32));  // 20 pages are 10 + 10 at most
}

TEST_CASE(
    "protected rows come with the checkpoint, sinks too, and no earlier start is promised than it has") {
  const KvLimits limits{.context = 400, .sequences = 2, .step_rows = 24, .page_tokens = 16, .pages = 100};
  for (const KvProtect p : {KvProtect{4, 30}, KvProtect{40, 3}, KvProtect{7, 0}, KvProtect{0, 90}})
    for (const auto& layers : {protect(global(), p), protect(sliding(), p)}) {
      CAPTURE(p.sinks);
      CAPTURE(p.recent);
      CAPTURE(layers.size());
      Machine m(layers, limits, true);
      CHECK(needs_checkpoint(m.pool.plan()));
      const auto base = text(200, 1);
      {
        Sequence a(m.pages);
        m.run(a, {base.begin(), base.begin() + 35}, 24);
        m.keep(a, {base.begin(), base.begin() + 35}, 10);
        m.run(a, base, 24);
        m.keep(a, base, 20);
        const Checkpoint c = take_checkpoint(m.backend, m.pool, a, 20);
        CHECK(c.bytes.size() == checkpoint_size(m.pool, c));
        CHECK(static_cast<int64_t>(c.bytes.size()) <= checkpoint_bytes(m.pool, 20));
      }
      for (const int32_t common : {10, 24, 25, 30, 35, 100, 180, 190, 200}) {
        CAPTURE(common);
        const auto other = joined({base.begin(), base.begin() + common}, text(100, 2));
        Sequence b(m.pages);
        const int32_t start = m.start(b, other);
        CHECK(start == (common >= 180 ? common : common >= 35 ? 35 : common >= 25 ? common : 0));
        CHECK(m.right(b, other));
        // What this one leaves is no more than it has.
        m.run(b, {other.begin(), other.begin() + start + 3}, 24);
        const Checkpoint again = take_checkpoint(m.backend, m.pool, b, 20);
        for (const int32_t at : {again.from, again.from + 1, again.to}) {
          CAPTURE(at);
          Sequence next(m.pages);
          REQUIRE(next.start_from(b.pages(), at, m.pool, again));
          restore_checkpoint(m.backend, m.pool, next, again);
          CHECK(m.right(next, other));
        }
        m.run(b, other, 24);
        CHECK(m.right(b, other));
      }
    }
}

TEST_CASE("at random: what is found is right, and no page is lost") {
  for (const bool protects : {false, true}) check_at_random(protects);
}

TEST_CASE("at random, with checkpoints in the device's memory, which holds few") {
  for (const bool protects : {false, true})
    for (const int64_t blocks : {kFewBlocks, int64_t{40}}) check_at_random(protects, blocks);
}

TEST_CASE("a checkpoint goes over the ends of a device's blocks, and comes back the same") {
  const KvLimits limits{.context = 4096, .sequences = 2, .step_rows = 64, .page_tokens = 64, .pages = 140};
  // 4 KiB a position: its ring of 1,100 positions is more than a block.
  Machine m({{{DType::f16, DType::f16, 4, 256, 1000}, 0}}, limits, true);
  m.memory = std::make_unique<CheckpointMemory>(m.backend, 4 * CheckpointMemory::kBlock);
  const auto base = text(2500, 3);
  Sequence a(m.pages);
  m.run(a, base, 64);
  m.keep(a, base, 100);
  Sequence b(m.pages);
  CHECK(m.start(b, base) == 2500);
  CHECK(m.right(b, base));
}
