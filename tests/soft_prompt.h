// Prompts with rows of pictures or sound in the places of tokens, against what the reference made of them.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/goldens.h"
#include "tests/step_runner.h"

namespace carat::test {

constexpr double kLogitTolerance = 2e-3, kRelativeTolerance = 2e-4;  // goldens' README

inline std::shared_ptr<Backend> unowned(Backend& b) { return {std::shared_ptr<void>{}, &b}; }

inline double max_diff(const float* a, const float* b, int64_t n) {
  double d = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double e = std::abs(double{a[i]} - b[i]);
    d = e <= d ? d : e;  // a NaN stays
  }
  return d;
}

inline void check_stage(const std::string& name, const std::vector<float>& got, const GoldenTensor& want,
                        size_t first) {
  CAPTURE(name);
  REQUIRE(first + got.size() <= want.f.size());
  CHECK(max_diff(got.data(), &want.f[first], static_cast<int64_t>(got.size())) <=
        kRelativeTolerance * want.max_abs());
}

struct Prompt {
  std::vector<int32_t> ids;
  std::vector<const float*> soft;
  // As many tokens as a step of `chunk` may take from `at` on, pictures whole if they must be.
  size_t take(size_t at, size_t chunk, bool whole) const {
    size_t end = std::min(ids.size(), at + chunk);
    if (!whole || end == ids.size() || !soft[end] || !soft[end - 1]) return end - at;
    while (end > at && soft[end - 1]) --end;
    if (end > at) return end - at;
    while (end < ids.size() && soft[end]) ++end;
    return end - at;
  }
};
inline Prompt prompt_of(const Goldens& g, int32_t place, const std::vector<float>& rows, int32_t dim) {
  Prompt p;
  p.ids = g.get("input_ids").i;
  size_t next = 0;
  for (const int32_t id : p.ids) p.soft.push_back(id == place ? &rows[next++ * dim] : nullptr);
  REQUIRE(next * dim == rows.size());
  return p;
}

inline void run_prompt(StepRunner& run, const Prompt& p, size_t chunk, bool whole, bool all,
                       const std::function<void(size_t at, int32_t i)>& f) {
  for (size_t at = 0, n; at < p.ids.size(); at += n) {
    n = p.take(at, chunk, whole);
    run.step({{0, std::span(p.ids).subspan(at, n), {}, std::span(p.soft).subspan(at, n)}}, all);
    for (int32_t i = 0; i < run.wanted(); ++i) f(at + static_cast<size_t>(i), i);
  }
}

// What logits are judged by: the tower's own rows; on a device, whose products have activations of 16 bits,
// the reference's. Its rows are well within their tolerance, but these small models' logits then are not
// (docs/numerics.md, "Towers").
inline std::vector<float> rows_for_logits(const Backend& backend, std::vector<float> own,
                                          const GoldenTensor& reference) {
  return backend.host_memory() ? std::move(own) : reference.f;
}

// Returns the logits, whose bits do not depend on the chunk.
inline std::vector<float> check_text(Backend& backend, const Model& model, const Goldens& g, const Prompt& p,
                                     size_t chunk) {
  const auto n = static_cast<int32_t>(p.ids.size());
  const GoldenTensor logits = g.get("logits"), layers = g.get("layer_out");
  const int32_t vocab = model.spec.vocab, dim = model.spec.dim;
  StepRunner run(backend, model, {n + 64, 1, n, 16}, DType::f32, true);
  double worst = 0, worst_layer = 0;
  std::vector<float> all;
  run_prompt(run, p, chunk, model.spec.blocks, true, [&](size_t at, int32_t i) {
    worst = std::max(worst, max_diff(run.logits(i), &logits.f[at * vocab], vocab));
    all.insert(all.end(), run.logits(i), run.logits(i) + vocab);
    for (size_t l = 0; l < model.spec.layers.size(); ++l)
      worst_layer = std::max(
          worst_layer, max_diff(run.tap(i, l), &layers.f[(l * static_cast<size_t>(n) + at) * dim], dim));
  });
  CHECK(worst <= kLogitTolerance);
  CHECK(worst_layer <= kRelativeTolerance * layers.max_abs());
  return all;
}

inline void check_greedy(Backend& backend, const Model& model, const Goldens& g, const Prompt& p) {
  const auto n = static_cast<int32_t>(p.ids.size());
  const int32_t vocab = model.spec.vocab;
  const std::vector<int32_t> want = g.get("greedy_ids").i;
  StepRunner run(backend, model, {n + 64, 1, n, 16}, DType::f32);
  run_prompt(run, p, 70, model.spec.blocks, false, [](size_t, int32_t) {});
  for (const int32_t id : want) {
    const auto token =
        static_cast<int32_t>(std::max_element(run.logits(0), run.logits(0) + vocab) - run.logits(0));
    REQUIRE(token == id);
    run.step(std::span(&token, 1), false);
  }
}

}  // namespace carat::test
