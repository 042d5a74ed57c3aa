// What is said of towers before they run: what they are, and the memory that they take.
#include "apps/towers.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "apps/inspect.h"
#include "base/file.h"
#include "model/open_tower.h"
#include "tests/goldens.h"
#include "tests/picture_makers.h"
#include "tools/forge_tower.h"

using namespace carat;
using namespace carat::test;

namespace {

bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

struct Forged {
  explicit Forged(uint64_t seed, int threads = 2)
      : path(fmt::format("{}/carat-{}-{}-{}.gguf", std::filesystem::temp_directory_path().string(),
                         ::getpid(), seed, threads)) {
    forge_tower("tiny-mmproj", path, "q4_k_m", seed, threads);
  }
  ~Forged() { std::filesystem::remove(path); }
  std::string path;
};

// What the encoder takes for a picture of about so many rows, beside what was said.
void check_work(const std::string& path, int32_t budget, bool limits = false) {
  const std::shared_ptr<const WeightSource> towers = open_towers(path);
  REQUIRE(towers);
  const auto backend = std::shared_ptr<Backend>(make_cpu_backend(2, ""));
  const auto tower = open_vision(towers, *backend);
  Encoder encoder(backend, tower);
  const GridSize size = tower->size({500, 400, {}}, budget);
  const std::vector<float> rows = encoder.encode(noise(size.width, size.height));
  CHECK(rows.size() == static_cast<size_t>(size.tokens) * static_cast<size_t>(tower->shape().dim));
  for (const float v : rows) REQUIRE(std::isfinite(v));
  const int64_t said = tower_work_bytes(*towers, size.tokens), taken = encoder.memory_bytes();
  CAPTURE(said);
  CAPTURE(taken);
  CHECK(said <= taken);
  CHECK(said + (4 << 20) > 4 * taken / 5);  // it takes memory in pieces of 4 MiB and more
  if (limits) return;
  Program program;
  Arena measured;
  tower->build(program, measured, encoder_rows(size.tokens) * tower->shape().group, false);
  CHECK(said == measured.bytes());
}

}  // namespace

TEST_CASE("towers: the memory of a picture is what was said") {
  const Forged forged(1);
  check_work(forged.path, 70, true), check_work(forged.path, 280, true);
  check_work(golden_dir("gemma4_vision"), 70);
  check_work(golden_dir("qwen3_5_vision"), 70);
}

TEST_CASE("towers: a forged one is the same for its seed, and in the shape that is published") {
  const Forged a(3, 1), b(3, 2), c(4);
  const std::string first = read_file(a.path, size_t{1} << 24);
  CHECK(first == read_file(b.path, size_t{1} << 24));
  CHECK(first != read_file(c.path, size_t{1} << 24));
  const TowerFacts e = tower_facts(*tower_shape("e4b-mmproj", "bf16")),
                   d = tower_facts(*tower_shape("31b-mmproj", "q8_0"));
  CHECK(e.parameters / 1'000'000 == 151 + 18);  // 16 M of them positions, 2 M of the projection
  CHECK(d.parameters / 1'000'000 == 545 + 30);
  CHECK(d.bytes < tower_facts(*tower_shape("31b-mmproj", "bf16")).bytes * 3 / 4);
  CHECK(e.group == 9);
  CHECK(largest_picture(false, 512) == 1120);
  CHECK(largest_picture(true, 512) == 280);
  CHECK(largest_picture(true, 2048) == 1120);
  CHECK_THROWS_AS(tower_shape("e9b-mmproj", "bf16"), Error);
}

TEST_CASE("towers: inspect shows them, and the plan counts them") {
  const Forged forged(1);
  const auto file = open_source(forged.path);
  CHECK(has(inspect_text(*file),
            "tower for pictures: gemma4v, 2 layers of 96, patches of 16 x 16, 9 of them a row of 256; "));
  const auto directory = open_source(golden_dir("gemma4_vision"));
  const std::string text = inspect_text(*directory);
  CHECK(has(text, "tower for pictures: gemma4v, "));
  CHECK_FALSE(has(text, "passed over"));
  CHECK(inspect_json(*directory)["towers"]["pictures"]["row_width"] == 64);
  PlanOptions o;
  o.engine.context = 256, o.engine.sequences = 1;
  const MemoryPlan with = plan_memory(*directory, o);
  CHECK(with.tower_weights == tower_facts(golden_dir("gemma4_vision"))->bytes);
  CHECK(with.tower_rows > 0);
  CHECK(with.tower_work > 1'000'000);
  o.no_tower = true;
  const MemoryPlan without = plan_memory(*directory, o);
  CHECK(with.total() == without.total() + with.tower_weights + with.tower_work);
  CHECK(inspect_json(*open_source(golden_dir("gemma4_dense"))).count("towers") == 0);
}
