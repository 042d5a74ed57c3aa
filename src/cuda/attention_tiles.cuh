// Attention on the tensor cores. A task is up to 64 pairs of a row and a query head, the rows of one sequence
// and the heads of one KV head; it goes through the positions they see in tiles of 64, whose keys and values
// come to shared memory as halves, 128 or 256 columns at a time. A row's arithmetic is that of its own
// positions, tile after tile: who shares the task only adds tiles in which it sees nothing, and those change
// no bit.
#pragma once
#include "cuda/attention_prompts.cuh"
#include "cuda/attention_tasks.cuh"
#include "cuda/wide_halves.cuh"

namespace carat::cuda {

inline constexpr int kTileThreads = 256, kTileWarps = kTileThreads / 32;

// DIM: the size of heads, 128: the largest. BANDS of 16 pairs. SPLIT: a segment is a task. HALVES: keys and
// values are copied as they are; others are fetched to registers a piece ahead. WIDE: warpgroups multiply,
// four bands each.
template <int DIM, int BANDS, bool SPLIT, bool HALVES, bool WIDE = false>
struct TileShape {
  static_assert(!WIDE || (DIM > 128 && BANDS == 4));
  static constexpr int kDim = DIM, kBands = BANDS, kRows = 16 * BANDS;
  static constexpr bool kWhole = DIM > 128, kSplit = SPLIT, kWarpgroups = WIDE;
  static constexpr int kWide = WIDE ? 256 : 128;           // columns at a time
  static constexpr int kPieceBytes = kKvTile * kWide * 2;  // of one tile's keys or values
  static constexpr int kUnits = kWide / 8;                 // of 16 bytes a row
  static constexpr int kShare = kTileWarps / BANDS;  // warps a band: positions, then columns, are shared out
  static constexpr int kScores = kKvTile / 8 / kShare;                        // eights of positions a warp
  static constexpr int kPieces = DIM / kWide, kColumns = kWide / 8 / kShare;  // eights of columns a warp
  static constexpr int kStages = !HALVES                             ? 2
                                 : BANDS == 1 && DIM == 512          ? 4
                                 : SPLIT && BANDS == 4 && DIM == 512 ? 768 / kWide
                                                                     : 3;
  static constexpr int kQuery = 0, kRing = kRows * DIM * 2, kWeight = kRing + kStages * kPieceBytes,
                       kMost = kWeight + kRows * kKvTile * 2, kPlaces = kMost + kRows * kShare * 4,
                       kPairs = kPlaces + 3 * kKvTile * 16, kJob = kPairs + kRows * 16,
                       kBytes = kJob + 128 + (WIDE ? 1024 : 0);
  static constexpr int kBlocks = BANDS > 1 ? 1 : DIM < 512 && HALVES ? 3 : 2;  // an SM
  static_assert(SPLIT || kWeight >= kRows * DIM * 4, "a task's output fits there before it is written");
};

// Rows of 16-byte units in shared memory: eight rows' units of one number lie in different banks. Rows are
// multiples of eight units, so that unit u of a row is at ^ 16 * (u % 8), + 128 * (u / 8) of its unit 0.
template <int UNITS>
CARAT_D int unit_at(int row, int unit) {
  return (row * UNITS + (unit ^ row % 8)) * 16;
}
CARAT_D SharedAddress unit_from(SharedAddress zero, int unit) {
  return (zero ^ unit % 8 * 16) + unit / 8 * 128;
}

// What the threads of a block do together, in shared memory: it is not needed often.
struct Job {
  RowGroup group;
  int32_t kv_head, head, heads;  // the first query head and how many
  const SeqView* seq;
  const int32_t* pages;
  int32_t ring;  // the first page of the sequence's ring
  bool near;     // a tile lies in one page, but for rows of a tree
  Reach reach;
  TileList list;
};
template <class S, class Kinds>
struct TileWalk {
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
  bool busy = false;                                    // there are pairs in the band
  float o[S::kPieces][S::kColumns][4], sum[4], top[2];  // sum: o's of a column of ones
  static constexpr int kTotals = S::kSplit ? 1 : S::kPieces;
  float total[kTotals][S::kColumns][4], total_sum[2], total_top[2];

  // The ring: what comes next is piece `part` (keys, then values) of entry `item`.
  // Rows are found two entries ahead.
  struct Rows {
    const uint8_t *k, *v;
  };
  int32_t item, part;
  int in, out, item_table, table;
  bool full;  // nothing has been taken yet
  CARAT_D static int next_table(int i) { return i == 2 ? 0 : i + 1; }

  CARAT_D TileWalk(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                   unsigned char* shared)
      : a(args), s(step), tables(all), set(rows), memory(shared) {}

  // Unit u of a row of a piece, and of queries: as unit_at(), or in tiles as warpgroups want them.
  static constexpr int kTileBytes = kKvTile * 128;
  CARAT_D static int tiled_at(int row, int unit) { return unit / 8 * kTileBytes + unit_at<8>(row, unit % 8); }
  static constexpr int kPieceRow = S::kWarpgroups ? 128 : S::kWide * 2;
  CARAT_D static int piece_at(int row, int unit) {
    return S::kWarpgroups ? tiled_at(row, unit) : unit_at<S::kUnits>(row, unit);
  }
  CARAT_D Pair& pair(int r) const { return pairs[band * 16 + g + 8 * r]; }
  CARAT_D int32_t dim() const { return S::kWhole ? S::kDim : a.kv.dim; }
  CARAT_D int32_t pieces() const { return S::kWhole ? S::kPieces : (a.kv.dim + S::kWide - 1) / S::kWide; }

  // Rows `group` and the heads of one task, as far as their segments have `length`.
  CARAT_D void begin(const RowGroup& group, int32_t kv_head, int32_t from, int32_t length) {
    const Reach reach = reach_of(a, s, set, group, length);
    const int32_t heads = a.group - from < a.width ? a.group - from : a.width,
                  head = kv_head * a.group + from;
    sync_block();  // nobody is at the last one any more
    if (threadIdx.x == 0) {
      const SeqView* seq = seq_of(s, step_row(s, set, group.m));
      const int32_t ring = a.kv.ring_tokens ? seq->ring_slot * (a.kv.ring_tokens / a.kv.page_tokens) : 0;
      job = {group, kv_head,
             head,  heads,
             seq,   seq->pages,
             ring,  a.kv.page_tokens % kKvTile == 0,
             reach, TileList(0, 0, 0, 0)};
    }
    for (int32_t i = threadIdx.x; i < S::kRows; i += kTileThreads) {
      pairs[i] = pair_of(a, s, set, group, i / heads, head + i % heads, length);
    }
    sync_block();
    busy = S::kWarpgroups || band * 16 < group.n * heads;  // warpgroups multiply all at once
  }
  // Queries as halves, zeros behind the last pair and column.
  CARAT_D void take_queries() {
    constexpr int kUnitsAll = S::kDim / 8;
    for (int i = threadIdx.x; i < S::kRows * kUnitsAll; i += kTileThreads) {
      const int at = i / kUnitsAll, unit = i % kUnitsAll;
      uint4 v{0, 0, 0, 0};
      if (at < job.group.n * job.heads && 8 * unit < dim()) {
        const float* from = row_of<const float>(a.q, job.group.m + at / job.heads) +
                            int64_t{job.head + at % job.heads} * dim() + 8 * unit;
        float x[8];
        if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
          *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
          *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(from + 4);
        } else {
#pragma unroll
          for (int k = 0; k < 8; ++k) x[k] = from[k];
        }
        v = uint4{pack_halves(x[0], x[1]), pack_halves(x[2], x[3]), pack_halves(x[4], x[5]),
                  pack_halves(x[6], x[7])};
      }
      const int to = S::kWarpgroups ? tiled_at(at, unit) : unit_at<kUnitsAll>(at, unit);
      *reinterpret_cast<uint4*>(memory + S::kQuery + to) = v;
    }
  }

  // ---- loading
  // Where the keys and values of the list's entry i are: the first row's address, or every row's, null where
  // there is nothing to read.
  CARAT_D bool is_near(int32_t i) const { return job.near && i < job.list.shared; }
  CARAT_D void place(int32_t i, int to) const {
    if (i >= job.list.count || threadIdx.x >= kKvTile) return;
    auto* mine = reinterpret_cast<Rows*>(memory + S::kPlaces) + to * kKvTile + threadIdx.x;
    const int32_t begin = job.list.tile(i) * kKvTile;
    if (is_near(i)) {
      if (threadIdx.x != 0) return;
      const auto tokens = static_cast<uint32_t>(a.kv.page_tokens),
                 slot = a.kv.ring_tokens ? static_cast<uint32_t>(begin) % a.kv.ring_tokens : begin,
                 nth = slot / tokens;
      const int64_t page = a.kv.ring_tokens ? job.ring + static_cast<int32_t>(nth) : job.pages[nth],
                    row = int64_t{job.kv_head} * tokens + (slot - nth * tokens);
      *mine = {a.kv.k + page * a.kv.k_page_bytes + row * a.kv.k_row,
               a.kv.v + page * a.kv.v_page_bytes + row * a.kv.v_row};
      return;
    }
    const int32_t p = begin + threadIdx.x, own = job.list.row(i);
    const int32_t row = own < 0 ? 0 : step_row(s, set, job.group.m + own);
    Rows at{nullptr, nullptr};
    if (p >= job.reach.first && p <= job.reach.last &&
        (own < 0 || p <= (a.both_ways ? s->last_pos : s->pos)[row])) {
      const int32_t slot = own < 0 || p < job.reach.settled ? p : slot_seen(s, row, p);
      at = {k_row(a.kv, *job.seq, slot, job.kv_head), v_row(a.kv, *job.seq, slot, job.kv_head)};
    }
    *mine = at;
  }
  // This thread's part of a piece: unit threadIdx.x % S::kUnits of every kStep-th row.
  static constexpr int kStep = kTileThreads / S::kUnits, kSteps = kKvTile / kStep;
  Packed8 packed[Kinds::kHalves ? 1 : kSteps];  // fetched, but not yet in the ring
  int32_t fetched = -1;                         // of them, where in a row; -1: none
  DType fetched_type = DType::f16;
  unsigned char* fetched_to = nullptr;

  // The next piece is on its way: halves into the ring, others to registers.
  CARAT_D void fetch_piece() {
    if (item < job.list.count) {
      const bool values = part >= pieces();
      const int unit = threadIdx.x % S::kUnits, at = threadIdx.x / S::kUnits;
      const int32_t i = (values ? part - pieces() : part) * S::kUnits + unit;
      unsigned char* to = memory + S::kRing + in * S::kPieceBytes + piece_at(at, unit);
      const Rows* rows = reinterpret_cast<const Rows*>(memory + S::kPlaces) + item_table * kKvTile;
      const bool near = is_near(item);
      const uint8_t* begin = values ? rows->v : rows->k;
      const int64_t pitch = values ? a.kv.v_row : a.kv.k_row;
      const int32_t p = job.list.tile(item) * kKvTile + at, first = job.reach.first, last = job.reach.last;
      const DType type = values ? Kinds::v(a.kv) : Kinds::k(a.kv);
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const uint8_t* row = begin + (at + j * kStep) * pitch;
        bool there = p + j * kStep >= first && p + j * kStep <= last;
        if (!near) {
          row = values ? rows[at + j * kStep].v : rows[at + j * kStep].k;
          there = row != nullptr;
        }
        there = there && 8 * i < dim();
        if constexpr (Kinds::kHalves)
          copy16_async(shared_address(to) + j * kStep * kPieceRow, row + 16 * i, there);
        else
          packed[j] = there ? kv_fetch8(type, row, dim(), i) : Packed8{{0, 0, 0, 0}};
      }
      if constexpr (!Kinds::kHalves) fetched = i, fetched_type = type, fetched_to = to;
      if (++part == 2 * pieces()) part = 0, ++item, item_table = next_table(item_table);
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
            kv_halves8(fetched_type, packed[j], dim(), fetched, tables);
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

  // ---- a tile
  // x += the products of this band's queries and this warp's positions, columns of piece c ascending.
  CARAT_D void add_scores(int c, SharedAddress keys, float (&x)[S::kScores][4]) const {
    if constexpr (S::kWarpgroups) {
      wide_fence();
#pragma unroll
      for (int k = 0; k < S::kWide / 16; ++k) {
        const int tile = k / 4 * kTileBytes + k % 4 * 32;
        wide_scores(x, codes_operand(base + S::kQuery + S::kWide / 64 * c * kTileBytes + tile),
                    codes_operand(keys + tile + share * (kTileBytes / 2)));
      }
      wide_commit();
      wide_wait<0>();
      return;
    }
    const int left = (dim() - c * S::kWide + 15) / 16, steps = S::kWhole || left > 8 ? 8 : left;
    const SharedAddress queries =
        base + S::kQuery + c * (S::kWide * 2) + unit_at<S::kDim / 8>(band * 16 + lane % 16, lane / 16);
    keys += unit_at<S::kUnits>((share * S::kScores + (S::kScores > 1 ? lane / 16 : 0)) * 8 + lane % 8,
                               lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k >= steps) break;
      uint32_t q[4];
      load_matrices(q, unit_from(queries, 2 * k));
      if constexpr (S::kScores == 1) {
        uint32_t b[2];
        load_matrices(b, unit_from(keys, 2 * k));
        mma_f16(x[0], q, b[0], b[1]);
      } else {
#pragma unroll
        for (int j = 0; j < S::kScores; j += 2) {
          uint32_t b[4];
          load_matrices(b, unit_from(keys, 2 * k) + j * 8 * S::kWide * 2);
          mma_f16(x[j], q, b[0], b[1]);
          mma_f16(x[j + 1], q, b[2], b[3]);
        }
      }
    }
  }
  // Products to scores; what a pair does not see is -inf. The largest of the tile to shared memory.
  CARAT_D void mask(int32_t tile, int32_t own, float (&x)[S::kScores][4]) const {
    const int32_t begin = tile * kKvTile;
    const bool all = own < 0 && begin >= job.reach.all_from && begin + kKvTile - 1 <= job.reach.all_to;
    const Pair of[2] = {pair(0), pair(1)};
    const float scale = a.scale * kLog2e;
    if (a.softcap > 0) {
#pragma unroll
      for (int j = 0; j < S::kScores; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[j][i] = a.softcap * kLog2e * tanhf(x[j][i] * (a.scale / a.softcap));
    } else {
#pragma unroll
      for (int j = 0; j < S::kScores; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[j][i] *= scale;
    }
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < S::kScores; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t p = begin + (share * S::kScores + j) * 8 + 2 * t + i % 2;
        const bool seen =
            all || (p >= of[i / 2].first && p <= of[i / 2].last && (own < 0 || own == of[i / 2].row));
        if (!seen) x[j][i] = -INFINITY;
        most[i / 2] = fmaxf(most[i / 2], x[j][i]);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], shuffle_xor(most[r], 1));
      most[r] = fmaxf(most[r], shuffle_xor(most[r], 2));
      if (t == 0)
        reinterpret_cast<float*>(memory + S::kMost)[(band * 16 + g + 8 * r) * S::kShare + share] = most[r];
    }
  }
  // Weights as halves to shared memory; what came before fades.
  CARAT_D void weigh(float (&x)[S::kScores][4]) {
    float safe[2], fade[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* most =
          reinterpret_cast<const float*>(memory + S::kMost) + (band * 16 + g + 8 * r) * S::kShare;
      float now = top[r];
#pragma unroll
      for (int w = 0; w < S::kShare; ++w) now = fmaxf(now, most[w]);
      safe[r] = now == -INFINITY ? 0 : now;
      fade[r] = exp2f(top[r] - safe[r]);
      top[r] = now;
    }
#pragma unroll
    for (int j = 0; j < S::kScores; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t two = pack_halves(exp2f(x[j][2 * r] - safe[r]), exp2f(x[j][2 * r + 1] - safe[r]));
        *reinterpret_cast<uint32_t*>(memory + S::kWeight +
                                     unit_at<8>(band * 16 + g + 8 * r, share * S::kScores + j) + 4 * t) = two;
      }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] *= fade[i / 2];
#pragma unroll
    for (int c = 0; c < S::kPieces; ++c)
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[c][n][i] *= fade[i / 2];
  }
  CARAT_D void take_weights(uint32_t (&p)[kKvTile / 16][4]) {
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k) {
      load_matrices(p[k], unit_from(base + S::kWeight + unit_at<8>(band * 16 + lane % 16, lane / 16), 2 * k));
      mma_f16(sum, p[k], 0x3c003c00u, 0x3c003c00u);
    }
  }
  CARAT_D void add_values(const uint32_t (&p)[kKvTile / 16][4], SharedAddress values,
                          float (&to)[S::kColumns][4]) const {
    if constexpr (S::kWarpgroups) {
      wide_fence();
#pragma unroll
      for (int n = 0; n < S::kColumns; n += 8)
#pragma unroll
        for (int k = 0; k < kKvTile / 16; ++k)
          wide_values(reinterpret_cast<float(&)[8][4]>(to[n]), codes_operand(base + S::kWeight + 32 * k),
                      turned_operand(values + (share * S::kColumns + n) / 8 * kTileBytes + 16 * k * 128));
      wide_commit();
      wide_wait<0>();
      return;
    }
    values += unit_at<S::kUnits>(lane % 16, share * S::kColumns + lane / 16);
#pragma unroll
    for (int n = 0; n < S::kColumns; n += 2)
#pragma unroll
      for (int k = 0; k < kKvTile / 16; ++k) {
        uint32_t b[4];
        load_turned(b, unit_from(values, n) + 16 * k * S::kWide * 2);
        mma_f16(to[n], p[k], b[0], b[1]);
        mma_f16(to[n + 1], p[k], b[2], b[3]);
      }
  }

  // ---- segments
  CARAT_D void clear(int r) {
    top[r] = -INFINITY;
    sum[2 * r] = sum[2 * r + 1] = 0;
#pragma unroll
    for (int c = 0; c < S::kPieces; ++c)
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n) o[c][n][2 * r] = o[c][n][2 * r + 1] = 0;
  }
  CARAT_D void clear_totals() {
#pragma unroll
    for (int r = 0; r < 2; ++r) total_top[r] = -INFINITY, total_sum[r] = 0;
#pragma unroll
    for (int c = 0; c < kTotals; ++c)
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[c][n][i] = 0;
  }
  // The segment ends for the pairs of row `own`, or for all.
  CARAT_D void end_segment(int32_t own) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if ((own >= 0 && own != pair(r).row) || top[r] == -INFINITY) continue;
      const float most = fmaxf(total_top[r], top[r]), keep = weight_of(total_top[r], most),
                  take = weight_of(top[r], most);
      total_top[r] = most;
      fold(total_sum[r], sum[2 * r], keep, take);
#pragma unroll
      for (int c = 0; c < kTotals; ++c)
#pragma unroll
        for (int n = 0; n < S::kColumns; ++n) {
          fold(total[c][n][2 * r], o[c][n][2 * r], keep, take);
          fold(total[c][n][2 * r + 1], o[c][n][2 * r + 1], keep, take);
        }
      clear(r);
    }
  }

  // Tiles from .. to of the positions, segments of `length`.
  CARAT_D void walk(int32_t from, int32_t to, int32_t length) {
    sync_block();
    if (threadIdx.x == 0) job.list = TileList(from, to, job.reach.settled, job.group.n);
    sync_block();
    clear(0), clear(1);
    item = part = in = out = item_table = 0, table = 2, full = true;
    place(0, 0), place(1, 1);
    sync_block();
#pragma unroll 1
    for (int i = 0; i < S::kStages; ++i) {
      fetch_piece();
      store_piece();
    }
    take_queries();
#pragma unroll 1
    for (int32_t i = 0; i < job.list.count; ++i) {
      const int32_t tile = job.list.tile(i), own = job.list.row(i);
      float x[S::kScores][4];
#pragma unroll
      for (int j = 0; j < S::kScores; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[j][e] = 0;
#pragma unroll 1
      for (int c = 0; c < pieces(); ++c) {
        const SharedAddress keys = next_piece();
        if (busy) add_scores(c, keys, x);
        store_piece();
      }
      if (busy) mask(tile, own, x);
      place(i + 2, table);
      table = next_table(table);
      sync_block();
      if (busy) weigh(x);
      uint32_t p[kKvTile / 16][4];
#pragma unroll 1
      for (int c = 0; c < pieces(); ++c) {
        const SharedAddress values = next_piece();
        if (busy) {
          if (c == 0) take_weights(p);
#pragma unroll
          for (int piece = 0; piece < S::kPieces; ++piece)
            if (c == piece) add_values(p, values, o[piece]);
        }
        store_piece();
      }
      if constexpr (!S::kSplit)
        if (job.list.last_of_row(i) || (tile + 1) * kKvTile % length == 0) end_segment(own);
    }
    if constexpr (Kinds::kHalves) wait_copies<0>();
    sync_block();
  }

  // The k-th of every `segments` segments, or all of them.
  CARAT_D void run(int32_t k, int32_t length, int32_t segments) {
    const int32_t first = job.reach.first, last = job.reach.last;
    if constexpr (S::kSplit) {
      for (int32_t n = first / length + k; n <= last / length; n += segments) {
        const int32_t begin = n * length, end = begin + length - 1;
        walk((begin < first ? first : begin) / kKvTile, (end > last ? last : end) / kKvTile, length);
        leave_segment(n, length, segments);
      }
    } else {
      clear_totals();
      walk(first / kKvTile, last / kKvTile, length);
      write_rows();
    }
  }

  // f(r, column, c, n): this lane's elements of pair r, o[c][n] at `column` and the next.
  template <class F>
  CARAT_D void each(F f) const {
#pragma unroll
    for (int c = 0; c < S::kPieces; ++c)
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n) {
        const int32_t column = c * S::kWide + (share * S::kColumns + n) * 8 + 2 * t;
        if (column >= dim()) continue;
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (pair(r).row >= 0) f(r, column, c, n);
      }
  }
  CARAT_D void leave_segment(int32_t segment, int32_t length, int32_t segments) const {
    float* to[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Pair of = pair(r);
      const int32_t k = segment - of.first / length;
      const bool mine = of.row >= 0 && k >= 0 && segment <= of.last / length;
      to[r] = mine ? s->partial + partial_at(a, segments, job.group.m + of.row, of.head, k) : nullptr;
      if (mine && share == 0 && t == 0) to[r][dim()] = top[r], to[r][dim() + 1] = sum[2 * r];
    }
    each([&](int r, int32_t column, int c, int n) {
      if (to[r]) *reinterpret_cast<float2*>(to[r] + column) = float2{o[c][n][2 * r], o[c][n][2 * r + 1]};
    });
  }
  CARAT_D void write_rows() {
    const bool turned = device_rotation(a.kv.v_type) != KvRotation::none;
    auto* rows = reinterpret_cast<float*>(memory);
    each([&](int r, int32_t column, int c, int n) {
      float* to = turned ? rows + (band * 16 + g + 8 * r) * S::kDim
                         : row_of<float>(a.y, job.group.m + pair(r).row) + int64_t{pair(r).head} * dim();
      to[column] = total[c % kTotals][n][2 * r] / total_sum[r];
      to[column + 1] = total[c % kTotals][n][2 * r + 1] / total_sum[r];
    });
    if (!turned) return;
    const Rotation<S::kDim / 32> rotation(device_rotation(a.kv.v_type), true, dim(), tables, lane);
    sync_block();
    // Every warp rotates some of its band's pairs.
    for (int b = share; b < 16; b += S::kShare) {
      const Pair of = pairs[band * 16 + b];
      if (of.row < 0) continue;
      write_head(a, rows + (band * 16 + b) * S::kDim,
                 row_of<float>(a.y, job.group.m + of.row) + int64_t{of.head} * dim(), rotation, lane);
    }
  }
};

template <class S, class Kinds>
__global__ void __launch_bounds__(kTileThreads, S::kBlocks)
    tile_attention(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
#if defined(__CUDA_ARCH__) && !defined(CARAT_WIDE)
  if constexpr (S::kWarpgroups) return;
#endif
  begin_kernel();
  if (a.forks && !s->slot) return;
  CARAT_SHARED(shared);
  unsigned char* memory = shared;
  if constexpr (S::kWarpgroups) memory += (1024 - shared_address(shared) % 1024) % 1024;
  const int32_t per = S::kRows / a.width, groups = group_count(s, set, per),
                segments = S::kSplit ? s->segments[a.span] : 1;
  const int64_t tasks = int64_t{groups} * segments * a.kv.heads * a.chunks;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const auto k = static_cast<int32_t>(task % segments);
    const auto which = static_cast<int32_t>(task / segments % groups),
               rest = static_cast<int32_t>(task / segments / groups);
    const RowGroup group = group_of(s, set, per, groups - 1 - which);  // the longest first
    TileWalk<S, Kinds> w(a, s, *tables, set, memory);
    int32_t length =
        segment_of(a.kv.window, pos_of(s, step_row(s, set, group.m)));  // no other row's is shorter
    while (length != INT32_MAX) {
      w.begin(group, rest / a.chunks, rest % a.chunks * a.width, length);
      if (!a.forks || w.job.reach.settled != INT32_MAX) w.run(k, length, segments);
      length = w.job.reach.longer;
    }
  }
}

template <class S, class Kinds>
void run_tiles(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  // Tasks are dealt to a fixed grid: how many there are, only the step knows.
  const int32_t per = S::kRows / a.width;
  const int64_t grid = S::kSplit || a.forks ? int64_t{S::kBlocks} * c.launcher.sms
                                            : (int64_t{(rows + per - 1) / per} + 7) * a.kv.heads * a.chunks;
  launch(c.launcher, "attention", tile_attention<S, Kinds>, dim3(static_cast<unsigned>(grid)), kTileThreads,
         static_cast<size_t>(S::kBytes), a, c.step, c.tables, set);
}

// Heads of up to DIM. How many pairs a task has follows from the program's rows and a block's memory; the
// bits do not.
template <int DIM, class Kinds>
void by_rows(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  constexpr bool kHalves = Kinds::kHalves;
  a.chunks = (a.group + 15) / 16;
  a.width = (a.group + a.chunks - 1) / a.chunks;
  if (!a.split) {
    if constexpr (DIM > 128 && kHalves) a.forks = attend_prompt<DIM>(c, a, rows, set);
    return run_tiles<TileShape<DIM, DIM == 512 ? 2 : 4, false, kHalves>, Kinds>(c, a, rows, set);
  }
  if constexpr (DIM > 128 || kHalves) {
    using Wide = TileShape<DIM, 4, true, kHalves>;
    if (rows > 16 / a.width && Wide::kBytes <= c.launcher.shared) {
      if constexpr (DIM == 512 && kHalves) {
        using Wider = TileShape<DIM, 4, true, kHalves, true>;
        if (c.launcher.major == 9 && compiled_for(tile_attention<Wider, Kinds>) == 90)
          return run_tiles<Wider, Kinds>(c, a, rows, set);
      }
      return run_tiles<Wide, Kinds>(c, a, rows, set);
    }
  }
  run_tiles<TileShape<DIM, 1, true, kHalves>, Kinds>(c, a, rows, set);
}

// Heads of up to 128, of 256 or of 512.
template <class Kinds>
void by_head(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (a.kv.dim <= 128) return by_rows<128, Kinds>(c, a, rows, set);
  if (a.kv.dim == 256) return by_rows<256, Kinds>(c, a, rows, set);
  by_rows<512, Kinds>(c, a, rows, set);
}

}  // namespace carat::cuda
