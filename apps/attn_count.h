// Which tiles of keys a prompt's attention weighs with zeros alone: carat bench --attn-count. A tile is 64
// positions; its weights are halves (docs/numerics.md, "Attention"), so what lies 25 powers of two below the
// largest score so far is nothing, and its values need not be read.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/attn_blocks.h"
#include "apps/measurement.h"
#include "apps/open.h"

namespace carat {

// What a tile's scores are compared with.
enum class TileRule : uint8_t {
  as_now,    // the largest of the segment so far, segments as a GPU cuts them at this depth
  segments,  // the same, segments of 1,024 positions, as they are from 65,536 positions on
  floor,     // no less than the largest of the first tile and the row's own, with ceil(log2(positions)) less
             // one bits more for what many small weights add up to: at most 2^-24 of the sum is lost
  row,       // the largest of the row: no rule finds more
};
inline constexpr int kTileRules = 4;
const char* name_of(TileRule rule);

struct TileCount {
  int64_t all = 0;
  std::array<int64_t, kTileRules> dead{};
  double share(TileRule rule) const {
    return all ? static_cast<double>(dead[static_cast<size_t>(rule)]) / static_cast<double>(all) : 0;
  }
  void add(const TileCount& other);
};
// pairs: of a row and a query head. tasks: 64 of them that share a KV head, rows of a step by as many as fit,
// which a GPU multiplies at once: dead if no pair of it has a weight.
struct AttentionCount {
  TileCount pairs, tasks;
  BlockCount blocks;

  void add(const AttentionCount& other);
};

// best[t]: the largest score of tile t, in powers of two, of a row that sees `positions` of them. dead[t]:
// one bit a rule.
void judge_tiles(const std::vector<float>& best, int32_t positions, std::vector<uint8_t>& dead);
// Of one operation without a window, over a cache and queries in the host's memory; its rows stand on chains.
AttentionCount count_tiles(const AttentionArgs& a, const StepState& state, RowSet rows);

struct AttentionCountOptions {
  OpenOptions open;
  EngineConfig cache;  // its formats
  std::string text;    // a file
  std::vector<int32_t> depths;
  int32_t rows = 512, chunk = 512;  // rows that are counted, behind a depth; of other steps
  MeasureFlags measure;
};
void bench_attention_count(const AttentionCountOptions& o);

}  // namespace carat
