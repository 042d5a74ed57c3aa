// Models that see, against the reference implementation: what the tower makes of pictures, stage by stage,
// and what the model says of them, on every backend and instruction set of this machine.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <thread>

#include "cuda/guest.h"
#include "engine/soft_rows.h"
#include "model/tower.h"
#include "tests/backends.h"
#include "tests/soft_prompt.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"

using namespace carat;
using namespace carat::test;

namespace {

std::shared_ptr<const VisionTower> eyes_of(const std::string& name, const Model& model, Backend& backend) {
  return load_vision(open_towers(golden_dir(name)), model, backend);
}
// As files have them, and as the tower takes them: the reference's own bytes.
std::vector<Picture> pictures_of(const Goldens& g, const VisionTower& tower) {
  std::vector<Picture> out;
  for (int i = 0; g.has(fmt::format("image.{}.rgb", i)); ++i) {
    const GoldenTensor t = g.get(fmt::format("image.{}.rgb", i));
    const Picture stored{static_cast<int>(t.shape[1]), static_cast<int>(t.shape[0]), t.u8};
    const GridSize size = tower.size(stored, 70);
    out.push_back(resize(stored, size.width, size.height));
    CHECK(out.back().rgb == g.get(fmt::format("image.{}.pixels", i)).u8);
  }
  return out;
}

// Rows of patches as the goldens list them: by their places, row by row.
std::vector<float> by_place(const std::vector<float>& x, const std::vector<int32_t>& place) {
  const size_t patches = place.size() / 3, width = x.size() / patches;
  int32_t columns = 0;
  for (size_t k = 0; k < patches; ++k) columns = std::max(columns, place[3 * k + 2] + 1);
  std::vector<float> y(x.size());
  for (size_t k = 0; k < patches; ++k)
    std::copy_n(&x[k * width], width,
                &y[static_cast<size_t>(place[3 * k + 1] * columns + place[3 * k + 2]) * width]);
  return y;
}

// Every stage of every picture; returns the rows of all.
std::vector<float> check_tower(Backend& backend, const std::string& name, const Model& model,
                               const Goldens& g) {
  const auto tower = eyes_of(name, model, backend);
  Encoder encoder(unowned(backend), tower, true);
  const GoldenTensor embedded = g.get("vision.patch_embed"), layer = g.get("vision.layer_out"),
                     out = g.get("vision.tower_out"), rows = g.get("vision.soft_tokens");
  const std::vector<int32_t> counts = g.get("num_soft_tokens").i;
  std::vector<float> all;
  size_t patch_at = 0, tower_at = 0, i = 0;
  for (const Picture& p : pictures_of(g, *tower)) {
    CAPTURE(i);
    const std::vector<float> soft = encoder.encode(p);
    REQUIRE(encoder.rows_of(p) == counts.at(i++));
    const std::vector<int32_t> place(encoder.state().place,
                                     encoder.state().place + 3 * encoder.state().n_rows);
    const std::vector<float> first = by_place(encoder.tap(0), place),
                             last = by_place(encoder.tap(encoder.taps() - 2), place),
                             pooled = encoder.tap(encoder.taps() - 1);
    check_stage("embedded", first, embedded, patch_at);
    check_stage("last layer", last, layer, patch_at);
    check_stage("tower", pooled, out, tower_at);
    check_stage("rows", soft, rows, all.size());
    patch_at += first.size(), tower_at += pooled.size();
    all.insert(all.end(), soft.begin(), soft.end());
  }
  CHECK(i == counts.size());
  CHECK(all.size() == rows.f.size());
  return all;
}

void check_seeing(const std::string& name, const std::string& file) {
  const Goldens g(name, file);
  for (const NamedBackend& b : every_backend()) {
    if (!b.backend->takes_soft_rows()) continue;
    CAPTURE(b.name);
    const Model model = load_golden(golden_dir(name), *b.backend);
    const std::vector<float> rows = check_tower(*b.backend, name, model, g);
    const Prompt p = prompt_of(g, 500, rows, model.spec.dim);
    const std::vector<float> logits = check_text(*b.backend, model, g, p, 1);
    for (const size_t chunk : {33, 1 << 20}) {
      CAPTURE(chunk);
      CHECK(check_text(*b.backend, model, g, p, chunk) == logits);
    }
    check_greedy(*b.backend, model, g, p);
  }
}

}  // namespace

TEST_CASE("gemma4 sees: a standardizing tower, pictures as blocks") {
  check_seeing("gemma4_vision", "goldens.safetensors");
}
TEST_CASE("gemma4 e sees: limits around products, pictures read in order") {
  check_seeing("gemma4_audio", "goldens_image.safetensors");
}

#ifndef CARAT_EMULATED  // nothing of a device
TEST_CASE("a converted projector sees what the directory sees, beside the model or given") {
  namespace fs = std::filesystem;
  const auto backend = make_ref_backend();
  for (const auto& [name, file] :
       {std::pair<std::string, std::string>{"gemma4_vision", "goldens.safetensors"},
        std::pair<std::string, std::string>{"gemma4_audio", "goldens_image.safetensors"}}) {
    CAPTURE(name);
    const Goldens g(name, file);
    const fs::path dir = fs::path(test_directory()) / fmt::format("mmproj-{}", name);
    fs::create_directory(dir);
    const Model model = load_golden(golden_dir(name), *backend);
    const auto own = eyes_of(name, model, *backend);
    const Picture p = pictures_of(g, *own).back();
    const std::vector<float> want = Encoder(unowned(*backend), own).encode(p);
    const auto rows_of = [&](const std::string& path) {
      return Encoder(unowned(*backend), load_vision(open_towers(path), model, *backend)).encode(p);
    };
    const std::string text = dir / "text.gguf";
    convert({.in = golden_dir(name), .out = text, .type = "f32"});
    CHECK(open_towers(text) == nullptr);
    double top = 0;
    for (const float v : want) top = std::max(top, std::abs(double{v}));
    for (const std::string type : {"q8_0", "f16", "f32", "bf16"}) {  // each is preferred to those before it
      CAPTURE(type);
      const std::string out = dir / fmt::format("mmproj-{}.gguf", type);
      convert({.in = golden_dir(name), .out = out, .type = type, .towers = true});
      const std::vector<float> got = rows_of(out);
      CHECK(rows_of(text) == got);
      const double worst = max_diff(got.data(), want.data(), static_cast<int64_t>(want.size()));
      // The golden's weights are bf16: f16 loses the last bits of the smallest.
      CHECK(worst <= top * (type == "q8_0" ? 0.2 : type == "f16" ? 1e-4 : 0));
    }
  }
  CHECK_THROWS_AS(convert({.in = golden_dir("gemma4_dense"),
                           .out = std::string(test_directory()) + "/no.gguf",
                           .type = "f16",
                           .towers = true}),
                  Error);
}

#endif

TEST_CASE("qwen3.5 sees: a merging tower, positions in three axes") {
  const std::string name = "qwen3_5_vision";
  const Goldens g(name, "goldens_image.safetensors");
  const std::vector<int32_t> ids = g.get("input_ids").i, places = g.get("position_ids").i,
                             want_ids = g.get("greedy_ids").i;
  const GoldenTensor logits = g.get("logits"), layers = g.get("layer_out");
  const auto n = static_cast<int32_t>(ids.size());
  for (const NamedBackend& b : every_backend()) {
    if (!b.backend->takes_soft_rows()) continue;
    CAPTURE(b.name);
    const Model model = load_golden(golden_dir(name), *b.backend);
    const auto tower = eyes_of(name, model, *b.backend);
    Encoder encoder(unowned(*b.backend), tower, true);
    std::vector<float> rows;
    std::vector<SoftRows> pictures;
    size_t patch_at = 0;
    for (int i = 0; i < 2; ++i) {
      const GoldenTensor stored = g.get(fmt::format("image.{}.rgb", i)),
                         t = g.get(fmt::format("image.{}.pixels", i));
      const Picture raw{static_cast<int>(stored.shape[1]), static_cast<int>(stored.shape[0]), stored.u8};
      const Picture p = resize(raw, static_cast<int>(t.shape[1]), static_cast<int>(t.shape[0]));
      CHECK(p.rgb == t.u8);
      const std::vector<float> soft = encoder.encode(p), last = encoder.tap(encoder.taps() - 1);
      check_stage("patches", encoder.tap(0), g.get("vision.patch_embed"), patch_at);
      check_stage("positions", encoder.tap(1), g.get("vision.with_positions"), patch_at);
      check_stage("last layer", last, g.get("vision.layer_out"), patch_at);
      check_stage("rows", soft, g.get("vision.soft_tokens"), rows.size());
      patch_at += last.size();
      rows.insert(rows.end(), soft.begin(), soft.end());
      pictures.emplace_back();
      pictures.back().high = p.height / tower->shape().cell,
      pictures.back().wide = p.width / tower->shape().cell;
      pictures.back().rows = encoder.rows_of(p);
    }
    const int32_t vocab = model.spec.vocab, dim = model.spec.dim;
    const std::vector<float> judged = rows_for_logits(*b.backend, rows, g.get("vision.soft_tokens"));
    const Prompt p = prompt_of(g, 500, rows, dim), q = prompt_of(g, 500, judged, dim);
    int32_t begin = 0;
    for (SoftRows& s : pictures) {
      while (!p.soft[static_cast<size_t>(begin)]) ++begin;
      s.begin = begin;
      begin += s.rows;
    }
    std::vector<int32_t> positions(static_cast<size_t>(n) + 1);
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int32_t> at = places_of(pictures, positions);
    CHECK(at[3 * n] - n == g.get("rope_delta").i[0]);
    for (int32_t i = 0; i < n; ++i)
      for (int32_t axis = 0; axis < 3; ++axis) CHECK(at[3 * i + axis] == places[axis * n + i]);
    const auto read = [&](const Prompt& shown, size_t chunk, bool exact) {
      CAPTURE(chunk);
      StepRunner run(*b.backend, model, {n + 64, 1, n, 16}, DType::f32, true);
      double worst = 0, worst_layer = 0;
      for (size_t first = 0, k; first < ids.size(); first += k) {
        k = std::min(chunk, ids.size() - first);
        run.step({{0,
                   std::span(ids).subspan(first, k),
                   {},
                   std::span(shown.soft).subspan(first, k),
                   std::span(at).subspan(3 * first, 3 * k)}});
        for (int32_t i = 0; i < run.wanted(); ++i) {
          const size_t row = first + static_cast<size_t>(i);
          worst = std::max(worst, max_diff(run.logits(i), &logits.f[row * vocab], vocab));
          for (size_t l = 0; l < model.spec.layers.size(); ++l)
            worst_layer = std::max(worst_layer, max_diff(run.tap(i, l), &layers.f[(l * n + row) * dim], dim));
        }
      }
      if (exact) CHECK(worst <= kLogitTolerance);
      CHECK(worst_layer <= kRelativeTolerance * layers.max_abs());
      // What follows goes on behind the pictures' longer sides.
      int32_t next = at[3 * n];
      for (const int32_t id : want_ids) {
        const int32_t last = run.wanted() - 1;
        const auto token = static_cast<int32_t>(std::max_element(run.logits(last), run.logits(last) + vocab) -
                                                run.logits(last));
        REQUIRE(token == id);
        const std::vector<int32_t> place(3, next++);
        run.step({{0, std::span(&token, 1), {}, {}, place}}, false);
      }
    };
    for (const size_t chunk : {1, 33, 1 << 20}) read(q, chunk, true);
    if (!b.backend->host_memory()) read(p, 1 << 20, false);
  }
}

TEST_CASE("a tower on the device that a model runs on: both say what they say alone") {
  const std::string name = "gemma4_vision";
  const Goldens g(name);
  const std::vector<int32_t> ids = g.get("input_ids").i;
  for (const NamedBackend& b : cuda_backends()) {
    const Model model = load_golden(golden_dir(name), *b.backend);
    const std::shared_ptr<Backend> guest = make_cuda_guest(*b.backend);
    REQUIRE(guest);
    const auto tower = eyes_of(name, model, *guest);
    const std::vector<Picture> pictures = pictures_of(g, *tower);
    const auto read = [&] {  // by steps of one row
      StepRunner run(*b.backend, model, {64, 1, 16, 16}, DType::f32);
      std::vector<float> logits;
      for (size_t i = 0; i < 12; ++i) {
        run.step(std::span(ids).subspan(i, 1), true);
        logits.insert(logits.end(), run.logits(0), run.logits(0) + model.spec.vocab);
      }
      return logits;
    };
    Encoder alone(guest, tower);
    const std::vector<float> rows = alone.encode(pictures.front()), logits = read();
    std::vector<float> beside;
    std::thread other([&] { beside = Encoder(guest, tower).encode(pictures.front()); });
    const std::vector<float> meanwhile = read();
    other.join();
    CHECK(beside == rows);
    CHECK(meanwhile == logits);
  }
  CHECK(make_cuda_guest(*make_ref_backend()) == nullptr);
}

TEST_CASE("a tower takes pictures in its own sizes, and belongs to one model") {
  const auto backend = make_ref_backend();
  const Model model = load_golden(golden_dir("gemma4_vision"), *backend);
  Encoder encoder(unowned(*backend), eyes_of("gemma4_vision", model, *backend));
  const auto black = [](int width, int height, size_t bytes) {
    return Picture{width, height, std::vector<uint8_t>(bytes)};
  };
  CHECK(encoder.encode(black(24, 12, 864)).size() == 2 * 64);
  CHECK_THROWS_AS(encoder.encode(black(24, 30, 2160)), Error);  // 30 is not a multiple of 12
  CHECK_THROWS_AS(encoder.encode(black(24, 24, 864)), Error);
  CHECK_THROWS_AS(encoder.encode(black(0, 0, 0)), Error);
  const Model blind = load_golden(golden_dir("qwen3_5"), *backend);
  CHECK_THROWS_AS(load_vision(open_towers(golden_dir("gemma4_vision")), blind, *backend), Error);
  CHECK(open_towers(golden_dir("gemma4_dense")) == nullptr);
}
