// Integer sums of a block of 256 columns on the tensor cores: a group's sums are one product.
#pragma once
#include <bit>

#include "cuda/matmul/packed/rows.cuh"
#include "cuda/quant/packed_frags.cuh"

namespace carat::cuda {

// One block of both sides in shared memory: tiles of 32 outputs one after the other, codes, and their sums
// (Frags::kSums) as halves, a row `pitch` and `sum_pitch` bytes from the next.
inline constexpr int kRowPitch = 256 + 16;  // eight rows' words fall into different banks
struct BlockAt {
  const uint8_t *tiles, *codes, *sums;
  int pitch = kRowPitch, sum_pitch = 32;
  int row = 0;  // of the first tile, from which on outputs are wanted
};

// b of mma for rows 8 j + .., 32 columns.
template <int NJ>
CARAT_D void load_rows(const uint8_t* codes, int pitch, int lane, uint32_t (&b)[NJ][2]) {
  const uint8_t* row = codes + lane % 8 * pitch + lane / 8 % 2 * 16;
  if constexpr (NJ == 1) {
    load_matrices(b[0], shared_address(row));
  } else {
    row += lane / 16 * 8 * pitch;
#pragma unroll
    for (int j = 0; j < NJ; j += 2) {
      uint32_t four[4];
      load_matrices(four, shared_address(row + 8 * j * pitch));
      b[j][0] = four[0], b[j][1] = four[1], b[j + 1][0] = four[2], b[j + 1][1] = four[3];
    }
  }
}

struct NothingBetween {
  CARAT_D void operator()(int) const {}
};
// use(i, j, k, t of numerics.md without the activations' scale) of outputs 16 i + g + k / 2 * 8 and rows
// 8 j + 2 t + k % 2, where lane = 4 g + t; n columns. between(step) before each of four steps.
template <DType T, int MI, int NJ, class Use, class Between = NothingBetween>
CARAT_D void block_sums(const BlockAt& at, int n, int lane, Use use, Between between = {}) {
  using F = Frags<T>;
  const int g = lane / 4, t = lane % 4;
  using S = RowScales<T>;
  const uint8_t* first = at.tiles + S::at(n) + S::kBytes * (at.row + g);
  // Of row 8 i + g.
  const auto head = [&](int i) { return first + i / 4 * F::kTile + i % 4 * (8 * S::kBytes); };
  const auto tail = [&](int i) {
    return at.tiles + i / 4 * F::kTile + packed_units(T, 256) * 512 +
           packed_tail(T) * (at.row + i % 4 * 8 + g);
  };
  const auto words = [&](int i) {
    return LatticeRow<T>(at.tiles + i / 4 * F::kTile, at.row + i % 4 * 8 + g);
  };
  uint2 scales[2 * MI];
  if constexpr (F::kScaled) {
#pragma unroll
    for (int i = 0; i < 2 * MI; ++i) scales[i] = S::scales(head(i));
  }
  const auto scale32 = [&](int row, int group) -> int32_t {  // of a group, where all of it has one
    if constexpr (lattice(T)) {
      return lattice_scale<T>(words(row), 2 * group);
    } else if constexpr (F::kScaled) {
      const uint32_t four = group < 4 ? scales[row].x : scales[row].y;
      if constexpr (T == DType::iq4_xs) return byte_of(four, group % 4);
      return static_cast<int32_t>(four >> 8 * (group % 4) & 255);
    }
    return 1;
  };
  constexpr int kAtOnce = NJ < 2 ? 1 : 2;  // products on their way: more would be sums without registers
  constexpr auto kStart = F::kGrouped ? std::bit_cast<int32_t>(F::kStart) : 0;
  typename F::Sum s[MI][NJ][4];
#pragma unroll
  for (int i = 0; i < MI; ++i)
#pragma unroll
    for (int j = 0; j < NJ; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) s[i][j][k] = 0;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    between(step);
    if (F::kGrouped && 64 * step >= n) continue;
    typename F::Raw raw[MI];
#pragma unroll
    for (int i = 0; i < MI; ++i)
      raw[i] = F::raw(at.tiles + i / 2 * F::kTile, at.row + i % 2 * 16, step, lane, n);
    uint32_t factors[2 * MI];
    [[maybe_unused]] uint32_t least[2 * MI];
    if constexpr (F::kGrouped) {
#pragma unroll
      for (int i = 0; i < 2 * MI; ++i) {
        factors[i] = S::factors(head(i), step);
        if constexpr (group_mins(T)) least[i] = S::factors(head(i) + 512, step);
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int group = F::group(step, e);
      if (F::kGrouped && 32 * group >= n) break;
      uint32_t b[NJ][2];
      load_rows<NJ>(at.codes + 32 * group, at.pitch, lane, b);
      [[maybe_unused]] float added[NJ][2];  // a row's activations of the group
      if constexpr (group_mins(T)) {
#pragma unroll
        for (int j = 0; j < 2 * NJ; ++j) {
          const uint32_t two = u32_at(at.sums + (8 * (j / 2) + 2 * t + j % 2) * at.sum_pitch + 4 * group);
          added[j / 2][j % 2] = half_float(two & 0xffffu) + half_float(two >> 16);
        }
      }
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        uint32_t a[4];
        F::codes(raw[i], step, e, a);
#pragma unroll
        for (int j0 = 0; j0 < NJ; j0 += kAtOnce) {
          int32_t c[kAtOnce][4], c2[kAtOnce][4];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            const auto& rows = b[j0 + j];
            if constexpr (F::kSixteen) {
              mma_s8_half(c[j], a[0], a[1], rows[0], kStart);
              mma_s8_half(c2[j], a[2], a[3], rows[1], kStart);
            } else {
              mma_s8(c[j], a[0], a[1], a[2], a[3], rows[0], rows[1], kStart);
            }
          }
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int row = 2 * i + k / 2;
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
              auto& sum = s[i][j0 + j][k];
              if constexpr (F::kGrouped) {
                const float f = S::factor(factors[row], F::kSixteen ? 2 * e : e),
                            f2 = F::kSixteen     ? S::factor(factors[row], 2 * e + 1)
                                 : group_mins(T) ? S::factor(least[row], e)
                                                 : 0;
                sum = fmaf(f, F::value(c[j][k]), sum);
                if constexpr (F::kSixteen) sum = fmaf(f2, F::value(c2[j][k]), sum);
                if constexpr (group_mins(T)) sum = fmaf(f2, added[j0 + j][k % 2], sum);
              } else if constexpr (F::kSixteen) {
                const auto scale = [&](int sixteen) -> int32_t {
                  if constexpr (lattice(T))
                    return lattice_scale<T>(words(row), sixteen);
                  else
                    return S::scale16(head(row), sixteen);
                };
                sum += scale(2 * group) * c[j][k] + scale(2 * group + 1) * c2[j][k];
              } else {
                sum += scale32(row, group) * c[j][k];
              }
            }
          }
        }
      }
    }
  }
  [[maybe_unused]] uint32_t sums[NJ][2];
  if constexpr (F::kMins) load_rows<NJ>(at.sums, at.sum_pitch, lane, sums);
#pragma unroll
  for (int i = 0; i < MI; ++i) {
    [[maybe_unused]] float d[2], minus[2];
    [[maybe_unused]] uint32_t mins[4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = 2 * i + k;
      if constexpr (lattice(T))
        d[k] = words(row).factor();
      else if constexpr (!F::kGrouped)
        d[k] = half_at(F::kPlanes ? tail(row) : head(row));
      if constexpr (F::kMins) {
        minus[k] = -half_at((F::kPlanes ? tail(row) : head(row)) + 2);
#pragma unroll
        for (int e = 0; e < 2; ++e) mins[k + 2 * e] = S::min_halves(head(row), e, t);
      }
    }
#pragma unroll
    for (int j = 0; j < NJ; ++j) {
      [[maybe_unused]] float least[4] = {};
      if constexpr (F::kMins) mma_f16(least, mins, sums[j][0], sums[j][1]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (F::kGrouped) {
          use(i, j, k, s[i][j][k]);
        } else {
          const float v = d[k / 2] * static_cast<float>(s[i][j][k]);
          use(i, j, k, F::kMins ? fmaf(minus[k / 2], least[k], v) : v);
        }
      }
    }
  }
}

// A tile in a warp's registers on its way to shared memory, as it is.
template <DType T>
struct LaneTile {
  static constexpr int kUnits = packed_units(T, 256), kTail = packed_tail(T);
  struct Halves {
    uint16_t h[5];
  };
  using Tail = std::conditional_t<
      kTail == 10, Halves,
      std::conditional_t<kTail == 8, uint2, std::conditional_t<kTail == 4, uint32_t, uint16_t>>>;
  uint4 u[kUnits];
  Tail tail;

  CARAT_D void load(const uint8_t* tile, int lane, int n) {
    const int units = packed_units(T, n);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (i < units) u[i] = stream_load(tile + 512 * i + 16 * lane);
    if constexpr (kTail > 0) tail = reinterpret_cast<const Tail*>(tile + 512 * units)[lane];
  }
  CARAT_D void store(uint8_t* tile, int lane, int n) const {
    const int units = packed_units(T, n);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (i < units) *reinterpret_cast<uint4*>(tile + 512 * i + 16 * lane) = u[i];
    if constexpr (kTail > 0) reinterpret_cast<Tail*>(tile + 512 * units)[lane] = tail;
  }
};

// LaneTasks (packed/rows.cuh) for MT rows at once on the tensor cores.
template <DType T, int MT>
struct TensorTasks {
  using Weights = LaneTile<T>;
  static constexpr int kCodes = Frags<T>::kTile, kSums = kCodes + MT * kRowPitch, kBytes = kSums + MT * 32;

  template <class At, class From, class Block>
  CARAT_D static void run(const Tasks& tasks, float* left, uint8_t* memory, LaneTile<T>& w, int32_t rows,
                          At at, From from, Block block) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint8_t* mine = memory + warp * kBytes;
    for (int32_t task = warp; task < tasks.count; task += tasks.warps) {
      const int n = at(task).n;
      w.store(mine, lane, n);
      stage_rows(from(task).with_half_sums(), block(task), rows, mine + kCodes, kRowPitch,
                 Frags<T>::kSums ? mine + kSums : nullptr, lane);
      sync_warp();
      if (const int32_t next = task + tasks.warps; next < tasks.count) {
        const TileAt tile = at(next);
        w.load(tile.tile, lane, tile.n);
      }
      float* to = left + task * MT * 32 + g;
      block_sums<T, 2, MT / 8>(
          {mine, mine + kCodes, mine + kSums}, n, lane,
          [&](int i, int j, int k, float v) { to[(8 * j + 2 * t + k % 2) * 32 + 16 * i + k / 2 * 8] = v; });
      sync_warp();
    }
  }
};

}  // namespace carat::cuda
