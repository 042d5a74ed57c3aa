// Attention of prompts on cards without warpgroups: the tasks of prompts/prompts.cuh, their two
// tiles of 64 positions at a time, and their bits, by eight warps with mma.sync. A warp has 32 pairs of a row
// and a query head, so that what it reads of keys and values serves two products: of both tiles' scores its
// share of the positions, then of both tiles' values its share of the columns.
#pragma once
#include "cuda/attention/prompts/pieces.cuh"

namespace carat::cuda {

template <class S>
struct WarpsWalk : WarpsPieces<S> {
  using Pieces = WarpsPieces<S>;
  using Round = PromptRound<S>;
  using Pieces::a, Pieces::s, Pieces::set, Pieces::memory, Pieces::base, Pieces::p, Pieces::pairs;
  using Pieces::lane, Pieces::g, Pieces::t, Pieces::band, Pieces::share, Pieces::next_piece;
  // Of pairs 8 k + g of the band: sums of the row so far; where segments are long, of the segment.
  float o[2][S::kValuePieces][S::kColumns][4], sum[2][4];
  // Of the band's pair `lane`: its largest score in the segment, the same and the sum of all segments before.
  float top, total_top, total_sum;

  CARAT_D WarpsWalk(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                    unsigned char* shared)
      : Pieces(args, step, all, rows, shared) {}

  CARAT_D const Pair& pair(int k) const { return pairs[32 * band + 8 * k + g]; }
  CARAT_D float* tops(int at) const {
    return reinterpret_cast<float*>(memory + S::kMost) + (32 * band + at) * S::kShare;
  }

  // ---- scores
  using Scores = float[2][S::kEights][4];
  CARAT_D void scores(Scores& x) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < S::kEights; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[m][j][e] = 0;
    constexpr int kUnits = S::kQueries / 8;
    const int key = 8 * S::kEights * share + lane / 16 * 8 + lane % 8;
    SharedAddress queries = base + S::kQuery + unit_at<kUnits>(32 * band + lane % 16, lane / 16);
#pragma unroll 1
    for (int c = 0; c < S::kKeyPieces; ++c, queries += 128) {
      const SharedAddress keys = next_piece() + unit_at<8>(key, lane / 8 % 2);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t q[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) load_matrices(q[m], unit_from(queries, 2 * k) + m * 16 * kUnits * 16);
#pragma unroll
        for (int j = 0; j < S::kEights; j += 2) {
          uint32_t b[4];
          load_matrices(b, unit_from(keys, 2 * k) + j * 8 * 128);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma_f16(x[m][j], q[m], b[0], b[1]);
            mma_f16(x[m][j + 1], q[m], b[2], b[3]);
          }
        }
      }
    }
  }
  // What a pair does not see is -inf; the largest of each goes to shared memory.
  CARAT_D void mask(const Round& now, Scores& x) const {
    const int i = share / (S::kShare / 2);  // the warp's tile
    const int32_t begin = now.tile(i) * kKvTile,
                  first = begin + 8 * S::kEights * (share % (S::kShare / 2)) + 2 * t;
    const bool all = begin >= p.reach.all_from && begin + kKvTile - 1 <= p.reach.all_to;
    const float scale = a.scale * kLog2e;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float most = -INFINITY;
      int32_t from = 0, to = INT32_MAX;
      if (!all) from = pair(k).first, to = pair(k).last;
#pragma unroll
      for (int j = 0; j < S::kEights; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int32_t at = first + 8 * j + e;
          float& v = x[k / 2][j][k % 2 * 2 + e];
          bool seen = at >= from && at <= to;
          if (now.one_tile()) seen = seen && a.copies.protect.covers(pair(k).last, at) == now.second(i);
          v = seen ? v * scale : -INFINITY;
          most = fmaxf(most, v);
        }
      most = fmaxf(most, shuffle_xor(most, 1));
      most = fmaxf(most, shuffle_xor(most, 2));
      if (t == 0) tops(8 * k + g)[share] = most;
    }
  }

  // ---- weights
  struct Turn {  // what came before fades; at a segment's end: what is kept of all before, and taken of it
    float fade, keep, take;
  };
  // How pair `lane` goes on with tile i of two. Returns what to take from the exponents of its scores.
  CARAT_D float turn(int i, bool fresh, bool last, Turn& u) {
    const float* most = tops(lane) + i * (S::kShare / 2);
    const float was = fresh ? -INFINITY : top;
    float now = was;
#pragma unroll
    for (int w = 0; w < S::kShare / 2; ++w) now = fmaxf(now, most[w]);
    const float safe = now == -INFINITY ? 0 : now;
    top = now;
    u = {exp2f(was - safe), 1, 0};
    if (last && now != -INFINITY) {
      const float all = fmaxf(total_top, now);
      u.keep = weight_of(total_top, all), u.take = weight_of(now, all);
      total_top = all;
    }
    return safe;
  }
  // Of pairs 8 k + g, what the lanes with their numbers have.
  CARAT_D void of_pairs(float of_lane, float (&v)[4]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = shuffle(of_lane, 8 * k + g);
  }
  CARAT_D static int weights_at(int i, int row, int unit) {
    return S::kWeight + i * S::kRows * 128 + unit_at<8>(row, unit);
  }
  // This warp's scores as weights, to where all of the band take them from.
  CARAT_D void put_weights(const Scores& x, float of_lane) const {
    const int i = share / (S::kShare / 2), unit = share % (S::kShare / 2) * S::kEights;
    float safe[4];
    of_pairs(of_lane, safe);
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int j = 0; j < S::kEights; ++j) {
        const float* v = x[k / 2][j] + k % 2 * 2;
        *reinterpret_cast<uint32_t*>(memory + weights_at(i, 32 * band + 8 * k + g, unit + j) + 4 * t) =
            pack_halves(exp2_flushed(v[0] - safe[k]), exp2_flushed(v[1] - safe[k]));
      }
  }
  // Of the band's 32 pairs and 16 positions of tile i.
  CARAT_D void take_weights(int i, int k, uint32_t (&w)[2][4]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
      load_matrices(w[m], unit_from(base + weights_at(i, 32 * band + 16 * m + lane % 16, lane / 16), 2 * k));
  }
  CARAT_D void begin_sum(bool fresh, const Turn& u) {
    float by[4];
    of_pairs(u.fade, by);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[m][e] = fresh ? 0 : sum[m][e] * by[2 * m + e / 2];
  }
  CARAT_D void add_sum(const uint32_t (&w)[2][4]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) mma_f16(sum[m], w[m], 0x3c003c00u, 0x3c003c00u);
  }
  CARAT_D void fold_sum(const Turn& u) {
    float mine = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float v = shuffle(sum[k / 2][k % 2 * 2], lane % 8 * 4);
      if (lane / 8 == k) mine = v;
    }
    fold(total_sum, mine, u.keep, u.take);
  }

  // ---- values
  using Eight = float[4];  // of eight columns
  CARAT_D static void clear(Eight& x) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = 0;
  }
  CARAT_D SharedAddress next_values() {
    return next_piece() + unit_at<16>(lane % 16, share * S::kColumns + lane / 16);
  }
  // Of eights of columns n and n + 1, in x of the first 16 pairs and y of the others: positions from 16 k on.
  CARAT_D static void add_values(const uint32_t (&w)[2][4], SharedAddress values, int n, int k, Eight* x,
                                 Eight* y) {
    uint32_t b[4];
    load_turned(b, unit_from(values, n) + 16 * k * 256);
    mma_f16(x[0], w[0], b[0], b[1]), mma_f16(x[1], w[0], b[2], b[3]);
    mma_f16(y[0], w[1], b[0], b[1]), mma_f16(y[1], w[1], b[2], b[3]);
  }
  // What a segment leaves of eight columns is added to that of all before it.
  CARAT_D static void fold_eight(Eight& to, const Eight& part, int m, const float (&keep)[4],
                                 const float (&take)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) fold(to[e], part[e], keep[2 * m + e / 2], take[2 * m + e / 2]);
  }
  // f(c) for all pieces of a tile's values, c known to the compiler, so that o stays in registers; what is
  // around f is there once.
  template <class F>
  CARAT_D void each_piece(F f) {
#pragma unroll 1
    for (int at = 0; at < S::kValuePieces; ++at) {
      const SharedAddress values = next_values();
#pragma unroll
      for (int c = 0; c < S::kValuePieces; ++c)
        if (c == at) f(c, values);
    }
  }
  // Segments of one tile: each tile's columns are folded, sixteen at a time.
  CARAT_D void values_of_one(const Turn (&u)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t w[4][2][4];
      begin_sum(true, u[i]);
#pragma unroll
      for (int k = 0; k < 4; ++k) take_weights(i, k, w[k]), add_sum(w[k]);
      fold_sum(u[i]);
      float keep[4], take[4];
      of_pairs(u[i].keep, keep), of_pairs(u[i].take, take);
      each_piece([&](int c, SharedAddress values) {
#pragma unroll
        for (int n = 0; n < S::kColumns; n += 2) {
          Eight part[2][2];
#pragma unroll
          for (int x = 0; x < 4; ++x) clear(part[x / 2][x % 2]);
#pragma unroll
          for (int k = 0; k < 4; ++k) add_values(w[k], values, n, k, part[0], part[1]);
#pragma unroll
          for (int x = 0; x < 4; ++x)
            fold_eight(o[x / 2][c][n + x % 2], part[x / 2][x % 2], x / 2, keep, take);
        }
      });
    }
  }
  // Of two: both tiles' columns, then they are folded.
  CARAT_D void values_of_two(const Turn (&u)[2]) {
#pragma unroll
    for (int c = 0; c < S::kValuePieces; ++c) {
      Eight part[2][S::kColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float by[4];
        of_pairs(u[1].fade, by);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < S::kColumns; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) part[m][n][e] = i == 0 ? 0 : part[m][n][e] * by[2 * m + e / 2];
        if (c == 0) begin_sum(i == 0, u[i]);
        const SharedAddress values = next_values();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          uint32_t w[2][4];
          take_weights(i, k, w);
          if (c == 0) add_sum(w);
#pragma unroll
          for (int n = 0; n < S::kColumns; n += 2) add_values(w, values, n, k, &part[0][n], &part[1][n]);
        }
      }
      if (c == 0) fold_sum(u[1]);
      float keep[4], take[4];
      of_pairs(u[1].keep, keep), of_pairs(u[1].take, take);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < S::kColumns; ++n) fold_eight(o[m][c][n], part[m][n], m, keep, take);
    }
  }
  // Of more: in place.
  CARAT_D void values_of_many(const Turn (&u)[2], bool begins) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool fresh = begins && i == 0, fades = fresh || ballot(u[i].fade != 1);  // seldom
      uint32_t w[4][2][4];
      begin_sum(fresh, u[i]);
#pragma unroll
      for (int k = 0; k < 4; ++k) take_weights(i, k, w[k]), add_sum(w[k]);
      each_piece([&](int c, SharedAddress values) {
        if (fades) {
          float by[4];
          of_pairs(u[i].fade, by);
#pragma unroll
          for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < S::kColumns; ++n)
#pragma unroll
              for (int e = 0; e < 4; ++e) o[m][c][n][e] = fresh ? 0 : o[m][c][n][e] * by[2 * m + e / 2];
        }
#pragma unroll
        for (int n = 0; n < S::kColumns; n += 2)
#pragma unroll
          for (int k = 0; k < 4; ++k) add_values(w[k], values, n, k, &o[0][c][n], &o[1][c][n]);
      });
    }
  }

  // ---- y
  // f(c, n, where y has these columns of pair 8 k + g): two of every eight, if there is such a pair.
  template <class F>
  CARAT_D void each_column(int k, F f) const {
    const Pair& of = pair(k);
    if (of.row < 0) return;
    float* y =
        row_of<float>(a.y, p.group.m + of.row) + int64_t{of.head} * S::kDim + 8 * S::kColumns * share + 2 * t;
#pragma unroll
    for (int c = 0; c < S::kValuePieces; ++c)
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n) f(c, n, *reinterpret_cast<float2*>(y + 128 * c + 8 * n));
  }
  // y = what is in o, or stands in y, over its sum.
  CARAT_D void divide(bool stands) const {
    float by[4];
    of_pairs(total_sum, by);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      each_column(k, [&](int c, int n, float2& y) {
        const float* v = o[k / 2][c][n] + k % 2 * 2;
        const float2 sums = stands ? y : float2{v[0], v[1]};
        y = float2{sums.x / by[k], sums.y / by[k]};
      });
  }
  // A segment has ended: what rows have so far stands in y, nothing if this is their first (blank, of pair
  // `lane`).
  CARAT_D void fold_into_output(const Turn& u, bool blank) {
    fold_sum(u);
    float keep[4], take[4];
    of_pairs(u.keep, keep), of_pairs(u.take, take);
    const uint32_t blanks = ballot(blank);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool more = (blanks >> (8 * k + g) & 1) == 0;
      float2 was[S::kValuePieces][S::kColumns];  // all are asked for before the first is stored
      each_column(k, [&](int c, int n, const float2& y) { was[c][n] = more ? y : float2{0, 0}; });
      each_column(k, [&](int c, int n, float2& y) {
        const float* v = o[k / 2][c][n] + k % 2 * 2;
        fold(was[c][n].x, v[0], keep[k], take[k]), fold(was[c][n].y, v[1], keep[k], take[k]);
        y = was[c][n];
      });
    }
  }
  // Where pair `lane`'s state waits between the parts of an unpacked cache.
  CARAT_D float2* state() const {
    const Pair& of = pairs[32 * band + lane];
    return of.row < 0 ? nullptr : a.unpacked.states + int64_t{p.group.m + of.row} * a.heads + of.head;
  }

  // ---- a task
  enum class Length { one, two, many };  // tiles a segment
  template <Length LENGTH>
  CARAT_D void walk() {
    constexpr bool kMany = LENGTH == Length::many, kOne = LENGTH == Length::one;
    const LongSegments<S> segments(p);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int c = 0; c < S::kValuePieces; ++c)
#pragma unroll
        for (int n = 0; n < S::kColumns; ++n) clear(o[m][c][n]);
#pragma unroll 1
    for (Round now(p, p.first); now.batch <= p.last; now = now.next(p)) {
      Scores x;
      scores(x);
      mask(now, x);
      sync_block();
      const bool begins = !kMany || segments.begins(now), ends = !kMany || segments.ends(now),
                 blank = total_top == -INFINITY;
      Turn u[2];
      const float first = turn(0, begins, kOne, u[0]), second = turn(1, kOne, ends, u[1]);
      put_weights(x, share < S::kShare / 2 ? first : second);
      sync_block();
      if constexpr (kOne)
        values_of_one(u);
      else if constexpr (!kMany)
        values_of_two(u);
      else
        values_of_many(u, begins);
      if (kMany && ends) fold_into_output(u[1], blank);
    }
    if (!kMany || p.last == segments.last) divide(kMany);
  }
  CARAT_D void begin(const PromptTask& task) {
    Pieces::begin(task);
    total_top = -INFINITY, total_sum = 0;
    if (!S::kUnpacked || p.first == p.all_first) return;
    if (const float2* v = state()) total_top = v->x, total_sum = v->y;
  }
  CARAT_D void run() {
    each_prompt_task<S>(a, s, set, [&](const PromptTask& task) {
      begin(task);
      if (is_long<S>(p))
        walk<Length::many>();
      else if (p.length > kKvTile)
        walk<Length::two>();
      else
        walk<Length::one>();
      if (!S::kUnpacked || p.last == p.all_last || share > 0) return;
      if (float2* v = state()) *v = float2{total_top, total_sum};
    });
    wait_copies<0>();
  }
};

template <class S>
__global__ void __launch_bounds__(kWarpsThreads, 1)
    warps_attention(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
  CARAT_SHARED(memory);
  begin_kernel();
  WarpsWalk<S>(a, s, *tables, set, memory).run();
}

template <class S>
void launch_warps(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  const int32_t per = S::kRows / a.width;
  const int64_t tasks = (int64_t{(rows + per - 1) / per} + 7) * a.kv.heads * a.chunks;
  launch(c.launcher, "attention", warps_attention<S>,
         dim3(static_cast<unsigned>(std::min<int64_t>(tasks, c.launcher.sms))), kWarpsThreads,
         static_cast<size_t>(S::kBytes), a, c.step, c.tables, set);
}
// Heads of 512 in tasks of 64 pairs need more shared memory than some cards have.
template <int DIM, PromptSource SOURCE, bool TWICE = false>
void attend_by_warps(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  using Large = WarpsShape<DIM, SOURCE, TWICE, 64>;
  if constexpr (DIM == 512)
    if (Large::kBytes > c.launcher.shared)
      return launch_warps<WarpsShape<DIM, SOURCE, TWICE, 32>>(c, a, rows, set);
  launch_warps<Large>(c, a, rows, set);
}

}  // namespace carat::cuda
