// Matrix products of all kinds: a task is up to kBlockRows rows times a few strips of 16 outputs.

// A row's columns [256 b, 256 b + 256), zeros behind the last.
static void load_block(const float* x, int64_t cols, int64_t b, float (&v)[256]) {
  const int n = static_cast<int>(cols - b * 256 < 256 ? cols - b * 256 : 256);
  if (n == 256)
    __builtin_memcpy(v, x + b * 256, sizeof v);
  else
    for (int i = 0; i < 256; ++i) v[i] = i < n ? x[b * 256 + i] : 0;
}
// As quantize_act: the codes of a block, and their scale.
static float round_codes(const float (&v)[256], int32_t (&code)[256]) {
  VI top = seti(0);  // of the magnitudes' bits: they order like the values, NaN above all
  for (int i = 0; i < 256; i += W) top = maxi(top, andi(loadi(v + i), seti(0x7fffffff)));
  const int32_t bits = max_lane(top);
  if (bits >= 0x7f800000 || bits < (127 - 100) << 23) {  // not finite; or below 2^-100, which counts as zero
    for (int i = 0; i < 256; i += W) storei(code + i, seti(0));
    return bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
  }
  float amax;
  __builtin_memcpy(&amax, &bits, 4);
  const VF inv = setf(127.0f / amax);
  for (int i = 0; i < 256; i += W) storei(code + i, minmax(round_int(mulf(loadf(v + i), inv)), -127, 127));
  return amax / 127.0f;
}

// Rounds columns [256 b, ...) of rows x[0 .. rows) into a tile.
static void round_block(const float* const* x, int rows, int64_t cols, int64_t b, const Rounded& to) {
  for (int r = 0; r < rows; ++r) {
    alignas(64) float v[256];
    alignas(64) int32_t code[256];
    alignas(64) int8_t q[256];
    load_block(x[r], cols, b, v);
    const float scale = round_codes(v, code);
    for (int i = 0; i < 256; i += 16) store_low_bytes(q + i, code + i);
    alignas(64) int32_t s[16];
    sums_of_16(q, s);
    const auto pair = [](int32_t lo, int32_t hi) {
      return (static_cast<uint32_t>(lo) & 0xffff) | static_cast<uint32_t>(hi) << 16;
    };
    for (int i = 0; i < 4; ++i) __builtin_memcpy(to.q + ((b * 4 + i) * rows + r) * 64, q + 64 * i, 64);
    to.scale[b * rows + r] = scale;
    for (int g = 0; g < 16; ++g) to.minus16[(b * 16 + g) * rows + r] = -s[g];
    for (int g = 0; g < 8; ++g) to.minus32[(b * 8 + g) * rows + r] = -(s[2 * g] + s[2 * g + 1]);
    for (int p = 0; p < 4; ++p) {
      const int g = 2 * ((p & 1) + 4 * (p >> 1));  // first sum of 16 of group (p & 1) + 4 (p >> 1)
      to.pair32[(b * 4 + p) * rows + r] = pair(s[g] + s[g + 1], s[g + 4] + s[g + 5]);
    }
#ifdef CARAT_CODES
    alignas(64) uint32_t lanes[16];
    minus_lanes_of_16(q, lanes);
    for (int g = 0; g < 16; ++g) to.lane16[(b * 16 + g) * rows + r] = lanes[g];
#endif
    for (int p = 0; p < 8; ++p)
      to.pair16[(b * 8 + p) * rows + r] = pair(s[4 * (p >> 1) + (p & 1)], s[4 * (p >> 1) + (p & 1) + 2]);
  }
}

// Task: a row.
static void run_refine(const Step&, const void* p, int64_t m, Worker&) {
  const RefineArgs& a = static_cast<const ByRow<RefineArgs>*>(p)->a;
  const float* x = a.x.row<float>(m);
  float *y = a.y.row<float>(2 * m), *left = a.y.row<float>(2 * m + 1);
  alignas(64) float v[256];
  alignas(64) int32_t code[256];
  __builtin_memcpy(y, x, static_cast<size_t>(a.x.cols) * 4);
  for (int64_t b = 0; b * 256 < a.x.cols; ++b) {
    load_block(x, a.x.cols, b, v);
    const VF scale = setf(round_codes(v, code));
    for (int i = 0; i < 256; i += W)
      storef(v + i, fnma_exact(scale, to_float(loadi(code + i)), loadf(v + i)));
    const int64_t n = a.x.cols - b * 256;
    __builtin_memcpy(left + b * 256, v, static_cast<size_t>(n < 256 ? n : 256) * 4);
  }
}

// Task: kFoldColumns of a row.
static void run_fold(const Step&, const void* p, int64_t task, Worker&) {
  const FoldArgs& a = static_cast<const FoldOp*>(p)->a;
  const int64_t chunks = (a.y.cols + kFoldColumns - 1) / kFoldColumns, m = task / chunks;
  int64_t i = task % chunks * kFoldColumns;
  const int64_t end = i + kFoldColumns < a.y.cols ? i + kFoldColumns : a.y.cols;
  const float *x = a.x.row<float>(2 * m), *left = a.x.row<float>(2 * m + 1);
  float* y = a.y.row<float>(m);
  const auto fold = [&](const float* first, const float* second) {
    const VF v = addf(loadf(first), loadf(second));
    return a.softcap > 0 ? mulf(setf(a.softcap), tanh_v(divf(v, setf(a.softcap)))) : v;
  };
  for (; i + W <= end; i += W) storef(y + i, fold(x + i, left + i));
  if (i == end) return;
  float rest[3][W] = {};
  for (int64_t j = i; j < end; ++j) rest[0][j - i] = x[j], rest[1][j - i] = left[j];
  storef(rest[2], fold(rest[0], rest[1]));
  for (int64_t j = i; j < end; ++j) y[j] = rest[2][j - i];
}

// Task: a tile and 1024 columns.
static void run_quantize(const Step& step, const void* p, int64_t task, Worker&) {
  const QuantOp& op = *static_cast<const QuantOp*>(p);
  const int64_t chunks = (op.x.cols + 1023) / 1024, tile = task / chunks, chunk = task % chunks;
  int64_t first = tile * kTileRows;
  int rows;
  if (op.slots) {  // room for whole items: they may have fewer tiles
    constexpr int kTiles = kBlockRows / kTileRows;
    const Slots::Item& it = op.slots->item[tile / kTiles];
    first = it.first + tile % kTiles * kTileRows;
    rows = static_cast<int>(it.rows - tile % kTiles * kTileRows);
  } else {
    rows = static_cast<int>(step.count(op.rows) - first);
  }
  if (rows <= 0) return;
  if (rows > kTileRows) rows = kTileRows;
  const float* x[kTileRows];
  for (int r = 0; r < rows; ++r)
    x[r] = op.x.row<float>(op.slots && !op.direct ? op.slots->row[first + r] : first + r);
  const Rounded to = op.to.at(first);
  for (int64_t b = chunk * 4; b < chunk * 4 + 4 && b * 256 < op.x.cols; ++b)
    round_block(x, rows, op.x.cols, b, to);
}

struct DenseScratch {
  alignas(64) float acc[2][kBlockRows][16];
  const float* x[kBlockRows];
  IntStrip ints;
#if defined(CARAT_CODES) || defined(CARAT_MMLA)
  CodeBlock codes;
#endif
#ifdef CARAT_AMX
  TileScratch tiles;
#endif
};
static_assert(sizeof(DenseScratch) <= kDenseScratch);

// A task's scratch; tiles that its products set up are released behind it.
class TaskScratch {
 public:
  explicit TaskScratch(Worker& worker) : z_(*reinterpret_cast<DenseScratch*>(worker.scratch)) {
#ifdef CARAT_AMX
    z_.tiles.configured = 0;
#endif
  }
  ~TaskScratch() {
#ifdef CARAT_AMX
    release(z_.tiles);
#endif
  }
  TaskScratch(const TaskScratch&) = delete;
  DenseScratch& operator*() { return z_; }

 private:
  DenseScratch& z_;
};

// acc [rows][16] = rows of x times outputs n0 .. n0 + 16 of w (one slice). x: the rows' first tile; xf: the
// rows as floats.
static void product16(const Tensor& w, int64_t n0, const Rounded& x, const float* const* xf, int rows,
                      float* acc, DenseScratch& z) {
  const int outputs = static_cast<int>(w.rows - n0 < 16 ? w.rows - n0 : 16);
  if (w.packing == kPackedStrips) {
    const uint8_t* strip = reinterpret_cast<const uint8_t*>(w.data) + n0 * w.pitch;
#ifdef CARAT_AMX
    if (rows >= kAmxRows && amx_knows(w.type)) return amx_strip(w.type, strip, w.cols, x, rows, acc, z.tiles);
#endif
#ifdef CARAT_CODES
    if (rows >= kCodeRows && codes_known(w.type))
      return codes_strip(w.type, strip, w.cols, x, rows, acc, z.codes);
#endif
#ifdef CARAT_MMLA
    if (rows >= kCodeRows && mmla_knows(w.type))
      return mmla_strip(w.type, strip, w.cols, x, rows, acc, z.codes);
#endif
    for (int m = 0; m < rows; m += kTileRows)
      strip_any(w.type, strip, w.cols, x.at(m), rows - m < kTileRows ? rows - m : kTileRows, acc + m * 16);
    return;
  }
  switch (w.type) {
    case DType::f32: return float_product<DType::f32>(w, n0, outputs, xf, rows, acc);
    case DType::f16: return float_product<DType::f16>(w, n0, outputs, xf, rows, acc);
    case DType::bf16: return float_product<DType::bf16>(w, n0, outputs, xf, rows, acc);
    case DType::fp8:
    case DType::fp8_a8: return float_product<DType::fp8>(w, n0, outputs, xf, rows, acc);
    case DType::mxfp4_a8: return float_product<DType::mxfp4>(w, n0, outputs, xf, rows, acc);
    case DType::nvfp4_a8: return float_product<DType::nvfp4>(w, n0, outputs, xf, rows, acc);
    default: return int_product(w, n0, outputs, x, rows, acc, z.ints);
  }
}

// n of 16 floats. (A copy whose length g++ does not know becomes `rep movsq`, slower than all else here.)
CARAT_SIMD void copy_part(float* to, const float* from, int n) {
  if (n == 16)
    __builtin_memcpy(to, from, 64);
  else
    for (int i = 0; i < n; ++i) to[i] = from[i];
}

// Up to 16 outputs of one row: cap(act(scale * acc + bias)) * mul + residual.
static void finish(const MatmulArgs& a, int64_t m, int64_t n0, int n, const float* acc) {
  alignas(64) float bias[16] = {}, mul[16] = {}, residual[16] = {}, y[16];
  if (a.bias.valid()) copy_part(bias, a.bias.row<float>(0) + n0, n);
  if (a.mul.valid() && a.mul.cols > 1) copy_part(mul, a.mul.row<float>(m) + n0, n);
  if (a.mul.cols == 1)
    for (float& v : mul) v = *a.mul.row<float>(m);
  if (a.residual.valid()) copy_part(residual, a.residual.row<float>(m) + n0, n);
  for (int i = 0; i < 16; i += W) {
    VF v = mulf(loadf(acc + i), setf(a.scale));
    if (a.bias.valid()) v = addf(v, loadf(bias + i));
    v = activate_v(a.act, v);
    if (a.softcap > 0) v = mulf(setf(a.softcap), tanh_v(divf(v, setf(a.softcap))));
    if (a.mul.valid()) v = mulf(v, loadf(mul + i));
    if (a.residual.valid()) v = addf(v, loadf(residual + i));
    storef(y + i, v);
  }
  copy_part(a.y.row<float>(m) + n0, y, n);
}

// act(gate_scale * gate) * (up_scale * up)
static void finish_gated(Act act, float gate_scale, float up_scale, const float* gate, const float* up,
                         float* out, int n) {
  alignas(64) float y[16];
  for (int i = 0; i < 16; i += W) {
    const VF g = activate_v(act, mulf(loadf(gate + i), setf(gate_scale)));
    storef(y + i, mulf(g, mulf(loadf(up + i), setf(up_scale))));
  }
  copy_part(out, y, n);
}

// Task: block of rows (slow index) and a run of strips.
static void run_dense(const Step& step, const void* p, int64_t task, Worker& worker) {
  const DenseOp& op = *static_cast<const DenseOp*>(p);
  TaskScratch scratch(worker);
  DenseScratch& z = *scratch;
  const int64_t per = strips_a_task(op.a.w.rows, step.threads), runs = (strips(op.a.w.rows) + per - 1) / per;
  const int64_t m0 = task / runs * kBlockRows, s0 = task % runs * per;
  const int rows =
      static_cast<int>(step.count(op.rows) - m0 < kBlockRows ? step.count(op.rows) - m0 : kBlockRows);
  for (int r = 0; r < rows; ++r) z.x[r] = op.a.x.row<float>(m0 + r);
  const Rounded x = op.x.q ? op.x.at(m0) : op.x;
  for (int64_t s = s0; s < s0 + per && s * 16 < op.a.w.rows; ++s) {
    const int n = static_cast<int>(op.a.w.rows - s * 16 < 16 ? op.a.w.rows - s * 16 : 16);
    // Rows of results lie far apart: their lines are asked for before the product, not at its end.
    for (int r = 0; r < rows; ++r) __builtin_prefetch(op.a.y.row<float>(m0 + r) + s * 16, 1);
    product16(op.a.w, s * 16, x, z.x, rows, z.acc[0][0], z);
    if (op.up.valid()) {
      product16(op.up, s * 16, x, z.x, rows, z.acc[1][0], z);
      for (int r = 0; r < rows; ++r)
        finish_gated(op.a.act, op.a.scale, op.up_scale, z.acc[0][r], z.acc[1][r],
                     op.a.y.row<float>(m0 + r) + s * 16, n);
    } else {
      for (int r = 0; r < rows; ++r) finish(op.a, m0 + r, s * 16, n, z.acc[0][r]);
    }
  }
}

// ---- experts: slots sorted by expert
// -----------------------------------------------------------------------------------

static void run_plan(const Step& step, const void* p, int64_t, Worker&) {
  const ExpertsOp& op = *static_cast<const ExpertsOp*>(p);
  Slots& s = *op.slots;
  const int32_t rows = step.count(op.rows), k = op.a.weights.cols;
  const int32_t experts = op.a.gate.slices;
  for (int32_t e = 0; e <= experts; ++e) s.start[e] = 0;
  for (int32_t m = 0; m < rows; ++m)
    for (int32_t c = 0; c < k; ++c) {
      const int32_t e = op.a.experts.row<int32_t>(m)[c];
      CARAT_CHECK(e >= 0 && e < experts, "expert {} of {}", e, experts);
      ++s.start[e + 1];
    }
  s.n_items = 0;
  for (int32_t e = 0; e < experts; ++e) {
    const int32_t end = s.start[e] + s.start[e + 1];
    for (int32_t f = s.start[e]; f < end; f += kBlockRows)
      s.item[s.n_items++] = {e, f, end - f < kBlockRows ? end - f : kBlockRows};
    s.start[e + 1] = end;
  }
  for (int32_t m = 0; m < rows; ++m)
    for (int32_t c = 0; c < k; ++c) {
      const int32_t at = s.start[op.a.experts.row<int32_t>(m)[c]]++;
      s.row[at] = m, s.place[m * k + c] = at;
    }
}

CARAT_SIMD float scale_of(const Tensor& t, int32_t e) { return t.valid() ? t.row<float>(0)[e] : 1.0f; }

// Task: an item (slow index) and a run of strips of its expert's gate and up.
static void run_gate_up(const Step& step, const void* p, int64_t task, Worker& worker) {
  const ExpertsOp& op = *static_cast<const ExpertsOp*>(p);
  TaskScratch scratch(worker);
  DenseScratch& z = *scratch;
  const int64_t inner = op.a.gate.rows, per = strips_a_task(inner, step.threads),
                runs = (strips(inner) + per - 1) / per;
  const Slots::Item it = op.slots->item[task / runs];
  for (int r = 0; r < it.rows; ++r) z.x[r] = op.a.x.row<float>(op.slots->row[it.first + r]);
  const Rounded x = op.x.q ? op.x.at(it.first) : op.x;
  const Tensor gate = op.a.gate.slice(it.expert), up = op.a.up.slice(it.expert);
  const float gs = scale_of(op.a.gate_scale, it.expert), us = scale_of(op.a.up_scale, it.expert);
  for (int64_t s = task % runs * per; s < (task % runs + 1) * per && s * 16 < inner; ++s) {
    product16(gate, s * 16, x, z.x, it.rows, z.acc[0][0], z);
    product16(up, s * 16, x, z.x, it.rows, z.acc[1][0], z);
    const int n = static_cast<int>(inner - s * 16 < 16 ? inner - s * 16 : 16);
    for (int r = 0; r < it.rows; ++r)
      finish_gated(op.a.act, gs, us, z.acc[0][r], z.acc[1][r], op.hidden + (it.first + r) * inner + s * 16,
                   n);
  }
}

static void run_down(const Step& step, const void* p, int64_t task, Worker& worker) {
  const ExpertsOp& op = *static_cast<const ExpertsOp*>(p);
  TaskScratch scratch(worker);
  DenseScratch& z = *scratch;
  const int64_t width = op.a.down.rows, per = strips_a_task(width, step.threads),
                runs = (strips(width) + per - 1) / per;
  const Slots::Item it = op.slots->item[task / runs];
  for (int r = 0; r < it.rows; ++r) z.x[r] = op.hidden + int64_t{it.first + r} * op.a.down.cols;
  const Rounded h = op.h.q ? op.h.at(it.first) : op.h;
  const Tensor down = op.a.down.slice(it.expert);
  const float scale = scale_of(op.a.down_scale, it.expert);
  for (int64_t s = task % runs * per; s < (task % runs + 1) * per && s * 16 < width; ++s) {
    product16(down, s * 16, h, z.x, it.rows, z.acc[0][0], z);
    const int n = static_cast<int>(width - s * 16 < 16 ? width - s * 16 : 16);
    for (int r = 0; r < it.rows; ++r)
      for (int i = 0; i < n; ++i) op.out[(it.first + r) * width + s * 16 + i] = z.acc[0][r][i] * scale;
  }
}

// Task: a row. Choices are added in slot order.
static void run_reduce(const Step&, const void* p, int64_t m, Worker&) {
  const ExpertsOp& op = *static_cast<const ExpertsOp*>(p);
  const int64_t width = op.a.y.cols, k = op.a.weights.cols;
  float* y = op.a.y.row<float>(m);
  const float* residual = op.a.residual.valid() ? op.a.residual.row<float>(m) : nullptr;
  for (int64_t i = 0; i < width; ++i) y[i] = residual ? residual[i] : 0;
  for (int64_t c = 0; c < k; ++c) {
    const float weight = op.a.weights.row<float>(m)[c];
    const float* in = op.out + op.slots->place[m * k + c] * width;
    for (int64_t i = 0; i < width; ++i) y[i] += weight * in[i];
  }
}

// Task: an item of rows that chose the same slice.
static void run_slices(const Step&, const void* p, int64_t task, Worker& worker) {
  const SliceOp& op = *static_cast<const SliceOp*>(p);
  TaskScratch scratch(worker);
  DenseScratch& z = *scratch;
  const Slots::Item it = op.slots->item[task];
  const int32_t k = op.a.chosen.cols, n = op.a.w.rows;
  float* y[kBlockRows];
  for (int r = 0; r < it.rows; ++r) {
    const int32_t m = op.slots->row[it.first + r];
    z.x[r] = op.a.x.row<float>(m);
    int32_t s = 0;
    while (op.slots->place[m * k + s] != it.first + r) ++s;
    y[r] = op.a.y.row<float>(m) + int64_t{s} * n;
  }
  const Rounded x = op.x.q ? op.x.at(it.first) : op.x;
  const Tensor w = op.a.w.slice(it.expert);
  for (int32_t first = 0; first < n; first += 16) {
    product16(w, first, x, z.x, it.rows, z.acc[0][0], z);
    for (int r = 0; r < it.rows; ++r)
      for (int i = 0; i < 16 && first + i < n; ++i) y[r][first + i] = z.acc[0][r][i] * op.a.scale;
  }
}
