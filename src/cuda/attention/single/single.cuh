// Attention of a single row, where reading the cache is all the work: a segment and the query heads of one KV
// head a task. Tiles come to shared memory as they lie in the cache, keys and values in turns, and become
// operands in registers (single/operands.cuh). The same sums as tiles/tiles.cuh has.
#pragma once
#include "cuda/attention/single/fold.cuh"
#include "cuda/attention/single/heads.cuh"
#include "cuda/attention/single/operands.cuh"
#include "cuda/device/warpgroup.cuh"

namespace carat::cuda {

inline constexpr int kSingleThreads = 256, kSingleWarps = kSingleThreads / 32;
inline constexpr int kSingleHeads = 8;  // columns of the tensor cores' products

template <int DIM>
struct KvOperands<DType::f16, DIM> {
  static constexpr int kRow = 2 * DIM, kTiles = DIM / 64;
  CARAT_D static int column(int part, int n, int g) { return part * (DIM / 8) + 8 * n + g; }
};

// A single row's segments and tasks of a head. One fewer of these where the last one has the segment that the
// window begins in, too (SinglePlace::joined).
struct SegmentTasks {
  int32_t segments, tasks;
  CARAT_D bool joined() const { return tasks < segments; }
};

// What most steps are, a single row on a chain: all that is to be known of it asked for at once.
struct LoneRow {
  bool is;
  int32_t pos;

  CARAT_D explicit LoneRow(const DevStep* s) {
    const int32_t rows = kept_here(s->n_rows), at = kept_here(s->one_pos);
    is = rows == 1 && !s->slot;
    pos = at;
  }
};

template <class S>
struct SingleWalk;

// Registers of a thread where so many blocks of attention share a processor.
constexpr int registers_for(int blocks) {
  return blocks == 1 ? 248 : 65536 / kSingleThreads / blocks / 8 * 8;
}

// UNITS of keys or values in shared memory. BLOCKS an SM. FOLDS: windows, whose segments the task of the last
// one folds.
template <DType T, int DIM, int UNITS, int BLOCKS, bool FOLDS = false>
struct SingleShape {
  using Operands = KvOperands<T, DIM>;
  using Walk = SingleWalk<SingleShape>;
  static constexpr DType kType = T, kKeyType = T;
  static constexpr bool kHalves = T == DType::f16, kLong = false, kOneCopy = false;
  static constexpr int kDim = DIM, kQueries = DIM, kRow = Operands::kRow, kKeyRow = kRow,
                       kTile = kKvTile * kRow, kUnits = UNITS, kBlocks = BLOCKS, kThreads = kSingleThreads;
  // A block fits beside one of products (matmul/packed/stream.cuh), so that all it can do before its inputs
  // are there is done by then: a quarter of a processor has 512 registers a lane, for up to four warps of a
  // stream (80 each) and two of these.
  static constexpr bool kBeside = DIM == 256;
  static constexpr int kRegisters = FOLDS ? 96 : registers_for(BLOCKS);
  static constexpr int kColumns = DIM / 64;  // eights of columns a warp
  static constexpr int kHeads = kSingleHeads;
  // Angles stand where weights and what belongs to them come.
  static constexpr int kQueryAt = 0, kWeightAt = kSingleHeads * DIM * 2, kAnglesAt = kWeightAt,
                       kMostAt = kWeightAt + kSingleHeads * kKvTile * 2,
                       kFadeAt = kMostAt + kSingleHeads * kSingleWarps * 4,
                       kFadeEnd = kFadeAt + kSingleHeads * 4, kAnglesEnd = kAnglesAt + DIM * 4,
                       kPagesAt = ((kFadeEnd > kAnglesEnd ? kFadeEnd : kAnglesEnd) + 127) / 128 * 128,
                       kPlaceAt = kPagesAt + 64 * 4, kRingAt = (kPlaceAt + 64 + 127) / 128 * 128,
                       kBytes = kRingAt + UNITS * kTile + 16;  // words are read up to 4 bytes behind a row
  static constexpr bool kFolds = FOLDS;
  static_assert(!kFolds || DIM == SegmentFold::kDim);
  static_assert(!kFolds || kBytes - kRingAt >= SegmentFold::bytes(kSingleHeads));
};

template <class S>
struct SingleWalk {
  static_assert(sizeof(SinglePlace) <= 64);
  using Operands = typename S::Operands;
  const AttentionPart& a;
  const RowPrep& prep;
  const DevStep* s;
  const LoneRow lone;
  const Tables& tables;
  unsigned char* memory;
  bool& started;  // begin_kernel() has been called
  const KvGrid grid{S::kType, tables};
  const SharedAddress base = shared_address(memory);
  int32_t* pages = reinterpret_cast<int32_t*>(memory + S::kPagesAt);
  SinglePlace& place = *reinterpret_cast<SinglePlace*>(memory + S::kPlaceAt);
  const int thread = threadIdx.x;
  const int lane = thread % 32, g = lane / 4, t = lane % 4, warp = thread / 32;
  float o[S::kColumns / 2][4], sum[4], top;  // o, sum: of heads 2 t and 2 t + 1; top: of head g

  CARAT_D SingleWalk(const AttentionPart& args, const RowPrep& row, const DevStep* step, const LoneRow& one,
                     const Tables& all, unsigned char* shared, bool& has_started)
      : a(args), prep(row), s(step), lone(one), tables(all), memory(shared), started(has_started) {}

  CARAT_D RowHeads<S> heads() const { return {a, prep, s, tables, place, memory}; }
  CARAT_D static int unit_at(int row, int unit) { return unit_of_halves<S::kDim>(row, unit); }
  CARAT_D static int weight_at(int row, int unit) {
    return S::kWeightAt + row * kKvTile * 2 + (unit ^ row % 8) * 16;
  }

  // ---- loading
  CARAT_D void find_pages() {
    const int32_t i = thread, slot = (place.from + i) * kKvTile;
    if (i < place.whole) pages[i] = static_cast<int32_t>(page_of(a.kv, *place.seq, slot));
    if (i == place.whole && place.joined >= 0)  // of the tile that is joined
      pages[i] = static_cast<int32_t>(page_of(a.kv, *place.seq, place.first));
  }
  // Keys (even) or values (odd) of tile i, if they lie in one piece; of i = place.whole: of the tile that is
  // joined.
  CARAT_D const uint8_t* unit_in_cache(int32_t unit) const {
    const int32_t i = unit / 2, tile = i < place.whole ? place.from + i : place.first / kKvTile,
                  begin = tile * kKvTile;
    return (unit % 2 ? a.kv.v + pages[i] * a.kv.v_page_bytes : a.kv.k + pages[i] * a.kv.k_page_bytes) +
           (int64_t{place.kv_head} * a.kv.page_tokens + a.kv.in_page(begin)) *
               (unit % 2 ? S::kRow : S::kKeyRow);
  }
  CARAT_D bool joins(int32_t i) const { return place.joined >= 0 && i + 1 == place.count; }
  // Sends it on its way, but for the row that is not there yet.
  CARAT_D void fetch(int32_t unit, int to, int own = -1) {
    unsigned char* into = memory + S::kRingAt + to * S::kTile;
    if (unit / 2 < place.whole) {
      const uint8_t* from = unit_in_cache(unit);
      const bool joined = joins(unit / 2);
      const uint8_t* behind = joined ? unit_in_cache(2 * place.whole + unit % 2) : from;
      const int turn = joined ? place.joined + 1 : kKvTile;  // rows from here on are there
      const SharedAddress at = shared_address(into);
      if constexpr (S::kHalves) {
        constexpr int kUnitsRow = S::kRow / 16, kStep = kSingleThreads / kUnitsRow;
        const int row = thread / kUnitsRow, u = thread % kUnitsRow;
#pragma unroll
        for (int k = 0; k < kKvTile / kStep; ++k)
          if (row + k * kStep != own)
            copy16_async(at + unit_at(row + k * kStep, u),
                         (row + k * kStep < turn ? from : behind) + (row + k * kStep) * S::kRow + 16 * u);
      } else {
        const int none = own < 0 ? S::kTile : own * S::kRow;
#pragma unroll
        for (int k = 0; k < (S::kTile / 16 + kSingleThreads - 1) / kSingleThreads; ++k) {
          const int u = thread + k * kSingleThreads;
          if (u < S::kTile / 16 && (16 * u + 16 <= none || 16 * u >= none + S::kRow))
            copy16_async(at + 16 * u, (16 * u < turn * S::kRow ? from : behind) + 16 * u);
        }
      }
    } else if (unit / 2 < place.count) {
      copy_rows<S::kRow>(place.from + unit / 2, unit % 2, into);
    }
    commit_copies();
  }
  // What fetch() has left out.
  CARAT_D void fetch_own(int32_t unit, int to, int own) {
    const int u = own * S::kRow / 16 + thread;
    if (16 * u >= (own + 1) * S::kRow) return;
    const SharedAddress at = shared_address(memory + S::kRingAt + to * S::kTile);
    copy16_async(at + (S::kHalves ? unit_at(own, thread) : 16 * u), unit_in_cache(unit) + 16 * u);
  }
  // Row by row, zeros where nothing is seen: tiles that are not in one piece.
  template <int ROW>
  CARAT_D void copy_rows(int32_t tile, bool values, unsigned char* into) {
    const int row = thread / 4, part = thread % 4;
    const int32_t p = tile * kKvTile + row;
    const uint8_t* from = nullptr;
    if (p >= place.first && p <= place.last) {
      const int32_t slot = slot_seen(s, place.row, p);
      from = values ? v_row(a.kv, *place.seq, slot, place.kv_head)
                    : k_row(a.kv, *place.seq, slot, place.kv_head);
    }
    if constexpr (S::kHalves) {
#pragma unroll 1
      for (int u = part; u < ROW / 16; u += 4)
        *reinterpret_cast<uint4*>(into + unit_at(row, u)) =
            from ? *reinterpret_cast<const uint4*>(from + 16 * u) : uint4{0, 0, 0, 0};
    } else {
#pragma unroll 1
      for (int u = part; u < ROW / 2; u += 4)
        *reinterpret_cast<uint16_t*>(into + row * ROW + 2 * u) =
            from ? *reinterpret_cast<const uint16_t*>(from + 2 * u) : uint16_t{0};
    }
  }
  // Values that the row does not see may be anything: none.
  CARAT_D void clear_unseen(int32_t tile, unsigned char* into) {
    const int row = thread / 4;
    const int32_t p = tile * kKvTile + row;
    if (p >= place.first && p <= place.last) return;
    using Zeros =
        std::conditional_t<S::kRow % 16 == 0, uint4, uint16_t>;  // f16: units change places within rows
#pragma unroll 4
    for (int u = thread % 4; u < S::kRow / static_cast<int>(sizeof(Zeros)); u += 4)
      reinterpret_cast<Zeros*>(into + row * S::kRow)[u] = Zeros{};
  }

  // The operation before may still be at work on what this step writes: its own row, of one tile. What is
  // before it is there already.
  CARAT_D bool settled(int32_t i) const {
    return i >= place.count || (lone.is && (place.from + i + 1) * kKvTile <= lone.pos);
  }
  // That row of the tile, if it is all that may be missing.
  CARAT_D int own_row(int32_t i) const {
    return lone.is && i < place.whole ? lone.pos - (place.from + i) * kKvTile : -1;
  }
  CARAT_D void start() {
    if (!started) begin_kernel();
    started = true;
  }

  // ---- a tile
  // Of the tile, the position of score n of the warp's eight: so that its rows lie in different banks.
  CARAT_D int position(int n) const { return S::kType == DType::tq3 ? 8 * n + warp : 8 * warp + n; }
  CARAT_D void take_query(int step, uint32_t (&q)[4]) const {
    uint32_t two[2];
    load_matrices(two, base + S::kQueryAt + unit_at(lane % 8, 2 * step + lane / 8 % 2));
    q[0] = two[0], q[1] = 0, q[2] = two[1], q[3] = 0;
  }
  CARAT_D void add_scores(const unsigned char* keys, float (&x)[4]) const {
    if constexpr (S::kHalves) {
#pragma unroll 4
      for (int k = 0; k < S::kDim / 16; k += 2) {
        uint32_t b[4], q[4];
        load_matrices(b, shared_address(keys) + unit_at(position(lane % 8), 2 * k + lane / 8));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          take_query(k + step, q);
          mma_f16(x, q, b[2 * step], b[2 * step + 1]);
        }
      }
    } else {
      const typename Operands::Row row = Operands::row(keys + position(g) * S::kRow, t, grid);
#pragma unroll 2
      for (int c = 0; c < S::kDim / 64; ++c) {
        uint32_t b[4][2], q[4];
        Operands::keys(row, c, t, b);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          take_query(4 * c + k, q);
          mma_f16(x, q, b[k][0], b[k][1]);
        }
      }
    }
  }
  // Products to scores; what the row does not see is -inf. The largest of the tile to shared memory.
  CARAT_D void mask(int32_t tile, bool joined, float (&x)[4]) const {
    const int32_t begin = tile * kKvTile;
    const float scale = a.scale * kLog2e;
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] = a.softcap > 0 ? a.softcap * kLog2e * tanhf(x[i] * (a.scale / a.softcap)) : x[i] * scale;
      const int row = position(2 * t + i);
      const int32_t p = begin + row;
      if (joined ? (row > place.joined) != (g >= a.group) : p < place.first || p > place.last)
        x[i] = -INFINITY;
      most = fmaxf(most, x[i]);
    }
    most = fmaxf(most, shuffle_xor(most, 1));
    most = fmaxf(most, shuffle_xor(most, 2));
    if (t == 0) reinterpret_cast<float*>(memory + S::kMostAt)[g * kSingleWarps + warp] = most;
  }
  // Where position i of sixteen stands among their weights.
  CARAT_D static int weight_column(int i) {
    if constexpr (S::kHalves) return i;
    if constexpr (S::kType == DType::tq3) return i % 8 / 2 * 2 + i / 8 + i % 2 * 8;  // 2t, 2t+8 | 2t+1, 2t+9
    return i % 4 * 2 + i / 4 % 2 + i / 8 * 8;                                        // t, t+4 | t+8, t+12
  }
  // Weights as halves to shared memory, and by how much what came before fades.
  CARAT_D void weigh(const float (&x)[4]) {
    const float* most = reinterpret_cast<const float*>(memory + S::kMostAt) + g * kSingleWarps;
    float now = top;
#pragma unroll
    for (int w = 0; w < kSingleWarps; ++w) now = fmaxf(now, most[w]);
    const float safe = now == -INFINITY ? 0 : now;
    if (warp == 0 && t == 0) reinterpret_cast<float*>(memory + S::kFadeAt)[g] = exp2f(top - safe);
    top = now;
    const uint32_t two = pack_halves(exp2f(x[0] - safe), exp2f(x[1] - safe));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int p = position(2 * t + i), column = p / 16 * 16 + weight_column(p % 16);
      *reinterpret_cast<uint16_t*>(memory + weight_at(g, column / 8) + column % 8 * 2) =
          static_cast<uint16_t>(two >> 16 * i);
    }
  }
  CARAT_D void add_values(const unsigned char* values) {
    constexpr uint32_t kOnes[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    const float2 f = reinterpret_cast<const float2*>(memory + S::kFadeAt)[t];
    sum[0] *= f.x, sum[1] *= f.y;
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n) o[n][0] *= f.x, o[n][1] *= f.y, o[n][2] *= f.x, o[n][3] *= f.y;
#pragma unroll 1
    for (int k = 0; k < kKvTile / 16; k += 2) {  // two steps
      uint32_t p[4];
      load_matrices(p, base + weight_at(lane % 8, 2 * k + lane / 8));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        mma_f16(sum, kOnes, p[2 * step], p[2 * step + 1]);
        uint32_t b[S::kColumns][2];
        const int row = 16 * (k + step);
        if constexpr (S::kHalves) {
#pragma unroll
          for (int n = 0; n < S::kColumns; n += 2) {
            uint32_t v[4];
            load_turned(
                v, shared_address(values) + unit_at(row + lane % 16, warp * S::kColumns + n + lane / 16));
            b[n][0] = v[0], b[n][1] = v[1], b[n + 1][0] = v[2], b[n + 1][1] = v[3];
          }
        } else {
          Operands::values(values + row * S::kRow, warp, g, t, grid, b);
        }
#pragma unroll
        for (int n = 0; n < S::kColumns / 2; ++n) {
          const uint32_t v[4] = {b[2 * n][0], b[2 * n + 1][0], b[2 * n][1], b[2 * n + 1][1]};
          mma_f16(o[n], v, p[2 * step], p[2 * step + 1]);
        }
      }
    }
  }

  CARAT_D Seen seen_by_row(RowSet set, int32_t m = 0) const {
    return lone.is ? seen_at(a, s, &s->one_seq, 0, lone.pos) : seen_by(a, s, step_row(s, set, m));
  }
  CARAT_D int32_t own_pos(const Seen& seen) const { return lone.is ? lone.pos : pos_of(s, seen.row); }
  CARAT_D int32_t in_one_piece(const Seen& seen) const {  // tiles below
    return a.kv.page_tokens % kKvTile == 0 ? seen.settled / kKvTile : 0;
  }
  // Of a window whose segments are folded by the task of the last one: segments are tiles there.
  CARAT_D SegmentTasks folded_tasks(RowSet set) const {
    const Seen seen = seen_by_row(set);
    const int32_t n = seen.last / kKvTile - seen.first / kKvTile + 1;
    const bool joined = prep.k && 2 * a.group <= S::kHeads && n > 1 &&
                        seen.first % kKvTile == seen.last % kKvTile + 1 &&
                        seen.last / kKvTile < in_one_piece(seen);
    return {n, n - joined};
  }
  // Task k of a KV head; false: it has fewer.
  CARAT_D bool find_place(RowSet set, int32_t kv_head, int32_t k, const SegmentTasks& all) {
    const Seen seen = seen_by_row(set);
    const int32_t length = S::kFolds ? kKvTile : segment_of(a.kv.window, own_pos(seen)),
                  n = (segment_at(seen.first, length) + k + all.joined()) * length;
    if (n > seen.last) return false;
    settle(seen, 0, kv_head, seen.clamped(n) / kKvTile, seen.clamped(n + length - 1) / kKvTile,
           all.joined() && n + length > seen.last ? seen.last % kKvTile : -1);
    return true;
  }
  // By the block: where tiles [from, to] of what row m sees are, at most as many as `pages` holds.
  CARAT_D void settle(const Seen& seen, int32_t m, int32_t kv_head, int32_t from, int32_t to,
                      int32_t joined) {
    sync_block();  // all threads have done the last ones
    if (threadIdx.x == 0) {
      const int32_t fork = in_one_piece(seen);
      place = {seen.seq,      m,         seen.row, kv_head,
               seen.first,    seen.last, from,     fork < from ? 0 : fork > to ? to + 1 - from : fork - from,
               to + 1 - from, joined};
    }
    sync_block();
    find_pages();
    heads().find_angles(own_pos(seen));
    sync_block();
  }
  CARAT_D void run(RowSet set, int32_t kv_head, int32_t k, const SegmentTasks& all) {
    if (!find_place(set, kv_head, k, all)) return;
    walk();
    const int64_t at = partial_at(a, all.segments, 0, kv_head * a.group, 0),
                  pitch = int64_t{all.segments} * (S::kDim + 2);
    // Of segment n, whose sums stand from column `first` on.
    const auto leave = [&](int32_t n, int first) {
      leave_segment(first, [&](int head, int column, float v) {
        const int64_t to = at + n * (S::kDim + 2) + head * pitch + column;
        if constexpr (S::kFolds)
          put_word(s->left + to, word_of(v));
        else
          s->partial[to] = v;
      });
    };
    if (!S::kFolds || k + 1 < all.tasks) return leave(k + all.joined(), 0);
    if (place.joined >= 0) leave(0, a.group);
    if constexpr (S::kFolds) fold(at, all.segments);
  }
  // By the task that has the last segment.
  CARAT_D void fold(int64_t first, int32_t segments) {
    auto* own = reinterpret_cast<float*>(memory + S::kRingAt);
    leave_segment(0, [&](int head, int column, float v) { own[head * (S::kDim + 2) + column] = v; });
    sync_block();
    // Both halves of the block, as often as each other.
    constexpr int kHalf = SegmentFold::kThreads;
    const int half = threadIdx.x / kHalf;
    float* x = own + a.group * (S::kDim + 2) + half * S::kDim;
#pragma unroll 1
    for (int32_t i = half; i < a.group + half; i += 2) {
      const int32_t at = i < a.group ? i : a.group - 1;
      if (i < a.group)
        SegmentFold{a, tables, segments, static_cast<int>(threadIdx.x) % kHalf}.run(
            s->left + first + at * int64_t{segments} * (S::kDim + 2), own + at * (S::kDim + 2), x,
            place.kv_head * a.group + at);
      else
        sync_block(), sync_block();
    }
  }
  CARAT_D void clear() {
    top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0;
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0;
  }
  CARAT_D bool at_an_end(int32_t i) const {  // of what the row sees
    const int32_t begin = (place.from + i) * kKvTile;
    return i < place.whole && !joins(i) && (begin < place.first || begin + kKvTile - 1 > place.last);
  }
  // Asks for the first units, before the inputs are there if that can be, and makes what is the task's to
  // make: before the first unit that may lack the step's row and cannot be asked for without it. Blocks that
  // find no room beside the products before them come when the inputs do: they ask for the first unit alone
  // before that, since asking for all takes longer than making.
  CARAT_D void fill() {
    const bool has = heads().has_own(), fresh = has || !started;
    const int32_t some = 2 * place.count < S::kUnits ? 2 * place.count : S::kUnits,
                  ahead = S::kBeside ? some : 1;
    int own = -1;
#pragma unroll 1
    for (int32_t u = 0, made = 0;; ++u) {
      if (!made && fresh && u < ahead && !settled(u / 2)) own = own_row(u / 2);
      if (!made && (u == ahead || (fresh && !settled(u / 2) && own < 0))) {
        heads().make(has, own, memory + S::kRingAt, u, [&] { start(); });
        made = 1;
        if (u < some) sync_block();
      }
      if (u == some) break;
      fetch(u, u, made ? -1 : own);
    }
#pragma unroll 1
    for (int32_t u = some; u < S::kUnits; ++u) commit_copies();
    if (own < 0 || has) return wait_copies<S::kUnits - 1>();
#pragma unroll 1
    for (int32_t u = 0; u < some; ++u)
      if (!settled(u / 2)) fetch_own(u, u, own);
    commit_copies();
    wait_copies<0>();
  }
  CARAT_D void walk() {
    walk([](int32_t) {});
  }
  // done(tile): its scores and values are in the sums.
  template <class Done>
  CARAT_D void walk(Done done) {
    // Unit u is at u % kUnits; the next ones are on their way.
    const int32_t units = 2 * place.count;
    const auto next = [](int i) { return i + 1 == S::kUnits ? 0 : i + 1; };
    float x[4];
    fill();
    clear();
    sync_block();
#pragma unroll 1
    for (int32_t u = 0, at = 0, before = S::kUnits - 1; u < units; ++u, before = at, at = next(at)) {
      if (u > 0) {
        wait_copies<S::kUnits - 2>();
        sync_block();
        fetch(u - 1 + S::kUnits, before);
      }
      const int32_t i = u / 2, tile = place.from + i;
      unsigned char* unit = memory + S::kRingAt + at * S::kTile;
      if (u % 2 == 0) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = 0;
        add_scores(unit, x);
        mask(tile, joins(i), x);
        sync_block();
        weigh(x);
      } else {
        if (at_an_end(i)) {
          clear_unseen(tile, unit);
          sync_block();
        }
        add_values(unit);
        done(tile);
      }
    }
    wait_copies<0>();
    sync_block();
  }
  // put(query head of the KV head's, column, value), heads that stand from `first` on; behind the columns the
  // top and the sum.
  template <class Put>
  CARAT_D void leave_segment(int first, Put put) const {
    const auto has = [&](int head) { return head >= 0 && head < a.group; };
    if (warp == 0 && t == 0 && has(g - first)) put(g - first, S::kDim, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = 2 * t + r - first;
      if (!has(head)) continue;
      if (warp == 0 && g == 0) put(head, S::kDim + 1, sum[r]);
#pragma unroll
      for (int n = 0; n < S::kColumns / 2; ++n) {
        put(head, Operands::column(warp, 2 * n, g), o[n][r]);
        put(head, Operands::column(warp, 2 * n + 1, g), o[n][2 + r]);
      }
    }
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads) __maxnreg__(S::kRegisters)
    single_attention(const AttentionPart given, const RowPrep prep, const DevStep* s, const Tables* tables,
                     RowSet set) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900  // whose tensor cores are known to sum without an order
  RowHeads<S>::fetch_weights(prep, *tables);
  const LoneRow lone(s);
  if (row_count(s, set) != 1) return begin_kernel();
  AttentionPart a = given;  // with what the compiler knows
  a.kv.dim = S::kDim, a.kv.k_type = S::kKeyType, a.kv.v_type = S::kType;
  a.kv.k_row = S::kKeyRow, a.kv.v_row = S::kRow;
  CARAT_SHARED(memory);
  bool started = false;
  SegmentTasks all{s->segments[a.span], s->segments[a.span]};
  if constexpr (S::kFolds)
    all = typename S::Walk(a, prep, s, lone, *tables, memory, started).folded_tasks(set);
  const auto each = static_cast<uint32_t>(all.tasks), tasks = each * a.kv.heads;
#pragma unroll 1
  for (uint32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const uint32_t kv_head = task / each;
    typename S::Walk w(a, prep, s, lone, *tables, memory, started);
    w.run(set, static_cast<int32_t>(kv_head), static_cast<int32_t>(task - kv_head * each), all);
    w.start();
  }
#endif
}

// Whether the kernel above does anything here.
template <class S>
bool serves(const Context& c) {
  return S::kBytes <= c.launcher.shared && c.launcher.major == 9 && compiled_for(single_attention<S>) == 90;
}
template <class S>
void run_single(const Context& c, const AttentionPart& a, const RowPrep& prep, RowSet set) {
  // Who folds waits for those before it: a task a block then.
  const int32_t blocks = S::kFolds ? a.kv.heads * window_segments(a.kv.window) : S::kBlocks * c.launcher.sms;
  launch(S::kFolds ? in_order(c.launcher) : c.launcher, "attention", single_attention<S>,
         dim3(static_cast<unsigned>(blocks)), S::kThreads, static_cast<size_t>(S::kBytes), a, prep, c.step,
         c.tables, set);
}

}  // namespace carat::cuda
