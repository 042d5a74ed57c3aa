// How much of a prompt's attention blocks of keys hold: what a kernel that reads only chosen ones could leave
// out. carat bench --attn-count says it beside tiles without a weight.
#pragma once
#include <array>
#include <cstdint>

#include "core/ops.h"

namespace carat {

inline constexpr int32_t kKeyBlock = 128;  // positions of a block of keys, rows of a block of queries
inline constexpr int32_t kSinkBlocks = 2, kLocalBlocks = 8;  // always read: the first, those before its own
inline constexpr std::array<double, 3> kKeptShares = {0.9, 0.95, 0.98};

// Blocks of keys, by block of queries and KV head: those that are read since some head of the group wants
// them.
struct ChosenBlocks {
  int64_t all = 0, read = 0, rows = 0;
  double kept = 0, worst = 1;  // of the softmax's sum: over rows and heads, and the least of one

  double density() const { return all ? static_cast<double>(read) / static_cast<double>(all) : 0; }
  double kept_share() const { return rows ? kept / static_cast<double>(rows) : 0; }
  void add(const ChosenBlocks& other);
};
// By share that a head's blocks are to hold: the fewest that hold it, and those that scores of mean keys (of
// 16 positions each) would take for them (one row in four is asked).
struct BlockCount {
  std::array<ChosenBlocks, kKeptShares.size()> best, by_means;
  bool any() const { return best[0].all > 0; }
  void add(const BlockCount& other);
};

// mass[n] >= 0, adding up to 1; chosen[n] |= 1 for the fewest blocks that hold `share`, the first of equals.
void choose_blocks(const double* mass, int32_t blocks, double share, uint8_t* chosen);
// Of one operation without a window, over a cache and queries in the host's memory; its rows stand on chains.
// Only whole blocks of queries count, positions that are multiples of 128.
BlockCount count_blocks(const AttentionArgs& a, const StepState& state, RowSet rows);

}  // namespace carat
