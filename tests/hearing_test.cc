// Models that hear, against the reference implementation: what the tower makes of sound, stage by stage, and
// what the model says of it, on every backend and instruction set of this machine.
#include <doctest/doctest.h>

#include <filesystem>
#include <numbers>

#include "model/sound_tower.h"
#include "tests/backends.h"
#include "tests/soft_prompt.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"

using namespace carat;
using namespace carat::test;

namespace {

const std::string kGolden = "gemma4_audio";

std::vector<float> clip(const Goldens& g, int i) {
  std::vector<float> out;
  for (const int32_t v : g.get(fmt::format("audio.{}.pcm", i)).i)
    out.push_back(static_cast<float>(v) / 32768.0f);
  return out;
}

std::shared_ptr<const SoundTower> ears_of(const std::string& path, const Model& model, Backend& backend) {
  return load_ears(open_towers(path), model, backend);
}

// Every stage of both clips; returns the rows of both.
std::vector<float> check_tower(Backend& backend, const Model& model, const Goldens& g) {
  SoundEncoder encoder(unowned(backend), ears_of(golden_dir(kGolden), model, backend), true);
  const GoldenTensor layers = g.get("audio.layer_out");
  const std::vector<int32_t> counts = g.get("audio.num_tokens").i;
  const size_t width = static_cast<size_t>(layers.shape[2]), rows = static_cast<size_t>(layers.shape[1]);
  std::vector<float> all;
  size_t at = 0;
  for (int i = 0; i < 2; ++i) {
    CAPTURE(i);
    const std::vector<float> soft = encoder.encode(clip(g, i));
    REQUIRE(soft.size() == static_cast<size_t>(counts[i]) * model.spec.dim);
    check_stage("halved twice", encoder.tap(0), g.get("audio.subsampled"), at * width);
    for (size_t l = 0; l < static_cast<size_t>(layers.shape[0]); ++l)
      check_stage(fmt::format("layer {}", l), encoder.tap(l + 1), layers, (l * rows + at) * width);
    const std::vector<float> out = encoder.tap(encoder.taps() - 1);
    check_stage("tower", out, g.get("audio.tower_out"), at * out.size() / counts[i]);
    check_stage("rows", soft, g.get("audio.soft_tokens"), all.size());
    all.insert(all.end(), soft.begin(), soft.end());
    at += static_cast<size_t>(counts[i]);
  }
  CHECK(at == rows);
  return all;
}

std::vector<float> tone(size_t samples, double hz) {
  std::vector<float> out;
  for (size_t i = 0; i < samples; ++i)
    out.push_back(
        static_cast<float>(0.3 * std::sin(2 * std::numbers::pi * hz * static_cast<double>(i) / 16e3)));
  return out;
}

}  // namespace

TEST_CASE("gemma4 e hears: two sounds in a prompt") {
  const Goldens g(kGolden, "goldens_sound.safetensors");
  for (const NamedBackend& b : every_backend()) {
    if (!b.backend->takes_soft_rows()) continue;
    CAPTURE(b.name);
    const Model model = load_golden(golden_dir(kGolden), *b.backend);
    const std::vector<float> rows = check_tower(*b.backend, model, g);
    const std::vector<float> judged = rows_for_logits(*b.backend, rows, g.get("audio.soft_tokens"));
    const Prompt p = prompt_of(g, 503, rows, model.spec.dim), q = prompt_of(g, 503, judged, model.spec.dim);
    const std::vector<float> logits = check_text(*b.backend, model, g, q, 1);
    for (const size_t chunk : {33, 1 << 20}) {
      CAPTURE(chunk);
      CHECK(check_text(*b.backend, model, g, q, chunk) == logits);
    }
    check_greedy(*b.backend, model, g, p);
  }
}

TEST_CASE("a converted projector hears what the directory hears") {
  namespace fs = std::filesystem;
  const auto backend = make_cpu_backend(1, "");
  const Goldens g(kGolden, "goldens_sound.safetensors");
  const Model model = load_golden(golden_dir(kGolden), *backend);
  const std::vector<float> sound = clip(g, 1);
  const std::vector<float> want =
      SoundEncoder(unowned(*backend), ears_of(golden_dir(kGolden), model, *backend)).encode(sound);
  double top = 0;
  for (const float v : want) top = std::max(top, std::abs(double{v}));
  for (const std::string type : {"q8_0", "f16", "f32", "bf16"}) {
    CAPTURE(type);
    const std::string out = std::string(test_directory()) + fmt::format("/ears-{}.gguf", type);
    convert({.in = golden_dir(kGolden), .out = out, .type = type, .towers = true});
    const std::shared_ptr<const WeightSource> towers = open_towers(out);
    CHECK(holds_ears(*towers));
    for (const TensorInfo& t : towers->tensors())
      if (t.name.starts_with("a.") && (t.name.find("conv") != std::string::npos || t.shape.size() < 2))
        CHECK(t.type == DType::f32);
    const std::vector<float> got =
        SoundEncoder(unowned(*backend), load_ears(towers, model, *backend)).encode(sound);
    const double worst = max_diff(got.data(), want.data(), static_cast<int64_t>(want.size()));
    // The golden's weights are bf16: f16 loses the last bits of the smallest.
    CHECK(worst <= top * (type == "q8_0" ? 0.2 : type == "f16" ? 1e-4 : 0));
  }
}

TEST_CASE("a piece's rows do not depend on what the tower heard before") {
  const auto backend = make_cpu_backend(2, "");
  const Model model = load_golden(golden_dir(kGolden), *backend);
  const auto tower = ears_of(golden_dir(kGolden), model, *backend);
  const std::vector<float> longest = tone(480'000, 440), shorter = tone(40'000, 300);
  SoundEncoder one(unowned(*backend), tower);
  for (const size_t samples : {161, 320, 321, 640, 641, 1281, 31'999, 32'001, 40'000}) {
    CAPTURE(samples);
    const std::span<const float> part(shorter.data(), samples);
    const std::vector<float> first = SoundEncoder(unowned(*backend), tower).encode(part);
    CHECK(first.size() == static_cast<size_t>(sound_tokens(samples)) * model.spec.dim);
    if (samples == 320) CHECK(one.encode(longest).size() == 750 * static_cast<size_t>(model.spec.dim));
    CHECK(one.encode(part) == first);
  }
  // What follows changes nothing of what was.
  const std::vector<float> all = one.encode(shorter),
                           part = one.encode(std::span(shorter).first(shorter.size() / 2));
  const size_t same = part.size() - 2 * static_cast<size_t>(model.spec.dim);
  CHECK(std::equal(part.begin(), part.begin() + static_cast<ptrdiff_t>(same), all.begin()));
}

TEST_CASE("what does not hear, and what cannot be heard, is refused") {
  const auto backend = make_ref_backend();
  const Model model = load_golden(golden_dir(kGolden), *backend);
  SoundEncoder encoder(unowned(*backend), ears_of(golden_dir(kGolden), model, *backend));
  CHECK_THROWS_AS(encoder.encode(tone(160, 440)), Error);
  CHECK_THROWS_AS(encoder.encode(tone(480'001, 440)), Error);
  const Model dense = load_golden(golden_dir("gemma4_vision"), *backend),
              other = load_golden(golden_dir("qwen3_5"), *backend);
  CHECK_THROWS_WITH_AS(ears_of(golden_dir("gemma4_vision"), dense, *backend),
                       doctest::Contains("holds no tower for sound"), Error);
  CHECK_THROWS_WITH_AS(ears_of(golden_dir(kGolden), other, *backend), doctest::Contains("have no ears"),
                       Error);
}
