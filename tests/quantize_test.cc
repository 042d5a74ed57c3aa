// Quantized directories that `carat convert` writes (their bytes: tests/quantizer/check.py).
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "model/files/hf_dialect.h"
#include "tests/goldens.h"
#include "tests/step_runner.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/convert.h"
#include "tools/load_as.h"
#include "tools/quantize.h"
#include "tools/vocab.h"

using namespace carat;
using namespace carat::test;
namespace fs = std::filesystem;

namespace {

const std::string kDemo = "models/carat-demo/carat-demo-q5_k_m.gguf";

struct TempFolder {
  fs::path path = fs::temp_directory_path() / fmt::format("carat-quantize-{}", ::getpid());
  TempFolder() { fs::create_directories(path); }
  ~TempFolder() { fs::remove_all(path); }
  std::string at(const std::string& name) const { return (path / name).string(); }
};

std::vector<std::vector<double>> log_probabilities(std::shared_ptr<WeightSource> source,
                                                   std::span<const int32_t> ids,
                                                   std::unique_ptr<Backend> backend = make_cpu_backend(2,
                                                                                                       "")) {
  const Model model = load_model(std::move(source), *backend);
  KvLimits limits;
  limits.context = 256;
  limits.step_rows = static_cast<int32_t>(ids.size());
  StepRunner runner(*backend, model, limits);
  runner.step(ids);
  std::vector<std::vector<double>> out;
  for (int32_t r = 0; r < static_cast<int32_t>(ids.size()); ++r) {
    const float* z = runner.logits(r);
    double most = z[0], sum = 0;
    for (int32_t v = 0; v < model.spec.vocab; ++v) most = std::max(most, double{z[v]});
    for (int32_t v = 0; v < model.spec.vocab; ++v) sum += std::exp(z[v] - most);
    out.emplace_back();
    for (int32_t v = 0; v < model.spec.vocab; ++v) out.back().push_back(z[v] - most - std::log(sum));
  }
  return out;
}

std::vector<std::vector<double>> log_probabilities(const std::string& directory,
                                                   std::span<const int32_t> ids) {
  return log_probabilities(std::shared_ptr<WeightSource>(open_source(directory)), ids);
}

using Rows = std::vector<std::vector<double>>;  // log probabilities
// Mean KL divergence of q from p, nats.
double divergence(const Rows& p, const Rows& q) {
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i)
    for (size_t v = 0; v < p[i].size(); ++v)
      kl += std::exp(p[i][v]) * (p[i][v] - q[i][v]) / static_cast<double>(p.size());
  return kl;
}

std::string error_of(const QuantizeOptions& o) {
  try {
    quantize(o);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::set<std::string> names(const std::string& directory) {
  std::set<std::string> out;
  for (const SafeTensor& t : open_shards(directory).tensors) out.insert(t.name);
  return out;
}

}  // namespace

TEST_CASE("quantized golden models load, and answer the closer the more bits they have") {
  const TempFolder place;
  for (const char* name : {"gemma4_dense", "gemma4_moe", "qwen3_5"}) {
    const std::vector<int32_t> ids = Goldens(name).get("input_ids").i;
    const auto p = log_probabilities(golden_dir(name), ids);
    std::map<std::string, double> kl;
    for (const char* type : {"fp8_dynamic", "fp8_block", "nvfp4", "w4a16"}) {
      const std::string out = place.at(fmt::format("{}-{}", name, type));
      const QuantizeResult r = quantize({.in = golden_dir(name), .out = out, .type = type, .threads = 2});
      CHECK(r.quantized > 10);
      CHECK(!fs::exists(out + ".partial"));
      CHECK(r.bytes_out < r.bytes_in);
      kl[type] = divergence(p, log_probabilities(out, ids));
      MESSAGE(std::string(name) << " " << std::string(type) << ": KL " << kl[type] << " nats");
    }
    CHECK(kl["fp8_dynamic"] < 0.4 * kl["nvfp4"]);
    CHECK(kl["fp8_block"] < 0.5 * kl["w4a16"]);
  }
}

TEST_CASE("a directory made from a GGUF file is the one made from its directory") {
  const TempFolder place;
  for (const char* name : {"gemma4_dense", "gemma4_moe", "gemma4_e"}) {
    CAPTURE(name);
    const std::string gguf = place.at(fmt::format("{}.gguf", name));
    convert({.in = golden_dir(name), .out = gguf, .type = "bf16"});
    for (const char* type : {"fp8_dynamic", "nvfp4"}) {
      const std::string direct = place.at(fmt::format("{}-{}", name, type)), round = direct + "-gguf";
      quantize({.in = golden_dir(name), .out = direct, .type = type});
      quantize({.in = gguf, .out = round, .type = type});
      const HfShards a = open_shards(direct), b = open_shards(round);
      std::map<std::string, const SafeTensor*> by_name;
      for (const SafeTensor& t : b.tensors) by_name[t.name] = &t;
      REQUIRE(a.tensors.size() == b.tensors.size());
      for (const SafeTensor& t : a.tensors) {
        CAPTURE(t.name);
        const SafeTensor* twin =
            by_name["model." + t.name.substr(std::string("model.language_model.").size())];
        REQUIRE(twin);
        CHECK(t.dtype == twin->dtype);
        CHECK(t.shape == twin->shape);
        REQUIRE(t.bytes == twin->bytes);
        CHECK(std::memcmp(t.data, twin->data, t.bytes) == 0);
      }
      const auto meta = [](const std::string& dir) {
        return read_hf_config(read_file(dir + "/config.json"), dir).meta.all();
      };
      const auto expected = meta(direct);
      for (const auto& [key, value] : meta(round)) {
        CAPTURE(key);
        REQUIRE(expected.contains(key));
        CHECK(value == expected.find(key)->second);
      }
    }
  }
}

TEST_CASE("the model that ships becomes a directory with its tokenizer, and says the same") {
  const TempFolder place;
  const std::string out = place.at("demo");
  quantize({.in = kDemo, .out = out, .type = "fp8_dynamic"});
  const TokenizerData a = tokenizer_from_source(*open_source(kDemo)),
                      b = tokenizer_from_source(*open_source(out));
  CHECK(a.tokens == b.tokens);
  CHECK(a.types == b.types);
  CHECK(a.merges == b.merges);
  CHECK(a.end_of_generation == b.end_of_generation);
  CHECK(a.chat_template == b.chat_template);
  CHECK(a.add_bos == b.add_bos);
  for (const auto id : {&TokenizerData::bos, &TokenizerData::eos, &TokenizerData::unk, &TokenizerData::pad})
    CHECK(a.*id == b.*id);
  const std::vector<int32_t> ids = Tokenizer(a).encode("Grüße, 日本語! The server answers at once.", false);
  CHECK(Tokenizer(b).encode("Grüße, 日本語! The server answers at once.", false) == ids);
  CHECK(divergence(log_probabilities(kDemo, ids), log_probabilities(out, ids)) < 0.02);
}

TEST_CASE("weights loaded as FP8 are those of a directory that is written so") {
  const TempFolder place;
  const std::string out = place.at("dynamic");
  quantize({.in = golden_dir("gemma4_dense"), .out = out, .type = "fp8_dynamic"});
  const auto written = open_source(out);
  const auto loaded = load_as_fp8(open_source(golden_dir("gemma4_dense")), 2);
  size_t fp8 = 0;
  for (const TensorInfo& t : loaded->tensors()) {
    CAPTURE(t.name);
    const TensorInfo& w = written->get(t.name);
    CHECK(t.type == w.type);
    REQUIRE(t.bytes == w.bytes);
    CHECK(std::memcmp(t.data, w.data, t.bytes) == 0);
    fp8 += t.type == DType::fp8;
  }
  CHECK(fp8 > 10);
  // Experts lie in one matrix there, and in one a projection here; their router is never touched.
  const auto moe = load_as_fp8(open_source(golden_dir("gemma4_moe")), 1);
  CHECK(moe->get("blk.0.ffn_gate_up_exps.weight").type == DType::fp8);
  CHECK(moe->get("blk.0.ffn_gate_inp.weight").type != DType::fp8);
  CHECK(moe->get("token_embd.weight").type != DType::fp8);
  CHECK_THROWS_AS(load_as_fp8(open_source(out), 1), Error);
}

TEST_CASE("activations rounded to FP8 change a model a little, on every backend alike") {
  const TempFolder place;
  const std::string demo = place.at("demo");
  quantize({.in = kDemo, .out = demo, .type = "fp8_dynamic"});
  const std::vector<int32_t> ids = {2, 17, 5, 90, 33, 41, 7, 60, 12, 3, 77, 28};
  const auto check = [&](const std::function<std::shared_ptr<WeightSource>()>& weights, double most) {
    const Rows exact = log_probabilities(weights(), ids),
               rounded = log_probabilities(round_activations(weights()), ids),
               by_ref = log_probabilities(round_activations(weights()), ids, make_ref_backend());
    const double kl = divergence(exact, rounded);
    CHECK(kl > 1e-7);
    CHECK(kl < most);
    CHECK(divergence(by_ref, rounded) < 0.1 * kl);
  };
  check([&] { return std::shared_ptr<WeightSource>(open_source(demo)); }, 0.05);
  check([&] { return load_as_fp8(open_source(golden_dir("gemma4_moe")), 2); },
        2);  // untrained: far from sure
  CHECK_THROWS_AS(round_activations(open_source(golden_dir("gemma4_dense"))), Error);  // no FP8 in it
}

TEST_CASE("modules are ignored by patterns, and the configuration names them") {
  const TempFolder place;
  const std::string out = place.at("ignored");
  quantize({.in = golden_dir("gemma4_dense"), .out = out, .ignore = {"re:.*self_attn", "down_proj$"}});
  const auto all = names(out);
  CHECK(all.contains("model.language_model.layers.1.mlp.up_proj.weight_scale"));
  CHECK(!all.contains("model.language_model.layers.1.mlp.down_proj.weight_scale"));
  CHECK(!all.contains("model.language_model.layers.1.self_attn.q_proj.weight_scale"));
  CHECK(!all.contains("model.language_model.embed_tokens.weight_scale"));
  const auto config = nlohmann::json::parse(read_file(out + "/config.json"));
  const auto ignore = config["quantization_config"]["ignore"].get<std::set<std::string>>();
  CHECK(ignore.contains("lm_head"));
  CHECK(ignore.contains("model.language_model.layers.1.mlp.down_proj"));
  CHECK(!ignore.contains("model.language_model.layers.1.mlp.up_proj"));
  CHECK(error_of({.in = golden_dir("gemma4_dense"), .out = place.at("x"), .ignore = {"re:("}})
            .find("regular") != std::string::npos);
}

TEST_CASE("what is interrupted leaves no directory, goes on where it was, and ends with the same bytes") {
  const TempFolder place;
  QuantizeOptions o{
      .in = golden_dir("gemma4_moe"), .out = place.at("whole"), .type = "nvfp4", .shard_bytes = 60'000};
  const QuantizeResult whole = quantize(o);
  CHECK(whole.shards > 4);
  o.out = place.at("cut");
  int steps = 0;
  CHECK_THROWS(quantize(o, [&](double, double, std::string_view) {
    if (++steps == 200) throw std::runtime_error("cut");
  }));
  CHECK(!fs::exists(o.out));
  CHECK(fs::exists(o.out + ".partial"));
  const QuantizeResult rest = quantize(o);
  CHECK(rest.resumed > 0);
  CHECK(rest.resumed < rest.shards);
  CHECK(!fs::exists(o.out + ".partial"));
  for (const auto& entry : fs::directory_iterator(place.at("whole"))) {
    const std::string name = entry.path().filename().string();
    CHECK_MESSAGE(read_file(entry.path().string()) == read_file(o.out + "/" + name), name);
  }
  CHECK(names(o.out) == names(place.at("whole")));
  load_golden(o.out, *make_ref_backend());
  CHECK(error_of(o).find("there already") != std::string::npos);
  o.in = o.out, o.out = place.at("twice");
  CHECK(error_of(o).find("quantized already") != std::string::npos);
  // another command does not go on from what this one left
  o.in = golden_dir("gemma4_moe"), o.out = place.at("other");
  steps = 0;
  CHECK_THROWS(quantize(o, [&](double, double, std::string_view) {
    if (++steps == 200) throw std::runtime_error("cut");
  }));
  o.exact = true;
  CHECK(quantize(o).resumed == 0);
}

TEST_CASE("a quantizer's errors") {
  const TempFolder place;
  CHECK(error_of({.in = golden_dir("gemma4_dense"), .out = place.at("a"), .type = "int3"})
            .find("unknown type") == 0);
  CHECK(
      error_of({.in = place.at("none"), .out = place.at("a")}).find("neither a directory nor a .gguf file") !=
      std::string::npos);
  CHECK(error_of({.in = golden_dir("gemma4_dense"), .out = place.at("a"), .ignore = {"."}})
            .find("no linear layer") == 0);
  CHECK(error_of({.in = golden_dir("gemma4_dense"), .out = place.at("a"), .type = "w4a16", .group = 5})
            .find("groups of 5") == 0);
  const std::string qwen = place.at("qwen.gguf");
  convert({.in = golden_dir("qwen3_5"), .out = qwen, .type = "bf16"});
  CHECK(error_of({.in = qwen, .out = place.at("a")}).find("of gemma4 alone") != std::string::npos);
  CHECK(!fs::exists(place.at("a")));
}
