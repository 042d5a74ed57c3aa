// What conversion and forging do to a model's answers: nothing, little, or something sensible.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "tests/goldens.h"
#include "tests/step_runner.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"
#include "tools/vocab.h"

using namespace carat;
using namespace carat::test;
namespace fs = std::filesystem;

namespace {

struct Logits {
  std::vector<std::vector<float>> rows;
  std::vector<int32_t> greedy;  // a continuation of 24 tokens
};

int32_t best(const float* logits, size_t n) {
  return static_cast<int32_t>(std::max_element(logits, logits + n) - logits);
}

Logits run(const std::string& path, std::span<const int32_t> tokens) {
  const auto backend = make_ref_backend();
  const Model model = load_model(open_source(path), *backend);
  KvLimits limits;
  limits.context = 256;
  limits.step_rows = static_cast<int32_t>(tokens.size());
  StepRunner runner(*backend, model, limits);
  const auto vocab = static_cast<size_t>(model.spec.vocab);
  Logits out;
  runner.step(tokens);
  for (int32_t i = 0; i < runner.wanted(); ++i)
    out.rows.emplace_back(runner.logits(i), runner.logits(i) + vocab);
  int32_t token = best(out.rows.back().data(), vocab);
  for (int i = 0; i < 24; ++i) {
    out.greedy.push_back(token);
    runner.step(std::span(&token, 1));
    token = best(runner.logits(0), vocab);
  }
  return out;
}

std::vector<double> probabilities(const std::vector<float>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double sum = 0;
  for (const float z : logits) sum += p.emplace_back(std::exp(z - top));
  for (double& v : p) v /= sum;
  return p;
}
// Mean over rows of KL(a || b), in nats.
double divergence(const Logits& a, const Logits& b) {
  double kl = 0;
  for (size_t r = 0; r < a.rows.size(); ++r) {
    const auto p = probabilities(a.rows[r]), q = probabilities(b.rows[r]);
    for (size_t i = 0; i < p.size(); ++i)
      if (p[i] > 0) kl += p[i] * std::log(p[i] / q[i]);
  }
  return kl / static_cast<double>(a.rows.size());
}

std::string converted(const std::string& in, const std::string& type) {
  const std::string out = fmt::format("{}/{}-{}.gguf", test_directory(), fs::path(in).stem().string(), type);
  convert({.in = in, .out = out, .type = type, .threads = 2});
  return out;
}

}  // namespace

TEST_CASE("converted to bf16, a golden model answers bit for bit as before; to fewer bits, nearly so") {
  for (const std::string name : {"gemma4_dense", "gemma4_e", "gemma4_moe", "qwen3_5", "qwen3_5_moe"}) {
    CAPTURE(name);
    const std::vector<int32_t> ids = Goldens(name).get("input_ids").i;
    const Logits direct = run(golden_dir(name), ids);
    const Logits bf16 = run(converted(golden_dir(name), "bf16"), ids);
    CHECK(direct.rows == bf16.rows);
    CHECK(direct.greedy == bf16.greedy);
    // Random models are sensitive: compare with what the weights' rounding alone does, without that of
    // activations.
    const std::string q8 = converted(golden_dir(name), "q8_0");
    const double kl = divergence(direct, run(q8, ids)),
                 weights = divergence(direct, run(converted(q8, "f32"), ids));
    MESSAGE(name << " q8_0: KL " << kl << " nats, of weights alone " << weights);
    CHECK(weights < 0.6);
    CHECK(kl < 3 * weights);
  }
}

TEST_CASE("forged models answer with finite, varied, unsurprising logits") {
  std::vector<int32_t> ids = {2, 105};
  for (int32_t i = 0; i < 94; ++i) ids.push_back(494 + (i * 37) % 200);
  for (const char* shape : {"tiny", "tiny-moe", "tiny-e", "tiny-hybrid", "tiny-hybrid-moe"}) {
    CAPTURE(shape);
    const Logits l = run(tiny_model(shape), ids);
    std::set<int32_t> picks;
    double entropy = 0;
    for (const auto& row : l.rows) {
      for (const float z : row) REQUIRE(std::isfinite(z));
      picks.insert(best(row.data(), row.size()));
      for (const double p : probabilities(row)) entropy -= p > 0 ? p * std::log(p) : 0;
    }
    entropy /= static_cast<double>(l.rows.size());
    MESSAGE(std::string(shape) << ": entropy " << entropy << ", " << picks.size()
                               << " different first choices");
    CHECK(picks.size() > l.rows.size() / 4);
    CHECK(entropy > 0.3);
    CHECK(entropy < 6);  // log(768) = 6.6: a flat distribution
    CHECK(std::set(l.greedy.begin(), l.greedy.end()).size() > 1);
  }
}

TEST_CASE("quantized from f32, a forged model stays close to itself") {
  std::vector<int32_t> ids = {2, 105};
  for (int32_t i = 0; i < 62; ++i) ids.push_back(494 + (i * 37) % 200);
  for (const char* shape : {"tiny", "tiny-moe"}) {
    const std::string f32 = tiny_model(shape, "f32");
    const Logits exact = run(f32, ids);
    const double q8 = divergence(exact, run(converted(f32, "q8_0"), ids));
    const double q4 = divergence(exact, run(converted(f32, "q4_k_m"), ids));
    MESSAGE(std::string(shape) << ": KL q8_0 " << q8 << " nats, q4_k_m " << q4);
    CHECK(q8 < 0.5);
    CHECK(q4 < 2);
    CHECK(q8 < q4 / 3);
  }
}

TEST_CASE("a directory with tokenizer.json converts with its tokenizer and chat template") {
  const fs::path dir = fs::path(test_directory()) / "with-tokenizer";
  fs::create_directories(dir);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(fs::path(golden_dir("gemma4_dense")) / name, dir / name,
                  fs::copy_options::overwrite_existing);
  }
  const auto write = [&](const char* name, std::string_view text) {
    AtomicFile f((dir / name).string());
    f.write(text);
    f.commit();
  };
  write(
      "tokenizer.json",
      R"({"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},)"
      R"("pre_tokenizer":null,"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},)"
      R"("content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]},"added_tokens":[)"
      R"({"id":0,"content":"<pad>","special":true},{"id":1,"content":"<eos>","special":true},)"
      R"({"id":2,"content":"<bos>","special":true},{"id":3,"content":"<unk>","special":true},)"
      R"({"id":8,"content":"<turn|>","special":true}],"model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,)"
      R"("byte_fallback":true,"vocab":{"<pad>":0,"<eos>":1,"<bos>":2,"<unk>":3,"a":4,"b":5,"▁":6,"ab":7,"<turn|>":8},)"
      R"("merges":["a b"]}})");
  write(
      "tokenizer_config.json",
      R"({"bos_token":"<bos>","eos_token":"<turn|>","pad_token":"<pad>","unk_token":"<unk>","chat_template":"old"})");
  write("generation_config.json", R"({"bos_token_id":2,"eos_token_id":[1,8],"pad_token_id":0})");
  write("chat_template.jinja", "{{ bos_token }}");
  const std::string out = converted(dir.string(), "bf16");
  const TokenizerData a = tokenizer_from_source(*open_source(dir.string()));
  const TokenizerData b = tokenizer_from_source(*open_source(out));
  CHECK(b.chat_template == "{{ bos_token }}");
  // As many tokens as the table has rows: those without a name are there, and nothing writes them.
  REQUIRE(b.tokens.size() == 512);
  const auto named = static_cast<std::ptrdiff_t>(a.tokens.size());
  CHECK(std::vector(b.tokens.begin(), b.tokens.begin() + named) == a.tokens);
  CHECK(std::vector(b.types.begin(), b.types.begin() + named) == a.types);
  CHECK(std::all_of(b.types.begin() + named, b.types.end(),
                    [](TokenType t) { return t == TokenType::unused; }));
  CHECK(a.merges == b.merges);
  CHECK(a.model == b.model);
  CHECK(a.bos == b.bos);
  CHECK(a.eos == b.eos);
  CHECK(std::set(a.end_of_generation.begin(), a.end_of_generation.end()) ==
        std::set(b.end_of_generation.begin(), b.end_of_generation.end()));
  CHECK(Tokenizer(b).encode("ab a", false) == Tokenizer(a).encode("ab a", false));
  write("tokenizer.json", "{");
  CHECK_THROWS_AS(convert({.in = dir.string(), .out = out, .type = "bf16"}), Error);
  CHECK(open_source(out)->tensors().size() > 0);  // the older file is untouched
}
