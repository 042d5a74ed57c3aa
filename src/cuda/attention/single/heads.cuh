// What a task of a single row's attention makes before it reads the cache: its queries, out of the products'
// or out of QkvPrep's; where the row's own position is, the row's key and value, too, which it stores. A warp
// a head; whatever the step alone says is there before the inputs are.
#pragma once
#include "cuda/attention/copies.cuh"
#include "cuda/attention/prep.cuh"

namespace carat::cuda {

// QkvPrep of a single row; all null: it has been done. k, v null: what is stored is not this operation's.
struct RowPrep {
  const float *k = nullptr, *v = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  Rope rope;
  float eps = 0;
  bool v_norm = false, turns = false;  // turns: queries come into the domain of the cache
};

// What the threads of a block do together, in shared memory: it is not needed often.
struct SinglePlace {
  const SeqView* seq;
  int32_t m, row, kv_head;     // m: the row's number in its set
  int32_t first, last;         // positions the row sees
  int32_t from, whole, count;  // tiles; the first `whole` lie in one piece
  // A window that begins and ends within tiles: the last tile's rows behind this one are those of the tile
  // that the window begins in, and heads stand twice, for the rows of either. -1: they do not.
  int32_t joined;
};

// Rows of 16-byte units: those of eight rows with one number lie in different banks.
template <int DIM>
CARAT_D int unit_of_halves(int row, int unit) {
  return row * DIM * 2 + (unit ^ row % 8) * 16;
}

template <class S>
struct RowHeads {
  static constexpr int kEach = S::kDim / 32, kWarps = S::kThreads / 32;
  const AttentionPart& a;
  const RowPrep& prep;
  const DevStep* s;
  const Tables& tables;
  const SinglePlace& place;
  unsigned char* memory;

  CARAT_D float2* angles() const { return reinterpret_cast<float2*>(memory + S::kAnglesAt); }
  // What the weights say and each of these waits for in turn, on its way: a warp each, a lane a line.
  CARAT_D static void fetch_weights(const RowPrep& prep, const Tables& tables) {
    const int warp = threadIdx.x / 32, at = static_cast<int>(threadIdx.x) % 32 * 32;
    const float* from = warp == 0                                                    ? prep.rope.freq
                        : warp == 1                                                  ? prep.k_norm
                        : warp == 2                                                  ? prep.q_norm
                        : warp == 3 && device_rotation(S::kType) != KvRotation::none ? tables.sign
                                                                                     : nullptr;
    if (from && at < (warp == 0 ? prep.rope.pairs : S::kDim)) fetch_near(from + at);
  }
  // By the block: each angle once.
  CARAT_D void find_angles(int32_t pos) const {
    const int i = threadIdx.x;
    if (i < prep.rope.pairs) angles()[i] = angle_of(s, prep.rope, 0, pos, i);
  }
  // Whether the row's own position is in the task, and its key and value are this operation's.
  CARAT_D bool has_own() const { return prep.k && place.last < (place.from + place.count) * kKvTile; }

  // Columns of the products: heads, twice where tiles are joined.
  CARAT_D int columns() const { return place.joined >= 0 ? 2 * a.group : a.group; }

  // Where a column of a query stands. Of packed formats in short walks every sixteen columns stand so that
  // lane t gets columns 4 t to 4 t + 3.
  CARAT_D static int query_at(int head, int column) {
    if constexpr (S::kHalves || S::kLong)
      return S::kQueryAt + unit_of_halves<S::kQueries>(head, column / 8) + column % 8 * 2;
    const int i = column % 16;
    return S::kQueryAt + unit_of_halves<S::kDim>(head, column / 16 * 2 + i / 2 % 2) + i / 4 * 4 + i % 2 * 2;
  }

  // own: the row's place in the last tile, if that is in one piece; `tiles`: keys and values by turns, of
  // which `asked` are in shared memory or on their way there, but for that row. start(): waits for inputs.
  template <class Start>
  CARAT_D void make(bool has, int own, unsigned char* tiles, int32_t asked, Start start) const {
    const int thread = kept_here(threadIdx.x) & (S::kThreads - 1), warp = thread / 32;
    const Rotation<kEach> rotation(prep.turns ? device_rotation(S::kType) : KvRotation::none, false, S::kDim,
                                   tables, thread % 32);
    const float level = has ? level_of(S::kType, tables, thread % 32) : 0;
    clear_queries(warp, thread % 32);
    // Key and value first: they take longest, and more queries than warps have to wait for somebody.
    constexpr int kKey = -2, kValue = -1;
#pragma unroll 1
    for (int job = warp + (has ? kKey : 0); job < a.group; job += kWarps) {
      const int lane = kept_here(thread) & 31;
      const bool is_q = job >= 0, is_v = job == kValue;
      const float* weight = is_q ? prep.q_norm : is_v ? nullptr : prep.k_norm;
      float w[kEach], x[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) w[k] = weight ? weight[lane + 32 * k] : 1;
      uint8_t* stored = nullptr;
      unsigned char* tile = nullptr;
      if (!is_q) {
        const int32_t unit = 2 * (place.count - 1) + is_v;
        stored = tile_of(is_v, place.last) + place.last % kKvTile * S::kRow;
        if (own >= 0 && unit < asked) tile = tiles + unit * S::kTile, fetch_around(own, is_v, tile, lane);
      }
      start();
      const float* from = is_q ? row_of<const float>(a.q, place.m) + (place.kv_head * a.group + job) * S::kDim
                               : (is_v ? prep.v : prep.k) + place.kv_head * S::kDim;
      load_head(from, S::kDim, lane, x);
      norm_head(is_v ? prep.v_norm : weight != nullptr, w, prep.eps, S::kDim, lane, x);
      if (!is_v) rope(x, lane);
      rotation.turn(x, lane);
      if (is_q) {
        for (int head = job; head < columns(); head += a.group) put_query(head, x, lane);
      } else {
        put_own(own, is_v, x, stored, tile, level, lane);
      }
    }
    start();
  }

  // Over single copies of K = V: what meets the values, and behind it what meets the keys.
  CARAT_D void split() const {
    const int thread = threadIdx.x, warp = thread / 32;
    clear_queries(warp, thread % 32);
#pragma unroll 1
    for (int job = warp; job < a.group; job += kWarps) {
      const QuerySplit<kEach, (S::kQueries - S::kDim) / 32> split(a, tables, kept_here(thread) & 31);
      split.run(
          row_of<const float>(a.q, place.m) + (place.kv_head * a.group + job) * S::kDim,
          [&](int32_t i, float x) { put(job, i, x); }, [&](int32_t i, float x) { put(job, S::kDim + i, x); });
    }
  }

 private:
  // In the cache, the tile of a position: a step's only row stands at its position, which is the last it
  // sees. (A page that is shorter than a tile: as if it went on.)
  CARAT_D uint8_t* tile_of(bool values, int32_t slot) const {
    const int64_t at = (int64_t{place.kv_head} * a.kv.page_tokens + a.kv.in_page(slot)) * S::kRow;
    return (values ? a.kv.v : a.kv.k) +
           page_of(a.kv, *place.seq, slot) * (values ? a.kv.v_page_bytes : a.kv.k_page_bytes) + at -
           slot % kKvTile * S::kRow;
  }
  // Zeros behind the last head.
  CARAT_D void clear_queries(int warp, int lane) const {
    for (int head = warp; head < S::kHeads; head += kWarps)
      if (head >= columns())
        for (int unit = lane; unit < S::kQueries / 8; unit += 32)
          *reinterpret_cast<uint4*>(memory + S::kQueryAt + unit_of_halves<S::kQueries>(head, unit)) =
              uint4{0, 0, 0, 0};
  }
  CARAT_D void rope(float (&x)[kEach], int lane) const {
    if (prep.rope.offset == S::kDim / 2) {
#pragma unroll
      for (int k = 0; k < kEach / 2; ++k)
        if (lane + 32 * k < prep.rope.pairs) turn_pair(angles()[lane + 32 * k], x[k], x[k + kEach / 2]);
    } else if (lane < prep.rope.pairs) {  // of 32
      turn_pair(angles()[lane], x[0], x[1]);
    }
  }
  CARAT_D void put(int head, int column, float x) const {
    *reinterpret_cast<uint16_t*>(memory + query_at(head, column)) = static_cast<uint16_t>(pack_halves(x, 0));
  }
  CARAT_D void put_query(int head, const float (&x)[kEach], int lane) const {
#pragma unroll
    for (int k = 0; k < kEach; ++k) put(head, lane + 32 * k, x[k]);
  }
  // Rows that do not fill units: what the walk left out has bytes of the rows beside it.
  CARAT_D void fetch_around(int own, bool values, unsigned char* tile, int lane) const {
    if constexpr (S::kRow % 16 != 0) {
      const int unit = own * S::kRow / 16 + lane, end = (own + 1) * S::kRow;
      if (16 * unit >= end) return;
      const bool joined = place.joined >= 0 && 16 * unit + 16 > end;
      copy16_async(shared_address(tile) + 16 * unit,
                   tile_of(values, joined ? place.first : place.last) + 16 * unit);
      commit_copies();
    }
  }
  CARAT_D void put_own(int own, bool is_v, float (&x)[kEach], uint8_t* stored, unsigned char* tile,
                       float level, int lane) const {
    auto* to = reinterpret_cast<uint16_t*>(stored);
    if constexpr (S::kHalves) {
      uint16_t half[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) to[lane + 32 * k] = half[k] = stored_half(x[k]);
      if (!tile) return;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        unsigned char* at = tile + unit_of_halves<S::kDim>(own, lane / 8 + 4 * k) + lane % 8 * 2;
        *reinterpret_cast<uint16_t*>(at) = half[k];
      }
    } else if constexpr (S::kType == DType::q8_0 || S::kType == DType::kv4) {
      CARAT_STATIC_SHARED float heads[2][S::kDim];
      float* const head = heads[is_v];
#pragma unroll
      for (int k = 0; k < kEach; ++k) head[lane + 32 * k] = x[k];
      sync_warp();
      encode_blocks<S::kType>(head, S::kDim, tile ? tile + own * S::kRow : stored, tile ? stored : nullptr,
                              lane);
    } else {
      static_assert(S::kType == DType::tq3);
      wait_copies<0>();
      sync_warp();
      uint8_t* const row = tile ? tile + own * S::kRow : stored;
      encode_tq3(RegisterHead<kEach>{x}, row, S::kDim, level, lane);
      if (!tile) return;
      sync_warp();
#pragma unroll 1
      for (int i = lane; i < S::kRow / 2; i += 32) to[i] = reinterpret_cast<const uint16_t*>(row)[i];
    }
  }
};

}  // namespace carat::cuda
