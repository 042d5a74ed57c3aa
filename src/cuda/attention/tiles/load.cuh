// Attention on the tensor cores (tiles/tiles.cuh): shared memory, what a task's threads have in
// common, and how queries, keys and values come there.
#pragma once
#include <type_traits>

#include "cuda/attention/units.cuh"
#include "cuda/matmul/wide/halves.cuh"

namespace carat::cuda {

inline constexpr int kTileThreads = 256, kTileWarps = kTileThreads / 32;

// DIM: the size of heads, 128: the largest. BANDS of 16 pairs. SPLIT: a segment is a task. HALVES: keys and
// values are copied as they are; others are fetched to registers a piece ahead. WIDE: warpgroups multiply,
// four bands each. COPIES: single copies of K = V, protected rows.
template <int DIM, int BANDS, bool SPLIT, bool HALVES, bool WIDE = false, bool COPIES = false>
struct TileShape {
  static_assert(!WIDE || (DIM > 128 && BANDS == 4));
  static_assert(!COPIES || DIM > 128);
  static constexpr int kDim = DIM, kBands = BANDS, kRows = 16 * BANDS;
  static constexpr bool kWhole = DIM > 128, kSplit = SPLIT, kWarpgroups = WIDE, kCopies = COPIES;
  static constexpr int kQueries = DIM + (COPIES ? kKeyColumns : 0);  // columns of a query
  static constexpr int kWide = WIDE ? 256 : 128;                     // columns at a time
  static constexpr int kPieceBytes = kKvTile * kWide * 2;            // of one tile's keys or values
  static constexpr int kUnits = kWide / 8;                           // of 16 bytes a row
  static constexpr int kShare = kTileWarps / BANDS;  // warps a band: positions, then columns, are shared out
  static constexpr int kScores = kKvTile / 8 / kShare;                        // eights of positions a warp
  static constexpr int kPieces = DIM / kWide, kColumns = kWide / 8 / kShare;  // eights of columns a warp
  static constexpr int kStages = !HALVES                             ? 2
                                 : BANDS == 1 && DIM == 512          ? 4
                                 : SPLIT && BANDS == 4 && DIM == 512 ? 768 / kWide
                                                                     : 3;
  static constexpr int kQuery = 0, kRing = kRows * kQueries * 2, kWeight = kRing + kStages * kPieceBytes,
                       kMost = kWeight + kRows * kKvTile * 2, kPlaces = kMost + kRows * kShare * 4,
                       kPairs = kPlaces + 3 * kKvTile * 16, kRecent = kPairs + kRows * 16,
                       kEntries = kRecent + (COPIES ? kRows * 4 : 0), kJob = kEntries + (COPIES ? 3 * 16 : 0),
                       kBytes = kJob + 128 + (WIDE ? 1024 : 0);
  static constexpr int kBlocks = BANDS > 1 ? 1 : DIM < 512 && HALVES ? 3 : 2;  // an SM
  static_assert(SPLIT || kWeight >= kRows * DIM * 4, "a task's output fits there before it is written");
};

// What the threads of a block do together, in shared memory: it is not needed often.
template <class List>
struct Job {
  RowGroup group;
  int32_t kv_head, head;  // the first query head
  const SeqView* seq;
  const int32_t* pages;
  bool near;  // a tile lies in one page, but for rows of a tree
  Reach reach;
  List list;
};
template <class S, class Kinds>
struct TileLoads {
  using List = std::conditional_t<S::kCopies, CopyList, TileList>;
  using Job = cuda::Job<List>;
  static_assert(sizeof(Job) <= 128 && sizeof(Pair) == 16);
  const AttentionPart& a;
  const DevStep* s;
  const Tables& tables;
  RowSet set;
  unsigned char* memory;
  const SharedAddress base = shared_address(memory);
  Job& job = *reinterpret_cast<Job*>(memory + S::kJob);
  Pair* pairs = reinterpret_cast<Pair*>(memory + S::kPairs);
  // The results this lane has a part of: pairs 16 band + g and 8 further.
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
            band = S::kWarpgroups ? threadIdx.x / 32 % S::kBands : threadIdx.x / 32 / S::kShare,
            share = S::kWarpgroups ? threadIdx.x / 32 / S::kBands : threadIdx.x / 32 % S::kShare;
  bool busy = false;  // there are pairs in the band

  // The ring: what comes next is piece `part` (keys, then values) of entry `item`.
  // Rows are found two entries ahead.
  struct Rows {
    const uint8_t *k, *v;
  };
  int32_t item, part;
  int in, out, item_table, table;
  bool full;  // nothing has been taken yet
  CARAT_D static int next_table(int i) { return i == 2 ? 0 : i + 1; }

  CARAT_D TileLoads(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                    unsigned char* shared)
      : a(args), s(step), tables(all), set(rows), memory(shared) {}

  // Unit u of a row of a piece, and of queries: as unit_at(), or in tiles as warpgroups want them.
  static constexpr int kTileBytes = kKvTile * 128;
  CARAT_D static int tiled_at(int row, int unit) { return unit / 8 * kTileBytes + unit_at<8>(row, unit % 8); }
  static constexpr int kPieceRow = S::kWarpgroups ? 128 : S::kWide * 2;
  CARAT_D static int piece_at(int row, int unit) {
    return S::kWarpgroups ? tiled_at(row, unit) : unit_at<S::kUnits>(row, unit);
  }
  CARAT_D int32_t* recents() const { return reinterpret_cast<int32_t*>(memory + S::kRecent); }
  CARAT_D Pair& pair(int r) const { return pairs[band * 16 + g + 8 * r]; }
  CARAT_D int32_t dim() const { return S::kWhole ? S::kDim : a.kv.dim; }
  CARAT_D int32_t pieces() const { return S::kWhole ? S::kPieces : (a.kv.dim + S::kWide - 1) / S::kWide; }
  // Pieces that scores are made of: keys; of single copies values, then what is stored of the keys.
  CARAT_D bool single() const { return S::kCopies && a.copies.pairs; }
  CARAT_D int32_t score_pieces() const { return single() ? pieces() + 1 : pieces(); }
  // Whether the next piece is of the values, the number it has there or among the keys', and how many columns
  // rows have.
  CARAT_D bool of_values() const {
    if constexpr (S::kCopies)
      if (single() && part < pieces()) return true;
    return part >= score_pieces();
  }
  CARAT_D int32_t number(bool values) const {
    if constexpr (S::kCopies)
      if (single()) return part >= score_pieces() ? part - score_pieces() : values ? part : 0;
    return values ? part - pieces() : part;
  }
  CARAT_D int32_t columns(bool values) const {
    if constexpr (S::kCopies) return values ? dim() : a.copies.key_dim;
    return dim();
  }

  // An empty list, which has what rows `group` protect; and that of tiles from .. to.
  CARAT_D List list_of(const RowGroup& group, int32_t length) const {
    if constexpr (S::kCopies)
      return List(0, -1, 0, 0, 0, recent_from(a, s, set, group, length));
    else
      return List(0, 0, 0, 0);
  }
  CARAT_D List list_of_tiles(int32_t from, int32_t to) const {
    if constexpr (S::kCopies)
      return List(from, to, job.reach.settled, job.group.n, a.copies.protect.sinks, job.list.recent);
    else
      return List(from, to, job.reach.settled, job.group.n);
  }

  // Rows `group` and the heads of one task, as far as their segments have `length`.
  CARAT_D void begin(const RowGroup& group, int32_t kv_head, int32_t from, int32_t length) {
    const Reach reach = reach_of(a, s, set, group, length);
    const int32_t heads = a.group - from < a.width ? a.group - from : a.width,
                  head = kv_head * a.group + from;
    const List no_tiles = list_of(group, length);
    sync_block();  // every warp has ended the task before
    if (threadIdx.x == 0) {
      const SeqView* seq = seq_of(s, step_row(s, set, group.m));
      const bool near = a.kv.page_tokens % kKvTile == 0;
      job = Job{group, kv_head, head, seq, a.kv.pages_of(*seq), near, reach, no_tiles};
    }
    for (int32_t i = threadIdx.x; i < S::kRows; i += kTileThreads) {
      pairs[i] = pair_of(a, s, set, group, i, head, heads, length);
      if constexpr (S::kCopies)
        if (pairs[i].row >= 0)
          recents()[i] = recent_from(a.copies, pos_of(s, step_row(s, set, group.m + pairs[i].row)));
    }
    sync_block();
    busy = S::kWarpgroups || band * 16 < group.n * a.width;  // warpgroups multiply all at once
  }
  CARAT_D const float* query_of(const Pair& of) const {
    return row_of<const float>(a.q, job.group.m + of.row) + int64_t{of.head} * dim();
  }
  CARAT_D void split_queries() {
    const QuerySplit<S::kDim / 32, kKeyColumns / 32> split(a, tables, lane);
    for (int at = threadIdx.x / 32; at < S::kRows; at += kTileWarps) {
      const auto put = [&](int32_t column, float x) {
        *reinterpret_cast<uint16_t*>(memory + S::kQuery + unit_at<S::kQueries / 8>(at, column / 8) +
                                     column % 8 * 2) = static_cast<uint16_t>(pack_halves(x, 0));
      };
      for (int i = lane; i < S::kQueries; i += 32) put(i, 0);
      if (pairs[at].row < 0) continue;
      sync_warp();
      split.run(
          query_of(pairs[at]), [&](int32_t i, float x) { put(i, x); },
          [&](int32_t i, float x) { put(S::kDim + i, x); });
    }
  }
  // Queries as halves, zeros behind the last pair and column.
  CARAT_D void take_queries() {
    if constexpr (S::kCopies)
      if (single()) return split_queries();
    constexpr int kUnitsAll = S::kDim / 8;
    for (int i = threadIdx.x; i < S::kRows * kUnitsAll; i += kTileThreads) {
      const int at = i / kUnitsAll, unit = i % kUnitsAll;
      uint4 v{0, 0, 0, 0};
      if (const Pair of = pairs[at]; of.row >= 0 && 8 * unit < dim()) v = halves_of(query_of(of) + 8 * unit);
      const int to = S::kWarpgroups ? tiled_at(at, unit) : unit_at<S::kQueries / 8>(at, unit);
      *reinterpret_cast<uint4*>(memory + S::kQuery + to) = v;
    }
  }

  // ---- loading
  // The list's entry i. Where tiles come twice that takes some reckoning: place() left it beside table `at`.
  using Entry = CopyList::Entry;
  static_assert(sizeof(Entry) <= 16);
  CARAT_D Entry& kept_entry(int at) const {
    return *reinterpret_cast<Entry*>(memory + S::kEntries + 16 * at);
  }
  CARAT_D int32_t tile_of(int32_t i, int at) const {
    if constexpr (S::kCopies)
      return kept_entry(at).tile;
    else
      return job.list.tile(i);
  }
  CARAT_D int32_t own_of(int32_t i, int at) const {
    if constexpr (S::kCopies)
      return kept_entry(at).row;
    else
      return job.list.row(i);
  }
  CARAT_D bool second_of(int at) const {
    if constexpr (S::kCopies) return kept_entry(at).second;
    return false;
  }
  // Whether a segment ends with it, for its row or for all.
  CARAT_D bool ends(int32_t i, int at, int32_t tile, int32_t length) const {
    if constexpr (S::kCopies)
      return kept_entry(at).last || (kept_entry(at).ends && ((tile + 1) * kKvTile & (length - 1)) == 0);
    else
      return job.list.last_of_row(i) || ((tile + 1) * kKvTile & (length - 1)) == 0;
  }
  // Where the keys and values of an entry are: the first row's address, or every row's, null where there is
  // nothing to read.
  CARAT_D bool is_near(int32_t i, int at) const {
    if constexpr (S::kCopies)
      return job.near && own_of(i, at) < 0 && !second_of(at);
    else
      return job.near && i < job.list.shared;
  }
  CARAT_D void place(int32_t i, int to) const {
    if (i >= job.list.count || threadIdx.x >= kKvTile) return;
    if constexpr (S::kCopies) {
      const Entry e = job.list.entry(i);
      if (threadIdx.x == 0) kept_entry(to) = e;
      place_rows(to, e.tile * kKvTile, job.near && e.row < 0 && !e.second, e.second, [&] { return e.row; });
    } else {
      place_rows(to, job.list.tile(i) * kKvTile, is_near(i, to), false, [&] { return job.list.row(i); });
    }
  }
  // row_alone(): whose entry it is; asked where it is needed, since most entries are everyone's.
  template <class Row>
  CARAT_D void place_rows(int to, int32_t begin, bool near, bool second, Row row_alone) const {
    auto* mine = reinterpret_cast<Rows*>(memory + S::kPlaces) + to * kKvTile + threadIdx.x;
    if (near) {
      if (threadIdx.x != 0) return;
      const int32_t nth = a.kv.page.quotient(a.kv.in_ring(begin));
      const int64_t page = job.pages[nth],
                    row = int64_t{job.kv_head} * a.kv.page_tokens + a.kv.in_page(begin);
      *mine = {a.kv.k + page * a.kv.k_page_bytes + row * a.kv.k_row,
               a.kv.v + page * a.kv.v_page_bytes + row * a.kv.v_row};
      return;
    }
    const int32_t p = begin + threadIdx.x, own = row_alone();
    const int32_t row = own < 0 ? 0 : step_row(s, set, job.group.m + own);
    Rows at{nullptr, nullptr};
    if (p >= job.reach.first && p <= job.reach.last &&
        (own < 0 || p <= (a.both_ways ? s->last_pos : s->pos)[row])) {
      const int32_t slot = own < 0 || p < job.reach.settled ? p : slot_seen(s, row, p);
      if (!S::kCopies || !second)
        at = {k_row(a.kv, *job.seq, slot, job.kv_head), v_row(a.kv, *job.seq, slot, job.kv_head)};
      else if (kept_twice(p))
        at = {k_edge_row(a.kv, a.copies, *job.seq, slot, job.kv_head),
              v_edge_row(a.kv, a.copies, *job.seq, slot, job.kv_head)};
    }
    *mine = at;
  }
  // Positions that some row of the task reads of the second copy.
  CARAT_D bool kept_twice(int32_t p) const {
    if constexpr (S::kCopies) return p < a.copies.protect.sinks || p >= job.list.recent;
    return false;
  }
  // This thread's part of a piece: unit threadIdx.x % S::kUnits of every kStep-th row.
  static constexpr int kStep = kTileThreads / S::kUnits, kSteps = kKvTile / kStep;
  Packed8 packed[Kinds::kHalves ? 1 : kSteps];  // fetched, but not yet in the ring
  int32_t fetched = -1, fetched_of = 0;         // of them, where in a row of how many columns; -1: none
  DType fetched_type = DType::f16;
  unsigned char* fetched_to = nullptr;

  // The next piece is on its way: halves into the ring, others to registers.
  CARAT_D void fetch_piece() {
    if (item < job.list.count) {
      const bool values = of_values();
      const int unit = threadIdx.x % S::kUnits, at = threadIdx.x / S::kUnits;
      const int32_t i = number(values) * S::kUnits + unit;
      unsigned char* to = memory + S::kRing + in * S::kPieceBytes + piece_at(at, unit);
      const Rows* rows = reinterpret_cast<const Rows*>(memory + S::kPlaces) + item_table * kKvTile;
      const bool near = is_near(item, item_table);
      const uint8_t* begin = values ? rows->v : rows->k;
      const int64_t row_pitch = values ? a.kv.v_row : a.kv.k_row;
      const int32_t p = tile_of(item, item_table) * kKvTile + at, first = job.reach.first,
                    last = job.reach.last;
      const DType type = second_of(item_table) ? DType::f16 : values ? Kinds::v(a.kv) : Kinds::k(a.kv);
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const uint8_t* row = begin + (at + j * kStep) * row_pitch;
        bool there = p + j * kStep >= first && p + j * kStep <= last;
        if (!near) {
          row = values ? rows[at + j * kStep].v : rows[at + j * kStep].k;
          there = row != nullptr;
        }
        there = there && 8 * i < columns(values);
        if constexpr (Kinds::kHalves)
          copy16_async(shared_address(to) + j * kStep * kPieceRow, row + 16 * i, there);
        else
          packed[j] = there ? kv_fetch8(type, row, columns(values), i) : Packed8{{0, 0, 0, 0}};
      }
      if constexpr (!Kinds::kHalves)
        fetched = i, fetched_of = columns(values), fetched_type = type, fetched_to = to;
      if (++part == score_pieces() + pieces()) part = 0, ++item, item_table = next_table(item_table);
      in = in + 1 == S::kStages ? 0 : in + 1;
    }
    if constexpr (Kinds::kHalves) commit_copies();
  }
  // What was fetched to registers goes into the ring, as halves. Nothing stored is zero in every format.
  CARAT_D void store_piece() {
    if constexpr (!Kinds::kHalves) {
      if (fetched < 0) return;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        *reinterpret_cast<uint4*>(fetched_to + j * kStep * kPieceRow) =
            kv_halves8(fetched_type, packed[j], S::kCopies ? fetched_of : dim(), fetched, tables);
      }
      fetched = -1;
    }
  }
  // The next piece, once it is there for all; the place of the one before is free.
  CARAT_D SharedAddress next_piece() {
    if constexpr (Kinds::kHalves) {
      if (full)
        wait_copies<S::kStages - 1>();
      else
        wait_copies<S::kStages - 2>();
    }
    if constexpr (S::kWarpgroups) show_to_products();
    sync_block();
    if (!full) fetch_piece();
    full = false;
    const SharedAddress p = base + S::kRing + out * S::kPieceBytes;
    out = out + 1 == S::kStages ? 0 : out + 1;
    return p;
  }
};

}  // namespace carat::cuda
