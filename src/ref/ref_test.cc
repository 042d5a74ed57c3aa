// The specification against values worked out by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/backend.h"
#include "core/codec.h"

using namespace carat;

namespace {

Tensor f32(std::vector<float>& v, int32_t rows, int32_t cols, int32_t slices = 1) {
  return make_tensor(v.data(), DType::f32, rows, cols, slices);
}

// Runs one operation over `rows` rows at positions 0, 1, ... of one sequence.
template <class A>
void run(const A& args, int32_t rows, RowSet set = RowSet::all, std::vector<int32_t> out = {},
         int32_t first_pos = 0) {
  static const int32_t pages[64] = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int32_t> token, pos, seq;
  for (int32_t i = 0; i < rows; ++i)
    token.push_back(rows - 1 - i), pos.push_back(first_pos + i), seq.push_back(0);
  const SeqView view{pages, pages, 0};
  const StepState state{
      rows, static_cast<int32_t>(out.size()), token.data(), pos.data(), seq.data(), out.data(), &view};
  Program p;
  p.at_rows(set);
  p.push(args);
  const auto backend = make_ref_backend();
  const auto e = backend->compile(p, &state);
  backend->submit(*e);
  backend->wait();
}

void check_close(const std::vector<float>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-6));
  }
}

}  // namespace

TEST_CASE("embed takes the token's row, times scale; gather packs wanted rows") {
  std::vector<float> table{1, 2, 3, 4, 5, 6}, y(4), z(2);
  run(EmbedArgs{f32(y, 2, 2), f32(table, 3, 2), 10}, 2);  // tokens 1, 0
  CHECK(y == std::vector<float>{30, 40, 10, 20});
  run(GatherArgs{f32(z, 1, 2), f32(y, 2, 2)}, 2, RowSet::out, {1});
  CHECK(z == std::vector<float>{10, 20});
}

TEST_CASE("norm: (residual + x / rms * weight) * gain * scale") {
  std::vector<float> x{3, 4, 0, 0}, w{1, 2, 3, 4}, res{1, 1, 1, 1}, gain{2}, y(4);
  run(RmsNormArgs{f32(y, 1, 4), f32(x, 1, 4), f32(w, 1, 4), f32(res, 1, 4), f32(gain, 1, 1), 0, 0, 0.5f}, 1);
  check_close(y, {1 + 3 / 2.5, 1 + 8 / 2.5, 1, 1});  // rms = sqrt(25 / 4)
  run(RmsNormArgs{f32(y, 1, 4), f32(x, 1, 4), {}, {}, {}, 2, 0.5f, 1}, 1);
  const double rms = std::sqrt(12.5 + 0.5), zero = std::sqrt(0.5);
  check_close(y, {3 / rms, 4 / rms, 0 / zero, 0});
}

TEST_CASE("matmul with float weights: scale, bias, activation, cap, factor") {
  std::vector<float> x{1, 2, -1, 0.5}, w{1, 0, 3, -1, 2, 2}, bias{1, 0, -1}, mul{2, 2, 2, 1, 1, 1}, y(6);
  MatmulArgs a{f32(y, 2, 3), f32(x, 2, 2), f32(w, 3, 2), f32(bias, 1, 3), f32(mul, 2, 3)};
  a.scale = 2;
  run(a, 2);
  check_close(y, {2 * (2 + 1), 2 * 2, 2 * (12 - 1), -2 + 1, -7, -2 - 1});
  a.bias = a.mul = {};
  a.scale = 1, a.softcap = 3, a.act = Act::silu;
  run(a, 2);
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  check_close(y, {3 * std::tanh(silu(1) / 3), 3 * std::tanh(silu(1) / 3), 3 * std::tanh(silu(6) / 3),
                  3 * std::tanh(silu(-1) / 3), 3 * std::tanh(silu(-3.5) / 3), 3 * std::tanh(silu(-1) / 3)});
}

TEST_CASE("activations at known points") {
  std::vector<float> x{1}, w{1, -1, 3, 0}, y(4);
  MatmulArgs a{f32(y, 1, 4), f32(x, 1, 1), f32(w, 4, 1), {}, {}};
  a.act = Act::gelu_tanh;
  run(a, 1);
  check_close(y, {0.84119199060827, -0.15880800939173, 2.99636261369526, 0});
  a.act = Act::sigmoid;
  run(a, 1);
  check_close(y, {0.73105857863, 0.26894142137, 0.95257412682, 0.5});
}

TEST_CASE("matmul with q8_0: activations rounded per 256 columns, products exact") {
  // Weights d = 0.5 times codes; activations 127, -127, then small ones of which 0.4 rounds away.
  std::vector<float> x(32), y(1);
  x[0] = 127, x[1] = -127, x[2] = 3, x[3] = 0.4f, x[4] = 2.5f;  // amax / 127 = 1; 2.5 rounds to even
  std::vector<std::byte> w(34);
  const uint16_t half = f32_to_f16(0.5f);
  std::memcpy(w.data(), &half, 2);
  for (int i = 0; i < 5; ++i) w[2 + i] = static_cast<std::byte>(i + 1);
  run(MatmulArgs{f32(y, 1, 1), f32(x, 1, 32), make_tensor(w.data(), DType::q8_0, 1, 32), {}, {}}, 1);
  CHECK(y[0] == 0.5f * (127 * 1 - 127 * 2 + 3 * 3 + 0 * 4 + 2 * 5));
}

TEST_CASE("matmul with q8_0 over several blocks of 256 sums them in order") {
  const int32_t n = 600;  // 256 + 256 + 88, not a multiple of 32: 608
  const int32_t cols = 608;
  std::vector<float> x(cols), y(1);
  std::vector<std::byte> w(static_cast<size_t>(row_bytes(DType::q8_0, cols)));
  std::vector<float> dense(cols);
  for (int32_t i = 0; i < n; ++i)
    x[i] = static_cast<float>((i * 37) % 255 - 127), dense[i] = static_cast<float>(i % 11 - 5);
  encode_row(DType::q8_0, dense.data(), w.data(), cols);
  std::vector<float> back(cols);
  decode_row(DType::q8_0, w.data(), back.data(), cols);
  double want = 0;
  float top[3] = {};
  for (int32_t i = 0; i < cols; ++i) top[i / 256] = std::max(top[i / 256], std::abs(x[i]));
  for (int32_t i = 0; i < cols; ++i)
    want += std::nearbyint(x[i] * 127 / top[i / 256]) * top[i / 256] / 127 * back[i];
  run(MatmulArgs{f32(y, 1, 1), f32(x, 1, cols), make_tensor(w.data(), DType::q8_0, 1, cols), {}, {}}, 1);
  CHECK(y[0] == doctest::Approx(want).epsilon(1e-5));
}

TEST_CASE("refine: a row and what its rounding leaves; their products add up to a finer one") {
  const int32_t cols = 288;
  std::vector<float> x(cols), y(2 * cols), sums(2), once(1), out(1);
  std::vector<std::byte> w(static_cast<size_t>(row_bytes(DType::q8_0, cols)));
  std::vector<float> dense(cols);
  for (int32_t i = 0; i < cols; ++i)
    x[i] = i == 7 ? 300.0f : std::sin(static_cast<float>(i)), dense[i] = std::cos(static_cast<float>(3 * i));
  encode_row(DType::q8_0, dense.data(), w.data(), cols);
  decode_row(DType::q8_0, w.data(), dense.data(), cols);
  const Tensor weights = make_tensor(w.data(), DType::q8_0, 1, cols), both = f32(y, 2, cols);
  run(RefineArgs{both, f32(x, 1, cols)}, 1, RowSet::out, {0});
  double exact = 0;
  for (int32_t i = 0; i < cols; ++i) {
    CHECK(y[i] == x[i]);
    CHECK(std::abs(y[cols + i]) <= (i < 256 ? 300.0f : 1.0f) / 254 * 1.001f);
    exact += double{x[i]} * dense[i];
  }
  run(MatmulArgs{f32(once, 1, 1), f32(x, 1, cols), weights, {}, {}}, 1);
  run(MatmulArgs{f32(sums, 2, 1), both, weights, {}, {}}, 1, RowSet::refined, {0});
  CHECK(sums[0] == once[0]);
  run(FoldArgs{f32(out, 1, 1), f32(sums, 2, 1)}, 1, RowSet::out, {0});
  CHECK(out[0] == sums[0] + sums[1]);
  CHECK(std::abs(out[0] - exact) < 0.02 * std::abs(once[0] - exact));
  run(FoldArgs{f32(out, 1, 1), f32(sums, 2, 1), 2}, 1, RowSet::out, {0});
  CHECK(out[0] == doctest::Approx(2 * std::tanh((sums[0] + sums[1]) / 2)));
}

TEST_CASE("gate-up multiplies the activated gate with up") {
  std::vector<float> x{1, 2}, gate{1, 1}, up{3, 0}, y(1);
  run(GateUpArgs{f32(y, 1, 1), f32(x, 1, 2), f32(gate, 1, 2), f32(up, 1, 2), 2, 0.5f, Act::none}, 1);
  CHECK(y[0] == 6 * 1.5f);
}

TEST_CASE("route: best first, ties to the lowest expert, sum 1, then expert scale") {
  std::vector<float> logits{1, 3, 3, 0}, scale{1, 10, 1, 1}, weights(2);
  std::vector<int32_t> ids(2);
  const Tensor e = make_tensor(ids.data(), DType::i32, 1, 2);
  run(RouteArgs{f32(weights, 1, 2), e, f32(logits, 1, 4), {}, 2}, 1);
  CHECK(ids == std::vector<int32_t>{1, 2});
  check_close(weights, {0.5, 0.5});
  logits = {std::log(1.0f), std::log(6.0f), std::log(2.0f), 0};
  run(RouteArgs{f32(weights, 1, 2), e, f32(logits, 1, 4), f32(scale, 1, 4), 2}, 1);
  check_close(weights, {7.5, 0.25});
}

TEST_CASE("experts: weighted sum of the chosen ones") {
  // Three experts of one hidden unit over two inputs: gate, up read x; down writes [a, b].
  std::vector<float> gate{1, 0, 0, 1, 1, 1}, up{1, 1, 2, 0, 0, 2}, down{1, 2, 3, 4, 5, 6};
  std::vector<float> x{2, 3}, w{0.5f, 2}, s{1, 1, 10}, y(2);
  std::vector<int32_t> ids{2, 0};
  ExpertsArgs a{f32(y, 1, 2),
                f32(x, 1, 2),
                f32(gate, 1, 2, 3),
                f32(up, 1, 2, 3),
                f32(down, 2, 1, 3),
                f32(w, 1, 2),
                make_tensor(ids.data(), DType::i32, 1, 2),
                {},
                {},
                f32(s, 1, 3),
                Act::none};
  run(a, 1);
  // expert 2: (2 + 3) * 6 = 30, times 10; expert 0: 2 * 5 = 10
  check_close(y, {0.5 * 10 * 30 * 5 + 2 * 10 * 1, 0.5 * 10 * 30 * 6 + 2 * 10 * 2});
}

TEST_CASE("prep: norm, rotation by position, cache") {
  std::vector<float> q{3, 0, 4, 0}, k{0, 1, 0, 1}, v{2, 0, 0, 0}, ones{1, 1, 1, 1}, twos{2, 2, 2, 2};
  std::vector<float> ck(8), cv(8), freq{0.5f};
  KvView kv{
      reinterpret_cast<std::byte*>(ck.data()), reinterpret_cast<std::byte*>(cv.data()), 16, 16, 1, 0, {}};
  kv.spec = {DType::f32, DType::f32, 1, 4, 0};
  QkvPrepArgs a{f32(q, 1, 4),
                f32(k, 1, 4),
                f32(v, 1, 4),
                f32(ones, 1, 4),
                f32(twos, 1, 4),
                {freq.data(), 1, 2},
                0,
                true,
                kv};
  run(a, 1, RowSet::all, {}, 1);
  // rms(q) = 2.5: pairs (0, 2) turn by 0.5, (1, 3) do not
  const double c = std::cos(0.5), s = std::sin(0.5);
  check_close(q, {1.2 * c - 1.6 * s, 0, 1.6 * c + 1.2 * s, 0});
  const double r = 2 * std::sqrt(2.0);
  check_close(ck, {0, 0, 0, 0, 0, r, 0, r});  // position 1
  check_close(cv, {0, 0, 0, 0, 2, 0, 0, 0});
}

TEST_CASE("attention: softmax over the window, grouped heads, cap") {
  // One KV head of size 2, three positions; two query heads.
  std::vector<float> ck{1, 0, 0, 1, 1, 1}, cv{1, 0, 0, 1, 5, 5}, q{1, 0, 0, 2}, y(4);
  KvView kv{reinterpret_cast<std::byte*>(ck.data()), reinterpret_cast<std::byte*>(cv.data()), 8, 8, 1, 0, {}};
  kv.spec = {DType::f32, DType::f32, 1, 2, 0};
  AttentionArgs a{f32(y, 1, 4), f32(q, 1, 4), kv, 1, 0};
  run(a, 1, RowSet::all, {}, 2);
  const double e = std::exp(1.0), e2 = std::exp(2.0);
  const double s0 = e + 1 + e, s1 = 1 + e2 + e2;
  check_close(y, {(e + 5 * e) / s0, (1 + 5 * e) / s0, (1 + 5 * e2) / s1, (e2 + 5 * e2) / s1});
  a.kv.spec.window = 2;  // positions 1 and 2
  run(a, 1, RowSet::all, {}, 2);
  check_close(y, {5 * e / (1 + e), (1 + 5 * e) / (1 + e), 2.5, 3});
  a.kv.spec.window = 0;
  run(a, 1, RowSet::all, {}, 0);  // position 0 sees itself alone
  check_close(y, {1, 0, 1, 0});
  a.softcap = 0.5f, a.kv.spec.window = 2;
  run(a, 1, RowSet::all, {}, 2);
  const double c1 = std::exp(0.5 * std::tanh(1 / 0.5));
  CHECK(y[0] == doctest::Approx(5 * c1 / (1 + c1)));
}

TEST_CASE("a ring holds a position at its remainder, in the sequence's slot") {
  std::vector<float> ck(16), cv(16), q{0}, k{7}, v{9};
  KvView kv{reinterpret_cast<std::byte*>(ck.data()), reinterpret_cast<std::byte*>(cv.data()), 8, 8, 2, 6, {}};
  kv.spec = {DType::f32, DType::f32, 1, 1, 3};
  run(QkvPrepArgs{f32(q, 1, 1), f32(k, 1, 1), f32(v, 1, 1), {}, {}, {}, 0, false, kv}, 1, RowSet::all, {},
      13);
  CHECK(ck[13 % 6] == 7);
  CHECK(cv[13 % 6] == 9);
}
