// Attention of a single row over many cached positions, in heads of 512: four warps take keys, four values, a
// tile behind them, with one barrier a tile, and two blocks share an SM. A warp for keys has sixteen
// positions of a tile; its scores go to shared memory as they are. Loops stay loops, so that the code of both
// fits where instructions are kept. Every warp for values makes weights of all of them by itself: it needs
// them in the lanes that have its values. Single copies of K = V are read once for both. Where rows are
// protected, a tile that has some is taken twice in its turn, as CopyList says.
#pragma once
#include "cuda/attention/single/operands_long.cuh"
#include "cuda/attention/single/second.cuh"
#include "cuda/attention/single/single.cuh"

namespace carat::cuda {

template <class S>
struct LongWalk;

// K, V: types of keys and values. UNITS of either in shared memory; ONE_COPY: of values and the keys behind
// them. PROTECTS: rows.
template <DType K, DType V, int UNITS, int BLOCKS = 2, bool ONE_COPY = false, bool PROTECTS = false>
struct LongShape {
  using Operands = LongOperands<V>;
  using KeyOperands = LongOperands<K, ONE_COPY ? kKeyColumns : 512>;
  using Walk = LongWalk<LongShape>;
  static constexpr DType kType = V, kKeyType = K;
  static constexpr bool kHalves = false, kFolds = false, kBeside = false, kLong = true, kOneCopy = ONE_COPY,
                        kProtects = PROTECTS;
  static constexpr int kDim = 512, kQueries = kDim + (ONE_COPY ? kKeyColumns : 0), kRow = Operands::kRow,
                       kKeyRow = KeyOperands::kRow, kTile = kKvTile * kRow, kKeyTile = kKvTile * kKeyRow,
                       kPair = kKeyTile + kTile, kUnits = UNITS, kBlocks = BLOCKS, kThreads = kSingleThreads,
                       kKeyWarps = kSingleWarps / 2, kRegisters = registers_for(BLOCKS);
  static constexpr int kColumns = 16;  // eights of columns a warp
  static constexpr int kHeads = kSingleHeads;
  // Scores of the tile that is multiplied and of the next; angles stand where they come. Words are read up to
  // 4 bytes behind a row.
  static constexpr int kScoreBytes = kSingleHeads * kKvTile * 4, kAnglesAt = 0, kQueryAt = 2 * kScoreBytes,
                       kPagesAt = kQueryAt + kSingleHeads * kQueries * 2, kUnitsAt = kPagesAt + 64 * 4,
                       kPlaceAt = kUnitsAt + 128 * 8, kRingAt = kPlaceAt + 128,
                       kRingBytes = ONE_COPY ? UNITS * kPair : UNITS / 2 * kPair + UNITS % 2 * kTile,
                       kSecondAt = kRingAt + kRingBytes + 16,
                       kBytes = kSecondAt + (PROTECTS ? 2 * kScoreBytes : 0);
  static constexpr bool kPrepares = K == V && !ONE_COPY && !PROTECTS;  // the row, if that is to be done
  static_assert(UNITS >= (ONE_COPY ? 3 : 4) && kDim * 4 <= kQueryAt);
  static_assert(K == V || (!ONE_COPY && UNITS % 2 == 0));
};

template <class S>
struct LongWalk : SingleWalk<S> {
  using Base = SingleWalk<S>;
  using Base::a, Base::s, Base::memory, Base::place, Base::grid, Base::lane, Base::g, Base::t, Base::warp,
      Base::o, Base::sum, Base::top;
  using typename Base::Operands;
  using Keys = typename S::KeyOperands;
  const bool for_keys = warp < S::kKeyWarps;
  const int share = warp % S::kKeyWarps;  // of a tile's positions, or of the columns

  using Base::Base;

  // ---- keys
  // Where a tile's scores stand; those of what is read of second copies apart.
  CARAT_D unsigned char* scores_of(int32_t tile, bool second) const {
    return memory + (second ? S::kSecondAt : 0) + (tile & 1) * S::kScoreBytes;
  }
  // Of a head and a position: four of a lane's together.
  CARAT_D float* score(unsigned char* scores, int head, int position) const {
    const int unit = (position / 16 * 4 + Operands::lane_of(position % 16)) ^ head % 2 * 4;
    return reinterpret_cast<float*>(scores) + head * kKvTile + 4 * unit + Operands::place_of(position % 16);
  }
  CARAT_D void put_scores(int32_t tile, bool second, const float (&x)[4]) const {
    const float scale = a.scale * kLog2e;
    unsigned char* to = scores_of(tile, second);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = Keys::position(share, g, i / 2);
      const int32_t p = tile * kKvTile + position;
      const float v = a.softcap > 0 ? a.softcap * kLog2e * tanhf(x[i] * (a.scale / a.softcap)) : x[i] * scale;
      bool seen = p >= place.first && p <= place.last;
      if constexpr (S::kProtects) seen = seen && a.copies.protect.covers(place.last, p) == second;
      *score(to, 2 * t + i % 2, position) = seen ? v : -INFINITY;
    }
  }
  // rows: COLUMNS of 64 positions, which meet the queries' from `first` on.
  template <int COLUMNS, class Rows>
  CARAT_D void add_scores(const Rows& rows, int first, float (&x)[4]) const {
#pragma unroll 1
    for (int c = 0; c < COLUMNS / 64; ++c) {
      uint32_t k[4][4];
      rows.keys(c, t, k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto* query = memory + RowHeads<S>::query_at(g, first + 64 * c + 16 * i + 4 * t);
        const uint2 four = *reinterpret_cast<const uint2*>(query);
        mma_f16(x, k[i], four.x, four.y);
      }
    }
  }
  CARAT_D void add_keys(int32_t i, float (&x)[4]) const {
    if constexpr (S::kOneCopy) {
      add_scores<S::kDim>(typename Operands::Rows(unit_at(i), share, g, grid), 0, x);
      add_scores<kKeyColumns>(typename Keys::Rows(unit_at(i) + S::kTile, share, g, grid), S::kDim, x);
    } else {
      add_scores<S::kDim>(typename Keys::Rows(unit_at(2 * i), share, g, grid), 0, x);
    }
  }
  CARAT_D bool has_second(int32_t tile) const {
    return S::kProtects && protects_some(a.copies.protect, tile, place.last);
  }
  CARAT_D void add_second_keys(int32_t tile, float (&x)[4]) const {
    const auto rows = [&](bool values) {
      const auto row = [&](int which) {
        return second_row(a, s, place, tile * kKvTile + Keys::position(share, g, which), values);
      };
      return SecondRows{{row(0), row(1)}};
    };
    add_scores<S::kDim>(rows(S::kOneCopy), 0, x);
    if constexpr (S::kOneCopy) add_scores<kKeyColumns>(rows(false), S::kDim, x);
  }
  CARAT_D void score_tile(int32_t i) const {
    const int32_t tile = place.from + i;
    float x[4] = {0, 0, 0, 0};
    add_keys(i, x);
    put_scores(tile, false, x);
    if (!has_second(tile)) return;
    float y[4] = {0, 0, 0, 0};
    add_second_keys(tile, y);
    put_scores(tile, true, y);
  }

  // ---- values
  CARAT_D void take_weights(const unsigned char* scores, uint32_t (&p)[kKvTile / 16][2]) {
    float x[kKvTile / 16][4], most = top;
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k) {
      const int unit = (4 * k + t) ^ g % 2 * 4;
      const float4 four = *reinterpret_cast<const float4*>(scores + g * kKvTile * 4 + unit * 16);
      x[k][0] = four.x, x[k][1] = four.y, x[k][2] = four.z, x[k][3] = four.w;
#pragma unroll
      for (int i = 0; i < 4; ++i) most = fmaxf(most, x[k][i]);
    }
    most = fmaxf(most, shuffle_xor(most, 1));
    most = fmaxf(most, shuffle_xor(most, 2));
    const float safe = most == -INFINITY ? 0 : most, fade = exp2f(top - safe);
    top = most;
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        p[k][h] = pack_halves(exp2_flushed(x[k][2 * h] - safe), exp2_flushed(x[k][2 * h + 1] - safe));
    const float f[2] = {shuffle(fade, 8 * t), shuffle(fade, 8 * t + 4)};
#pragma unroll
    for (int i = 0; i < 2; ++i) sum[i] *= f[i];
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] *= f[i % 2];
  }
  // each(k, f): f(n, v) of the values at positions 16 k of a tile.
  template <class Each>
  CARAT_D void weigh_values(const unsigned char* scores, Each each) {
    constexpr uint32_t kOnes[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    constexpr int kSteps = kKvTile / 16;
    uint32_t p[kSteps][2];
    take_weights(scores, p);
#pragma unroll 1
    for (int k = 0; k < kSteps; ++k) {
      const uint32_t now[2] = {p[0][0], p[0][1]};
      mma_f16(sum, kOnes, now[0], now[1]);
      each(k, [&](int n, const uint32_t(&v)[4]) { mma_f16(o[n], v, now[0], now[1]); });
#pragma unroll
      for (int i = 0; i + 1 < kSteps; ++i) p[i][0] = p[i + 1][0], p[i][1] = p[i + 1][1];
    }
  }
  CARAT_D void add_values(int32_t i) {
    const int32_t tile = place.from + i;
    const unsigned char* values = values_at(i);
    weigh_values(scores_of(tile, false), [&](int k, const auto& multiply) {
      Operands::values(values + 16 * k * S::kRow, share, g, t, grid, multiply);
    });
    if (!has_second(tile)) return;
    weigh_values(scores_of(tile, true), [&](int k, const auto& multiply) {
      second_values<Operands>(a, s, place, tile * kKvTile + 16 * k, share, g, t, multiply);
    });
  }

  // ---- a segment
  // Unit u is at u % kUnits: keys of tile i are unit 2 i, values unit 2 i + 1; of single copies both are unit
  // i. In turn i keys of tile i and values of tile i - 1 are multiplied.
  CARAT_D unsigned char* unit_at(int unit) const {
    const int at = unit % S::kUnits;
    return memory + S::kRingAt + (S::kOneCopy ? at * S::kPair : at / 2 * S::kPair + at % 2 * S::kKeyTile);
  }
  CARAT_D unsigned char* values_at(int32_t i) const { return unit_at(S::kOneCopy ? i : 2 * i + 1); }
  CARAT_D static int32_t tile_of(int32_t unit) { return S::kOneCopy ? unit : unit / 2; }
  // Where in the cache: not to be found again in every turn.
  CARAT_D void find_units() const {
    const int unit = static_cast<int>(threadIdx.x);
    if (unit < 2 * place.whole) units()[unit] = this->unit_in_cache(unit);
  }
  CARAT_D const uint8_t** units() const { return reinterpret_cast<const uint8_t**>(memory + S::kUnitsAt); }
  template <int BYTES>
  CARAT_D static void copy_tile(const uint8_t* tile, unsigned char* into) {
    constexpr int kAll = BYTES / 16;
    const int thread = threadIdx.x;
    const uint8_t* from = tile + 16 * thread;
    const SharedAddress to = shared_address(into) + 16 * thread;
#pragma unroll
    for (int i = 0; i < kAll; i += S::kThreads)
      if (i + S::kThreads <= kAll || thread < kAll - i) copy16_async(to + 16 * i, from + 16 * i);
  }
  CARAT_D void copy_values(int32_t i, unsigned char* into) {
    if (i < place.whole)
      copy_tile<S::kTile>(units()[2 * i + 1], into);
    else if (i < place.count)
      this->template copy_rows<S::kRow>(place.from + i, true, into);
  }
  CARAT_D void copy_keys(int32_t i, unsigned char* into) {
    if (i < place.whole)
      copy_tile<S::kKeyTile>(units()[2 * i], into);
    else if (i < place.count)
      this->template copy_rows<S::kKeyRow>(place.from + i, false, into);
  }
  CARAT_D void fetch_next(int32_t unit) {
    unsigned char* into = unit_at(unit);
    const int32_t i = tile_of(unit);
    if constexpr (S::kOneCopy) {
      copy_values(i, into), copy_keys(i, into + S::kTile);
    } else if (S::kKeyType == S::kType && i < place.whole) {
      copy_tile<S::kTile>(units()[unit], into);
    } else if (unit % 2) {
      copy_values(i, into);
    } else {
      copy_keys(i, into);
    }
    commit_copies();
  }
  // The first units, as SingleWalk::fill() of a row that has been prepared.
  CARAT_D void fill_prepared() {
    int32_t unit = 0;
    const auto there = [&] { return tile_of(unit) < place.count && this->settled(tile_of(unit)); };
    if (!this->started)
#pragma unroll 1
      for (; unit < S::kUnits && there(); ++unit) fetch_next(unit);
    this->start();
#pragma unroll 1
    for (; unit < S::kUnits; ++unit) fetch_next(unit);
    if constexpr (S::kOneCopy)
      this->heads().split();
    else
      this->heads().make(false, -1, nullptr, 0, [] {});
    wait_copies<S::kUnits - 1>();
  }
  CARAT_D void begin_turn(int32_t i) {
    if constexpr (S::kOneCopy) {
      if (i > 1) fetch_next(i - 2 + S::kUnits);
    } else {
      if (i > 1) fetch_next(2 * i - 3 + S::kUnits);
      if (i > 0) fetch_next(2 * i - 2 + S::kUnits);
    }
  }
  CARAT_D void end_turn(int32_t i) {
    wait_copies<S::kOneCopy ? S::kUnits - 3 : S::kUnits - 4>();
    sync_block();
    if (i >= place.count || !this->at_an_end(i)) return;
    this->clear_unseen(place.from + i, values_at(i));
    sync_block();
  }
  CARAT_D void walk() {
    find_units();
    if constexpr (S::kPrepares) {
      this->fill();
    } else {
      sync_block();
      fill_prepared();
    }
    this->clear();
    sync_block();
    const int32_t count = place.count;
    if (for_keys) {
#pragma unroll 1
      for (int32_t i = 0; i <= count; ++i) {
        begin_turn(i);
        if (i < count) score_tile(i);
        end_turn(i);
      }
    } else {
#pragma unroll 1
      for (int32_t i = 0; i <= count; ++i) {
        begin_turn(i);
        if (i > 0) add_values(i - 1);
        end_turn(i);
      }
    }
    wait_copies<0>();
  }
  CARAT_D void run(RowSet set, int32_t kv_head, int32_t k, const SegmentTasks& all) {
    if (!this->find_place(set, kv_head, k, all)) return;
    walk();
    if (for_keys) return;
    const int64_t pitch = int64_t{all.segments} * (S::kDim + 2);
    float* to = s->partial + partial_at(a, all.segments, 0, kv_head * a.group, k);
    if (share == 0 && t == 0 && g < a.group) to[g * pitch + S::kDim] = top;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = 2 * t + r;
      if (head >= a.group) continue;
      if (share == 0 && g == 0) to[head * pitch + S::kDim + 1] = sum[r];
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n)
        to[head * pitch + Operands::column(share, n, g)] = o[n / 2][n % 2 * 2 + r];
    }
  }
};

}  // namespace carat::cuda
