// Positions stretched beyond the training: frequencies against values computed elsewhere
// (tests/data/rope/make.py), what files and flags may say, and that a model and the texts it has read follow.
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/generate.h"
#include "apps/rope_flags.h"
#include "base/file.h"
#include "core/codec.h"
#include "model/drafters/gemma4_mtp.h"
#include "model/files/hf_dialect.h"
#include "model/spec_keys.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/step_runner.h"

using namespace carat;
using namespace carat::test;
using Json = nlohmann::json;

namespace {

using Keys = std::vector<std::pair<std::string, MetaValue>>;

std::string arch_of(const WeightSource& s) { return s.meta().get_string("general.architecture"); }

std::shared_ptr<WeightSource> golden_with(const std::string& name, const Keys& keys) {
  std::shared_ptr<WeightSource> s = open_source(golden_dir(name));
  for (const auto& [key, value] : keys) s->override_meta(arch_of(*s) + ".rope." + key, value);
  return s;
}
Keys yarn(double factor, int64_t trained) {
  return {{"scaling.type", std::string("yarn")},
          {"scaling.factor", factor},
          {"scaling.original_context_length", trained}};
}

ModelSpec spec_with(const std::string& name, const Keys& keys) {
  const auto s = golden_with(name, keys);
  return find_family(arch_of(*s)).read_spec(*s);
}

std::vector<float> logits_of(std::shared_ptr<WeightSource> source, Backend& backend, int32_t chunk = 32) {
  const Model model = load_model(std::move(source), backend);
  KvLimits limits;
  limits.context = 96, limits.step_rows = chunk;
  StepRunner runner(backend, model, limits);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 64; ++i) ids.push_back((i * 37 + i / 9 * 5 + 11) % 500);
  std::vector<float> out;
  for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(chunk)) {
    runner.step(std::span(ids).subspan(at, static_cast<size_t>(chunk)));
    for (int32_t r = 0; r < chunk; ++r)
      out.insert(out.end(), runner.logits(r), runner.logits(r) + model.spec.vocab);
  }
  return out;
}

double largest(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - b[i]));
  return most;
}

// A golden whose tensors of such names are multiplied, in their first `elements`.
class Louder : public WeightSource {
 public:
  Louder(std::shared_ptr<WeightSource> from, const std::vector<std::string>& names, double by,
         size_t elements)
      : from_(std::move(from)) {
    path_ = from_->path(), format_ = "louder", meta_ = from_->meta();
    for (TensorInfo t : from_->tensors()) {
      if (std::find(names.begin(), names.end(), t.name) != names.end()) {
        auto& v = owned_.emplace_back(static_cast<size_t>(t.elements()));
        decode_row(t.type, t.data, v.data(), t.elements());
        for (size_t i = 0; i < std::min(elements, v.size()); ++i)
          v[i] = static_cast<float>(double{v[i]} * by);
        t.type = DType::f32, t.data = reinterpret_cast<const std::byte*>(v.data()), t.bytes = v.size() * 4;
      }
      tensors_.push_back(t);
    }
    index();
  }

 private:
  std::shared_ptr<WeightSource> from_;
  std::deque<std::vector<float>> owned_;
};

std::vector<std::string> head_norms(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (size_t i = 0; i < spec.layers.size(); ++i)
    if (spec.layers[i].heads && spec.layers[i].window == 0)
      for (const char* n : {"attn_q_norm", "attn_k_norm"})
        names.push_back(fmt::format("blk.{}.{}.weight", i, n));
  return names;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return fmt::format("{} ({})", e.what(), e.hint());
  }
  return "";
}
void says(const std::string& part, const std::function<void()>& f) {
  const std::string e = error_of(f);
  CAPTURE(e);
  CHECK(e.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("frequencies and factors are those of the papers' formulas") {
  for (const Json& c : Json::parse(read_file(std::string(CARAT_TEST_DATA) + "/rope/scaling.json"))) {
    CAPTURE(c["name"].get<std::string>());
    Metadata meta;
    meta.set("x.rope.scaling.type", c["type"].get<std::string>());
    meta.set("x.rope.scaling.factor", c["factor"].get<double>());
    meta.set("x.rope.scaling.original_context_length", c["trained"].get<int64_t>());
    meta.set("x.rope.scaling.yarn_beta_fast", c["fast"].get<double>());
    meta.set("x.rope.scaling.yarn_beta_slow", c["slow"].get<double>());
    const RopeScaling s = read_rope_scaling(SpecKeys(meta, "x"), 0);
    const double base = c["base"], magnitude = c["magnitude"];
    const int32_t dim = c["dim"];
    CHECK(rope_magnitude(s) == doctest::Approx(magnitude).epsilon(1e-12));
    int32_t pair = 0;
    for (const double want : c["frequencies"].get<std::vector<double>>()) {
      CAPTURE(pair);
      const double got = std::pow(base, -2.0 * pair / dim) * rope_stretch(s, base, dim, pair);
      CHECK(std::abs(got - want) <= 1e-12 * want);
      ++pair;
    }
  }
}

TEST_CASE("the layers that see everything are stretched, and no others") {
  const ModelSpec gemma = spec_with("gemma4_dense", yarn(4, 4096));
  for (const LayerSpec& l : gemma.layers) CHECK(l.rope.any() == (l.window == 0));
  CHECK(rope_text(gemma.layers[3].rope) == "yarn, 4 times 4096 positions");
  const ModelSpec qwen = spec_with("qwen3_5", yarn(4, 0));
  for (const LayerSpec& l : qwen.layers) CHECK(l.rope.any() == (l.heads > 0));
  CHECK(qwen.layers[3].rope.trained == qwen.context);  // where a file does not say
  // A factor alone means linear, as in older files; a factor of one nothing.
  CHECK(spec_with("gemma4_dense", {{"scale_linear", 8.0}}).layers[3].rope.type == RopeScaling::Type::linear);
  CHECK(spec_with("gemma4_dense", {{"scaling.factor", 8.0}}).layers[3].rope.factor == 8);
  CHECK_FALSE(spec_with("gemma4_dense", {{"scaling.factor", 1.0}}).layers[3].rope.any());
  CHECK_FALSE(spec_with("gemma4_dense", {{"scaling.type", std::string("none")}, {"scaling.factor", 8.0}})
                  .layers[3]
                  .rope.any());
}

TEST_CASE("what makes no sense in a file is refused by name") {
  const auto with = [](const char* key, MetaValue v) {
    Keys k = yarn(4, 4096);
    k.emplace_back(key, std::move(v));
    return [k] { spec_with("gemma4_dense", k); };
  };
  says("'gemma4.rope.scaling.type' is 'longrope'", with("scaling.type", std::string("longrope")));
  says("gemma4.rope.scaling.factor", with("scaling.factor", 0.0));
  says("gemma4.rope.scaling.factor", with("scaling.factor", std::nan("")));
  says("gemma4.rope.scaling.original_context_length", with("scaling.original_context_length", int64_t{-1}));
  says("yarn_beta_fast", with("scaling.yarn_beta_fast", -1.0));
  says("yarn_log_multiplier", with("scaling.yarn_log_multiplier", 0.1));
  says("--yarn-orig-ctx", [] {
    Metadata meta;
    meta.set("x.rope.scaling.type", std::string("yarn"));
    read_rope_scaling(SpecKeys(meta, "x"), 0);
  });
}

TEST_CASE("config.json says it in its own words") {
  const std::string text = read_file(golden_dir("qwen3_5") + "/config.json");
  const auto with = [&](const Json& more, const char* where = "rope_parameters") {
    Json root = Json::parse(text);
    root["text_config"][where].update(more, true);
    return read_hf_config(root.dump(), "c").meta;
  };
  const Json scaled = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}};
  for (const char* where : {"rope_parameters", "rope_scaling"}) {
    const Metadata m = with(scaled, where);
    CHECK(m.get_string("qwen35.rope.scaling.type") == "yarn");
    CHECK(m.get_float("qwen35.rope.scaling.factor") == 4);
    CHECK(m.get_int("qwen35.rope.scaling.original_context_length") == 1024);
  }
  Json whole = scaled;
  whole["attention_factor"] = 1.5, whole["beta_fast"] = 16;
  const Metadata m = with(whole);
  CHECK(rope_magnitude(read_rope_scaling(SpecKeys(m, "qwen35"), 1)) == doctest::Approx(1.5));
  CHECK(m.get_float("qwen35.rope.scaling.yarn_beta_fast") == 16);
  says("'longrope'", [&] { with({{"rope_type", "longrope"}}); });
  says("without a 'factor'", [&] { with({{"rope_type", "linear"}}); });
  says("truncate", [&] {
    Json half = scaled;
    half["truncate"] = false;
    with(half);
  });
  // Gemma's own type with a factor is linear.
  Json gemma = Json::parse(read_file(golden_dir("gemma4_dense") + "/config.json"));
  Json& text_config = gemma.contains("text_config") ? gemma["text_config"] : gemma;
  text_config["rope_parameters"]["full_attention"]["factor"] = 2.0;
  const Metadata g = read_hf_config(gemma.dump(), "c").meta;
  CHECK(g.get_string("gemma4.rope.scaling.type") == "linear");
  CHECK(g.get_float("gemma4.rope.scaling.factor") == 2);
}

TEST_CASE("flags replace what the file says, and contradictions are refused") {
  const auto after = [](const RopeFlags& f, const Keys& file = {}) {
    const auto s = golden_with("gemma4_dense", file);
    apply_rope_flags(f, *s);
    return find_family("gemma4").read_spec(*s).layers[3];
  };
  RopeFlags f;
  f.scale = 4;
  CHECK(after(f).rope.type == RopeScaling::Type::linear);  // as in llama.cpp, where no type is given
  CHECK(after(f, yarn(2, 4096)).rope.type == RopeScaling::Type::yarn);
  CHECK(after(f, yarn(2, 4096)).rope.factor == 4);
  f.type = "yarn", f.trained = 2048, f.beta_fast = 16, f.attention = 1.25;
  CHECK(rope_text(after(f).rope) == "yarn, 4 times 2048 positions, betas 16 and 1, attention 1.25");
  f = {}, f.freq_scale = 0.125, f.freq_base = 5e6;
  CHECK(after(f).rope.factor == 8);
  CHECK(after(f).rope_base == 5e6F);
  f = {}, f.type = "none";
  CHECK_FALSE(after(f, yarn(4, 4096)).rope.any());
  CHECK_FALSE(after({}).rope.any());
  f.scale = 4;
  says("takes no --rope-scale", [&] { after(f); });
  f = {}, f.type = "yarn";
  says("--rope-scale 4", [&] { after(f); });
  f = {}, f.beta_slow = 2;
  says("--rope-scaling yarn", [&] { after(f); });
  f = {}, f.scale = 4, f.freq_scale = 0.25;
  says("twice", [&] { after(f); });
}

TEST_CASE("models follow: YaRN's factor is one of head norms, and endless stretching leaves no positions") {
  const auto ref = make_ref_backend();
  // The trained positions are so many that every pair keeps its frequency: what is left is the factor.
  const double by = 0.1 * std::log(4.0) + 1;
  for (const char* golden : {"gemma4_dense", "gemma4_e", "qwen3_5"}) {
    CAPTURE(golden);
    Keys keys = yarn(4, 1 << 30);
    keys.emplace_back("scaling.yarn_beta_fast", 1e-3), keys.emplace_back("scaling.yarn_beta_slow", 1e-3);
    const ModelSpec spec = spec_with(golden, keys);
    const LayerSpec& l = *std::find_if(spec.layers.begin(), spec.layers.end(),
                                       [](const LayerSpec& x) { return x.heads && x.window == 0; });
    const bool whole = std::string_view(golden).starts_with("gemma");
    const auto louder = std::make_shared<Louder>(golden_with(golden, {}), head_norms(spec), by,
                                                 static_cast<size_t>(whole ? l.head_dim : 2 * l.rope_pairs));
    const std::vector<float> want = logits_of(louder, *ref), got = logits_of(golden_with(golden, keys), *ref);
    CHECK(want == got);
    CHECK(largest(logits_of(golden_with(golden, {}), *ref), got) > 1e-4);
    for (const NamedBackend& b : compared_backends()) {
      CAPTURE(b.name);
      CHECK(largest(logits_of(golden_with(golden, yarn(8, 16)), *b.backend),
                    logits_of(golden_with(golden, yarn(8, 16)), *ref)) < 2e-3);
    }
  }
  const auto still = std::make_shared<Louder>(golden_with("gemma4_dense", {}),
                                              std::vector<std::string>{"rope_freqs.weight"}, 1e10, 1 << 20);
  CHECK(largest(logits_of(still, *ref),
                logits_of(golden_with("gemma4_dense", {{"scaling.factor", 1e6}}), *ref)) < 1e-3);
}

TEST_CASE("an assistant's queries turn as the keys of its model do") {
  const auto backend = make_ref_backend();
  const ModelSpec target = spec_with("gemma4_dense", yarn(4, 4096));
  const std::shared_ptr<WeightSource> own = open_source(golden_dir("gemma4_assistant"));
  const MtpNet alone(own, *backend), beside(own, *backend, {}, &target);
  for (const LayerSpec& l : alone.spec().net.layers) CHECK_FALSE(l.rope.any());
  bool any = false;
  for (const LayerSpec& l : beside.spec().net.layers) {
    CHECK(l.rope.any() == (l.window == 0));
    any = any || l.rope == target.layers[3].rope;
  }
  CHECK(any);
}

TEST_CASE("a text that was read with other positions is not continued") {
  const std::shared_ptr<Backend> backend = make_ref_backend();
  const std::string file = fmt::format("/tmp/carat-rope-{}.state", ::getpid());
  const auto run = [&](const Keys& keys, const std::string& load, const std::string& save, int32_t prompt) {
    const auto model = std::make_shared<const Model>(load_model(golden_with("gemma4_dense", keys), *backend));
    EngineConfig c;
    c.context = 64, c.sequences = 1, c.prefill_chunk = 16;
    Engine engine(backend, model, c);
    Request r;
    for (int32_t i = 0; i < prompt; ++i) r.prompt.push_back(i * 7 % 500);
    r.max_tokens = 1, r.ignore_eos = true, r.sample.temperature = 0;
    r.load_state = load, r.save_state = save;
    generate(engine, r, [](const Event&) {});
  };
  run({}, "", file, 20);
  run({}, file, "", 30);
  says("another model", [&] { run(yarn(4, 4096), file, "", 30); });
  says("another model", [&] { run({{"freq_base", 2e6}}, file, "", 30); });
  std::filesystem::remove(file);
}
