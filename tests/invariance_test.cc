// A row's bytes do not depend on the rows beside it, on the number of threads, or, for quantized weights, on
// the instruction set (docs/numerics.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/codec.h"
#include "tests/backends.h"

using namespace carat;

namespace {

std::vector<float> noise(size_t n, uint32_t seed, float spread = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d(0, spread);
  std::vector<float> v(n);
  for (float& f : v) f = d(rng);
  return v;
}

// Blocks of arbitrary bits, or of one byte, with small, finite scales.
std::vector<std::byte> weight_bytes(DType type, int64_t rows, int64_t cols, uint32_t seed, int fill = -1) {
  std::vector<std::byte> w(static_cast<size_t>(row_bytes(type, cols) * rows));
  if (info(type).family == Family::plain) {
    const std::vector<float> v = noise(static_cast<size_t>(rows * cols), seed);
    for (int64_t r = 0; r < rows; ++r)
      encode_row(type, v.data() + r * cols, w.data() + r * row_bytes(type, cols), cols);
    return w;
  }
  std::mt19937 rng(seed);
  for (std::byte& b : w) b = static_cast<std::byte>(fill < 0 ? rng() & 0xff : static_cast<unsigned>(fill));
  for (size_t at = 0; at < w.size(); at += info(type).bytes) {
    if (type == DType::mxfp4) w[at] = std::byte{120};
    for (const int i : {0, 2, 80, 82, 108, 208})  // any f16 in a block has a small exponent
      if (type != DType::mxfp4 && i + 1 < info(type).bytes) w[at + i + 1] &= std::byte{0xab};
  }
  return w;
}

struct Rows {
  std::vector<int32_t> pos, seq;
  int32_t page = 0;
  SeqView view{&page, &page, 0};
  StepState state;
  explicit Rows(int32_t n, int32_t first = 0) : pos(n), seq(n) {
    for (int32_t i = 0; i < n; ++i) pos[i] = first + i;
    state = {.n_rows = n, .pos = pos.data(), .seq = seq.data(), .seqs = &view};
  }
};

// y [rows, n] of rows [first, first + count) of x.
std::vector<float> product(Backend& b, const Tensor& w, std::vector<float>& x, int32_t first, int32_t count) {
  std::vector<float> y(static_cast<size_t>(count) * w.rows);
  Program p;
  MatmulArgs a;
  a.y = make_tensor(y.data(), DType::f32, count, w.rows);
  a.x = make_tensor(x.data() + int64_t{first} * w.cols, DType::f32, count, w.cols);
  a.w = w;
  p.push(a);
  const Rows rows(count);
  const auto exe = b.compile(p, &rows.state);
  b.submit(*exe);
  b.wait();
  return y;
}

bool finite(const std::vector<float>& v) {
  return std::all_of(v.begin(), v.end(), [](float f) { return std::isfinite(f); });
}
bool same(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * 4) == 0; }

constexpr DType kProducts[] = {DType::q4_k, DType::q5_k, DType::q6_k,   DType::q8_0,   DType::q4_0,
                               DType::q5_0, DType::q5_1, DType::q3_k,   DType::iq4_xs, DType::mxfp4,
                               DType::q2_k, DType::q4_1, DType::iq4_nl, DType::nvfp4,  DType::iq2_s,
                               DType::f32,  DType::f16,  DType::bf16};

}  // namespace

TEST_CASE("products: rows alone, together and in chunks give the same bytes, on 1, 2 and 3 threads") {
  constexpr int32_t kRows = 70, kOut = 35;
  for (const DType type : kProducts) {
    CAPTURE(info(type).name);
    const int32_t cols = info(type).elems == 32 ? 352 : info(type).elems == 1 ? 333 : 512;
    std::vector<std::byte> bytes = weight_bytes(type, kOut, cols, 7);
    const Tensor host = make_tensor(bytes.data(), type, kOut, cols);
    std::vector<float> x = noise(size_t{kRows} * cols, 3), expected;
    for (int threads = 1; threads <= 3; ++threads) {
      for (const auto& [name, backend] : test::cpu_backends(threads)) {
        CAPTURE(name);
        CAPTURE(threads);
        Buffer owner;
        const Tensor w = backend->place_weight(host, WeightUse::product, owner);
        const std::vector<float> all = product(*backend, w, x, 0, kRows);
        if (info(type).family == Family::block) {  // one result for all instruction sets
          if (expected.empty()) expected = all;
          CHECK(same(all.data(), expected.data(), all.size()));
          CHECK(product(*backend, host, x, 0, kRows) == all);  // the file's own layout
        }
        REQUIRE(finite(all));
        for (int32_t m = 1; m <= 40; m += threads == 1 ? 1 : 13) {
          CAPTURE(m);
          const std::vector<float> some = product(*backend, w, x, kRows - m, m);
          CHECK(same(some.data(), all.data() + size_t(kRows - m) * kOut, some.size()));
        }
      }
    }
  }
}

// Sums of 16 bits, where an instruction set has such, must hold these.
TEST_CASE("products: the largest codes and activations give the same bytes everywhere") {
  constexpr int32_t kRows = 23, kOut = 16, kCols = 512;
  std::vector<float> x(size_t{kRows} * kCols);
  std::mt19937 rng(11);
  for (int32_t r = 0; r < kRows; ++r)  // signs: all equal, by pairs, by fours, any
    for (int32_t k = 0; k < kCols; ++k) {
      const uint32_t bit = r < 2 ? 0 : r < 4 ? k / 2 : r < 6 ? k / 4 : rng();
      x[size_t(r) * kCols + k] = (bit + r) % 2 ? -1.0f : 1.0f;
    }
  for (const DType type : kProducts) {
    if (info(type).family != Family::block) continue;
    CAPTURE(info(type).name);
    for (const int fill : {0x00, 0xff, 0x77, 0x80, 0x7f}) {
      CAPTURE(fill);
      std::vector<std::byte> bytes = weight_bytes(type, kOut, kCols, 7, fill);
      const Tensor host = make_tensor(bytes.data(), type, kOut, kCols);
      std::vector<float> expected;
      for (const auto& [name, backend] : test::cpu_backends(1)) {
        CAPTURE(name);
        Buffer owner;
        const std::vector<float> all =
            product(*backend, backend->place_weight(host, WeightUse::product, owner), x, 0, kRows);
        REQUIRE(finite(all));
        if (expected.empty()) expected = all;
        CHECK(same(all.data(), expected.data(), all.size()));
        CHECK(product(*backend, backend->place_weight(host, WeightUse::product, owner), x, 8, 1) ==
              std::vector<float>(all.begin() + 8 * kOut, all.begin() + 9 * kOut));
      }
    }
  }
}

TEST_CASE("attention: a row's bytes do not depend on the step's other rows or on threads") {
  constexpr int32_t kDim = 40, kHeads = 6, kKvHeads = 2, kPast = 700, kRows = 37, kPage = 32;
  for (const int32_t window : {0, 300}) {
    for (const DType type : {DType::f16, DType::f32, DType::q8_0, DType::fp8, DType::kv4, DType::tq3}) {
      const int32_t dim = info(type).elems > 1 ? 64 : kDim, pages = (kPast + kRows) / kPage + 1;
      const int64_t head = row_bytes(type, dim), page = head * kKvHeads * kPage;
      std::vector<std::byte> k(static_cast<size_t>(page * pages)), v(k.size());
      const std::vector<float> values = noise(static_cast<size_t>(pages) * kPage * kKvHeads * dim, 5);
      for (int64_t i = 0; i < int64_t{pages} * kPage * kKvHeads; ++i) {
        encode_row(type, values.data() + i * dim, k.data() + i * head, dim);
        encode_row(type, values.data() + i * dim, v.data() + i * head, dim);
      }
      std::vector<int32_t> numbers(pages);
      for (int32_t i = 0; i < pages; ++i) numbers[i] = pages - 1 - i;
      std::vector<float> q = noise(size_t{kRows} * kHeads * dim, 6);
      const auto run = [&](Backend& b, int32_t first, int32_t count) {
        std::vector<float> y(size_t(count) * kHeads * dim);
        AttentionArgs a;
        a.y = make_tensor(y.data(), DType::f32, count, kHeads * dim);
        a.q = make_tensor(q.data() + size_t(first) * kHeads * dim, DType::f32, count, kHeads * dim);
        a.kv = {k.data(), v.data(), page, page, kPage, 0, {type, type, kKvHeads, dim, window}};
        a.scale = 0.3f;
        Program p;
        p.push(a);
        Rows rows(count, kPast + first);
        rows.view.pages = numbers.data();
        const auto exe = b.compile(p, &rows.state);
        b.submit(*exe);
        b.wait();
        return y;
      };
      for (const char* isa : {"baseline", "neon", "i8mm", "avx2", "avx512"}) {
        std::vector<float> expected;
        for (int threads = 1; threads <= 3; ++threads) {
          CAPTURE(isa);
          CAPTURE(threads);
          CAPTURE(info(type).name);
          CAPTURE(window);
          std::unique_ptr<Backend> b;
          try {
            b = make_cpu_backend(threads, isa);
          } catch (const Error&) {
            continue;
          }
          const std::vector<float> all = run(*b, 0, kRows);
          REQUIRE(finite(all));
          if (expected.empty()) expected = all;
          CHECK(same(all.data(), expected.data(), all.size()));
          const size_t width = size_t{kHeads} * dim;
          for (const int32_t chunk : {1, 3, 16})
            for (int32_t m = 0; m < kRows; m += chunk) {
              const int32_t n = std::min(chunk, kRows - m);
              CHECK(same(run(*b, m, n).data(), all.data() + m * width, n * width));
            }
        }
      }
    }
  }
}

namespace {

// A cache with room for `slots` slots of one sequence, in pages of no order, or a ring.
struct SmallCache {
  static constexpr int32_t kPage = 16;
  KvView view;
  std::vector<std::byte> k, v;
  std::vector<float> gain;
  std::vector<int32_t> pages;
  SeqView seq;
  SmallCache(const KvSpec& spec, int32_t slots, int32_t ring) {
    const int64_t bytes = int64_t{spec.heads} * kPage * spec.v_bytes();
    const int32_t n = (ring ? ring : slots) / kPage + 1;
    k.resize(static_cast<size_t>(n * bytes)), v.resize(k.size());
    for (int32_t i = 0; i < n; ++i) pages.push_back(n - 1 - i);
    gain = noise(static_cast<size_t>(spec.dim), 77);
    view = {k.data(), v.data(), bytes, bytes, kPage, ring, spec, gain.data()};
    seq = {pages.data(), pages.data(), 0};
  }
  // What belongs to token `id`, whatever its slot.
  void store(int32_t slot, int32_t id) {
    for (int32_t h = 0; h < view.spec.heads; ++h) {
      const std::vector<float> x = noise(2 * static_cast<size_t>(view.spec.dim), 1000 * id + h);
      encode_row(view.spec.k, x.data(), view.k_row(seq, slot, h), view.spec.key_dim());
      encode_row(view.spec.v, x.data() + view.spec.dim, view.v_row(seq, slot, h), view.spec.dim);
    }
  }
};

struct TreeShape {
  DType type;
  int32_t dim, base, window, ring;
  int32_t pairs = 0;  // one copy of K = V
};

// y of a tree's rows in one step; and of each row where its path is a sequence of its own.
void check_tree(Backend& b, const TreeShape& t, std::span<const int32_t> parents) {
  constexpr int32_t kHeads = 6, kKvHeads = 2;
  const auto n = static_cast<int32_t>(parents.size());
  const KvSpec spec{t.type, t.type, kKvHeads, t.dim, t.window, t.pairs};
  const int32_t first = t.ring ? std::max(0, t.base - t.window) : 0;
  std::vector<float> q = noise(size_t(n) * kHeads * t.dim, 9);
  const auto run = [&](SmallCache& cache, StepState state, int32_t row) {
    std::vector<float> y(size_t(state.n_rows) * kHeads * t.dim);
    AttentionArgs a;
    a.y = make_tensor(y.data(), DType::f32, state.n_rows, kHeads * t.dim);
    a.q = make_tensor(q.data() + size_t(row) * kHeads * t.dim, DType::f32, state.n_rows, kHeads * t.dim);
    a.kv = cache.view, a.scale = 0.3f;
    Program p;
    p.push(a);
    state.seqs = &cache.seq;
    const auto exe = b.compile(p, &state);
    b.submit(*exe);
    b.wait();
    return y;
  };
  std::vector<int32_t> pos, slot, seq(size_t(n), 0);
  SmallCache all(spec, t.base + n, t.ring);
  for (int32_t p = first; p < t.base; ++p) all.store(p, p);
  for (int32_t i = 0; i < n; ++i) {
    pos.push_back(parents[i] < 0 ? t.base : pos[parents[i]] + 1);
    slot.push_back(t.base + i);
    all.store(slot[i], t.base + 100 + i);
  }
  StepState state{.n_rows = n, .pos = pos.data(), .seq = seq.data()};
  state.slot = slot.data(), state.parent = parents.data();
  const std::vector<float> together = run(all, state, 0);
  REQUIRE(finite(together));
  for (int32_t i = 0; i < n; ++i) {
    CAPTURE(i);
    SmallCache path(spec, t.base + n, t.ring);
    for (int32_t p = first; p < t.base; ++p) path.store(p, p);
    for (int32_t r = i; r >= 0; r = parents[r]) path.store(pos[r], t.base + 100 + r);
    const StepState one{.n_rows = 1, .pos = &pos[i], .seq = seq.data()};
    const std::vector<float> alone = run(path, one, i);
    CHECK(same(alone.data(), together.data() + size_t(i) * kHeads * t.dim, alone.size()));
  }
}

}  // namespace

TEST_CASE("attention: a tree's rows give the bytes of their paths as sequences") {
  const std::vector<int32_t> tree{-1, 0, 0,  1,  1, 2,  3,  4,  6,  7,  7, 8,
                                  9,  0, 13, 14, 5, 11, 17, 18, 12, 20, 21};
  const TreeShape shapes[] = {
      {DType::f16, 64, 0, 0, 0},      {DType::f32, 40, 250, 0, 0},      {DType::q8_0, 64, 700, 0, 0},
      {DType::f16, 256, 60, 300, 0},  {DType::f16, 64, 500, 4, 32},     {DType::f32, 128, 253, 20, 48},
      {DType::q8_0, 96, 95, 70, 96},  {DType::f16, 512, 1023, 1, 32},   {DType::tq3, 128, 300, 0, 0},
      {DType::kv4, 256, 250, 20, 48}, {DType::f16, 256, 300, 0, 0, 32}, {DType::tq3, 256, 253, 0, 0, 32}};
  for (int threads = 1; threads <= 3; ++threads)
    for (const auto& [name, backend] : test::all_backends(threads))
      for (const TreeShape& t : shapes) {
        CAPTURE(name);
        CAPTURE(threads);
        CAPTURE(t.base);
        if (threads > 1 && name == "ref") continue;
        check_tree(*backend, t, tree);
      }
}

TEST_CASE("experts: rows alone and together give the same bytes, grouped by expert or not") {
  constexpr int32_t kRows = 90, kDim = 256, kInner = 96, kExperts = 5, kTop = 2;
  std::vector<std::byte> gate = weight_bytes(DType::q4_k, int64_t{kExperts} * kInner, kDim, 1);
  std::vector<std::byte> up = weight_bytes(DType::q4_k, int64_t{kExperts} * kInner, kDim, 2);
  std::vector<std::byte> down = weight_bytes(DType::q5_0, int64_t{kExperts} * kDim, kInner, 3);
  std::vector<float> x = noise(size_t{kRows} * kDim, 4, 0.01f), weights = noise(size_t{kRows} * kTop, 5),
                     expected;
  std::vector<int32_t> experts(size_t{kRows} * kTop);
  for (int32_t m = 0; m < kRows; ++m)
    experts[2 * m] = m % 3 ? 1 : m % kExperts, experts[2 * m + 1] = (experts[2 * m] + 1 + m % 4) % kExperts;
  for (int threads = 1; threads <= 3; ++threads) {
    for (const auto& [name, b] : test::cpu_backends(threads)) {
      CAPTURE(name);
      CAPTURE(threads);
      Buffer owners[3];
      const Tensor g = b->place_weight(make_tensor(gate.data(), DType::q4_k, kInner, kDim, kExperts),
                                       WeightUse::product, owners[0]);
      const Tensor u = b->place_weight(make_tensor(up.data(), DType::q4_k, kInner, kDim, kExperts),
                                       WeightUse::product, owners[1]);
      const Tensor d = b->place_weight(make_tensor(down.data(), DType::q5_0, kDim, kInner, kExperts),
                                       WeightUse::product, owners[2]);
      const auto run = [&, &be = *b](int32_t first, int32_t n) {
        std::vector<float> y(size_t(n) * kDim);
        ExpertsArgs a;
        a.y = make_tensor(y.data(), DType::f32, n, kDim);
        a.x = make_tensor(x.data() + size_t(first) * kDim, DType::f32, n, kDim);
        a.gate = g, a.up = u, a.down = d;
        a.weights = make_tensor(weights.data() + size_t(first) * kTop, DType::f32, n, kTop);
        a.experts = make_tensor(experts.data() + size_t(first) * kTop, DType::i32, n, kTop);
        a.act = Act::gelu_tanh;
        Program p;
        p.push(a);
        const Rows rows(n);
        const auto exe = be.compile(p, &rows.state);
        be.submit(*exe);
        be.wait();
        return y;
      };
      const std::vector<float> all = run(0, kRows);
      REQUIRE(finite(all));
      for (const int32_t n : {1, 7, 40})
        for (int32_t m = 0; m + n <= kRows; m += 10)
          CHECK(same(run(m, n).data(), all.data() + size_t(m) * kDim, size_t(n) * kDim));
    }
  }
}

TEST_CASE("an instruction set that is not there is an error that lists what is") {
  try {
    make_cpu_backend(1, "mmx");
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(std::string(e.what()).find("mmx") != std::string::npos);
    CHECK(e.hint().find("baseline") != std::string::npos);
  }
  CHECK_THROWS_AS(make_cpu_backend(-1, ""), Error);
  CHECK(make_cpu_backend(2, "baseline")->info().name == "cpu baseline x2");
}
