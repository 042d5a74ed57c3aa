// Attention of few pairs of a row and a query head, a segment a task: one row, mostly, where reading the
// cache is all the work. Tiles come to shared memory as they lie in the cache, keys and values in turns, and
// become operands in registers (kv_operands.cuh). The same sums as attention_tiles.cuh has.
#pragma once
#include "cuda/attention_tasks.cuh"
#include "cuda/kv_operands.cuh"

namespace carat::cuda {

inline constexpr int kFewThreads = 256, kFewWarps = kFewThreads / 32;
inline constexpr int32_t kFoldedWindow = 2048;  // its segments' factors are kept all at once

template <int DIM>
struct KvOperands<DType::f16, DIM> {
  static constexpr int kRow = 2 * DIM, kTiles = DIM / 64;
  CARAT_D static int column(int part, int n, int g) { return part * (DIM / 8) + 8 * n + g; }
};

// PAIRS: 8, 16 or a multiple of 32. UNITS of keys or values in shared memory. BLOCKS an SM.
template <DType T, int DIM, int PAIRS, int UNITS, int BLOCKS>
struct FewShape {
  using Operands = KvOperands<T, DIM>;
  static constexpr DType kType = T;
  static constexpr bool kHalves = T == DType::f16;
  static constexpr int kDim = DIM, kRow = Operands::kRow, kTile = kKvTile * kRow, kPairs = PAIRS,
                       kUnits = UNITS, kBlocks = BLOCKS;
  static constexpr int kColumns = DIM / 64, kEights = PAIRS / 8;  // eights of columns a warp, of pairs
  // Scores: warps share out groups of pairs, in bands of 16, then positions, in eights.
  static constexpr int kGroups = PAIRS > 32 ? PAIRS / 32 : 1, kBands = PAIRS > 16 ? 2 : 1,
                       kLanes = PAIRS > 8 ? 2 : 1, kSlices = kFewWarps / kGroups, kScores = kGroups;
  static constexpr int kQueryAt = 0, kWeightAt = PAIRS * DIM * 2, kMostAt = kWeightAt + PAIRS * kKvTile * 2,
                       kFadeAt = kMostAt + PAIRS * kSlices * 4, kPagesAt = kFadeAt + PAIRS * 4,
                       kPairsAt = kPagesAt + 64 * 4, kJobAt = kPairsAt + PAIRS * 16,
                       kRingAt = (kJobAt + 128 + 127) / 128 * 128,
                       kBytes = kRingAt + UNITS * kTile + 16;  // words are read up to 4 bytes behind a row
  static constexpr bool kFolds = DIM == 256;                   // windows, where layers are many
  static_assert(!kFolds || kBytes >= 2 * fold_bytes(DIM));
};

// What the threads of a block do together, in shared memory: it is not needed often.
struct FewJob {
  RowGroup group;
  int32_t kv_head, head, heads;
  const SeqView* seq;
  Reach reach;
  TileList list;
};

template <class S>
struct FewWalk {
  static_assert(sizeof(FewJob) <= 128 && sizeof(Pair) == 16);
  using Operands = typename S::Operands;
  const AttentionPart& a;
  const DevStep* s;
  const Tables& tables;
  RowSet set;
  unsigned char* memory;
  bool& started;  // begin_kernel() has been called
  const SharedAddress base = shared_address(memory);
  Pair* pairs = reinterpret_cast<Pair*>(memory + S::kPairsAt);
  int32_t* pages = reinterpret_cast<int32_t*>(memory + S::kPagesAt);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
  FewJob& job = *reinterpret_cast<FewJob*>(memory + S::kJobAt);
  const int slice = warp / S::kGroups, first_pair = warp % S::kGroups * 32;
  // o, sum: pairs 8 e + 2 t and one further; sum: of eight warp % kEights. top: pairs 16 b + g and 8 further.
  float o[S::kEights][S::kColumns / 2][4], sum[4], top[S::kBands][S::kLanes];

  CARAT_D FewWalk(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                  unsigned char* shared, bool& has_started)
      : a(args), s(step), tables(all), set(rows), memory(shared), started(has_started) {}

  CARAT_D void begin(const RowGroup& group, int32_t kv_head, int32_t from, int32_t length) {
    const Reach reach = reach_of(a, s, set, group, length);
    const int32_t heads = a.group - from < a.width ? a.group - from : a.width,
                  head = kv_head * a.group + from;
    sync_block();  // nobody is at the last one any more
    if (threadIdx.x < S::kPairs) {
      const int32_t i = threadIdx.x;
      pairs[i] = pair_of(a, s, set, group, i / heads, head + i % heads, length);
    }
    if (threadIdx.x == 0)
      job = {group, kv_head, head, heads, seq_of(s, step_row(s, set, group.m)), reach, TileList(0, 0, 0, 0)};
    sync_block();
  }
  // Queries as halves, zeros behind the last pair. Of formats other than f16 every sixteen columns stand so
  // that lane t gets columns 4 t to 4 t + 3.
  CARAT_D void take_queries() {
#pragma unroll 1
    for (int i = threadIdx.x; i < S::kPairs * S::kDim / 16; i += kFewThreads) {
      const int at = i / (S::kDim / 16), two = i % (S::kDim / 16);
      uint32_t w[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      if (at < job.group.n * job.heads) {
        const float* from = row_of<const float>(a.q, job.group.m + at / job.heads) +
                            int64_t{job.head + at % job.heads} * S::kDim + 16 * two;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const float2 x = *reinterpret_cast<const float2*>(from + 2 * k);
          w[k] = pack_halves(x.x, x.y);
        }
      }
      const uint4 u = S::kHalves ? uint4{w[0], w[1], w[2], w[3]} : uint4{w[0], w[2], w[4], w[6]},
                  v = S::kHalves ? uint4{w[4], w[5], w[6], w[7]} : uint4{w[1], w[3], w[5], w[7]};
      *reinterpret_cast<uint4*>(memory + S::kQueryAt + unit_at(at, 2 * two)) = u;
      *reinterpret_cast<uint4*>(memory + S::kQueryAt + unit_at(at, 2 * two + 1)) = v;
    }
  }
  // Rows of 16-byte units: those of eight rows with one number lie in different banks.
  CARAT_D static int unit_at(int row, int unit) { return row * S::kDim * 2 + (unit ^ row % 8) * 16; }
  CARAT_D static int weight_at(int row, int unit) {
    return S::kWeightAt + row * kKvTile * 2 + (unit ^ row % 8) * 16;
  }

  // ---- loading
  CARAT_D bool is_near(int32_t i) const { return a.kv.page_tokens % kKvTile == 0 && i < job.list.shared; }
  CARAT_D void find_pages() {
    if (!is_near(0)) return;
    const int32_t i = threadIdx.x, slot = (job.list.first + i) * kKvTile;
    if (i < job.list.shared)
      pages[i] = a.kv.ring_tokens
                     ? (job.seq->ring_slot * a.kv.ring_tokens + slot % a.kv.ring_tokens) / a.kv.page_tokens
                     : job.seq->pages[slot / a.kv.page_tokens];
  }
  // Keys (even) or values (odd) of the list's tiles on their way.
  CARAT_D void fetch(int32_t unit, int to) {
    const int32_t i = unit / 2;
    const bool values = unit % 2;
    unsigned char* place = memory + S::kRingAt + to * S::kTile;
    if (i < job.list.count) {
      if (is_near(i)) {
        const int32_t begin = job.list.tile(i) * kKvTile,
                      slot = a.kv.ring_tokens ? begin % a.kv.ring_tokens : begin;
        const uint8_t* from =
            (values ? a.kv.v + pages[i] * a.kv.v_page_bytes : a.kv.k + pages[i] * a.kv.k_page_bytes) +
            (int64_t{job.kv_head} * a.kv.page_tokens + slot % a.kv.page_tokens) * S::kRow;
        const SharedAddress at = shared_address(place);
        if constexpr (S::kHalves) {
          constexpr int kUnitsRow = S::kRow / 16, kStep = kFewThreads / kUnitsRow;
          const int row = threadIdx.x / kUnitsRow, u = threadIdx.x % kUnitsRow;
#pragma unroll
          for (int k = 0; k < kKvTile / kStep; ++k)
            copy16_async(at + unit_at(row + k * kStep, u), from + (row + k * kStep) * S::kRow + 16 * u);
        } else {
#pragma unroll
          for (int k = 0; k < (S::kTile / 16 + kFewThreads - 1) / kFewThreads; ++k) {
            const int u = threadIdx.x + k * kFewThreads;
            if (u < S::kTile / 16) copy16_async(at + 16 * u, from + 16 * u);
          }
        }
      } else {
        copy_rows(i, values, place);
      }
    }
    commit_copies();
  }
  // Row by row, zeros where nothing is seen: tiles that are not in one piece.
  CARAT_D void copy_rows(int32_t i, bool values, unsigned char* place) {
    const int row = threadIdx.x / 4, part = threadIdx.x % 4;
    const int32_t p = job.list.tile(i) * kKvTile + row, own = job.list.row(i);
    const int32_t of = own < 0 ? 0 : step_row(s, set, job.group.m + own);
    const uint8_t* from = nullptr;
    if (p >= job.reach.first && p <= job.reach.last &&
        (own < 0 || p <= (a.both_ways ? s->last_pos : s->pos)[of])) {
      const int32_t slot = own < 0 || p < job.reach.settled ? p : slot_seen(s, of, p);
      from = values ? v_row(a.kv, *job.seq, slot, job.kv_head) : k_row(a.kv, *job.seq, slot, job.kv_head);
    }
    if constexpr (S::kHalves) {
#pragma unroll 1
      for (int u = part; u < S::kRow / 16; u += 4)
        *reinterpret_cast<uint4*>(place + unit_at(row, u)) =
            from ? *reinterpret_cast<const uint4*>(from + 16 * u) : uint4{0, 0, 0, 0};
    } else {
#pragma unroll 1
      for (int u = part; u < S::kRow / 2; u += 4)
        *reinterpret_cast<uint16_t*>(place + row * S::kRow + 2 * u) =
            from ? *reinterpret_cast<const uint16_t*>(from + 2 * u) : uint16_t{0};
    }
  }
  // Values that nobody sees may be anything: none.
  CARAT_D void clear_unseen(int32_t tile, unsigned char* place) {
    const int row = threadIdx.x / 4;
    const int32_t p = tile * kKvTile + row;
    if (p >= job.reach.first && p <= job.reach.last) return;
#pragma unroll 1
    for (int u = threadIdx.x % 4; u < S::kRow / 2; u += 4)
      *reinterpret_cast<uint16_t*>(place + row * S::kRow + 2 * u) =
          0;  // f16: units change places within rows
  }

  // The operation before may still be at work on what this step writes. Tiles behind which a single row comes
  // are there already.
  CARAT_D bool settled(int32_t i) const {
    return i >= job.list.count ||
           (s->n_rows == 1 && !s->slot && (job.list.tile(i) + 1) * kKvTile <= s->one_pos);
  }
  CARAT_D void start() {
    if (!started) begin_kernel();
    started = true;
  }

  // ---- a tile
  using Scores = float[S::kBands][S::kScores][4];
  // Of the tile, the position of score n of the slice's eight j: so that its rows lie in different banks.
  CARAT_D int position(int j, int n) const {
    const int eight = slice * S::kScores + j;
    return S::kType == DType::tq3 ? 8 * n + eight : 8 * eight + n;
  }
  CARAT_D void take_query(int band, int step, uint32_t (&q)[4]) const {
    const int row = S::kLanes == 1 ? lane % 8 : first_pair + 16 * band + lane % 16,
              unit = 2 * step + (S::kLanes == 1 ? lane / 8 % 2 : lane / 16);
    const SharedAddress at = base + S::kQueryAt + row * S::kDim * 2 + (unit ^ lane % 8) * 16;
    if constexpr (S::kLanes == 1) {
      uint32_t two[2];
      load_matrices(two, at);
      q[0] = two[0], q[1] = 0, q[2] = two[1], q[3] = 0;
    } else {
      load_matrices(q, at);
    }
  }
  CARAT_D void add_scores(const unsigned char* keys, Scores& x) const {
    if constexpr (S::kHalves) {
#pragma unroll 4
      for (int k = 0; k < S::kDim / 16; k += 2) {
        uint32_t b[S::kScores][4], q[4];
#pragma unroll
        for (int j = 0; j < S::kScores; ++j)
          load_matrices(b[j], shared_address(keys) + position(j, lane % 8) * S::kRow +
                                  ((2 * k + lane / 8) ^ lane % 8) * 16);
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int band = 0; band < S::kBands; ++band) {
            take_query(band, k + step, q);
#pragma unroll
            for (int j = 0; j < S::kScores; ++j) mma_f16(x[band][j], q, b[j][2 * step], b[j][2 * step + 1]);
          }
      }
    } else {
      typename Operands::Row row[S::kScores];
#pragma unroll
      for (int j = 0; j < S::kScores; ++j) row[j] = Operands::row(keys + position(j, g) * S::kRow, t, tables);
#pragma unroll 2
      for (int c = 0; c < S::kDim / 64; ++c) {
        uint32_t b[S::kScores][4][2];
#pragma unroll
        for (int j = 0; j < S::kScores; ++j) Operands::keys(row[j], c, t, b[j]);
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int band = 0; band < S::kBands; ++band) {
            uint32_t q[4];
            take_query(band, 4 * c + k, q);
#pragma unroll
            for (int j = 0; j < S::kScores; ++j) mma_f16(x[band][j], q, b[j][k][0], b[j][k][1]);
          }
      }
    }
  }
  CARAT_D int scored(int band, int l) const { return first_pair + 16 * band + g + 8 * l; }
  // Products to scores; what a pair does not see is -inf. The largest of the tile to shared memory.
  CARAT_D void mask(int32_t tile, int32_t own, Scores& x) const {
    const int32_t begin = tile * kKvTile;
    const bool all = own < 0 && begin >= job.reach.all_from && begin + kKvTile - 1 <= job.reach.all_to;
    const float scale = a.scale * kLog2e;
#pragma unroll
    for (int band = 0; band < S::kBands; ++band)
#pragma unroll
      for (int l = 0; l < S::kLanes; ++l) {
        const Pair of = pairs[scored(band, l)];
        float most = -INFINITY;
#pragma unroll
        for (int j = 0; j < S::kScores; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& v = x[band][j][2 * l + i];
            v = a.softcap > 0 ? a.softcap * kLog2e * tanhf(v * (a.scale / a.softcap)) : v * scale;
            const int32_t p = begin + position(j, 2 * t + i);
            const bool seen = all || (p >= of.first && p <= of.last && (own < 0 || own == of.row));
            if (!seen) v = -INFINITY;
            most = fmaxf(most, v);
          }
        most = fmaxf(most, shuffle_xor(most, 1));
        most = fmaxf(most, shuffle_xor(most, 2));
        if (t == 0)
          reinterpret_cast<float*>(memory + S::kMostAt)[scored(band, l) * S::kSlices + slice] = most;
      }
  }
  // Where position i of sixteen stands among their weights.
  CARAT_D static int weight_column(int i) {
    if constexpr (S::kHalves) return i;
    if constexpr (S::kType == DType::tq3) return i % 8 / 2 * 2 + i / 8 + i % 2 * 8;  // 2t, 2t+8 | 2t+1, 2t+9
    return i % 4 * 2 + i / 4 % 2 + i / 8 * 8;                                        // t, t+4 | t+8, t+12
  }
  // Weights as halves to shared memory, and by how much what came before fades.
  CARAT_D void weigh(const Scores& x) {
#pragma unroll
    for (int band = 0; band < S::kBands; ++band)
#pragma unroll
      for (int l = 0; l < S::kLanes; ++l) {
        const int pair = scored(band, l);
        const float* most = reinterpret_cast<const float*>(memory + S::kMostAt) + pair * S::kSlices;
        float now = top[band][l];
#pragma unroll
        for (int w = 0; w < S::kSlices; ++w) now = fmaxf(now, most[w]);
        const float safe = now == -INFINITY ? 0 : now;
        if (slice == 0 && t == 0)
          reinterpret_cast<float*>(memory + S::kFadeAt)[pair] = exp2f(top[band][l] - safe);
        top[band][l] = now;
#pragma unroll
        for (int j = 0; j < S::kScores; ++j) {
          const uint32_t two =
              pack_halves(exp2f(x[band][j][2 * l] - safe), exp2f(x[band][j][2 * l + 1] - safe));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int p = position(j, 2 * t + i), column = p / 16 * 16 + weight_column(p % 16);
            *reinterpret_cast<uint16_t*>(memory + weight_at(pair, column / 8) + column % 8 * 2) =
                static_cast<uint16_t>(two >> 16 * i);
          }
        }
      }
  }
  CARAT_D void fade() {
    const auto* fades = reinterpret_cast<const float2*>(memory + S::kFadeAt);
#pragma unroll
    for (int e = 0; e < S::kEights; ++e) {
      const float2 f = fades[4 * e + t];
      if (e == warp % S::kEights) sum[0] *= f.x, sum[1] *= f.y;
#pragma unroll
      for (int n = 0; n < S::kColumns / 2; ++n)
        o[e][n][0] *= f.x, o[e][n][1] *= f.y, o[e][n][2] *= f.x, o[e][n][3] *= f.y;
    }
  }
  CARAT_D void add_values(const unsigned char* values) {
    constexpr uint32_t kOnes[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    fade();
#pragma unroll 1
    for (int k = 0; k < kKvTile / 16; k += 2) {  // two steps
      uint32_t p[S::kEights][4];
#pragma unroll
      for (int e = 0; e < S::kEights; ++e)
        load_matrices(p[e], base + weight_at(8 * e + lane % 8, 2 * k + lane / 8));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int e = 0; e < S::kEights; ++e)
          if (S::kEights == 1 || e == warp % S::kEights)
            mma_f16(sum, kOnes, p[e][2 * step], p[e][2 * step + 1]);
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
          Operands::values(values + row * S::kRow, warp, g, t, tables, b);
        }
#pragma unroll
        for (int n = 0; n < S::kColumns / 2; ++n) {
          const uint32_t v[4] = {b[2 * n][0], b[2 * n + 1][0], b[2 * n][1], b[2 * n + 1][1]};
#pragma unroll
          for (int e = 0; e < S::kEights; ++e) mma_f16(o[e][n], v, p[e][2 * step], p[e][2 * step + 1]);
        }
      }
    }
  }

  // Tiles from .. to of the positions: a segment.
  CARAT_D void walk(int32_t from, int32_t to) {
    if (threadIdx.x == 0) job.list = TileList(from, to, job.reach.settled, job.group.n);
    sync_block();
    find_pages();
    sync_block();
#pragma unroll
    for (int band = 0; band < S::kBands; ++band)
#pragma unroll
      for (int l = 0; l < S::kLanes; ++l) top[band][l] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0;
#pragma unroll
    for (int e = 0; e < S::kEights; ++e)
#pragma unroll
      for (int n = 0; n < S::kColumns / 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[e][n][i] = 0;
    // Unit u is at u % kUnits; the next ones are on their way. Units below 0 are none.
    const int32_t units = 2 * job.list.count;
    int at = 1, free = 0;  // of units u (if u >= 0) and u - 1 + kUnits
    const auto next = [](int i) { return i + 1 == S::kUnits ? 0 : i + 1; };
    Scores x;
#pragma unroll 1
    for (int32_t u = 1 - S::kUnits; u < units; ++u, at = next(at), free = next(free)) {
      const int32_t coming = u - 1 + S::kUnits;
      if (u >= 0) {
        if (u == 0) start(), take_queries();
        wait_copies<S::kUnits - 2>();
        sync_block();
      }
      if (!started && !settled(coming / 2)) start();
      fetch(coming, free);
      if (u < 0) continue;
      const int32_t i = u / 2, tile = job.list.tile(i);
      unsigned char* unit = memory + S::kRingAt + at * S::kTile;
      if (u % 2 == 0) {
#pragma unroll
        for (int band = 0; band < S::kBands; ++band)
#pragma unroll
          for (int j = 0; j < S::kScores; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) x[band][j][e] = 0;
        add_scores(unit, x);
        mask(tile, job.list.row(i), x);
        sync_block();
        weigh(x);
      } else {
        if (is_near(i) &&
            (tile * kKvTile < job.reach.first || tile * kKvTile + kKvTile - 1 > job.reach.last)) {
          clear_unseen(tile, unit);
          sync_block();
        }
        add_values(unit);
      }
    }
    wait_copies<0>();
    sync_block();
  }
  CARAT_D void run(int32_t k, int32_t length, int32_t segments) {
#pragma unroll 1
    for (int32_t n = job.reach.first / length + k; n <= job.reach.last / length; n += segments) {
      const int32_t begin = n * length, end = begin + length - 1;
      walk((begin < job.reach.first ? job.reach.first : begin) / kKvTile,
           (end > job.reach.last ? job.reach.last : end) / kKvTile);
      leave_segment(n, length, segments);
    }
  }
  // Where pair i leaves segment `segment`; null if it does not see it.
  CARAT_D float* left_by(int i, int32_t segment, int32_t length, int32_t segments) const {
    const Pair of = pairs[i];
    const int32_t k = segment - of.first / length;
    if (of.row < 0 || k < 0 || segment > of.last / length) return nullptr;
    return s->partial + partial_at(a, segments, job.group.m + of.row, of.head, k);
  }
  CARAT_D void leave_segment(int32_t segment, int32_t length, int32_t segments) const {
#pragma unroll
    for (int e = 0; e < S::kEights; ++e)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* to = left_by(8 * e + 2 * t + r, segment, length, segments);
        if (!to) continue;
        if (warp == e && g == 0) to[S::kDim + 1] = sum[r];
#pragma unroll
        for (int n = 0; n < S::kColumns / 2; ++n) {
          to[Operands::column(warp, 2 * n, g)] = o[e][n][r];
          to[Operands::column(warp, 2 * n + 1, g)] = o[e][n][2 + r];
        }
      }
    if (slice != 0 || t != 0) return;
#pragma unroll
    for (int band = 0; band < S::kBands; ++band)
#pragma unroll
      for (int l = 0; l < S::kLanes; ++l)
        if (float* to = left_by(scored(band, l), segment, length, segments)) to[S::kDim] = top[band][l];
  }
};

// Whether this task was the last of `of`: then all can read what the others left. The counter is zero again.
CARAT_D bool all_arrived(int32_t* counter, int32_t of, unsigned char* memory) {
  auto* last = reinterpret_cast<bool*>(memory);
  sync_block();
  if (threadIdx.x == 0) {
    *last = arrive(counter) == of - 1;
    if (*last) *counter = 0;
  }
  sync_block();
  const bool mine = *last;
  sync_block();
  return mine;
}

template <class S>
__global__ void __launch_bounds__(kFewThreads, S::kBlocks)
    few_attention(const AttentionPart given, const DevStep* s, const Tables* tables, RowSet set) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900  // whose tensor cores are known to sum without an order
  AttentionPart a = given;                           // with what the compiler knows
  a.kv.dim = S::kDim, a.kv.k_type = a.kv.v_type = S::kType, a.kv.k_row = a.kv.v_row = S::kRow;
  CARAT_SHARED(memory);
  bool started = false;
  const int32_t per = S::kPairs / a.width, groups = group_count(s, set, per), segments = s->segments[a.span];
  const auto tasks = static_cast<uint32_t>(groups * segments * a.kv.heads * a.chunks);
#pragma unroll 1
  for (uint32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const uint32_t nth = task / static_cast<uint32_t>(segments);
    const auto k = static_cast<int32_t>(task - nth * segments);
    const auto rest = static_cast<int32_t>(nth / static_cast<uint32_t>(groups)),
               which = static_cast<int32_t>(nth) - rest * groups;
    const RowGroup group = group_of(s, set, per, which);
    FewWalk<S> w(a, s, *tables, set, memory, started);
    int32_t length =
        segment_of(a.kv.window, pos_of(s, step_row(s, set, group.m)));  // no other row's is shorter
#pragma unroll 1
    while (length != INT32_MAX) {
      w.begin(group, rest / a.chunks, rest % a.chunks * a.width, length);
      w.run(k, length, segments);
      length = w.job.reach.longer;
    }
    w.start();
    if constexpr (S::kFolds) {
      if (a.folds && all_arrived(s->arrived + nth, segments, memory)) {
        // Both halves of the block, as often as each other.
        const int32_t kv = rest / a.chunks, from = rest % a.chunks * a.width, head = kv * a.group + from,
                      heads = a.group - from < a.width ? a.group - from : a.width, n = group.n * heads;
        constexpr int kHalf = kFewThreads / 2;
        const int half = threadIdx.x / kHalf;
#pragma unroll 1
        for (int32_t i = half; i < n + half; i += 2) {
          const int32_t of = i < n ? i : n - 1;
          fold_segments<kHalf, S::kDim, 18, false>(a, s, *tables, set, group.m + of / heads,
                                                   head + of % heads, segments,
                                                   memory + half * fold_bytes(S::kDim), threadIdx.x % kHalf);
        }
      }
    }
  }
#endif
}

// Whether the kernel above does anything here.
template <class S>
bool serves(const Context& c) {
  return S::kBytes <= c.launcher.shared && c.launcher.major == 9 && compiled_for(few_attention<S>) == 90;
}
template <class S>
void run_few(const Context& c, const AttentionPart& a, RowSet set) {
  launch(c.launcher, "attention", few_attention<S>, dim3(static_cast<unsigned>(S::kBlocks * c.launcher.sms)),
         kFewThreads, static_cast<size_t>(S::kBytes), a, c.step, c.tables, set);
}

}  // namespace carat::cuda
