// Attention of a single row over many cached positions, in heads of 512: four warps take keys, four values, a
// tile behind them, with one barrier a tile, and two blocks share an SM. A warp for keys has sixteen
// positions of a tile; its scores go to shared memory as they are. Loops stay loops, so that the code of both
// fits where instructions are kept. Every warp for values makes weights of all of them by itself: it needs
// them in the lanes that have its values. Single copies of K = V are read once for both.
#pragma once
#include "cuda/attention/single/operands_long.cuh"
#include "cuda/attention/single/single.cuh"

namespace carat::cuda {

template <class S>
struct LongWalk;

// UNITS of keys or values in shared memory; ONE_COPY: of values and the keys behind them.
template <DType T, int UNITS, int BLOCKS = 2, bool ONE_COPY = false>
struct LongShape {
  using Operands = LongOperands<T>;
  using KeyOperands = LongOperands<T, ONE_COPY ? kKeyColumns : 512>;
  using Walk = LongWalk<LongShape>;
  static constexpr DType kType = T;
  static constexpr bool kHalves = false, kFolds = false, kBeside = false, kLong = true, kOneCopy = ONE_COPY;
  static constexpr int kDim = 512, kQueries = kDim + (ONE_COPY ? kKeyColumns : 0), kRow = Operands::kRow,
                       kKeyRow = KeyOperands::kRow, kTile = kKvTile * kRow, kKeyTile = kKvTile * kKeyRow,
                       kUnit = kTile + (ONE_COPY ? kKeyTile : 0), kUnits = UNITS, kBlocks = BLOCKS,
                       kThreads = kSingleThreads, kKeyWarps = kSingleWarps / 2,
                       kRegisters = registers_for(BLOCKS);
  static constexpr int kColumns = 16;  // eights of columns a warp
  static constexpr int kHeads = kSingleHeads;
  // Scores of the tile that is multiplied and of the next; angles stand where they come.
  static constexpr int kScoreBytes = kSingleHeads * kKvTile * 4, kAnglesAt = 0, kQueryAt = 2 * kScoreBytes,
                       kPagesAt = kQueryAt + kSingleHeads * kQueries * 2, kUnitsAt = kPagesAt + 64 * 4,
                       kPlaceAt = kUnitsAt + 128 * 8, kRingAt = kPlaceAt + 128,
                       kBytes = kRingAt + UNITS * kUnit + 16;  // words are read up to 4 bytes behind a row
  static_assert(UNITS >= (ONE_COPY ? 3 : 4) && kDim * 4 <= kQueryAt);
};

template <class S>
struct LongWalk : SingleWalk<S> {
  using Base = SingleWalk<S>;
  using Base::a, Base::s, Base::memory, Base::place, Base::grid, Base::lane, Base::g, Base::t, Base::warp,
      Base::o, Base::sum, Base::top;
  using typename Base::Operands;
  const bool for_keys = warp < S::kKeyWarps;
  const int share = warp % S::kKeyWarps;  // of a tile's positions, or of the columns

  using Base::Base;

  // ---- keys
  // Where the score of a head and a position stands: four of a lane's together.
  CARAT_D float* score(int32_t tile, int head, int position) const {
    const int unit = (position / 16 * 4 + Operands::lane_of(position % 16)) ^ head % 2 * 4;
    return reinterpret_cast<float*>(memory + (tile & 1) * S::kScoreBytes) + head * kKvTile + 4 * unit +
           Operands::place_of(position % 16);
  }
  CARAT_D void put_scores(int32_t tile, const float (&x)[4]) const {
    const float scale = a.scale * kLog2e;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = Operands::position(share, g, i / 2);
      const int32_t p = tile * kKvTile + position;
      const float v = a.softcap > 0 ? a.softcap * kLog2e * tanhf(x[i] * (a.scale / a.softcap)) : x[i] * scale;
      *score(tile, 2 * t + i % 2, position) = p < place.first || p > place.last ? -INFINITY : v;
    }
  }
  // keys: COLUMNS of 64 positions, which meet the queries' from `first` on.
  template <class Keys, int COLUMNS>
  CARAT_D void add_scores(const unsigned char* keys, int first, float (&x)[4]) const {
    const typename Keys::Rows rows(keys, share, g, grid);
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
      add_scores<Operands, S::kDim>(unit_at(i), 0, x);
      add_scores<typename S::KeyOperands, kKeyColumns>(unit_at(i) + S::kTile, S::kDim, x);
    } else {
      add_scores<Operands, S::kDim>(unit_at(2 * i), 0, x);
    }
  }

  // ---- values
  CARAT_D void take_weights(int32_t tile, uint32_t (&p)[kKvTile / 16][2]) {
    float x[kKvTile / 16][4], most = top;
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k) {
      const int unit = (4 * k + t) ^ g % 2 * 4;
      const float4 four = *reinterpret_cast<const float4*>(memory + (tile & 1) * S::kScoreBytes +
                                                           g * kKvTile * 4 + unit * 16);
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
  CARAT_D void add_values(int32_t tile, const unsigned char* values) {
    constexpr uint32_t kOnes[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    constexpr int kSteps = kKvTile / 16;
    uint32_t p[kSteps][2];
    take_weights(tile, p);
#pragma unroll 1
    for (int k = 0; k < kSteps; ++k) {
      const uint32_t now[2] = {p[0][0], p[0][1]};
      mma_f16(sum, kOnes, now[0], now[1]);
      Operands::values(values + 16 * k * S::kRow, share, g, t, grid,
                       [&](int n, const uint32_t(&v)[4]) { mma_f16(o[n], v, now[0], now[1]); });
#pragma unroll
      for (int i = 0; i + 1 < kSteps; ++i) p[i][0] = p[i + 1][0], p[i][1] = p[i + 1][1];
    }
  }

  // ---- a segment
  // Unit u is at u % kUnits: keys of tile i are unit 2 i, values unit 2 i + 1; of single copies both are unit
  // i. In turn i keys of tile i and values of tile i - 1 are multiplied.
  CARAT_D static int slot(int unit) { return unit % S::kUnits; }
  CARAT_D unsigned char* unit_at(int unit) const { return memory + S::kRingAt + slot(unit) * S::kUnit; }
  CARAT_D unsigned char* values_at(int32_t i) const { return unit_at(S::kOneCopy ? i : 2 * i + 1); }
  // Where in the cache: not to be found again in every turn.
  CARAT_D void find_units() const {
    const int unit = static_cast<int>(threadIdx.x);
    if (unit < 2 * place.whole) units()[unit] = this->unit_in_cache(unit);
  }
  CARAT_D const uint8_t** units() const { return reinterpret_cast<const uint8_t**>(memory + S::kUnitsAt); }
  CARAT_D void fetch_next(int32_t unit) {
    if (unit / 2 >= place.whole) return this->fetch(unit, slot(unit));
    copy_tile<S::kTile>(units()[unit], unit_at(unit));
    commit_copies();
  }
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
  CARAT_D void fetch_copy(int32_t i) {
    unsigned char* into = unit_at(i);
    if (i < place.whole) {
      copy_tile<S::kTile>(units()[2 * i + 1], into);
      copy_tile<S::kKeyTile>(units()[2 * i], into + S::kTile);
    } else if (i < place.count) {
      this->template copy_rows<S::kRow>(place.from + i, true, into);
      this->template copy_rows<S::kKeyRow>(place.from + i, false, into + S::kTile);
    }
    commit_copies();
  }
  // The first units, as SingleWalk::fill() of a row that has been prepared.
  CARAT_D void fill_copies() {
    int32_t i = 0;
    if (!this->started)
#pragma unroll 1
      for (; i < S::kUnits && i < place.count && this->settled(i); ++i) fetch_copy(i);
    this->start();
#pragma unroll 1
    for (; i < S::kUnits; ++i) fetch_copy(i);
    this->heads().split();
    wait_copies<S::kUnits - 1>();
  }
  CARAT_D void begin_turn(int32_t i) {
    if constexpr (S::kOneCopy) {
      if (i > 1) fetch_copy(i - 2 + S::kUnits);
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
    if constexpr (S::kOneCopy) {
      sync_block();
      fill_copies();
    } else {
      this->fill();
    }
    this->clear();
    sync_block();
    const int32_t count = place.count;
    if (for_keys) {
#pragma unroll 1
      for (int32_t i = 0; i <= count; ++i) {
        begin_turn(i);
        if (i < count) {
          float x[4] = {0, 0, 0, 0};
          add_keys(i, x);
          put_scores(place.from + i, x);
        }
        end_turn(i);
      }
    } else {
#pragma unroll 1
      for (int32_t i = 0; i <= count; ++i) {
        begin_turn(i);
        if (i > 0) add_values(place.from + i - 1, values_at(i - 1));
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
