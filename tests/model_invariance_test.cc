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
  const std::vector<NamedBackend> one = all_backends(1), three = all_backends(3);
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
  for (const std::string name : {"gemma4_dense", "gemma4_moe", "gemma4_e"}) check(name, {}, DType::f32);
}

TEST_CASE("quantized weights and caches") {
  for (const std::string name : {"gemma4_dense", "gemma4_moe", "gemma4_e"})
    check(name, DType::q8_0, DType::f16);
}

TEST_CASE("a rejected tail leaves no trace") {
  const auto backend = make_ref_backend();
  const std::vector<int32_t> ids = Goldens("gemma4_dense").get("input_ids").i;
  const Model model = load_golden(golden_dir("gemma4_dense"), *backend);
  const Logits whole = alone(*backend, model, ids, 1000, DType::f32);
  // Steps of 8 rows of which only some are kept; the rest is overwritten with what really follows.
  StepRunner run(*backend, model, {256, 1, 8, 8}, DType::f32);
  std::vector<int32_t> rows(8);
  size_t round = 0;
  for (int32_t at = 0; at + 8 <= static_cast<int32_t>(ids.size()); ++round) {
    const int32_t keep = 1 + static_cast<int32_t>(round * 5 % 8);
    for (int32_t i = 0; i < 8; ++i) rows[i] = i < keep ? ids[at + i] : (ids[at + i] + 77) % model.spec.vocab;
    run.step({StepRunner::Part{0, rows}}, true, keep);
    Logits kept;
    collect(run, model.spec.vocab, 0, keep, kept);
    CAPTURE(at);
    CHECK(same(kept, std::span(whole).subspan(static_cast<size_t>(at), static_cast<size_t>(keep))));
    at += keep;
  }
  CHECK(round > 10);
}
