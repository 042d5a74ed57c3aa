// Attention of prompts by warps (prompts/warps.cuh): shared memory, and how queries, keys and
// values come there.
#pragma once
#include "cuda/attention/prompts/tasks.cuh"
#include "cuda/attention/units.cuh"

namespace carat::cuda {

inline constexpr int kWarpsThreads = 256;

// ROWS: pairs of a task.
template <int DIM, PromptSource SOURCE, bool TWICE, int ROWS>
struct WarpsShape {
  static constexpr bool kUnpacked = SOURCE != PromptSource::halves, kSingle = SOURCE == PromptSource::single,
                        kTwice = TWICE;
  static constexpr int kDim = DIM, kRows = ROWS, kShare = 256 / ROWS;  // warps that have the same pairs
  static constexpr int kQueries = DIM + (kSingle ? kKeyColumns : 0);
  static constexpr int kKeyPieces = kQueries / 64, kValuePieces = DIM / 128;
  static constexpr int kEights = 16 / kShare;   // eights of positions a warp, of two tiles
  static constexpr int kColumns = 16 / kShare;  // eights of columns a warp, of a piece of values
  static constexpr int kPiece = 128 * 128;      // both tiles' keys, 64 columns; a tile's values, 128 columns
  static constexpr int kStages = DIM == 512 && ROWS == 64 ? 4 : 3;
  static constexpr int kQuery = 0, kRing = ROWS * kQueries * 2, kWeight = kRing + kStages * kPiece,
                       kMost = kWeight + 2 * ROWS * 128, kPairs = kMost + ROWS * kShare * 4,
                       kTask = kPairs + ROWS * 16, kBytes = kTask + 128;
  static_assert(sizeof(PromptTask) <= 128);
};

template <class S>
struct WarpsPieces {
  const AttentionPart& a;
  const DevStep* s;
  const Tables& tables;
  RowSet set;
  unsigned char* memory;
  const SharedAddress base = shared_address(memory);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, band = threadIdx.x / 32 / S::kShare,
            share = threadIdx.x / 32 % S::kShare;
  PromptTask& p = *reinterpret_cast<PromptTask*>(memory + S::kTask);
  Pair* pairs = reinterpret_cast<Pair*>(memory + S::kPairs);

  // The ring: what is asked for next is a piece (of keys, then of values) of two tiles.
  PromptRound<S> asked{};
  bool asks = false;  // it is not behind the last
  int32_t piece = 0;
  int in = 0, out = 0;
  PromptTile tiles[2] = {};

  CARAT_D WarpsPieces(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                      unsigned char* shared)
      : a(args), s(step), tables(all), set(rows), memory(shared) {}

  CARAT_D uint16_t& query(int at, int32_t i) const {
    return *reinterpret_cast<uint16_t*>(memory + S::kQuery + unit_at<S::kQueries / 8>(at, i / 8) + i % 8 * 2);
  }
  CARAT_D const float* query_of(const Pair& of) const {
    return row_of<const float>(a.q, p.group.m + of.row) + int64_t{of.head} * S::kDim;
  }
  // What meets the values, then what meets what is stored of the keys; zeros behind.
  CARAT_D void split_queries() const {
    const QuerySplit<S::kDim / 32, kKeyColumns / 32> split(a, tables, lane);
#pragma unroll 1
    for (int at = threadIdx.x / 32; at < S::kRows; at += kWarpsThreads / 32) {
      for (int i = lane; i < S::kQueries; i += 32) query(at, i) = 0;
      sync_warp();
      if (pairs[at].row < 0) continue;
      const auto put = [&](int32_t i, float x) { query(at, i) = static_cast<uint16_t>(pack_halves(x, 0)); };
      split.run(query_of(pairs[at]), put, [&](int32_t i, float x) { put(S::kDim + i, x); });
    }
  }
  // As halves, zeros where there is no pair.
  CARAT_D void take_queries() const {
    if constexpr (S::kSingle) return split_queries();
    constexpr int kUnits = S::kDim / 8;
    for (int i = threadIdx.x; i < S::kRows * kUnits; i += kWarpsThreads) {
      const int at = i / kUnits, unit = i % kUnits;
      uint4 v{0, 0, 0, 0};
      if (const Pair of = pairs[at]; of.row >= 0) v = halves_of(query_of(of) + 8 * unit);
      *reinterpret_cast<uint4*>(memory + S::kQuery + unit_at<kUnits>(at, unit)) = v;
    }
  }
  CARAT_D void begin(const PromptTask& task) {
    sync_block();  // every warp has ended the task before
    if (threadIdx.x == 0) p = task;
    for (int32_t i = threadIdx.x; i < S::kRows; i += kWarpsThreads)
      pairs[i] = pair_of(a, s, set, task.group, i, task.head, task.heads, task.length);
    sync_block();
    asked = PromptRound<S>(p, p.first), asks = true, piece = 0, in = out = 0;
    find_tiles();
#pragma unroll 1
    for (int i = 0; i < S::kStages - 1; ++i) fetch_piece();
    take_queries();
  }

  CARAT_D void find_tiles() {
    const int32_t* pages = a.kv.pages_of(*seq_of(s, step_row(s, set, p.group.m)));
#pragma unroll
    for (int i = 0; i < 2; ++i) tiles[i] = prompt_tile<S>(a, s, set, p, pages, asked, i);
  }
  // Row `row` of a tile, eight columns from `column` on; zeros where it is not seen.
  CARAT_D void copy_unit(SharedAddress to, const PromptTile& x, int row, bool values, int column) const {
    if (S::kTwice && x.second) {
      const uint8_t* from = second_copy(a, s, p, x, row, values, column);
      return copy16_async(to, from, from != nullptr);
    }
    const PromptRows from = prompt_rows<S::kUnpacked>(a, values);
    copy16_async(to, from.cache + x.page * from.page_bytes + (x.row + row) * from.pitch + 2 * column,
                 row >= x.first && row <= x.last);
  }
  CARAT_D void copy_keys(SharedAddress to) const {
    constexpr int kWhole = S::kDim / 64;  // pieces before what is stored of the keys of single copies
    const bool values = S::kSingle && piece < kWhole;
    const int column = 64 * (S::kSingle && !values ? piece - kWhole : piece), unit = threadIdx.x % 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = threadIdx.x / 8 + 32 * j;
      copy_unit(to + unit_at<8>(at, unit), tiles[j / 2], at % kKvTile, values, column + 8 * unit);
    }
  }
  CARAT_D void copy_values(SharedAddress to) const {
    const bool both = p.length == 2 * kKvTile && !is_long<S>(p);  // the order of values_of_two()
    const int nth = piece - S::kKeyPieces, i = both ? nth % 2 : nth / S::kValuePieces,
              column = 128 * (both ? nth / 2 : nth % S::kValuePieces), unit = threadIdx.x % 16;
    const PromptTile x = i ? tiles[1] : tiles[0];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = threadIdx.x / 16 + 16 * j;
      copy_unit(to + unit_at<16>(at, unit), x, at, true, column + 8 * unit);
    }
  }
  CARAT_D void next_round() {
    piece = 0, asks = !asked.is_last_of(p.last);
    if (!asks) return;
    asked = asked.next(p);
    find_tiles();
  }
  CARAT_D void fetch_piece() {
    if (asks) {
      const SharedAddress to = base + S::kRing + in * S::kPiece;
      if (piece < S::kKeyPieces)
        copy_keys(to);
      else
        copy_values(to);
      if (++piece == S::kKeyPieces + 2 * S::kValuePieces) next_round();
      in = in + 1 == S::kStages ? 0 : in + 1;
    }
    commit_copies();
  }
  // The next piece, once it is there for all; the place of the one before is free.
  CARAT_D SharedAddress next_piece() {
    wait_copies<S::kStages - 2>();
    sync_block();
    fetch_piece();
    const SharedAddress there = base + S::kRing + out * S::kPiece;
    out = out + 1 == S::kStages ? 0 : out + 1;
    return there;
  }
};

}  // namespace carat::cuda
