// Models against the reference implementation: every tensor the goldens hold that a step computes, at
// several chunk sizes, on every backend and instruction set of this machine.
#include "tests/goldens.h"

#include <doctest/doctest.h>

#include <fmt/ranges.h>

#include <algorithm>

#include "core/codec.h"
#include "tests/split_backends.h"
#include "tests/step_runner.h"

using namespace carat;
using namespace carat::test;

namespace {

constexpr double kLogitTolerance = 2e-3, kRelativeTolerance = 2e-4;  // goldens' README

double max_diff(const float* a, const float* b, int64_t n) {
  double d = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double e = std::abs(double{a[i]} - b[i]);
    d = e <= d ? d : e;  // a NaN stays
  }
  return d;
}

// What a run produced for every position of the prompt.
struct Trace {
  std::vector<float> logits, hidden;
  std::vector<std::vector<float>> layers;
};

Trace prefill(StepRunner& run, const ModelSpec& spec, std::span<const int32_t> ids, size_t chunk) {
  Trace t;
  t.layers.resize(spec.layers.size());
  for (size_t first = 0; first < ids.size(); first += chunk) {
    const auto part = ids.subspan(first, std::min(chunk, ids.size() - first));
    run.step(part);
    for (int32_t i = 0; i < run.wanted(); ++i) {
      t.logits.insert(t.logits.end(), run.logits(i), run.logits(i) + spec.vocab);
      t.hidden.insert(t.hidden.end(), run.hidden(i), run.hidden(i) + spec.dim);
    }
    for (size_t l = 0; l < t.layers.size(); ++l)
      for (int32_t i = 0; i < static_cast<int32_t>(part.size()); ++i)
        t.layers[l].insert(t.layers[l].end(), run.tap(i, l), run.tap(i, l) + spec.dim);
  }
  return t;
}

// Keys and values still in the cache, against what the reference cached.
void check_cache(const StepRunner& run, const Goldens& g, int layer, int32_t length) {
  const KvView v = run.kv().view(layer);
  const SeqView s = run.view(0);
  const int32_t first = v.ring_tokens ? std::max(0, length - v.ring_tokens) : 0;
  const int32_t dim = v.spec.dim;
  std::vector<float> row(static_cast<size_t>(dim));
  for (const bool keys : {true, false}) {
    const GoldenTensor want = g.get(fmt::format("kv.{}.{}", layer, keys ? "k" : "v"));
    double worst = 0;
    for (int32_t h = 0; h < v.spec.heads; ++h)
      for (int32_t p = first; p < length; ++p) {
        const DType type = keys ? v.spec.k : v.spec.v;
        const auto stored = run.values(keys ? v.k_row(s, p, h) : v.v_row(s, p, h), row_bytes(type, dim));
        decode_row(type, stored.data(), row.data(), dim);
        worst = std::max(worst, max_diff(row.data(), &want.f[(size_t(h) * length + p) * dim], dim));
      }
    CAPTURE(layer);
    CAPTURE(keys);
    CHECK(worst <= kRelativeTolerance * want.max_abs());
  }
}

// The last layer's routing is still in the scratch memory after a step.
void check_router(const StepRunner& run, const Goldens& g, int layers, int32_t rows) {
  const RouteArgs* route = nullptr;
  for (const OpRecord& op : run.program().ops())
    if (op.op == Op::Route && op.as<RouteArgs>().logits.cols > 1) route = &op.as<RouteArgs>();
  REQUIRE(route);
  const GoldenTensor ids = g.get("router_topk_ids"), weights = g.get("router_topk_weights");
  const int32_t k = route->top_k;
  const size_t total = ids.i.size() / layers, last = (layers - 1) * total + total - size_t(rows) * k;
  for (int32_t m = 0; m < rows; ++m) {
    const auto experts = run.values(route->experts.row<int32_t>(m), k);
    CHECK(std::equal(experts.begin(), experts.end(), &ids.i[last + m * k]));
    CHECK(max_diff(run.values(route->weights.row<float>(m), k).data(), &weights.f[last + m * k], k) <=
          kRelativeTolerance * weights.max_abs());
  }
}

void check_per_layer_inputs(const StepRunner& run, const Goldens& g, int32_t rows) {
  for (const OpRecord& op : run.program().ops()) {
    if (op.op != Op::RmsNorm || op.as<RmsNormArgs>().width == 0) continue;
    const Tensor& y = op.as<RmsNormArgs>().y;
    const GoldenTensor want = g.get("per_layer_inputs");
    const size_t first = want.f.size() - size_t(rows) * y.cols;
    std::vector<float> got;
    for (int32_t i = 0; i < rows; ++i) {
      const auto row = run.values(y.row<float>(i), y.cols);
      got.insert(got.end(), row.begin(), row.end());
    }
    CHECK(max_diff(got.data(), &want.f[first], int64_t{rows} * y.cols) <=
          kRelativeTolerance * want.max_abs());
    return;
  }
  FAIL("no per-layer inputs");
}

// Recurrent states in the bases, against the reference's `what`.LAYER.{recurrent,conv}: there value heads are
// listed by key head, and the convolution keeps one input more.
void check_states(const StepRunner& run, const Goldens& g, const ModelSpec& spec, const std::string& what) {
  const SeqView s = run.view(0);
  int checked = 0;
  for (int l = 0; l < static_cast<int>(spec.layers.size()); ++l) {
    const RecurrentSpec& r = spec.layers[l].recurrent;
    if (!r.valid()) continue;
    const GoldenTensor matrix = g.get(fmt::format("{}.{}.recurrent", what, l));
    const GoldenTensor conv = g.get(fmt::format("{}.{}.conv", what, l));
    const int32_t group = r.v_heads / r.k_heads, size = r.k_dim * r.v_dim, keys = 2 * r.k_heads * r.k_dim;
    const auto theirs = [&](int32_t head) { return head % r.k_heads * group + head / r.k_heads; };
    double worst = 0, worst_conv = 0;
    const auto base = run.values<float>(run.kv().matrix(l).base_of(s), size_t(r.v_heads) * size);
    for (int32_t h = 0; h < r.v_heads; ++h)
      worst = std::max(worst, max_diff(&base[size_t(h) * size], &matrix.f[size_t(theirs(h)) * size], size));
    const auto inputs = run.values<float>(run.kv().conv(l).base_of(s), size_t(r.taps - 1) * r.channels);
    for (int32_t c = 0; c < r.channels; ++c) {
      const int32_t v = c - keys, row = v < 0 ? c : keys + theirs(v / r.v_dim) * r.v_dim + v % r.v_dim;
      for (int32_t t = 0; t + 1 < r.taps; ++t)
        worst_conv = std::max(
            worst_conv, std::abs(double{inputs[t * r.channels + c]} - conv.f[size_t(row) * r.taps + t + 1]));
    }
    CAPTURE(l);
    CHECK(worst <= kRelativeTolerance * matrix.max_abs());
    CHECK(worst_conv <= kRelativeTolerance * conv.max_abs());
    ++checked;
  }
  CHECK(checked > 0);
}

void check_prompt(Backend& backend, const Model& model, const Goldens& g, size_t chunk, int32_t page_tokens) {
  const std::vector<int32_t> ids = g.get("input_ids").i;
  const auto n = static_cast<int32_t>(ids.size());
  chunk = std::min(chunk, ids.size());
  StepRunner run(backend, model, {n + 64, 1, static_cast<int32_t>(chunk), page_tokens}, DType::f32, true);
  const Trace t = prefill(run, model.spec, ids, chunk);
  const GoldenTensor logits = g.get("logits"), hidden = g.get("final_norm"), layer_out = g.get("layer_out");
  CHECK(max_diff(t.logits.data(), logits.f.data(), int64_t{n} * model.spec.vocab) <= kLogitTolerance);
  CHECK(max_diff(t.hidden.data(), hidden.f.data(), int64_t{n} * model.spec.dim) <=
        kRelativeTolerance * hidden.max_abs());
  const int64_t width = int64_t{n} * model.spec.dim;
  for (size_t l = 0; l < t.layers.size(); ++l) {
    CAPTURE(l);
    CHECK(max_diff(t.layers[l].data(), &layer_out.f[l * width], width) <=
          kRelativeTolerance * layer_out.max_abs());
    if (model.spec.layers[l].kv_from == static_cast<int>(l)) check_cache(run, g, static_cast<int>(l), n);
  }
  const int32_t last_rows = n - static_cast<int32_t>((n - 1) / chunk * chunk);
  if (g.has("router_topk_ids")) check_router(run, g, static_cast<int>(t.layers.size()), last_rows);
  if (g.has("per_layer_inputs")) check_per_layer_inputs(run, g, last_rows);
  if (g.has("state.0.conv")) check_states(run, g, model.spec, "state");
}

// Greedy continuation with only the wanted rows running behind the last cache owner.
void check_greedy(Backend& backend, const Model& model, const Goldens& g, int32_t chunk) {
  const std::vector<int32_t> ids = g.get("input_ids").i, want = g.get("greedy_ids").i;
  const GoldenTensor logits = g.get("greedy_logits");
  const auto n = static_cast<int32_t>(ids.size());
  StepRunner run(backend, model, {n + 64, 1, chunk, 16}, DType::f32);
  for (int32_t first = 0; first < n; first += chunk)
    run.step(std::span(ids).subspan(first, std::min(chunk, n - first)), false);
  const int32_t vocab = model.spec.vocab;
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(max_diff(run.logits(0), &logits.f[i * vocab], vocab) <= kLogitTolerance);
    const auto token =
        static_cast<int32_t>(std::max_element(run.logits(0), run.logits(0) + vocab) - run.logits(0));
    REQUIRE(token == want[i]);
    if (i + 1 == want.size() && g.has("state_after_greedy.0.conv"))
      check_states(run, g, model.spec, "state_after_greedy");
    run.step(std::span(&token, 1), false);
  }
}

void check_model(const std::string& name) {
  const Goldens g(name);
  std::vector<NamedBackend> backends = every_backend();
#ifndef CARAT_EMULATED  // there parts_test compares with one device, byte by byte
  const auto layers =
      static_cast<int32_t>(load_golden(golden_dir(name), *make_ref_backend()).spec.layers.size());
  for (NamedBackend& b : split_backends(layers)) backends.push_back(std::move(b));
#endif
  for (const NamedBackend& b : backends) {
    CAPTURE(b.name);
    const Model model = load_golden(golden_dir(name), *b.backend);
    for (const size_t chunk : {1, 7, 64, 1 << 20}) {
      CAPTURE(chunk);
      check_prompt(*b.backend, model, g, chunk, chunk == 7 ? 8 : 64);
    }
    check_greedy(*b.backend, model, g, 32);
  }
}

}  // namespace

TEST_CASE("gemma4 dense: K = V global layers") { check_model("gemma4_dense"); }
TEST_CASE("gemma4 moe: experts beside the dense branch") { check_model("gemma4_moe"); }
TEST_CASE("gemma4 e: per-layer embeddings, shared KV") { check_model("gemma4_e"); }

TEST_CASE("qwen3.5: delta nets and gated attention") { check_model("qwen3_5"); }
TEST_CASE("qwen3.5 moe: routed experts and a shared one") { check_model("qwen3_5_moe"); }

namespace {

// The directory with its stacks of experts as one tensor per expert and projection, as some publish them.
class PerExpertCopy : public GoldenCopy {
 public:
  explicit PerExpertCopy(const std::string& name) : GoldenCopy(name, "config.json") {
    const MappedFile file(path() + "/model.safetensors");
    for (const SafeTensor& t : parse_safetensors(file.bytes(), name)) split(t);
    std::string out(8, '\0');
    header_.back() = '}';
    const uint64_t n = header_.size();
    std::memcpy(out.data(), &n, 8);
    out += header_ + data_;
    std::filesystem::remove(path() + "/model.safetensors");
    AtomicFile to(path() + "/model.safetensors");
    to.write(out);
    to.commit();
  }

 private:
  void add(const std::string& name, const SafeTensor& t, std::vector<int64_t> shape, size_t from,
           size_t bytes) {
    header_ += fmt::format("\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", name,
                           t.dtype, fmt::join(shape, ","), data_.size(), data_.size() + bytes);
    data_.append(reinterpret_cast<const char*>(t.data) + from, bytes);
  }
  void split(const SafeTensor& t) {
    const size_t at = t.name.find(".experts.");
    if (at == std::string::npos) return add(t.name, t, t.shape, 0, t.bytes);
    const std::string stem = t.name.substr(0, at + 9);
    const size_t n = static_cast<size_t>(t.shape[0]), each = t.bytes / n;
    const bool fused = t.name.ends_with("gate_up_proj");
    for (size_t e = 0; e < n; ++e) {
      const std::string expert = fmt::format("{}{}.", stem, e);
      if (!fused) {
        add(expert + "down_proj.weight", t, {t.shape[1], t.shape[2]}, e * each, each);
        continue;
      }
      add(expert + "gate_proj.weight", t, {t.shape[1] / 2, t.shape[2]}, e * each, each / 2);
      add(expert + "up_proj.weight", t, {t.shape[1] / 2, t.shape[2]}, e * each + each / 2, each / 2);
    }
  }
  std::string header_ = "{", data_;
};

}  // namespace

TEST_CASE("experts one by one or in stacks are the same model") {
  const auto backend = make_ref_backend();
  const PerExpertCopy copy("qwen3_5_moe");
  const Model model = load_golden(copy.path(), *backend);
  check_prompt(*backend, model, Goldens("qwen3_5_moe"), 64, 64);
}

TEST_CASE("both styles of config.json describe the same model") {
  const auto backend = make_ref_backend();
  for (const std::string name : {"gemma4_dense", "gemma4_moe", "gemma4_e"}) {
    CAPTURE(name);
    const GoldenCopy copy(name, "config_release_style.json");
    const Goldens g(name);
    const Model model = load_golden(copy.path(), *backend);
    check_prompt(*backend, model, g, 64, 64);
  }
}
