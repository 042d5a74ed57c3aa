// Attention on AMX tiles, a segment at a time, by products of parts (amx_parts.inl). Scores stand as
// [key][query]: so K is read as it lies, and the softmax runs in lanes of queries. K and V become parts some
// columns at a time, which all queries meet in the first cache.

constexpr int32_t kHeadAlign = 64;  // columns of a state are padded to a multiple
constexpr int32_t kKeys = kSegment;
constexpr int kKeysAtOnce = 64, kKeyColumns = 128;  // K in the first cache; of V all keys, 32 columns
constexpr int32_t kQueries = 256;

struct Lanes {  // keys that the 16 queries of a tile see (none: 0, 0), and that any of them sees
  alignas(64) int32_t from[16], to[16];
  int low = kKeys, high = 0;
  bool others = false;  // queries that are not asked for
};
using Rows = const std::byte* const*;
struct AttentionScratch {  // views of a worker's scratch
  bool in_place;           // rows are read where they are
  bool codes;              // as codes, whose scale scores and weights take
  DType k_type, v_type;    // of the rows as they are read
  Parts* q;                // [16 queries], [32 columns]; columns c and c + 16 are a pair
  Parts* kv;               // [16 keys], [32 columns] of K, the same; or [32 keys], [16 columns] of V, where
                           // keys 2 i and 2 i + 1 are a pair
  Parts* weight;  // [16 queries], [32 keys], the same; before, as floats, scores [16 queries][key][lane]
  float *part, *whole;                // [queries][16 + dim], as attention_vectors.inl's
  float* mixed;                       // [32][kValueColumns] of tiles in which not all queries are asked for
  Lanes* sees;                        // [16 queries]
  const std::byte **k, **v, **later;  // [keys]: their rows, and the next segment's of K
  float *k_scale, *v_scale;           // [keys], with codes
  float *decoded, *raw;               // [keys][key, value] of types without a reader; a decoded row
};

CARAT_SIMD int32_t padded_dim(const KvSpec& s) { return static_cast<int32_t>(round_up(s.dim, kHeadAlign)); }
CARAT_SIMD int32_t padded_key(const KvSpec& s) { return static_cast<int32_t>(round_up(s.key_dim(), 32)); }
// Columns of a query, and of the keys that it meets.
CARAT_SIMD int32_t query_width(const KvSpec& s) {
  return s.pairs ? padded_dim(s) + padded_key(s) : padded_key(s);
}
// Whether rows are read where they are. Else they become floats first.
CARAT_SIMD bool has_reader(DType t) {
  return with_row(t, [](auto) {});
}
CARAT_SIMD bool has_codes(DType t) {
  bool codes = false;
  with_row(t, [&](auto kind) { codes = decltype(kind)::Row::kCodes; });
  return codes;
}
CARAT_SIMD bool reads_in_place(const KvSpec& s) {
  return !s.protect.any() && has_reader(s.k) && has_reader(s.v) && padded_key(s) == s.key_dim() &&
         padded_dim(s) == s.dim;
}
static int64_t lay_out(std::byte* from, int64_t queries, const KvSpec& spec, AttentionScratch& z) {
  const int64_t n = round_up(queries, 32), d = padded_dim(spec), w = query_width(spec);
  std::byte* p = from;
  const auto take = [&](auto*& to, int64_t bytes) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(p);
    p += round_up(bytes, 64);
  };
  constexpr int64_t tile = sizeof(Parts), key_tiles = kKeysAtOnce / 16 * (kKeyColumns / 32),
                    value_tiles = kKeys / 32 * (kValueColumns / 16);
  take(z.q, n / 16 * (w / 32) * tile);
  take(z.kv, (key_tiles > value_tiles ? key_tiles : value_tiles) * tile);
  take(z.weight, n / 16 * (kKeys / 32) * tile);
  take(z.part, n * (d + 16) * 4);
  take(z.whole, n * (d + 16) * 4);
  take(z.mixed, 32 * kValueColumns * 4);
  take(z.sees, n / 16 * static_cast<int64_t>(sizeof(Lanes)));
  take(z.k, kKeys * 8);
  take(z.v, kKeys * 8);
  take(z.later, kKeys * 8);
  take(z.k_scale, kKeys * 4);
  take(z.v_scale, kKeys * 4);
  take(z.decoded, reads_in_place(spec) ? w * 4 : kKeys * (padded_key(spec) + d) * 4);
  take(z.raw, spec.dim * 4);
  return p - from;
}
static int64_t attention_scratch(int32_t queries, const KvSpec& spec) {
  AttentionScratch z;
  return lay_out(nullptr, queries, spec, z);
}
CARAT_SIMD AttentionScratch attention_views(std::byte* p, int64_t queries, const KvSpec& spec) {
  AttentionScratch z;
  lay_out(p, queries, spec, z);
  z.in_place = reads_in_place(spec);
  z.k_type = z.in_place ? spec.k : DType::f32;
  z.v_type = z.in_place ? spec.v : DType::f32;
  z.codes = z.in_place && !spec.pairs && has_codes(spec.k) && has_codes(spec.v);
  return z;
}

// ---- K, V and queries in parts

// Columns 32 step + 16 i of a row. In this form the compiler knows the place in a block of 32.
template <bool Codes, class Row>
CARAT_SIMD VF columns_of(const Row& x, int32_t step, uint32_t i) {
  const uint32_t c = 32u * static_cast<uint32_t>(step) + 16u * i;
  if constexpr (Codes)
    return x.code(c).v[0];
  else
    return x.at(c).v[0];
}
template <bool Codes, class Row>
CARAT_SIMD void put_columns(Parts& to, unsigned row, const Row& x, int32_t sx, uint32_t ix, const Row& y,
                            int32_t sy, uint32_t iy) {
  const VF a = columns_of<Codes>(x, sx, ix), b = columns_of<Codes>(y, sy, iy);
  if constexpr (Codes)
    put_codes(to, row, a, b);
  else
    put_parts<Row::kExact>(to, row, a, b);
}

// The lines of rows are taken in an order that the hardware does not foresee, so they are asked for, in the
// order in which they lie: a line for every two vectors that are taken, values with keys, the next segment's
// keys with values.
struct Ahead {
  Rows row, end;
  int64_t bytes, at = 0;  // of a row
};
struct Asking {  // a copy that stores do not touch
  Ahead& whole;
  Rows row;
  int64_t at;
  explicit Asking(Ahead& a) : whole(a), row(a.row), at(a.at) {}
  ~Asking() { whole.row = row, whole.at = at; }
  CARAT_AT void next() {
    if (row == whole.end) return;
    prefetch_far(*row + at);
    if ((at += 64) < whole.bytes) return;
    at = 0;
    ++row;
  }
};
// Keys [from, to) of a segment, steps of 32 columns [step, step + n), to tiles from key `base` on.
template <class Row, bool Codes>
static __attribute__((noinline)) void put_keys(Rows rows, int32_t dim, int base, int from, int to,
                                               int32_t step, int n, Ahead& ahead, Parts* z) {
  Asking ask(ahead);
  for (int j = from; j < to; ++j) {
    const Row x(rows[j], dim);
    const unsigned at = static_cast<unsigned>(j - base);
    Parts* tile = z + at / 16 * (kKeyColumns / 32);
#pragma GCC unroll 4
    for (int s = 0; s < kKeyColumns / 32; ++s) {
      if (s == n) break;
      ask.next();
      put_columns<Codes, Row>(tile[s], at % 16, x, step + s, 0, x, step + s, 1);
    }
  }
}
// Keys [from, to) of a segment, 32 columns; what stands beside them is multiplied by zero, and must be a
// number.
template <class Row, bool Codes>
static __attribute__((noinline)) void put_values(Rows rows, int32_t dim, int from, int to, int32_t step,
                                                 Ahead& ahead, Parts* z) {
  Asking ask(ahead);
  Parts* tile = z + from / 32 * 2;
  for (int j0 = from / 32 * 32; j0 < to; j0 += 32, tile += 2)
    for (int i = 0; i < 16; ++i) {
      const int j = j0 + 2 * i;
      if (j >= from && j + 2 <= to) {
        const Row x(rows[j], dim), y(rows[j + 1], dim);
        ask.next();
        ask.next();
        put_columns<Codes, Row>(tile[0], i, x, step, 0, y, step, 0);
        put_columns<Codes, Row>(tile[1], i, x, step, 1, y, step, 1);
        continue;
      }
      const bool even = j >= from && j < to, odd = j + 1 >= from && j + 1 < to;
      const Row x(rows[even ? j : from], dim), y(rows[odd ? j + 1 : from], dim);
      const VF none = setf(0.0f);
      for (int u = 0; u < 2; ++u)
        put_parts<false>(tile[u], i, even ? columns_of<Codes>(x, step, u) : none,
                         odd ? columns_of<Codes>(y, step, u) : none);
    }
}

// Rows of positions [from, to) where they are, page by page.
static void find_rows(const KvView& kv, const Queries& t, int32_t from, int32_t to, bool of_value,
                      const std::byte** rows) {
  const int64_t bytes = of_value ? kv.spec.v_bytes() : kv.spec.k_bytes();
  while (from < to) {
    const int32_t left = kv.page_tokens - from % kv.page_tokens, n = left < to - from ? left : to - from;
    const std::byte* p = of_value ? kv.v_row(*t.seq, from, t.head) : kv.k_row(*t.seq, from, t.head);
    for (int32_t i = 0; i < n; ++i) *rows++ = p + i * bytes;
    from += n;
  }
}
// As in attention_vectors.inl; what is loaded here is where the rows are.
static void load_keys(const Step& step, const AttentionOp& op, const Queries& t, int32_t base, int32_t from,
                      int32_t to, int32_t row, Edge edge, const AttentionScratch& z) {
  const KvView& kv = op.a.kv;
  const int32_t key_dim = kv.spec.key_dim(), kd = padded_key(kv.spec);
  if (z.in_place && row < 0) {
    find_rows(kv, t, from, to, false, z.k + from - base);
    find_rows(kv, t, from, to, true, z.v + from - base);
    return;
  }
  for (int32_t p = from; p < to; ++p) {
    const StoredRow r = stored_row(kv, t, row < 0 ? p : step.state.slot_seen(row, p), edge.covers(p));
    const int32_t j = p - base;
    z.k[j] = r.k, z.v[j] = r.v;
    if (z.in_place) continue;
    float *k = z.decoded + j * (kd + t.d), *v = k + kd;
    load_kv(r.k_type, r.k, key_dim, kd, k, z.raw);
    load_kv(r.v_type, r.v, t.dim, t.d, v, z.raw);
    z.k[j] = reinterpret_cast<std::byte*>(k), z.v[j] = reinterpret_cast<std::byte*>(v);
  }
}
CARAT_SIMD void begin_segment(const Queries& t, const AttentionScratch& z) {
  for (int i = 0; i < t.count(); ++i)
    z.part[i * (t.d + 16)] = -__builtin_inff(), z.part[i * (t.d + 16) + 1] = 0;
}

static void load_queries(const AttentionOp& op, const Queries& t, const AttentionScratch& z) {
  const KvSpec& spec = op.a.kv.spec;
  const int32_t w = query_width(spec), steps = w / 32, first = spec.pairs ? padded_dim(spec) : w;
  float* x = z.decoded;  // room for one row
  const auto put = [](const float* from, int32_t n, int32_t padded, float* to) {
    for (int32_t c = 0; c < padded; ++c) to[c] = c < n ? from[c] : 0.0f;
  };
  for (int i = 0; i < round_up(t.count(), 16); ++i) {
    const QueryParts q = i < t.count() ? query_of(op, t, i) : QueryParts{};
    put(q.first, q.first ? t.dim : 0, first, x);
    put(q.second, q.second ? spec.key_dim() : 0, w - first, x + first);
    Parts* to = z.q + i / 16 * steps;
    for (int s = 0; s < steps; ++s)
      put_parts<false>(to[s], i % 16, loadf(x + 32 * s), loadf(x + 32 * s + 16));
  }
  for (int i = 0; i < round_up(t.count(), 16) / 16 * steps; ++i) transpose(z.q[i]);
}

// ---- a block

static Lanes lanes_of(const Step& step, const AttentionOp& op, const Queries& t, int32_t base, int32_t begin,
                      int32_t end, int first, int last, int tile) {
  Lanes z;
  for (int l = 0; l < 16; ++l) {
    const int i = tile * 16 + l;
    const bool asked = i >= first && i < last;
    Seen seen = asked ? seen_by(step, op, t, i, base, begin, end) : Seen{0, 0};
    if (seen.from >= seen.to) seen = {0, 0};
    z.from[l] = seen.from, z.to[l] = seen.to;
    z.others = z.others || (!asked && i < t.count());
    if (seen.to == 0) continue;
    z.low = z.low < seen.from ? z.low : seen.from, z.high = z.high > seen.to ? z.high : seen.to;
  }
  return z;
}

// Tiles that are weighed together: in either, what the other alone sees has weights of zero.
CARAT_SIMD void unite(Lanes& a, Lanes& b) {
  a.low = b.low = a.low < b.low ? a.low : b.low;
  a.high = b.high = a.high > b.high ? a.high : b.high;
  a.others = b.others = a.others || b.others;
}

// Scores of 16 queries to weights in parts, in the same place, and their states' maximum and sum.
static void soften(const AttentionArgs& a, const Lanes& sees, const AttentionScratch& z, Parts* weight,
                   float* top_of, float* sum_of) {
  const VF none = setf(-__builtin_inff());
  const VI from = loadi(sees.from), to = loadi(sees.to);
  float* score = reinterpret_cast<float*>(weight);
  const int first = sees.low / 32 * 32, last = static_cast<int>(round_up(sees.high, 32));
  VF most = none;
  for (int j = first; j < last; ++j) {
    VF s = mulf(loadf(score + j * 16), setf(a.scale));
    if (z.codes) s = mulf(s, setf(z.k_scale[j]));
    if (a.softcap > 0) s = mulf(setf(a.softcap), tanh_v(divf(s, setf(a.softcap))));
    const VI at = seti(j);
    const __mmask16 seen = _mm512_cmple_epi32_mask(from, at) & _mm512_cmplt_epi32_mask(at, to);
    s = _mm512_mask_blend_ps(seen, none, s);
    most = maxf(s, most);  // in this order a NaN is passed over
    storef(score + j * 16, s);
  }
  const VF top = select_lt(none, most, most, setf(0.0f));  // e^-inf is 0, -inf + inf no number
  VF even = setf(0.0f), odd = even;
  for (int j = first; j < last; j += 32) {
    Parts p;
    for (int i = 0; i < 16; ++i) {
      const float* s = score + (j + 2 * i) * 16;
      VF e = exp_v(subf(loadf(s), top)), o = exp_v(subf(loadf(s + 16), top));
      even = addf(even, e), odd = addf(odd, o);
      if (z.codes) e = mulf(e, setf(z.v_scale[j + 2 * i])), o = mulf(o, setf(z.v_scale[j + 2 * i + 1]));
      put_parts<false>(p, static_cast<unsigned>(i), e, o);
    }
    transpose(p.high, weight[j / 32].high);
    transpose(p.low, weight[j / 32].low);
  }
  storef(top_of, most);
  storef(sum_of, addf(even, odd));
}

// Scales of keys [begin, end); of those beside them in tiles of 32, numbers.
static void find_scales(const KvSpec& spec, int begin, int end, const AttentionScratch& z) {
  const auto find = [&](DType type, Rows rows, int32_t dim, float* to) {
    for (int64_t j = begin / 32 * 32; j < round_up(end, 32); ++j) to[j] = 0;
    with_row(type, [&](auto kind) {
      for (int j = begin; j < end; ++j) to[j] = decltype(kind)::Row::scale_of(rows[j], dim);
    });
  };
  find(z.k_type, z.k, spec.key_dim(), z.k_scale);
  find(z.v_type, z.v, spec.dim, z.v_scale);
}

// Scores of all tiles of queries over keys [begin, end) of the segment.
static void score_tiles(const KvSpec& spec, int tile0, int tile1, int begin, int end, bool cold,
                        const AttentionScratch& z) {
  const int32_t steps = query_width(spec) / 32, of_values = spec.pairs ? padded_dim(spec) / 32 : 0;
  const int64_t key_bytes = row_bytes(z.k_type, spec.key_dim());
  Ahead values{z.v + begin, z.v + end, row_bytes(z.v_type, spec.dim)};
  for (int j = begin; j < end && cold; ++j)
    for (int64_t i = 0; i < key_bytes; i += 64) prefetch_far(z.k[j] + i);
  for (int j = begin / kKeysAtOnce * kKeysAtOnce; j < end; j += kKeysAtOnce)
    for (int32_t s = 0, n; s < steps; s += n) {  // values first, with one copy of K = V
      const bool of_value = s < of_values;
      const int32_t left = (of_value ? of_values : steps) - s, step = of_value ? s : s - of_values;
      n = left < kKeyColumns / 32 ? left : kKeyColumns / 32;
      with_row(of_value ? z.v_type : z.k_type, [&](auto kind) {
        using Row = typename decltype(kind)::Row;
        (z.codes ? put_keys<Row, Row::kCodes>
                 : put_keys<Row, false>)(of_value ? z.v : z.k, of_value ? spec.dim : spec.key_dim(), j,
                                         begin > j ? begin : j, end < j + kKeysAtOnce ? end : j + kKeysAtOnce,
                                         step, n, values, z.kv);
      });
      for (int t = tile0; t < tile1; ++t)
        if (z.sees[t].low < j + kKeysAtOnce && z.sees[t].high > j)
          (z.codes ? add_scores<true>
                   : add_scores<false>)({z.kv, kKeyColumns / 32, 1}, {z.q + t * steps + s, 0, 1}, n, s == 0,
                                        reinterpret_cast<float*>(z.weight + t * (kKeys / 32)) + j * 16);
    }
}

// Weighted values of tiles [tile, tile + T), columns c to c + 31.
template <int T>
static void weigh_tiles(const Queries& t, int tile, int32_t c, int first, int last,
                        const AttentionScratch& z) {
  const Lanes& sees = z.sees[tile];
  if (sees.low >= sees.high) return;
  const int s0 = sees.low / 32, s1 = static_cast<int>(round_up(sees.high, 32)) / 32, width = t.d + 16;
  float* to = sees.others ? z.mixed : z.part + tile * 16 * width + 16 + c;
  (z.codes ? weigh_values<T, true>
           : weigh_values<T, false>)({z.weight + tile * (kKeys / 32) + s0, kKeys / 32, 1},
                                     {z.kv + s0 * 2, 1, 2}, s1 - s0, to, sees.others ? kValueColumns : width);
  if (!sees.others) return;
  for (int i = first > tile * 16 ? first : tile * 16; i < last && i < (tile + T) * 16; ++i)
    __builtin_memcpy(z.part + i * width + 16 + c, z.mixed + (i - tile * 16) * kValueColumns,
                     kValueColumns * 4);
}

// As in attention_vectors.inl.
static void attend_keys(const Step& step, const AttentionOp& op, const Queries& t, int32_t base,
                        int32_t begin, int32_t end, int first, int last, const AttentionScratch& z) {
  const int tile0 = first / 16, tile1 = (last + 15) / 16, width = t.d + 16;
  alignas(64) TileConfig config;
  for (int r = 0; r < 8; ++r) config.rows[r] = 16, config.bytes[r] = 64;
  CARAT_FENCE();
  _tile_loadconfig(&config);
  for (int i = tile0; i < tile1; ++i) z.sees[i] = lanes_of(step, op, t, base, begin, end, first, last, i);
  for (int i = tile0; i + 2 <= tile1; i += 2) unite(z.sees[i], z.sees[i + 1]);
  if (z.codes) find_scales(op.a.kv.spec, begin - base, end - base, z);
  score_tiles(op.a.kv.spec, tile0, tile1, begin - base, end - base, t.cold, z);
  for (int i = tile0; i < tile1; ++i) {
    const Lanes& sees = z.sees[i];
    alignas(64) float top[16], sum[16];
    soften(op.a, sees, z, z.weight + i * (kKeys / 32), top, sum);
    for (int l = 0; l < 16; ++l)
      if (sees.to[l]) z.part[(i * 16 + l) * width] = top[l], z.part[(i * 16 + l) * width + 1] = sum[l];
  }
  const int32_t next = base + kKeys, next_end = next + kKeys < t.read_end ? next + kKeys : t.read_end;
  find_rows(op.a.kv, t, next, next_end, false, z.later);
  Ahead keys{z.later, z.later + (next < next_end ? next_end - next : 0), op.a.kv.spec.k_bytes()};
  for (int32_t c = 0; c < t.d; c += kValueColumns) {
    with_row(z.v_type, [&](auto kind) {
      using Row = typename decltype(kind)::Row;
      (z.codes ? put_values<Row, Row::kCodes> : put_values<Row, false>)(z.v, t.dim, begin - base, end - base,
                                                                        c / 32, keys, z.kv);
    });
    int i = tile0;
    for (; i + 2 <= tile1; i += 2) weigh_tiles<2>(t, i, c, first, last, z);
    if (i < tile1) weigh_tiles<1>(t, i, c, first, last, z);
  }
  _tile_release();
}
