// carat bench --attn-count: a tile counts as dead exactly if its weights, rounded as a GPU rounds them, are
// zeros.
#include "apps/attn_count.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/codec.h"
#include "core/kv_codec.h"

using namespace carat;

namespace {

// Dead tiles of a row by the arithmetic of docs/numerics.md: segments of `length` tiles, weights rounded to
// f16.
std::vector<bool> dead_by_weights(const std::vector<float>& best, int32_t length) {
  std::vector<bool> dead;
  float top = -INFINITY;
  for (size_t t = 0; t < best.size(); ++t) {
    if (t % static_cast<size_t>(length) == 0) top = -INFINITY;
    top = std::max(top, best[t]);
    dead.push_back(f32_to_f16(std::exp2(best[t] - top)) == 0);
  }
  return dead;
}
bool has(uint8_t dead, TileRule rule) { return dead >> static_cast<int>(rule) & 1; }

}  // namespace

TEST_CASE("tiles are dead where their largest weight rounds to zero") {
  // 6,000 positions: segments of 128, two tiles.
  std::vector<float> best(94, -3.0f);
  best[1] = -28.0f;  // 25 below the tile before: half of the least half, which rounds to even
  best[3] = -27.9f;  // a little more
  best[4] = -60.0f;  // the first of its segment
  best[7] = -60.0f;  // the second
  best[20] = 40.0f;  // the largest
  best[21] = 15.0f;  // in its segment
  best[22] = 14.9f;  // in the next one
  best[93] = 5.0f, best[92] = -32.5f;  // the row's own tile, and less than the floor's 24 + 13 bits below it
  std::vector<uint8_t> dead;
  judge_tiles(best, 6000, dead);
  REQUIRE(dead.size() == best.size());
  const std::vector<bool> want = dead_by_weights(best, 2), longer = dead_by_weights(best, 16);
  for (size_t t = 0; t < best.size(); ++t) {
    CAPTURE(t);
    CHECK(has(dead[t], TileRule::as_now) == want[t]);
    CHECK(has(dead[t], TileRule::segments) == longer[t]);
  }
  for (const size_t t : {1, 7, 21}) CHECK(want[t]);
  for (const size_t t : {3, 4, 20, 22}) CHECK(!want[t]);
  CHECK(longer[22]);
  // Behind the largest all others are 43 bits below it, before it only those that the row's own tile is far
  // above.
  CHECK(has(dead[4], TileRule::floor));
  CHECK(!has(dead[10], TileRule::floor));
  CHECK(has(dead[40], TileRule::floor));
  CHECK(!has(dead[21], TileRule::floor));
  CHECK(has(dead[10], TileRule::row));
}

TEST_CASE("pairs and tasks of an operation are counted, over two copies and one") {
  constexpr int32_t kDim = 64, kHeads = 2, kGroup = 8, kRows = 11, kEnd = 300, kFirst = kEnd - kRows;
  for (const int32_t one_copy : {0, 8}) {
    CAPTURE(one_copy);
    KvView kv;
    kv.spec = {DType::f16, DType::f16, kHeads, kDim, 0, one_copy, {}};
    kv.page_tokens = 64;
    kv.k_page_bytes = kHeads * 64 * kv.spec.k_bytes(), kv.v_page_bytes = kHeads * 64 * kv.spec.v_bytes();
    std::vector<std::byte> k(5 * static_cast<size_t>(kv.k_page_bytes)),
        v(5 * static_cast<size_t>(kv.v_page_bytes));
    kv.k = k.data(), kv.v = v.data();
    const std::vector<int32_t> pages{4, 2, 0, 1, 3};
    const std::vector<float> gain(kDim, 1.0f);
    kv.gain = gain.data();
    const SeqView seq{pages.data(), nullptr, 0};
    // The second tile's keys point away from head 0's queries: from column 20, which no rotation turns.
    for (int32_t p = 0; p < kEnd; ++p)
      for (int32_t h = 0; h < kHeads; ++h) {
        std::vector<float> key(kDim, 0.0f), part(static_cast<size_t>(kv.spec.key_dim()));
        key[20] = h == 0 && p / 64 == 1 ? -8.0f : 8.0f;
        if (one_copy)
          rotary_part(key.data(), kDim, one_copy, part.data());
        else
          part = key;
        encode_row(DType::f16, part.data(), kv.k_row(seq, p, h), kv.spec.key_dim());
        encode_row(DType::f16, key.data(), kv.v_row(seq, p, h), kDim);
      }
    std::vector<float> q(static_cast<size_t>(kRows) * kHeads * kGroup * kDim);
    for (size_t i = 20; i < q.size(); i += kDim) q[i] = 2;
    q[20 + kDim] = 0.5f;  // of the first row's second head: not far enough away
    std::vector<int32_t> pos, zeros(kRows), out;
    for (int32_t m = 0; m < kRows; ++m) pos.push_back(kFirst + m), out.push_back(m);
    const StepState state{kRows, kRows, zeros.data(), pos.data(), zeros.data(), out.data(), &seq};
    const Tensor queries =
        make_tensor(reinterpret_cast<std::byte*>(q.data()), DType::f32, kRows, kHeads * kGroup * kDim);
    const AttentionCount c = count_tiles({queries, queries, kv, 1.0f}, state, RowSet::all);
    CHECK(c.pairs.all == kRows * kHeads * kGroup * 5);
    CHECK(c.tasks.all == 2 * kHeads * 5);  // of 8 and of 3 rows
    // Segments of a tile: nothing is dead now; in longer ones the tile is, but where a pair needs it.
    CHECK(c.pairs.dead[0] == 0);
    for (const TileRule rule : {TileRule::segments, TileRule::floor, TileRule::row}) {
      CHECK(c.pairs.dead[static_cast<size_t>(rule)] == kRows * kGroup - 1);
      CHECK(c.tasks.dead[static_cast<size_t>(rule)] == 1);
    }
  }
}

TEST_CASE("the fewest blocks that hold a share, the first of equals") {
  const double mass[] = {0.1, 0.3, 0.1, 0.4, 0.1};
  const auto chosen = [&](double share) {
    std::vector<uint8_t> c(5);
    choose_blocks(mass, 5, share, c.data());
    return c;
  };
  CHECK(chosen(0.3) == std::vector<uint8_t>{0, 0, 0, 1, 0});
  CHECK(chosen(0.75) == std::vector<uint8_t>{1, 1, 0, 1, 0});
  CHECK(chosen(1.0) == std::vector<uint8_t>{1, 1, 1, 1, 1});
}

TEST_CASE("what one head of a group wants is read for all, and weights outside count as lost") {
  constexpr int32_t kDim = 16, kGroup = 2, kBlocks = 16, kEnd = kBlocks * kKeyBlock,
                    kFirst = kEnd - kKeyBlock;
  KvView kv;
  kv.spec = {DType::f16, DType::f16, 1, kDim, 0, 0, {}};
  kv.page_tokens = kEnd, kv.k_page_bytes = kEnd * kv.spec.k_bytes(), kv.v_page_bytes = kv.k_page_bytes;
  std::vector<std::byte> cache(static_cast<size_t>(kv.k_page_bytes));
  kv.k = kv.v = cache.data();
  const int32_t page = 0;
  const SeqView seq{&page, nullptr, 0};
  // Head 0 looks at block 4, with a 25th of its weights at block 5, head 1 at one key of block 6; nothing
  // else is worth much to either.
  for (int32_t p = 0; p < kEnd; ++p) {
    std::vector<float> key(kDim, 0.0f);
    if (p / kKeyBlock == 4) key[0] = 4;
    if (p / kKeyBlock == 5) key[0] = 4 + std::log(1.0f / 24) / 4;
    if (p == 6 * kKeyBlock + 77) key[1] = 6;
    encode_row(DType::f16, key.data(), kv.k_row(seq, p, 0), kDim);
  }
  std::vector<float> q(static_cast<size_t>(kKeyBlock) * kGroup * kDim);
  for (size_t i = 0; i < q.size(); i += kGroup * kDim) q[i] = 4, q[i + kDim + 1] = 4;
  std::vector<int32_t> pos, zeros(kKeyBlock), out;
  for (int32_t m = 0; m < kKeyBlock; ++m) pos.push_back(kFirst + m), out.push_back(m);
  const StepState state{kKeyBlock, kKeyBlock, zeros.data(), pos.data(), zeros.data(), out.data(), &seq};
  const Tensor queries =
      make_tensor(reinterpret_cast<std::byte*>(q.data()), DType::f32, kKeyBlock, kGroup * kDim);
  const BlockCount c = count_blocks({queries, queries, kv, 1.0f}, state, RowSet::all);
  for (size_t g = 0; g < c.best.size(); ++g) {
    CAPTURE(kKeptShares[g]);
    const ChosenBlocks& b = c.best[g];
    const bool both = kKeptShares[g] > 0.96;  // block 5 is wanted, too
    CHECK(b.all == kBlocks);
    CHECK(b.read == kSinkBlocks + kLocalBlocks + 2 + both);
    CHECK(b.rows == kKeyBlock * kGroup);
    CHECK(b.worst == doctest::Approx(both ? 1 : 0.96).epsilon(0.002));
    CHECK(b.kept_share() == doctest::Approx(both ? 1 : 0.98).epsilon(0.002));
  }
  // A mean of 16 keys has a sixteenth of the one: 1.5 for 24, and no block stands out.
  CHECK(c.by_means[0].read > c.best[0].read);
  CHECK(c.by_means[0].kept_share() > 0.97);
  // Rows that begin no block of queries are not counted.
  for (int32_t& p : pos) --p;
  CHECK_FALSE(count_blocks({queries, queries, kv, 1.0f}, state, RowSet::all).any());
}
