// Cache formats on K and V that a trained model makes: the rotation must make them normal enough for the
// grids.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/generate.h"
#include "base/error.h"
#include "base/file.h"
#include "core/codec.h"
#include "core/kv_codec.h"
#include "model/model.h"
#include "tests/backends.h"
#include "tests/tiny_model.h"

using namespace carat;
using namespace carat::test;

namespace {

const std::string kDemo = std::string(CARAT_TEST_DATA) + "/../../models/carat-demo";

// Squared error of the format over all rows, relative to their squares.
double error_of(DType type, const std::vector<std::vector<float>>& rows) {
  double error = 0, size = 0;
  for (std::vector<float> x : rows) {
    const auto d = static_cast<int32_t>(x.size());
    rotate(rotation_of(type), x.data(), d);
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(type, d)));
    encode_row(type, x.data(), row.data(), d);
    std::vector<float> y(x.size());
    decode_row(type, row.data(), y.data(), d);
    for (size_t i = 0; i < x.size(); ++i)
      error += std::pow(double{x[i]} - y[i], 2), size += double{x[i]} * x[i];
  }
  return error / size;
}

struct Target {
  explicit Target(std::shared_ptr<Backend> b)
      : backend(std::move(b)),
        model(std::make_shared<Model>(load_model(open_source(kDemo + "/carat-demo-q5_k_m.gguf"), *backend))) {
  }
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
};

std::vector<Token> held_out(size_t doc) {
  return nlohmann::json::parse(read_file(kDemo + "/heldout.json"))["docs"][doc]["tokens"]
      .get<std::vector<Token>>();
}

// The first `prompt` tokens and n more, by the most likely; log probabilities of the prompt, where asked for.
struct Answer {
  std::vector<Token> tokens;
  std::vector<float> prompt;
};
Answer run(Engine& e, const std::vector<Token>& text, int64_t prompt, int32_t n, const std::string& load = "",
           const std::string& save = "") {
  Request r;
  r.prompt.assign(text.begin(), text.begin() + prompt);
  r.sample.temperature = 0;
  r.max_tokens = n;
  r.load_state = load, r.save_state = save;
  r.prompt_logprobs = load.empty() && save.empty();
  Answer a;
  const auto on_event = [&](const Event& event) {
    for (const Logprobs& l : event.prompt_logprobs) a.prompt.push_back(l.chosen);
  };
  a.tokens = generate(e, r, on_event).tokens;
  return a;
}

double mean_distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(double{a[i]} - b[i]);
  return sum / static_cast<double>(a.size());
}

}  // namespace

TEST_CASE("errors on the demo model's K and V are those of normal vectors") {
  const auto backend = make_cpu_backend(2, "");
  const Model model = load_model(open_source(kDemo + "/carat-demo-q5_k_m.gguf"), *backend);
  const auto tokens = nlohmann::json::parse(read_file(kDemo + "/heldout.json"))["docs"][0]["tokens"]
                          .get<std::vector<int32_t>>();
  const int32_t n = std::min<int32_t>(200, static_cast<int32_t>(tokens.size()));
  const KvLimits limits{.context = 256, .sequences = 1, .step_rows = 64};
  KvPool pool(*backend, kv_layers(model.spec, DType::f32, DType::f32), limits);
  PagePool pages(limits, pool.plan());
  Arena arena(*backend);
  Program program;
  StepState state;
  Build build{program, model.spec, pool, arena, 64, 1};
  model.family->build(build, *model.weights);
  const auto executable = backend->compile(program, &state);
  Sequence sequence(pages);
  for (int32_t at = 0; at < n; at += 64) {
    const int32_t rows = std::min(64, n - at);
    REQUIRE(sequence.append(rows));
    std::vector<int32_t> pos, seq(static_cast<size_t>(rows), 0), out{rows - 1};
    for (int32_t i = 0; i < rows; ++i) pos.push_back(at + i);
    const SeqView view = sequence.view();
    state = {rows, 1, tokens.data() + at, pos.data(), seq.data(), out.data(), &view};
    backend->submit(*executable);
    backend->wait();
    sequence.commit(rows);
  }
  const SeqView view = sequence.view();
  for (const bool global : {false, true})
    for (const bool keys : {true, false}) {
      std::vector<std::vector<float>> rows;
      for (size_t l = 0; l < model.spec.layers.size(); ++l) {
        if ((model.spec.layers[l].window == 0) != global) continue;
        const KvView kv = pool.view(static_cast<int>(l));
        for (int32_t p = 0; p < n; p += 3)
          for (int32_t h = 0; h < kv.spec.heads; ++h) {
            const auto* x =
                reinterpret_cast<const float*>(keys ? kv.k_row(view, p, h) : kv.v_row(view, p, h));
            rows.emplace_back(x, x + kv.spec.dim);
          }
      }
      CAPTURE(global);
      CAPTURE(keys);
      const double q8 = error_of(DType::q8_0, rows), fp8 = error_of(DType::fp8, rows),
                   kv4 = error_of(DType::kv4, rows), tq4 = error_of(DType::tq4, rows),
                   tq3 = error_of(DType::tq3, rows), tq30 = error_of(DType::tq3_0, rows);
      MESSAGE(fmt::format("{} {}: q8_0 {:.6f} fp8 {:.6f} kv4 {:.5f} tq4 {:.5f} tq3 {:.5f} tq3_0 {:.5f}",
                          global ? "global" : "sliding", keys ? "K" : "V", q8, fp8, kv4, tq4, tq3, tq30));
      CHECK(kv4 == doctest::Approx(.0074).epsilon(.1));
      CHECK(tq4 == doctest::Approx(.0094).epsilon(.1));
      CHECK(tq3 == doctest::Approx(.0345).epsilon(.1));
      CHECK(q8 < 1e-4);
      CHECK(fp8 < 1.2e-3);
      CHECK(tq3 < tq30 * 1.03);  // not worse than TQ3_0, at 0.44 bits less
    }
}

TEST_CASE("a saved sequence goes on as if it had never ended; others are refused") {
  const Target cpu(make_cpu_backend(2, ""));
  const std::vector<Token> text = held_out(1);
  const std::string path = test_directory() + "/saved.kv";
  const EngineConfig config{.context = 256, .sequences = 1, .prefill_chunk = 32, .kv_policy = "smallest"};
  Engine engine(cpu.backend, cpu.model, config);
  CHECK(engine.config().cache_k == DType::kv4);
  CHECK(engine.config().sliding_v == DType::q8_0);
  const std::vector<Token> whole = run(engine, text, 120, 10).tokens;
  REQUIRE(whole.size() == 10);
  run(engine, text, 90, 0, "", path);
  CHECK(run(engine, text, 120, 10, path).tokens == whole);
  CHECK_THROWS_WITH_AS(run(engine, text, 90, 1, path), doctest::Contains("beginning of this prompt"), Error);
  Engine other(cpu.backend, cpu.model, {.context = 256, .sequences = 1, .prefill_chunk = 32});
  CHECK_THROWS_WITH_AS(run(other, text, 120, 1, path), doctest::Contains("another cache"), Error);
  CHECK(run(engine, text, 120, 10).tokens == whole);  // the engine goes on
}

TEST_CASE("one copy of K = V and protected rows: a GPU reads as the CPU does, and goes on from a file") {
  const Target cpu(make_cpu_backend(2, ""));
  const std::vector<Token> text = held_out(1);
  const std::string path = test_directory() + "/saved-gpu.kv";
  EngineConfig config{.context = 128, .sequences = 1, .prefill_chunk = 64};
  config.sliding_k = config.sliding_v = DType::q8_0;
  const auto read = [&](const Target& t) {
    Engine engine(t.backend, t.model, config);
    return run(engine, text, 66, 0).prompt;
  };
  struct Setting {
    DType type;
    bool single;
    KvProtect protect;
  };
  for (NamedBackend& b : cuda_backends()) {
    const Target gpu(std::move(b.backend));
    for (const Setting& s : {Setting{DType::q8_0, true, {}}, Setting{DType::tq3, false, {2, 20}}}) {
      CAPTURE(s.single);
      CAPTURE(s.protect.recent);
      config.cache_k = config.cache_v = s.type, config.single_copy = s.single, config.kv_protect = s.protect;
      Engine engine(gpu.backend, gpu.model, config);
      const Answer whole = run(engine, text, 66, 2);
      CHECK(mean_distance(read(cpu), whole.prompt) < 0.12);  // in f16: 0.08
      REQUIRE(whole.tokens.size() == 2);
      run(engine, text, 64, 0, "", path);
      CHECK(run(engine, text, 66, 2, path).tokens == whole.tokens);
    }
  }
}
