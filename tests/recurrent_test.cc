// Base and log (docs/design.md, "Recurrent state"): whatever is drafted and rejected, rows and states are
// those of decoding one token after the other, byte for byte.
#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "state/sequence.h"
#include "tests/backends.h"
#include "tests/op_cases.h"

using namespace carat;
using namespace carat::test;

namespace {

constexpr RecurrentSpec kSpec{2, 4, 16, 32, 2 * 32 + 128, 4};
constexpr int32_t kRows = 40;

// One recurrent layer: x -> convolution -> norms of q and k -> delta rule -> norm, gated, for several
// sequences.
class Layer {
 public:
  Layer(Backend& backend, int32_t sequences, int32_t draft_rows)
      : backend_(backend),
        pool_(backend, {KvLayerSpec{{}, -1, kSpec}}, {4096, sequences, kRows, 64, draft_rows}),
        pages_(pool_.limits(), pool_.plan()) {
    for (int32_t i = 0; i < sequences; ++i) sequences_.push_back(std::make_unique<Sequence>(pages_));
    const auto take = [&](int32_t rows, int32_t cols) {
      memory_.push_back(backend.alloc(size_t(rows) * cols * 4));
      return make_tensor(memory_.back().data(), DType::f32, rows, cols);
    };
    x_ = take(kRows, kSpec.channels), c_ = take(kRows, kSpec.channels), o_ = take(kRows, 128);
    a_ = take(kRows, 4), beta_ = take(kRows, 4), y_ = take(kRows, 128);
    const Tensor w = take(4, kSpec.channels), rate = take(1, 4), bias = take(1, 4);
    fill(w, 0, 4, 7, 0.5F), fill(bias, 0, 1, 9, 1);
    std::vector<float> rates = drawn(4, 8, 0.1F);
    for (float& r : rates) r = -std::abs(r);
    backend.copy(rate.data, rates.data(), 16);
    const auto compile = [&](int32_t rows) {  // a device may compute fewer kernels of a single row
      const auto some = [&](const Tensor& t, int32_t first, int32_t cols) {
        return t.row_range(0, rows).columns(first, cols);
      };
      const Tensor c = some(c_, 0, kSpec.channels), q = some(c_, 0, 32), k = some(c_, 32, 32),
                   o = some(o_, 0, 128), y = some(y_, 0, 128), none;
      Program p;
      p.push(ConvArgs{c, some(x_, 0, kSpec.channels), w, pool_.conv(0), Act::silu});
      for (const Tensor& t : {q, k}) p.push(RmsNormArgs{t, t, none, none, none, 16, 1e-6F, 0.25F});
      p.push(DeltaNetArgs{o, q, k, some(c_, 64, 128), some(a_, 0, 4), some(beta_, 0, 4), rate, bias,
                          pool_.matrix(0)});
      p.push(RmsNormArgs{y, o, none, none, none, 32, 1e-6F, 1, y, Act::silu});
      return backend.compile(p, &state_);
    };
    exe_ = compile(kRows), one_ = compile(1);
  }

  struct Part {
    int32_t seq;
    std::vector<int32_t> tokens;  // a token's inputs are a function of its number
    int32_t keep;
  };
  // Rows of y, in order.
  std::vector<std::vector<float>> step(const std::vector<Part>& parts) {
    pos_.clear(), seq_.clear(), views_.clear();
    for (const Part& p : parts) {
      Sequence& s = *sequences_[p.seq];
      REQUIRE(s.append(static_cast<int32_t>(p.tokens.size())));
      for (size_t i = 0; i < p.tokens.size(); ++i) {
        const auto m = static_cast<int32_t>(pos_.size());
        fill(x_, m, 1, 10 * p.tokens[i], 0.4F), fill(a_, m, 1, 10 * p.tokens[i] + 1, 2);
        fill(beta_, m, 1, 10 * p.tokens[i] + 2, 0.3F), fill(y_, m, 1, 10 * p.tokens[i] + 3, 1);
        pos_.push_back(s.committed() + static_cast<int32_t>(i));
        seq_.push_back(static_cast<int32_t>(views_.size()));
      }
      views_.push_back(s.view());
    }
    state_ = {.n_rows = static_cast<int32_t>(pos_.size()), .pos = pos_.data(), .seq = seq_.data()};
    state_.seqs = views_.data();
    backend_.submit(state_.n_rows == 1 ? *one_ : *exe_);
    backend_.wait();
    for (const Part& p : parts) sequences_[p.seq]->commit(p.keep);
    std::vector<std::vector<float>> rows;
    for (int32_t m = 0; m < state_.n_rows; ++m) rows.push_back(read(y_.row<float>(m), y_.cols));
    return rows;
  }
  // Both states of a sequence, when nothing is left in its log.
  std::vector<float> states(int32_t seq) const {
    const SeqView v = sequences_[seq]->view();
    const RecurrentView c = pool_.conv(0), m = pool_.matrix(0);
    std::vector<float> out = read(c.base_of(v), kSpec.conv_base()),
                       matrix = read(m.base_of(v), kSpec.matrix_base());
    out.insert(out.end(), matrix.begin(), matrix.end());
    return out;
  }

 private:
  static std::vector<float> drawn(int64_t n, int32_t seed, float spread) {
    Random rng(static_cast<uint64_t>(seed));
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = spread * (static_cast<float>(rng() >> 40) * 0x1p-23F - 1);
    return v;
  }
  void fill(const Tensor& t, int32_t first, int32_t rows, int32_t seed, float spread) {
    const std::vector<float> v = drawn(int64_t{rows} * t.cols, seed, spread);
    backend_.copy(t.row<float>(first), v.data(), v.size() * 4);
  }
  std::vector<float> read(const float* p, int64_t n) const {
    std::vector<float> v(static_cast<size_t>(n));
    backend_.copy(v.data(), p, v.size() * 4);
    return v;
  }

  Backend& backend_;
  KvPool pool_;
  PagePool pages_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<Buffer> memory_;
  Tensor x_, c_, o_, a_, beta_, y_;
  std::vector<int32_t> pos_, seq_;
  std::vector<SeqView> views_;
  StepState state_;
  std::unique_ptr<Executable> exe_, one_;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

}  // namespace

TEST_CASE("2,000 tokens with random rejections: rows and states of sequential decoding") {
  constexpr int32_t kTokens = 2000, kDraft = 16;
  for (const NamedBackend& b : every_backend()) {
    CAPTURE(b.name);
    const int32_t tokens = b.name == "ref" ? 300 : kTokens;
    std::vector<std::vector<float>> want;
    Layer plain(*b.backend, 1, 0), drafted(*b.backend, 1, kDraft);
    for (int32_t t = 0; t < tokens; ++t) want.push_back(plain.step({{0, {t}, 1}})[0]);
    std::mt19937 rng(5);
    int32_t rounds = 0, differ = 0;
    for (int32_t at = 0; at < tokens; ++rounds) {
      // Mostly a few drafts, now and then a chunk of a prompt with some.
      const int32_t sure = rng() % 20 ? 1 : 20, n = sure + static_cast<int32_t>(rng() % kDraft);
      const int32_t right = std::min(sure + static_cast<int32_t>(rng() % (n - sure + 1)), tokens - at);
      if (at + sure > tokens) break;
      std::vector<int32_t> rows;
      for (int32_t i = 0; i < n; ++i) rows.push_back(i < right ? at + i : 100000 + at + i);
      const auto got = drafted.step({{0, rows, right}});
      for (int32_t i = 0; i < right; ++i) differ += !same(got[i], want[at + i]);
      at += right;
    }
    CHECK(differ == 0);
    CHECK(rounds > tokens / 20);
    // A long step folds what is left in the log; then both have only a base.
    std::vector<int32_t> more;
    for (int32_t i = 0; i < 40; ++i) more.push_back(tokens + i);
    drafted.step({{0, more, 40 - kDraft}});
    drafted.step({{0, std::vector<int32_t>(more.begin() + 40 - kDraft, more.end()), 0}});
    plain.step({{0, std::vector<int32_t>(more.begin(), more.begin() + 40 - kDraft), 40 - kDraft}});
    CHECK(same(drafted.states(0), plain.states(0)));
  }
}

TEST_CASE("sequences beside each other, in chunks of any size, on any number of threads") {
  for (int threads = 1; threads <= 3; ++threads)
    for (const NamedBackend& b : every_backend(threads)) {
      CAPTURE(b.name);
      CAPTURE(threads);
      Layer alone(*b.backend, 1, 0), together(*b.backend, 3, 6);
      std::vector<std::vector<float>> want;
      for (int32_t t = 0; t < 120; ++t) want.push_back(alone.step({{0, {t}, 1}})[0]);
      int32_t at[3] = {}, differ = 0;
      std::mt19937 rng(9);
      for (int32_t round = 0; round < 12; ++round) {
        std::vector<Layer::Part> parts;
        for (int32_t s = 2; s >= 0; --s) {
          const int32_t n = 1 + static_cast<int32_t>(rng() % 10);
          std::vector<int32_t> rows;
          for (int32_t i = 0; i < n; ++i) rows.push_back(at[s] + i);
          parts.push_back({s, rows, n - static_cast<int32_t>(rng() % std::min(n, 6))});
        }
        const auto got = together.step(parts);
        size_t row = 0;
        for (const Layer::Part& p : parts) {
          for (size_t i = 0; i < p.tokens.size(); ++i) differ += !same(got[row++], want[p.tokens[i]]);
          at[p.seq] += p.keep;
        }
      }
      CHECK(differ == 0);
    }
}
