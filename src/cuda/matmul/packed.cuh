// Products with few rows over packed weights: a warp takes tiles of 32 rows x 256 columns, a lane one row.
// Sums of a tile are integers or in the contract's order; tiles of a row are added ascending
// (docs/numerics.md).
#pragma once
#include "cuda/matmul/matmul.cuh"
#include "cuda/matmul/products.cuh"
#include "cuda/quant/packed.h"

namespace carat::cuda {

// One lane says that its warp has read or written what others wait for, behind a warp barrier.
// compute-sanitizer's racecheck does not follow that: with CARAT_RACECHECK every lane says it (3 % of a
// prompt's time).
#ifdef CARAT_RACECHECK
inline constexpr bool kEveryLaneArrives = true;
#else
inline constexpr bool kEveryLaneArrives = false;
#endif
// How often such a gate is arrived at by so many warps.
CARAT_HD constexpr int arrivals(int warps) { return kEveryLaneArrives ? 32 * warps : warps; }
CARAT_D void arrive_as_warp(SharedAddress gate) {
  sync_warp();
  if (kEveryLaneArrives || threadIdx.x % 32 == 0) gate_arrive(gate);
}

// By a warp, to shared memory: codes of one block of `rows` rows, `pitch` bytes apart, and unless null their
// sums by 16, 32 bytes a row.
template <class Copy>
CARAT_D void stage_rows(const Acts& x, int32_t b, int32_t rows, uint8_t* codes, int pitch, uint8_t* sums,
                        int lane, Copy copy16) {
  for (int i = lane; i < rows * 16; i += 32)
    copy16(codes + i / 16 * pitch + 16 * (i % 16),
           x.q + (int64_t{i / 16} * x.blocks + b) * 256 + 16 * (i % 16));
  if (sums)
    for (int i = lane; i < rows * 2; i += 32)
      copy16(sums + 16 * i, x.sums + (int64_t{i / 2} * x.blocks + b) * 16 + 8 * (i % 2));
}
CARAT_D void stage_rows(const Acts& x, int32_t b, int32_t rows, uint8_t* codes, int pitch, uint8_t* sums,
                        int lane) {
  stage_rows(x, b, rows, codes, pitch, sums, lane, [](uint8_t* to, const void* from) {
    *reinterpret_cast<uint4*>(to) = *static_cast<const uint4*>(from);
  });
}

// Rounded activations of one block of 256 columns in shared memory, MT rows: codes, and their sums by 16.
template <int MT>
struct Stage {
  static constexpr int kBytes = MT * (256 + 32);
  uint8_t* p;

  CARAT_D uint4 codes(int m, int unit) const {
    return *reinterpret_cast<const uint4*>(p + m * 256 + 16 * unit);
  }
  CARAT_D uint32_t sums(int m, int word) const {  // two sums of 16 columns
    return *reinterpret_cast<const uint32_t*>(p + MT * 256 + m * 32 + 4 * word);
  }
  CARAT_D void fill(const Acts& x, int32_t b, int32_t rows, int lane) const {
    stage_rows(x, b, rows, p, 256, p + MT * 256, lane);
  }
};

CARAT_D int32_t dot16(const uint4& w, const uint4& a) {
  return dot4(w.w, a.w, dot4(w.z, a.z, dot4(w.y, a.y, dot4(w.x, a.x, 0))));
}
// Of unsigned codes.
CARAT_D int32_t dot16_unsigned(const uint4& w, const uint4& a) {
  return dot4_unsigned(w.w, a.w,
                       dot4_unsigned(w.z, a.z, dot4_unsigned(w.y, a.y, dot4_unsigned(w.x, a.x, 0))));
}
template <class F>
CARAT_HD uint4 each(const uint4& v, F f) {
  return {f(v.x), f(v.y), f(v.z), f(v.w)};
}
CARAT_HD uint4 nibbles_of(const uint4& v, int shift) {
  return each(v, [&](uint32_t w) { return w >> shift & 0x0f0f0f0fu; });
}
// v | bits of high at `shift`, moved to bit `to` of each byte.
CARAT_HD uint4 with_bits(const uint4& v, const uint4& high, int shift, uint32_t mask, int to) {
  const auto add = [&](uint32_t a, uint32_t b) { return a | (b >> shift & mask) << to; };
  return {add(v.x, high.x), add(v.y, high.y), add(v.z, high.z), add(v.w, high.w)};
}
// Sixteen codes, the lower or upper ones of a group, and a fifth bit for each.
CARAT_HD uint4 with_fifth(const uint4& v, uint32_t bits, int half) {
  const auto add = [&](uint32_t w, int i) {
    return w | ((half ? bits >> i : bits << (4 - i)) & 0x10101010u);
  };
  return {add(v.x, 0), add(v.y, 1), add(v.z, 2), add(v.w, 3)};
}
CARAT_HD int32_t byte_of(uint32_t w, int i) { return static_cast<int8_t>(w >> 8 * i); }

// A lane's row of one tile, in registers. dot(): t[m] of the contract, without the activations' scale.
template <DType T>
struct LaneBlock {
  static constexpr int kUnits = packed_units(T, 256);
  static constexpr bool kGrouped = grouped(T);
  uint4 u[kUnits];
  float d;  // q6_k

  CARAT_D void load(const uint8_t* tile, int lane, int n) {
    take(tile, lane, n, [](const uint8_t* p) { return stream_load(p); });
  }
  template <class Get>
  CARAT_D void take(const uint8_t* tile, int lane, int n, Get get) {
    const uint8_t* p = tile + 16 * lane;
    if constexpr (kGrouped) {
      constexpr int kCodes = T == DType::q8_0 ? 16 : 8;
      const int codes = n * kCodes / 256, scales = packed_units(T, n) - 1;
#pragma unroll
      for (int i = 0; i < kCodes; ++i)
        if (i < codes) u[i] = get(p + 512 * i);
#pragma unroll
      for (int i = kCodes; i < kUnits - 1; ++i)  // fifth bits
        if (codes + i - kCodes < scales) u[i] = get(p + 512 * (codes + i - kCodes));
      u[kUnits - 1] = get(p + 512 * scales);
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) u[i] = get(p + 512 * i);
    }
    if constexpr (T == DType::q6_k) d = half_at(tile + 512 * kUnits + 2 * lane);
  }

  template <int MT>
  CARAT_D void dot(const Stage<MT>& x, int n, float (&t)[MT]) const {
    if constexpr (kGrouped)
      dot_grouped<MT>(x, n / 32, t);
    else if constexpr (T == DType::q6_k)
      dot_q6<MT>(x, t);
    else
      dot_scaled_min<MT>(x, t);
  }

 private:
  CARAT_HD float scale(int g) const {
    const uint4& s = u[kUnits - 1];
    const uint32_t w = g < 2 ? s.x : g < 4 ? s.y : g < 6 ? s.z : s.w;
    return half_float(g % 2 ? w >> 16 : w & 0xffffu);
  }
  template <int MT>
  CARAT_D void dot_grouped(const Stage<MT>& x, int groups, float (&t)[MT]) const {
#pragma unroll
    for (int m = 0; m < MT; ++m) t[m] = 0;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      if (g >= groups) break;
      uint4 low, high;
      if constexpr (T == DType::q8_0)
        low = u[2 * g], high = u[2 * g + 1];
      else
        low = nibbles_of(u[g], 0), high = nibbles_of(u[g], 4);
      if constexpr (T == DType::q5_0) {
        const uint4& v = u[8 + g / 4];
        const uint32_t fifth = g % 4 == 0 ? v.x : g % 4 == 1 ? v.y : g % 4 == 2 ? v.z : v.w;
        low = with_fifth(low, fifth, 0), high = with_fifth(high, fifth, 1);
      }
      const float f = scale(g);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        int32_t s = dot16(low, x.codes(m, 2 * g)) + dot16(high, x.codes(m, 2 * g + 1));
        if constexpr (T == DType::q4_0) s = dot2_low(x.sums(m, g), 0xf8f8u, s);  // codes are 8 too large
        if constexpr (T == DType::q5_0) s = dot2_low(x.sums(m, g), 0xf0f0u, s);  // 16
        t[m] = fmaf(f, static_cast<float>(s), t[m]);
      }
    }
  }
  template <int MT>
  CARAT_D void dot_q6(const Stage<MT>& x, float (&t)[MT]) const {
    int32_t s[MT], over[MT];
    const uint4& sc = u[12];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      over[m] = dot2_high(x.sums(m, 1), sc.x, dot2_low(x.sums(m, 0), sc.x, 0));
      over[m] = dot2_high(x.sums(m, 3), sc.y, dot2_low(x.sums(m, 2), sc.y, over[m]));
      over[m] = dot2_high(x.sums(m, 5), sc.z, dot2_low(x.sums(m, 4), sc.z, over[m]));
      over[m] = dot2_high(x.sums(m, 7), sc.w, dot2_low(x.sums(m, 6), sc.w, over[m]));
      s[m] = -32 * over[m];
    }
#pragma unroll
    for (int k = 0; k < 16; ++k) {  // 16 columns each
      const int h = k / 8, j = k % 8 / 2, half = k % 2;
      const uint4 c = with_bits(nibbles_of(u[4 * h + 2 * (j & 1) + half], 4 * (j >> 1)), u[8 + 2 * h + half],
                                2 * j, 0x03030303u, 4);
      const int32_t f = byte_of(k < 4 ? sc.x : k < 8 ? sc.y : k < 12 ? sc.z : sc.w, k % 4);
#pragma unroll
      for (int m = 0; m < MT; ++m) s[m] += f * dot16(c, x.codes(m, k));
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) t[m] = d * static_cast<float>(s[m]);
  }
  template <int MT>
  CARAT_D void dot_scaled_min(const Stage<MT>& x, float (&t)[MT]) const {
    const uint32_t y = u[0].y, z = u[0].z, w = u[0].w;
    const uint32_t sc[2] = {y & 0x3f3f3f3fu, (w & 0x0f0f0f0fu) | (y >> 2 & 0x30303030u)};
    const uint32_t mn[2] = {z & 0x3f3f3f3fu, (w >> 4 & 0x0f0f0f0fu) | (z >> 2 & 0x30303030u)};
    int32_t s[MT], low[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) s[m] = low[m] = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      // Each minimum twice: groups are two sums of 16 wide.
      const uint32_t twice0 = permute_bytes(mn[k], 0, 0x1100), twice1 = permute_bytes(mn[k], 0, 0x3322);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        low[m] = dot2_high(x.sums(m, 4 * k + 1), twice0, dot2_low(x.sums(m, 4 * k), twice0, low[m]));
        low[m] = dot2_high(x.sums(m, 4 * k + 3), twice1, dot2_low(x.sums(m, 4 * k + 2), twice1, low[m]));
      }
    }
    constexpr int kCodes = T == DType::q4_k ? 1 : 3;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const uint4 &v0 = u[kCodes + g / 2 * 2], &v1 = u[kCodes + g / 2 * 2 + 1];
      const int32_t f = byte_of(sc[g / 4], g % 4);
      if (T == DType::q4_k && g % 2) {  // sixteen times the upper codes: a shift of the sum, not of them
        const auto upper = [](uint32_t v) { return v & 0xf0f0f0f0u; };
        const uint4 c0 = each(v0, upper), c1 = each(v1, upper);
#pragma unroll
        for (int m = 0; m < MT; ++m)
          s[m] +=
              f * ((dot16_unsigned(c0, x.codes(m, 2 * g)) + dot16_unsigned(c1, x.codes(m, 2 * g + 1))) >> 4);
        continue;
      }
      uint4 c0 = nibbles_of(v0, 4 * (g % 2)), c1 = nibbles_of(v1, 4 * (g % 2));
      if constexpr (T == DType::q5_k)
        c0 = with_bits(c0, u[1], g, 0x01010101u, 4), c1 = with_bits(c1, u[2], g, 0x01010101u, 4);
#pragma unroll
      for (int m = 0; m < MT; ++m)
        s[m] += f * (dot16(c0, x.codes(m, 2 * g)) + dot16(c1, x.codes(m, 2 * g + 1)));
    }
    const float of = half_float(u[0].x & 0xffffu), least = half_float(u[0].x >> 16);
#pragma unroll
    for (int m = 0; m < MT; ++m)
      t[m] = fmaf(-least, static_cast<float>(low[m]), of * static_cast<float>(s[m]));
  }
};

// Work of a block of threads: tasks, each a tile, dealt to warps.
struct Tasks {
  int32_t count, warps;
  CARAT_HD explicit Tasks(int32_t n) : count(n) {
    const int32_t rounds = (n + kMostWarps - 1) / kMostWarps;
    warps = (n + rounds - 1) / rounds;
  }
  static constexpr int kMostWarps = 12;
  // Bytes of shared memory: what tasks leave, and what a warp needs.
  CARAT_HD int64_t shared(int rows, int a_warp) const {
    return int64_t{count} * rows * 128 + int64_t{warps} * a_warp;
  }
};
inline constexpr int kPackedThreads = 32 * Tasks::kMostWarps;

struct TileAt {  // where a task's weights are
  const uint8_t* tile;
  int32_t n;  // columns
};
template <DType T>
CARAT_HD TileAt tile_at(const Tensor& w, int32_t slice, int32_t group, int32_t b) {
  const int32_t n = w.cols - 256 * b < 256 ? w.cols - 256 * b : 256;
  const auto* p = reinterpret_cast<const uint8_t*>(w.data) + slice * w.slice_pitch + group * kGroup * w.pitch;
  return {p + int64_t{b} * packed_tile(T, 256), n};
}

// Tile `tile` of a group of outputs: of its row of `blocks`, or of gate and then up.
template <DType T>
CARAT_D TileAt product_tile(const ProductJob& job, int32_t blocks, int32_t group, int32_t tile) {
  if (job.paired)
    return tile < blocks ? tile_at<T>(job.m[0].w, 0, group, tile)
                         : tile_at<T>(job.up, 0, group, tile - blocks);
  const int which = job.which(group);
  return tile_at<T>(job.m[which].w, 0, group - job.begin(which), tile);
}
// What becomes of a lane's sum, or two.
CARAT_D void product_finish(const ProductJob& job, int32_t group, int32_t m, int lane, float gate,
                            float sum) {
  const int which = job.which(group);
  const MatmulArgs& a = job.m[which];
  const int32_t n = (group - job.begin(which)) * kGroup + lane;
  if (n >= a.w.rows) return;
  if (job.paired)
    row_of<float>(a.y, m)[n] = activate(a.act, gate * a.scale) * (sum * job.up_scale);
  else
    finish(a, m, n, sum);
}

// The first task's weights, on their way: a kernel may ask for them before its inputs are there. at(task):
// TileAt.
template <class W, class At>
CARAT_D W ask_first(const Tasks& tasks, At at) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  W w;
  if (warp < tasks.count) {
    const TileAt tile = at(warp);
    w.load(tile.tile, lane, tile.n);
  }
  return w;
}

// left[task][MT][32] in shared memory: t of every task. w: from ask_first(). from(task): activations of
// `rows` rows; block(task): which of their blocks.
template <DType T, int MT>
struct LaneTasks {
  using Weights = LaneBlock<T>;
  static constexpr int kBytes = Stage<MT>::kBytes;  // of shared memory a warp

  template <class At, class From, class Block>
  CARAT_D static void run(const Tasks& tasks, float* left, uint8_t* memory, LaneBlock<T>& w, int32_t rows,
                          At at, From from, Block block) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Stage<MT> x{memory + warp * kBytes};
    for (int32_t task = warp; task < tasks.count; task += tasks.warps) {
      const TileAt tile = at(task);
      if (task != warp) w.load(tile.tile, lane, tile.n);
      x.fill(from(task), block(task), rows, lane);
      sync_warp();
      float t[MT];
      w.template dot<MT>(x, tile.n, t);
#pragma unroll
      for (int m = 0; m < MT; ++m) left[(task * MT + m) * 32 + lane] = t[m];
      sync_warp();
    }
  }
};

// The sum over the blocks of one row, ascending: left as run_tasks() leaves it, from the first block's task
// on.
template <int MT>
CARAT_D float add_up(const float* left, const float* d, int32_t blocks, int m, int lane) {
  float acc = 0;
#pragma unroll 4
  for (int32_t b = 0; b < blocks; ++b) acc = fmaf(d[b], left[(b * MT + m) * 32 + lane], acc);
  return acc;
}

}  // namespace carat::cuda
