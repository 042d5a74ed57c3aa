// AMX for k-quants and nine rows or more. The block scale is folded into the weight, which then has two byte
// planes, and two tile products over 64 columns each give the exact sum over 256:
//   q4_k, q5_k   scale = 8 s1 + s0, code * s < 256:  S = 8 C1 + C0
//   q6_k         scale * (code - 32) = 256 hi + lo:  S = 256 C1 + C0
// g++ 12's tile intrinsics are asm without memory operands: without a fence it moves or drops the stores that
// they read.
#define CARAT_FENCE() asm volatile("" ::: "memory")

constexpr int kAmxRows = 9;  // up to 8, VNNI in one pass is as fast or faster
struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
using TilePlanes = uint8_t[4][2][1024];  // [64 columns][low, high][16 x 64]
using TileSums = int32_t[2][16][16];     // [low, high][row][output]
struct TileScratch {
  alignas(64) TilePlanes planes;
  struct alignas(64) {
    TileSums tile[2];
    int32_t gap[16];  // 4 KB apart, a load of one buffer would wait for stores to the other
  } pair[2];
  TileConfig config;
  int configured;  // rows that the tiles have; 0: none
};

static bool amx_knows(DType t) { return t == DType::q4_k || t == DType::q5_k || t == DType::q6_k; }

// Columns 64 t .. 64 t + 63 of a q4_k or q5_k block: rows 0..7 of a plane are the low nibbles, 8..15 the high
// ones.
template <bool Five, int t>
CARAT_SIMD void k45_planes(const uint8_t* w, const KHead& h, uint8_t (*out)[1024]) {
  constexpr int first = Five ? 12 : 4;
  const VI m4 = bytes_v(15), m3 = seti(7);
  VI low[2], high[2];  // both bytes of the scales of groups 2t, 2t + 1, as 16-bit factors
  for (int g = 0; g < 2; ++g) {
    const VI s = byte_of(h.scale[t / 2], 2 * (t & 1) + g), a = andi(s, m3), b = srli<3>(s);
    low[g] = ori(a, slli<16>(a)), high[g] = ori(b, slli<16>(b));
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const VI v = line(w + (first + 8 * t + j) * 64);
    VI l = andi(v, m4), u = andi(srli16<4>(v), m4);
    if constexpr (Five) {
      const VI q = loadi(w + (4 + j) * 64);
      l = ori(l, bit_to_4<2 * t>(q)), u = ori(u, bit_to_4<2 * t + 1>(q));
    }
    storei(out[0] + j * 64, _mm512_mullo_epi16(l, low[0]));
    storei(out[1] + j * 64, _mm512_mullo_epi16(l, high[0]));
    storei(out[0] + 512 + j * 64, _mm512_mullo_epi16(u, low[1]));
    storei(out[1] + 512 + j * 64, _mm512_mullo_epi16(u, high[1]));
  }
}

// Every bit of a where `from` has it, else of b.
CARAT_SIMD VI choose(VI from, VI a, VI b) { return _mm512_ternarylogic_epi32(from, a, b, 0xca); }

// Products of the even and the odd bytes, 16 bits each, as bytes of two planes.
CARAT_SIMD void put_products(VI even, VI odd, uint8_t (*out)[1024], int row) {
  const VI low = seti(0x00ff00ff);
  storei(out[0] + row * 64, choose(low, even, slli16<8>(odd)));
  storei(out[1] + row * 64, choose(low, srli16<8>(even), odd));
}
template <int n, int jj>
CARAT_SIMD void k6_planes(const uint8_t* w, uint8_t (*planes)[2][1024]) {
  const VI m4 = bytes_v(15), m6 = bytes_v(63);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* p = w + (2 * n + half) * kQuarter6;
    if (jj) prefetch(p + 12 * 64);
    VI even[2], odd[2], offset[2];  // the scale as the even, as the odd byte of 16 bits; 32 * scale
    for (int u = 0; u < 2; ++u) {
      const VI s = byte_of(loadi(w + (2 * n + u) * kQuarter6 + 12 * 64), 2 * jj + half);
      even[u] = ori(s, slli<16>(s)), odd[u] = slli16<8>(even[u]), offset[u] = srai16<3>(odd[u]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const VI v = line(p + (4 * jj + i) * 64), h = jj ? line(p + (8 + i) * 64) : loadi(p + (8 + i) * 64);
      const VI c[2] = {andi(choose(m4, v, jj ? slli16<2>(h) : slli16<4>(h)), m6),
                       andi(choose(m4, srli16<4>(v), jj ? srli16<2>(h) : h), m6)};
      for (int u = 0; u < 2; ++u)
        put_products(_mm512_sub_epi16(_mm512_maddubs_epi16(c[u], even[u]), offset[u]),
                     _mm512_sub_epi16(_mm512_maddubs_epi16(c[u], odd[u]), offset[u]), planes[2 * n + u],
                     8 * jj + 4 * half + i);
    }
  }
}

// Scales of one block, by what they serve: planes, or the end of its sums.
template <DType T>
CARAT_SIMD KHead block_head(const uint8_t* w, const uint8_t* head) {
  if constexpr (T == DType::q6_k) {
    KHead h;
    h.d = load_f16(head);
    return h;
  } else {
    return k_head(w);
  }
}
// A block's planes in four parts: part t goes where columns 64 t .. 64 t + 63 and those before stand.
template <DType T, int t>
CARAT_SIMD void planes_part(const uint8_t* w, const KHead& h, TilePlanes& planes) {
  if constexpr (T != DType::q6_k) {
    k45_planes<T == DType::q5_k, t>(w, h, planes[t]);
  } else if constexpr (t == 3) {  // of both halves of a q6_k block a call fills a half of two planes
    k6_planes<1, 0>(w, planes);
    k6_planes<1, 1>(w, planes);
  } else if constexpr (t > 0) {
    k6_planes<0, t - 1>(w, planes);
  }
}

template <DType T>
CARAT_SIMD void planes_of(const uint8_t* w, const KHead& h, TilePlanes& planes) {
  planes_part<T, 0>(w, h, planes);
  planes_part<T, 1>(w, h, planes);
  planes_part<T, 2>(w, h, planes);
  planes_part<T, 3>(w, h, planes);
}

// Ends row r of a block's sums. pair32, scale: of the tile's rows, ts of them; acc: of row r.
template <DType T>
CARAT_SIMD void end_row(const KHead& h, const TileSums& sum, int r, const uint32_t* pair32, int ts,
                        const float* scale, float* acc) {
  constexpr bool six = T == DType::q6_k;
  const VI low = loadi(sum[0][r]), high = loadi(sum[1][r]);
  VF t = mulf(h.d, to_float(addi(low, six ? slli<8>(high) : slli<3>(high))));
  if constexpr (!six) {
    VI mins = seti(0);
    for (int p = 0; p < 4; ++p) mins = dot16(mins, h.min[p], pair32 + p * ts + r);
    t = fnma_exact(h.dmin, to_float(mins), t);
  }
  accumulate(acc, scale[r], t);
}
// Rows [from, to) of a tile of ts rows whose sums over block b are there.
template <DType T>
CARAT_SIMD void end_rows(const KHead& h, const Rounded& tile, int64_t b, int ts, int from, int to, float* acc,
                         const TileSums& sum) {
  for (int r = from; r < to; ++r)
    end_row<T>(h, sum, r, tile.pair32 + b * 4 * ts, ts, tile.scale + b * ts, acc + r * 16);
}

// Columns 64 t .. 64 t + 63 of one tile of ts rows: registers 0 and 1 sums, 4 activations, 6 and 7 weights.
template <DType T>
static inline __attribute__((always_inline)) void multiply_part(const int8_t* q, int ts, int t,
                                                                TileScratch& z) {
  CARAT_FENCE();
  if (t == 0) {
    _tile_zero(0);
    _tile_zero(1);
  }
  _tile_loadd(4, q + t * ts * 64, 64);
  _tile_loadd(6, z.planes[t][0], 64);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, z.planes[t][1], 64);
  if constexpr (T == DType::q6_k)
    _tile_dpbssd(1, 4, 7);
  else
    _tile_dpbsud(1, 4, 7);
  CARAT_FENCE();
}

// One tile of rows, a step of many drafts say: while it multiplies, the vectors unpack the next block and end
// the sums of the one before. In turns each waits for the other, as a product takes some 50 clocks. Sums come
// late, from stores of tiles: they are ended in a block's second half. With more rows this order was slower.
template <DType T>
static void amx_few(const uint8_t* strip, int64_t cols, const Rounded& x, int ts, float* acc,
                    TileScratch& z) {
  const int64_t blocks = (cols + 255) / 256, bytes = pack_shape(T).lines * 64;
  const uint8_t* w = strip + head_bytes(T, cols);
  KHead head = block_head<T>(w, strip), before = head, next = head;
  planes_of<T>(w, head, z.planes);
  for (int64_t b = 0; b < blocks; ++b, w += bytes) {
    const bool more = b + 1 < blocks;
    if (more) next = block_head<T>(w + bytes, strip + (b + 1) * 32);
    const auto part = [&](auto t) __attribute__((always_inline)) {
      multiply_part<T>(x.q + b * 256 * ts, ts, t, z);
      if (more) planes_part<T, t>(w + bytes, next, z.planes);
      if (b > 0 && t >= 2)
        end_rows<T>(before, x, b - 1, ts, ts * (t - 2) / 2, ts * (t - 1) / 2, acc, z.pair[0].tile[0]);
    };
    part(std::integral_constant<int, 0>());
    part(std::integral_constant<int, 1>());
    part(std::integral_constant<int, 2>());
    part(std::integral_constant<int, 3>());
    CARAT_FENCE();
    _tile_stored(0, z.pair[0].tile[0][0], 64);
    _tile_stored(1, z.pair[0].tile[0][1], 64);
    CARAT_FENCE();
    before = head, head = next;
  }
  end_rows<T>(before, x, blocks - 1, ts, 0, ts, acc, z.pair[0].tile[0]);
}

// Two tiles of rows from columns 64 t on: registers 0 .. 3 sums, 4 and 5 activations, 6 and 7 weights.
template <DType T>
static inline __attribute__((always_inline)) void multiply_pair(const int8_t* q0, const int8_t* q1, int t,
                                                                const TilePlanes& planes) {
  CARAT_FENCE();
  if (t == 0) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  _tile_loadd(4, q0 + t * 1024, 64);
  _tile_loadd(6, planes[t][0], 64);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(5, q1 + t * 1024, 64);
  _tile_dpbsud(2, 5, 6);
  _tile_loadd(7, planes[t][1], 64);
  if constexpr (T == DType::q6_k) {
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(3, 5, 7);
  } else {
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(3, 5, 7);
  }
  CARAT_FENCE();
}

// What ends the sums of a pair of tiles: where its rows' scales, sums of columns and results are.
struct PairEnd {
  const float* scale[2];
  const uint32_t* pair32[2];
  float* acc;
  const TileSums* sum;
};

// Rows 4 t .. 4 t + 3 of both tiles.
template <DType T, int t>
CARAT_SIMD void end_pair(const KHead& h, const PairEnd& e) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
#pragma GCC unroll 4
    for (int r = 4 * t; r < 4 * t + 4; ++r)
      end_row<T>(h, e.sum[i], r, e.pair32[i], kTileRows, e.scale[i], e.acc + (i * 16 + r) * 16);
}

// One block of a pair of tiles. While it multiplies, the vectors end the sums of the pair before. A function
// of its own: inlined, addresses of tiles wait in vector registers, behind that arithmetic.
template <DType T>
static __attribute__((noinline)) void pair_block(const int8_t* q0, const int8_t* q1, const TilePlanes& planes,
                                                 TileSums* sums, const KHead& head, const PairEnd& before) {
  const KHead h = head;
  const PairEnd e = before;
  const auto step = [&](auto t) __attribute__((always_inline)) {
    multiply_pair<T>(q0, q1, t, planes);
    if (e.acc) end_pair<T, t>(h, e);
  };
  step(std::integral_constant<int, 0>());
  step(std::integral_constant<int, 1>());
  step(std::integral_constant<int, 2>());
  step(std::integral_constant<int, 3>());
  CARAT_FENCE();
  _tile_stored(0, sums[0][0], 64);
  _tile_stored(1, sums[0][1], 64);
  _tile_stored(2, sums[1][0], 64);
  _tile_stored(3, sums[1][1], 64);
  CARAT_FENCE();
}

// Pairs of whole tiles, a block of 256 columns at a time.
template <DType T>
static void amx_pairs(const uint8_t* strip, int64_t cols, const Rounded& x, int pairs, float* acc,
                      TileScratch& z) {
  const uint8_t* w = strip + head_bytes(T, cols);
  KHead head = {}, ending = {};
  PairEnd before = {};
  for (int64_t b = 0; b * 256 < cols; ++b, w += pack_shape(T).lines * 64) {
    ending = head;
    head = block_head<T>(w, strip + b * 32);
    planes_of<T>(w, head, z.planes);
    for (int p = 0; p < pairs; ++p) {
      const Rounded x0 = x.at(p * 32), x1 = x.at(p * 32 + 16);
      TileSums* sums = z.pair[before.sum == z.pair[0].tile].tile;
      pair_block<T>(x0.q + b * 4096, x1.q + b * 4096, z.planes, sums, p ? head : ending, before);
      before = {{x0.scale + b * 16, x1.scale + b * 16},
                {x0.pair32 + b * 64, x1.pair32 + b * 64},
                acc + p * 512,
                sums};
    }
  }
  end_pair<T, 0>(head, before);
  end_pair<T, 1>(head, before);
  end_pair<T, 2>(head, before);
  end_pair<T, 3>(head, before);
}

// Costs some 100 ns with the release: once a task, where its strips have the same rows.
static void configure(TileScratch& z, int rows) {
  if (z.configured == rows) return;
  z.configured = rows;
  z.config = {};
  for (int t = 0; t < 8; ++t)
    z.config.rows[t] = static_cast<uint8_t>(t < 6 ? rows : 16), z.config.bytes[t] = 64;
  CARAT_FENCE();
  _tile_loadconfig(&z.config);
}

template <DType T>
static void amx_product(const uint8_t* strip, int64_t cols, const Rounded& x, int rows, float* acc,
                        TileScratch& z) {
  int m = rows / 32 * 32;
  if (m) {
    configure(z, kTileRows);
    amx_pairs<T>(strip, cols, x, m / 32, acc, z);
  }
  for (; m < rows; m += kTileRows) {
    const int ts = rows - m < kTileRows ? rows - m : kTileRows;
    configure(z, ts);
    amx_few<T>(strip, cols, x.at(m), ts, acc + m * 16, z);
  }
}

// acc [rows][16] = x times one strip.
static void amx_strip(DType type, const uint8_t* strip, int64_t cols, const Rounded& x, int rows, float* acc,
                      TileScratch& z) {
  for (int r = 0; r < rows; ++r) storef(acc + r * 16, setf(0));
  if (type == DType::q4_k)
    amx_product<DType::q4_k>(strip, cols, x, rows, acc, z);
  else if (type == DType::q5_k)
    amx_product<DType::q5_k>(strip, cols, x, rows, acc, z);
  else
    amx_product<DType::q6_k>(strip, cols, x, rows, acc, z);
}
static void release(TileScratch& z) {
  if (z.configured) _tile_release();
  z.configured = 0;
}

constexpr int64_t kTileTestOps = int64_t{kDotTestRounds} / 16 * 4 * 16 * 16 * 64 * 2;
static void run_tile_test(const Step&, const void*, int64_t, Worker& worker) {
  TileScratch& z = *reinterpret_cast<TileScratch*>(worker.scratch);
  z.configured = 0;
  configure(z, kTileRows);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, z.planes[0][0], 64);
  _tile_loadd(5, z.planes[0][1], 64);
  for (int i = 0; i < kDotTestRounds / 16; ++i) {
    _tile_dpbsud(0, 4, 5);
    _tile_dpbsud(1, 4, 5);
    _tile_dpbsud(2, 4, 5);
    _tile_dpbsud(3, 4, 5);
  }
  _tile_stored(0, z.pair[0].tile[0][0], 64);
  CARAT_FENCE();
  release(z);
}
