// Attention on the tensor cores. A task is up to 64 pairs of a row and a query head, the rows of one sequence
// and the heads of one KV head; it goes through the positions they see in tiles of 64, whose keys and values
// come to shared memory as halves, 128 or 256 columns at a time. A row's arithmetic is that of its own
// positions, tile after tile: who shares the task only adds tiles in which it sees nothing, and those change
// no bit.
#pragma once
#include "cuda/attention/prompts/prompts.cuh"
#include "cuda/attention/tiles/load.cuh"

namespace carat::cuda {

template <class S, class Kinds>
struct TileWalk : TileLoads<S, Kinds> {
  using Loads = TileLoads<S, Kinds>;
  using Loads::a, Loads::s, Loads::tables, Loads::set, Loads::memory, Loads::base, Loads::job, Loads::pairs;
  using Loads::item, Loads::part, Loads::in, Loads::out, Loads::item_table, Loads::table, Loads::full;
  using Loads::lane, Loads::g, Loads::t, Loads::band, Loads::share, Loads::busy;
  using Loads::next_table, Loads::place, Loads::fetch_piece, Loads::store_piece, Loads::next_piece;
  using Loads::pair, Loads::dim, Loads::pieces, Loads::score_pieces, Loads::kTileBytes, Loads::take_queries;
  float o[S::kPieces][S::kColumns][4], sum[4], top[2];  // sum: o's of a column of ones
  static constexpr int kTotals = S::kSplit ? 1 : S::kPieces;
  float total[kTotals][S::kColumns][4], total_sum[2], total_top[2];

  CARAT_D TileWalk(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                   unsigned char* shared)
      : Loads(args, step, all, rows, shared) {}

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
        base + S::kQuery + c * (S::kWide * 2) + unit_at<S::kQueries / 8>(band * 16 + lane % 16, lane / 16);
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
  CARAT_D void mask(int32_t tile, int32_t own, bool second, float (&x)[S::kScores][4]) const {
    const int32_t begin = tile * kKvTile;
    const bool all = own < 0 && begin >= job.reach.all_from && begin + kKvTile - 1 <= job.reach.all_to;
    const Pair of[2] = {pair(0), pair(1)};
    int32_t sinks = 0, recent[2] = {};
    if constexpr (S::kCopies) {
      sinks = a.copies.protect.sinks;
      for (int r = 0; r < 2; ++r) recent[r] = this->recents()[band * 16 + g + 8 * r];
    }
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
        bool seen = all || (p >= of[i / 2].first && p <= of[i / 2].last && (own < 0 || own == of[i / 2].row));
        if constexpr (S::kCopies) seen = seen && (p < sinks || p >= recent[i / 2]) == second;
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
    if (threadIdx.x == 0) job.list = this->list_of_tiles(from, to);
    sync_block();
    clear(0), clear(1);
    item = part = in = out = item_table = 0, table = 2, full = true;
    place(0, 0), place(1, 1);
    sync_block();
    wait_inputs();  // all before this comes from the step alone
#pragma unroll 1
    for (int i = 0; i < S::kStages; ++i) {
      fetch_piece();
      store_piece();
    }
    take_queries();
#pragma unroll 1
    for (int32_t i = 0; i < job.list.count; ++i) {
      const int at = next_table(table);  // the entry's own
      const int32_t tile = this->tile_of(i, at), own = this->own_of(i, at);
      float x[S::kScores][4];
#pragma unroll
      for (int j = 0; j < S::kScores; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[j][e] = 0;
#pragma unroll 1
      for (int c = 0; c < score_pieces(); ++c) {
        const SharedAddress keys = next_piece();
        if (busy) add_scores(c, keys, x);
        store_piece();
      }
      if (busy) mask(tile, own, this->second_of(at), x);
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
        if (this->ends(i, at, tile, length)) end_segment(own);
    }
    if constexpr (Kinds::kHalves) wait_copies<0>();
    sync_block();
  }

  // The k-th of every `segments` segments, or all of them.
  CARAT_D void run(int32_t k, int32_t length, int32_t segments) {
    const int32_t first = job.reach.first, last = job.reach.last;
    if constexpr (S::kSplit) {
      for (int32_t n = segment_at(first, length) + k; n <= segment_at(last, length); n += segments) {
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
  CARAT_D float* output(int r) const {
    return row_of<float>(a.y, job.group.m + pair(r).row) + int64_t{pair(r).head} * dim();
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
      const int32_t k = segment - segment_at(of.first, length);
      const bool mine = of.row >= 0 && k >= 0 && segment <= segment_at(of.last, length);
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
      float* to = turned ? rows + (band * 16 + g + 8 * r) * S::kDim : output(r);
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
  let_next_start();
  if ((a.forks && !s->slot) || (a.covered && s->all_unpacked[a.span])) return wait_inputs();
  CARAT_SHARED(shared);
  unsigned char* memory = shared;
  if constexpr (S::kWarpgroups) memory += (1024 - shared_address(shared) % 1024) % 1024;
  const int32_t per = a.by_width.quotient(S::kRows), groups = group_count(a.runs, s, set, per),
                segments = S::kSplit ? s->segments[a.span] : 1,
                tasks = groups * segments * a.kv.heads * a.chunks;
  for (int32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int32_t all = task / segments, k = task - all * segments, rest = all / groups,
                  which = all - rest * groups, kv_head = a.by_chunks.quotient(rest),
                  chunk = rest - kv_head * a.chunks;
    const RowGroup group = group_of(a.runs, s, set, per, groups - 1 - which);  // the longest first
    TileWalk<S, Kinds> w(a, s, *tables, set, memory);
    int32_t length =
        segment_of(a.kv.window, pos_of(s, step_row(s, set, group.m)));  // no other row's is shorter
    while (length != INT32_MAX) {
      w.begin(group, kv_head, chunk * a.width, length);
      if (!done_elsewhere(a, s, set, group, w.job.reach)) w.run(k, length, segments);
      length = w.job.reach.longer;
    }
  }
  wait_inputs();  // who had no task
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
template <int DIM, class Kinds, bool COPIES = false>
void by_rows(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  constexpr bool kHalves = Kinds::kHalves;
  a.cut_heads(16);
  if (!a.split) {
    if constexpr (DIM > 128 && kHalves) a.forks = attend_prompt<DIM>(c, a, rows, set);
    return run_tiles<TileShape<DIM, DIM == 512 ? 2 : 4, false, kHalves, false, COPIES>, Kinds>(c, a, rows,
                                                                                               set);
  }
  // A sequence with more rows than one band has a launch of its own: its tasks take four bands, and as much
  // of an SM that few of them run at once, which many sequences of a row each would wait for.
  if constexpr (DIM > 128 || kHalves) {
    using Wide = TileShape<DIM, 4, true, kHalves, false, COPIES>;
    const int32_t band = 16 / a.width;
    if (rows > band && Wide::kBytes <= c.launcher.shared) {
      AttentionPart long_runs = a;
      long_runs.runs.over = a.runs.most = band;
      const auto run_long = [&] {
        if constexpr (DIM == 512 && kHalves) {
          using Wider = TileShape<DIM, 4, true, kHalves, true>;
          if (c.launcher.major == 9 && compiled_for(tile_attention<Wider, Kinds>) == 90)
            return run_tiles<Wider, Kinds>(c, long_runs, rows, set);
        }
        run_tiles<Wide, Kinds>(c, long_runs, rows, set);
      };
      run_long();
    }
  }
  run_tiles<TileShape<DIM, 1, true, kHalves, false, COPIES>, Kinds>(c, a, rows, set);
}

// Heads of up to 128, of 256 or of 512.
template <class Kinds>
void by_head(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (a.kv.dim <= 128) return by_rows<128, Kinds>(c, a, rows, set);
  if (a.kv.dim == 256) return by_rows<256, Kinds>(c, a, rows, set);
  by_rows<512, Kinds>(c, a, rows, set);
}

}  // namespace carat::cuda
