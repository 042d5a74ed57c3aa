// Products of up to 64 rows on warpgroups (wide/block.cuh), by tiles of so many rows. Making digits is
// most of the work there, so none is made twice: of a narrow tile, which has 64 outputs (of gate and up: 32
// each), both warpgroups take blocks of 256 columns by turns. The first one adds up; sums of the second one
// come to it by way of shared memory, in the order of columns.
#pragma once
#include "cuda/matmul/wide/block.cuh"
#include "cuda/matmul/wide/sums.cuh"

namespace carat::cuda {

inline constexpr int kShortRows = 64;

// The second warpgroup's sums of two blocks, and the scales of their rows.
struct GivenSums {
  static constexpr int kMost = kShortRows / 2;  // of a thread
  float4 v[2][kMost / 4][128];
  float d[2][kShortRows];
};

// Where a warpgroup is in the stages and in what is handed from one to the other.
struct ShortTurn {
  WideTurn stage{0, 0};
  int given = 0;  // of GivenSums
};

// acc: of 2 N rows; blocks [0, n) of a piece, whose last stage is not given back. cols: from its first on.
template <class At, bool kNarrow, int N>
CARAT_D void sum_short(int32_t n, int32_t cols, WideHead& h, GivenSums& other, const uint8_t* ring,
                       int stages, ShortTurn& turn, float (&acc)[N]) {
  const int thread = threadIdx.x % 128, lane = thread % 32, group = threadIdx.x / 128, warp = thread / 32,
            weights = (kNarrow ? 0 : 2 * group) + warp / 2;
#pragma unroll 1
  for (int32_t b = 0; b < n; ++b) {
    if (!kNarrow || b % 2 == group) {
      const uint8_t* stage = ring + turn.stage.slot * At::kBytes;
      const auto* d = reinterpret_cast<const float*>(stage + At::kD);
      gate_wait(shared_address(&h.full[turn.stage.slot]), turn.stage.parity);
      show_to_products();
      float v[N];
      wide_block<At>(wide_at<At>(stage, weights, warp % 2 * 16, 0, block_columns(cols, b)), lane, v);
      if (!kNarrow || group == 0) {
        add_scaled(d, v, acc);
      } else {
#pragma unroll
        for (int i = 0; i < N / 4; ++i)
          other.v[turn.given][i][thread] = float4{v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]};
        if (thread < kShortRows) other.d[turn.given][thread] = d[thread];
      }
      if (b + 1 < n) arrive_as_warp(shared_address(&h.empty[turn.stage.slot]));
    }
    if (kNarrow && b % 2 == 1) {
      turn_wait(5, kWideConsumers);  // so what was given two turns ago has been taken
      if (group == 0) {
        float v[N];
#pragma unroll
        for (int i = 0; i < N / 4; ++i) {
          const float4 four = other.v[turn.given][i][thread];
          v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
        }
        add_scaled(other.d[turn.given], v, acc);
      }
      turn.given ^= 1;
    }
    if (b + 1 < n) turn.stage.next(stages);
  }
}

template <class At, int N, bool kNarrow>
CARAT_D void short_piece(const WideJob& job, const WidePiece& piece, WideHead& h, GivenSums& other,
                         uint8_t* ring, int stages, ShortTurn& turn, const DevStep* s) {
  constexpr int kAdders = kNarrow ? 128 : kWideConsumers;  // threads
  static_assert(2 * N * (kNarrow ? kNarrowPitch : kOutPitch) * 4 <= At::kBytes);
  const bool adds = threadIdx.x < kAdders;
  float acc[N];
#pragma unroll
  for (int k = 0; k < N; ++k) acc[k] = 0;
  if (adds && piece.from > 0) take_over<kAdders>(s->begun + int64_t{kBegunTile} * (blockIdx.x - 1), acc);
  sum_short<At, kNarrow>(piece.to - piece.from, job.a.m.w.cols - 256 * piece.from, h, other, ring, stages,
                         turn, acc);
  if (adds && piece.to < h.share.blocks) {
    hand_over<kAdders>(s->begun + int64_t{kBegunTile} * blockIdx.x, acc);
  } else if (adds) {
    const WidePlace at = h.share.place(piece.tile, kShortRows);
    const int which = job.which(at.n);
    const int32_t n = at.n - job.begin(which);
    uint8_t* stage = ring + turn.stage.slot * At::kBytes;
    const auto row = [&](int m) { return at.first + m; };
    if constexpr (kNarrow)
      write_narrow(job.a, job.m(which), n, at.count, 0, acc, stage, kAdders, row);
    else
      write_wide<2 * N, false>(job.a, job.m(which), n, 0, at.count, acc, stage, row);
  }
  if (adds) arrive_as_warp(shared_address(&h.empty[turn.stage.slot]));
  turn.stage.next(stages);
}

template <DType T>
__global__ void __launch_bounds__(kWideThreads, 1)
    short_tiles(const WideJob job, const Rounded x, int stages, const DevStep* s, RowSet set) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  using At = WideStage<T, kShortRows>;
  constexpr int kMost = GivenSums::kMost;
  CARAT_SHARED_1024(memory);
  auto& head = *reinterpret_cast<WideHead*>(memory);
  uint8_t* ring = memory + kWideHead;
  auto& other = *reinterpret_cast<GivenSums*>(ring + stages * At::kBytes);
  wait_inputs();
  if (threadIdx.x == 64) init_stages(head, stages, job.narrow ? 4 : 8);
  if (threadIdx.x == 96) head.share = WideShare::of(row_count(s, set), kShortRows, job.outs(), x.blocks);
  sync_block();
  if (threadIdx.x >= kWideConsumers) {
    fewer_registers<kLoaderRegs>();
    WideTurn turn{0, 1};
    if (job.narrow)
      load_pieces<At, true>(job, x, head, ring, stages, turn);
    else
      load_pieces<At, false>(job, x, head, ring, stages, turn);
    return let_next_start();
  }
  more_registers<kSumRegs>();
  ShortTurn turn;
  WidePiece piece;
#pragma unroll 1
  for (int32_t i = 0; same_in_warp(head.share.get(i, piece)); ++i) {
    const bool many = same_in_warp(head.share.place(piece.tile, kShortRows).count) > kShortRows / 2;
    const auto with = [&](auto most, auto narrow) {
      short_piece<At, most.value, narrow.value>(job, piece, head, other, ring, stages, turn, s);
    };
    constexpr std::integral_constant<int, kMost> all;
    constexpr std::integral_constant<int, kMost / 2> half;
    if (job.narrow)
      many ? with(all, std::true_type()) : with(half, std::true_type());
    else
      many ? with(all, std::false_type()) : with(half, std::false_type());
  }
#endif
}

template <DType T>
bool short_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows, const MatmulArgs* more,
                    int n) {
  using At = WideStage<T, kShortRows>;
  const int64_t room = c.launcher.shared - kWideHead - int64_t{sizeof(GivenSums)};
  const int64_t stages = std::min<int64_t>(room / At::kBytes, kMostStages);
  if (stages < 3) return false;
  const WideJob job = shaped(a, more, n, 1, c.launcher.sms, 0.53);
  launch(in_order(c.launcher), "matmul", short_tiles<T>,
         dim3(static_cast<unsigned>(std::min(job.outs(), c.launcher.sms))), kWideThreads,
         static_cast<size_t>(kWideHead + stages * At::kBytes + int64_t{sizeof(GivenSums)}), job, x,
         static_cast<int>(stages), c.step, rows);
  return true;
}

}  // namespace carat::cuda
