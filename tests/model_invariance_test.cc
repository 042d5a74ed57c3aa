// Rows do not see each other (docs/numerics.md): a token's logits are the same bytes alone or in a batch, in
// one chunk or in many, on one thread or on several, and whether or not the rows beside it are wanted.
#include <doctest/doctest.h>

#include <cstring>

#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/quantized_source.h"
#include "tests/step_runner.h"

using namespace carat;
using namespace carat::test;

namespace {

using Logits = std::vector<std::vector<float>>;  // per row

void collect(const StepRunner& run, int32_t vocab, int32_t first, int32_t n, Logits& to) {
  for (int32_t i = first; i < first + n; ++i) to.emplace_back(run.logits(i), run.logits(i) + vocab);
}

Logits alone(Backend& backend, const Model& model, std::span<const int32_t> ids, size_t chunk, DType kv) {
  StepRunner run(backend, model, {256, 1, 128, 16}, kv);
  Logits out;
  for (size_t first = 0; first < ids.size(); first += chunk) {
    run.step(ids.subspan(first, std::min(chunk, ids.size() - first)));
    collect(run, model.spec.vocab, 0, run.wanted(), out);
  }
  return out;
}

bool same(std::span<const std::vector<float>> a, std::span<const std::vector<float>> b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * 4)) return false;
  return true;
}

struct Prompt {
  std::span<const int32_t> ids;
  std::vector<size_t> cuts;  // tokens per step
};

// Three prompts advance together, each at its own pace.
void check_batch(Backend& backend, const Model& model, std::span<const int32_t> ids, DType kv) {
  const Prompt prompts[] = {{ids.subspan(0, 40), {17, 1, 1, 21}},
                            {ids.subspan(11, 23), {1, 20, 1, 1}},
                            {ids.subspan(3, 61), {30, 5, 25, 1}}};
  StepRunner run(backend, model, {256, 3, 128, 16}, kv);
  Logits together[3];
  size_t at[3] = {};
  for (size_t step = 0; step < 4; ++step) {
    std::vector<StepRunner::Part> parts;
    for (int32_t s = 2; s >= 0; --s) {
      parts.push_back({s, prompts[s].ids.subspan(at[s], prompts[s].cuts[step])});
      at[s] += prompts[s].cuts[step];
    }
    run.step(parts);
    int32_t row = 0;
    for (const StepRunner::Part& p : parts) {
      collect(run, model.spec.vocab, row, static_cast<int32_t>(p.tokens.size()), together[p.seq]);
      row += static_cast<int32_t>(p.tokens.size());
    }
  }
  for (int s = 0; s < 3; ++s) {
    CAPTURE(s);
    CHECK(same(together[s], alone(backend, model, prompts[s].ids, 1000, kv)));
  }
}

void check_wanted_rows(Backend& backend, const Model& model, std::span<const int32_t> ids,
                       const Logits& whole, DType kv) {
  StepRunner run(backend, model, {256, 1, 128, 16}, kv);
  Logits last;
  for (const size_t n : {30, 1, 9}) {
    const auto first = static_cast<size_t>(run.sequence(0).committed());
    run.step(ids.subspan(first, n), false);
    collect(run, model.spec.vocab, 0, 1, last);
    CAPTURE(first);
    CHECK(same(std::span(last).last(1), std::span(whole).subspan(first + n - 1, 1)));
  }
}

void check(const std::string& golden, std::optional<DType> weights, DType kv) {
  const std::vector<int32_t> ids = Goldens(golden).get("input_ids").i;
  std::shared_ptr<WeightSource> source = open_source(golden_dir(golden));
  if (weights) source = std::make_shared<QuantizedSource>(source, *weights);
  const std::vector<NamedBackend> one = every_backend(1), three = every_backend(3);
  for (size_t i = 0; i < one.size(); ++i) {
    CAPTURE(golden);
    CAPTURE(one[i].name);
    const Model model = load_model(source, *one[i].backend);
    const Logits whole = alone(*one[i].backend, model, ids, 1000, kv);
    REQUIRE(whole.size() == ids.size());
    for (const size_t chunk : {1, 7, 64}) {
      CAPTURE(chunk);
      CHECK(same(whole, alone(*one[i].backend, model, ids, chunk, kv)));
    }
    check_batch(*one[i].backend, model, ids, kv);
    check_wanted_rows(*one[i].backend, model, ids, whole, kv);
    const Model again = load_model(source, *three[i].backend);
    CHECK(same(whole, alone(*three[i].backend, again, ids, 50, kv)));
  }
}

}  // namespace

TEST_CASE("float weights") {
  for (const std::string name : {"gemma4_dense", "gemma4_moe", "gemma4_e", "qwen3_5", "qwen3_5_moe"})
    check(name, {}, DType::f32);
}

TEST_CASE("quantized weights and caches") {
  for (const std::string name : {"gemma4_dense", "gemma4_moe", "gemma4_e", "qwen3_5", "qwen3_5_moe"})
    check(name, DType::q8_0, DType::f16);
}

TEST_CASE("a rejected tail leaves no trace") {
  for (const std::string name : {"gemma4_dense", "qwen3_5"}) {
    CAPTURE(name);
    const auto backend = make_ref_backend();
    const std::vector<int32_t> ids = Goldens(name).get("input_ids").i;
    const Model model = load_golden(golden_dir(name), *backend);
    const Logits whole = alone(*backend, model, ids, 1000, DType::f32);
    // Steps of 8 rows of which only some are kept; the rest is overwritten with what really follows.
    StepRunner run(*backend, model, {256, 1, 8, 8, 8}, DType::f32);
    std::vector<int32_t> rows(8);
    size_t round = 0;
    for (int32_t at = 0; at + 8 <= static_cast<int32_t>(ids.size()); ++round) {
      const int32_t keep = 1 + static_cast<int32_t>(round * 5 % 8);
      for (int32_t i = 0; i < 8; ++i)
        rows[i] = i < keep ? ids[at + i] : (ids[at + i] + 77) % model.spec.vocab;
      run.step({StepRunner::Part{0, rows}}, true, keep);
      Logits kept;
      collect(run, model.spec.vocab, 0, keep, kept);
      CAPTURE(at);
      CHECK(same(kept, std::span(whole).subspan(static_cast<size_t>(at), static_cast<size_t>(keep))));
      at += keep;
    }
    CHECK(round > 10);
  }
}

namespace {

// A tree behind 55 committed tokens; its path to every leaf as a chain; then a path is kept and decoding goes
// on.
void check_trees(const std::string& golden, std::optional<DType> weights, DType kv) {
  const std::vector<int32_t> ids = Goldens(golden).get("input_ids").i;
  std::shared_ptr<WeightSource> source = open_source(golden_dir(golden));
  if (weights) source = std::make_shared<QuantizedSource>(source, *weights);
  const std::vector<int32_t> parents{-1, 0, 0, 1, 2, 2, 4, 4, 7, 5, 8, 8, 11, 3, 12, 14, 0};
  const std::vector<int32_t> kept{0, 2, 4, 7, 8, 11, 12, 14};
  std::vector<int32_t> tree;
  for (size_t i = 0; i < parents.size(); ++i)
    tree.push_back((ids[i] * 7 + 13 * static_cast<int32_t>(i)) % 500);
  // The instruction sets one by one: invariance_test.cc.
  std::vector<NamedBackend> backends = every_backend(2);
  backends.erase(backends.begin() + 1, backends.end() - (backends.size() > 1));
  for (const NamedBackend& b : backends) {
    CAPTURE(golden);
    CAPTURE(b.name);
    const Model model = load_model(source, *b.backend);
    const auto begin = [&](StepRunner& run) {
      run.step({{0, std::span(ids).first(30)}, {1, std::span(ids).first(18)}}, false);
      run.step({{0, std::span(ids).subspan(30, 25)}, {1, std::span(ids).subspan(18, 2)}}, false);
    };
    const KvLimits limits{160, 2, 48, 16, 24};  // with windows of 16, a ring's seam is inside the tree
    StepRunner run(*b.backend, model, limits, kv);
    begin(run);
    // Beside a chain of another sequence, which must not notice.
    run.run({{1, std::span(ids).subspan(20, 3)}, {0, tree, parents}});
    Logits rows, after;
    collect(run, model.spec.vocab, 3, static_cast<int32_t>(tree.size()), rows);
    run.sequence(1).commit(3);
    run.sequence(0).commit(kept, run.kv());
    run.step({{0, std::span(ids).subspan(0, 5)}, {1, std::span(ids).subspan(23, 2)}});
    collect(run, model.spec.vocab, 0, 7, after);
    for (size_t i = 0; i < tree.size(); i += i % 3 + 1) {
      std::vector<int32_t> path;
      for (int32_t r = static_cast<int32_t>(i); r >= 0; r = parents[r]) path.insert(path.begin(), tree[r]);
      StepRunner chain(*b.backend, model, limits, kv);
      begin(chain);
      chain.step(path);
      Logits want;
      collect(chain, model.spec.vocab, static_cast<int32_t>(path.size()) - 1, 1, want);
      CAPTURE(i);
      CHECK(same(std::span(rows).subspan(i, 1), want));
    }
    StepRunner chain(*b.backend, model, limits, kv);
    begin(chain);
    std::vector<int32_t> path;
    for (const int32_t r : kept) path.push_back(tree[r]);
    chain.step({{0, path}, {1, std::span(ids).subspan(20, 3)}});
    chain.step({{0, std::span(ids).subspan(0, 5)}, {1, std::span(ids).subspan(23, 2)}});
    Logits want;
    collect(chain, model.spec.vocab, 0, 7, want);
    CHECK(same(after, want));
  }
}

}  // namespace

TEST_CASE("a tree's rows are those of its paths, and a path that is kept goes on as a chain") {
  for (const std::string name : {"gemma4_dense", "gemma4_moe", "gemma4_e", "qwen3_5", "qwen3_5_moe"})
    check_trees(name, {}, DType::f16);
  check_trees("gemma4_e", DType::q8_0, DType::bf16);
}

TEST_CASE("taps and hidden states of all rows, whatever is wanted") {
  const auto backend = make_ref_backend();
  for (const std::string name : {"gemma4_dense", "gemma4_e", "qwen3_5"}) {
    CAPTURE(name);
    const std::vector<int32_t> ids = Goldens(name).get("input_ids").i;
    const Model model = load_golden(golden_dir(name), *backend);
    const auto layers = static_cast<int32_t>(model.spec.layers.size());
    StepRunner whole(*backend, model, {256, 1, 128, 16}, DType::f32, true);
    whole.step(std::span(ids).first(40));
    const auto model_ptr = std::shared_ptr<const Model>(std::shared_ptr<void>{}, &model);
    const auto backend_ptr = std::shared_ptr<Backend>(std::shared_ptr<void>{}, backend.get());
    for (const auto& [taps, hidden] : std::vector<std::pair<std::vector<int32_t>, bool>>{
             {{0, 2}, false}, {{1, layers - 1}, false}, {{layers - 1}, true}, {{}, true}, {{}, false}}) {
      Stepper stepper(backend_ptr, model_ptr, {256, 1, 128, 16}, DType::f32, DType::f32, {taps, hidden});
      Sequence s(stepper.pages());
      REQUIRE(s.append(40));
      stepper.run(std::vector<Stepper::Part>{{&s, std::span(ids).first(40)}});
      const auto dim = static_cast<size_t>(model.spec.dim);
      CHECK(std::memcmp(stepper.logits(0).data(), whole.logits(39), model.spec.vocab * 4) == 0);
      for (int32_t row = 0; row < 40; ++row) {
        for (size_t t = 0; t < taps.size(); ++t)
          CHECK(std::memcmp(stepper.tap(row, t), whole.tap(row, static_cast<size_t>(taps[t])), dim * 4) == 0);
        const float* h = stepper.hidden_of(row);
        CHECK((h != nullptr) == (hidden || row == 39));
        if (h) CHECK(std::memcmp(h, whole.hidden(row), dim * 4) == 0);
      }
    }
  }
}
