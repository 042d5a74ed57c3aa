// Which file of a repository fits this machine, and which drafter belongs to which model.
#include "apps/hub.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "model/families/published.h"

using namespace carat;

namespace {

constexpr int64_t kGb = 1'000'000'000;

HubRepo repo_of(std::initializer_list<std::pair<const char*, int64_t>> files) {
  HubRepo repo;
  repo.name = "some/model-GGUF";
  for (const auto& [path, gb] : files) repo.files.push_back({path, gb * kGb, "", path});
  return repo;
}

bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

}  // namespace

TEST_CASE("a quantization is chosen by the memory of the GPU and of the machine") {
  const HubRepo repo =
      repo_of({{"m-Q2_K.gguf", 10}, {"m-Q3_K_M.gguf", 14}, {"m-Q4_K_M.gguf", 18}, {"m-Q8_0.gguf", 32}});
  const HubChoice alone = choose_files(repo, "", "", {.host = 15 * kGb});
  CHECK(alone.files.front().path == "m-Q3_K_M.gguf");
  CHECK(has(alone.why, "15 GB, 70 % of this machine's memory"));
  CHECK_FALSE(has(alone.why, "GPU"));
  const HubChoice gpu = choose_files(repo, "", "", {.host = 2 * kGb, .gpu = 20 * kGb});
  CHECK(gpu.files.front().path == "m-Q4_K_M.gguf");
  CHECK(has(gpu.why, "20 GB of the GPU's memory"));
  CHECK(has(gpu.why, "all of it into the GPU's"));
  const HubChoice both = choose_files(repo, "", "", {.host = 15 * kGb, .gpu = 8 * kGb});
  CHECK(both.files.front().path == "m-Q4_K_M.gguf");
  CHECK(has(both.why, "the CPU has 10 GB"));
  CHECK_THROWS_AS(choose_files(repo, "", "", {.host = 5 * kGb, .gpu = 4 * kGb}), Error);
}

TEST_CASE("a projector is found by its name, F16 before others") {
  const HubRepo repo = repo_of({{"m-Q4_K_M.gguf", 18}, {"mmproj-BF16.gguf", 1}, {"mmproj-F16.gguf", 1}});
  REQUIRE(choose_mmproj(repo, "auto"));
  CHECK(choose_mmproj(repo, "auto")->path == "mmproj-F16.gguf");
  CHECK(choose_mmproj(repo, "mmproj-BF16.gguf")->path == "mmproj-BF16.gguf");
  CHECK_FALSE(choose_mmproj(repo, "other.gguf"));
  CHECK_FALSE(choose_mmproj(repo_of({{"m-Q4_K_M.gguf", 18}}), "auto"));
}

TEST_CASE("published drafters are found for models of their makers and of those who quantize them") {
  CHECK(published_drafter("google/gemma-4-31B-it") == "google/gemma-4-31B-it-assistant");
  CHECK(published_drafter("some/gemma-4-31b-it-GGUF") == "google/gemma-4-31B-it-assistant");
  CHECK(published_drafter("some/gemma-4-26B-A4B-it-qat-q4_0-gguf") == "google/gemma-4-26B-A4B-it-assistant");
  CHECK(published_drafter("Qwen/Qwen3.6-27B-FP8") == "z-lab/Qwen3.6-27B-DFlash");
  for (const char* none : {"google/gemma-4-31B-it-assistant", "z-lab/Qwen3.6-27B-DFlash", "Qwen/Qwen3.6-270B",
                           "Qwen/Qwen3.6-35B-A3B", "google/gemma-4-31B", "some/other", "other", ""})
    CHECK_MESSAGE(published_drafter(none).empty(), none);
}
