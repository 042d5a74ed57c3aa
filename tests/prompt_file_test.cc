// Texts that stay read between runs of the program: the same answer from a file, what `inspect --plan` says
// of its size, and files that must not be used.
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/generate.h"
#include "apps/prompt_file.h"
#include "base/file.h"
#include "engine/setup.h"
#include "state/snapshot.h"
#include "tests/errors.h"
#include "tests/goldens.h"

using namespace carat;
using namespace carat::test;

namespace {

EngineConfig config() {
  EngineConfig c;
  c.context = 400, c.sequences = 1, c.prefill_chunk = 24, c.prefix_cache_bytes = 0;
  return c;
}

// A program that begins anew with each answer.
struct Session {
  explicit Session(const std::string& golden)
      : model(std::make_shared<Model>(load_golden(golden_dir(golden), *backend))) {}
  std::vector<Token> answer(const PromptFileFlags& flags, int32_t prompt, int32_t shift = 0) {
    check_prompt_files(flags);
    Engine engine(backend, model, config());
    Request r;
    for (int32_t i = 0; i < prompt; ++i) r.prompt.push_back((i * 37 + i / 40 * 5 + shift + 11) % 500);
    r.sample.temperature = 0, r.max_tokens = 5, r.ignore_eos = true;
    use_prompt_files(flags, *model, true, r,
                     [&](Request alone) { generate(engine, std::move(alone), count()); });
    loaded = r.load_state;
    return generate(engine, r, count()).tokens;
  }
  std::function<void(const Event&)> count() {
    return [](const Event&) {};
  }
  std::shared_ptr<Backend> backend = make_ref_backend();
  std::shared_ptr<const Model> model;
  std::string loaded;
};

struct File {
  File() : path(fmt::format("/tmp/carat-prompt-{}.kv", ::getpid())) { std::filesystem::remove(path); }
  ~File() { std::filesystem::remove(path); }
  bool there() const { return std::filesystem::exists(path); }
  std::string path;
};

}  // namespace

TEST_CASE("a prompt is saved once it is read, and gives the same answer from its file") {
  for (const char* golden : {"gemma4_dense", "qwen3_5"}) {
    CAPTURE(golden);
    Session p(golden);
    const File file;
    PromptFileFlags save, load, cache, all;
    save.save_prompt = file.path, load.load_state = file.path, cache.cache = all.cache = file.path;
    all.cache_all = true;
    const std::vector<Token> want = p.answer({}, 150);
    CHECK(p.answer(save, 150) == want);
    CHECK(saved_tokens(file.path).size() == 149);
    // As large as a plan says, but for the head.
    const EngineConfig c = config();
    const std::vector<KvLayerSpec> layers = kv_layers(p.model->spec, formats_of(c));
    const KvLimits limits = limits_of(c, false);
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file.path)),
               planned = saved_bytes(plan_kv(layers, limits), layers, limits, 149);
    CHECK(bytes > planned);
    CHECK(bytes < planned + 149 * 4 + 4096);
    CHECK(p.answer(load, 150) == want);
    CHECK(p.answer(cache, 150) == want);
    CHECK(p.loaded == file.path);
    // A longer prompt goes on from it, and is saved in its place; another text is read.
    const std::vector<Token> longer = p.answer({}, 180), other = p.answer({}, 60, 7);
    CHECK(p.answer(cache, 180) == longer);
    CHECK(saved_tokens(file.path).size() == 179);
    PromptFileFlags kept = cache;
    kept.cache_read_only = true;
    CHECK(p.answer(kept, 60, 7) == other);
    CHECK(p.loaded.empty());
    CHECK(saved_tokens(file.path).size() == 179);
    CHECK(p.answer(all, 60, 7) == other);
    CHECK(saved_tokens(file.path).size() == 64);  // the answer's last token is in no cache
  }
}

TEST_CASE("files that are damaged, older or another program's are refused, and stay as they are") {
  Session p("gemma4_dense");
  const File file;
  PromptFileFlags save, cache;
  save.save_prompt = file.path, cache.cache = file.path;
  p.answer(save, 80);
  const std::string good = read_file(file.path);
  const auto refused = [&](const std::string& bytes, const char* says) {
    std::ofstream(file.path, std::ios::binary) << bytes;
    const std::string e = error_of([&] { p.answer(cache, 90); });
    CAPTURE(e);
    CHECK(e.find(says) != std::string::npos);
    CHECK(read_file(file.path) == bytes);
  };
  std::string older = good, damaged = good;
  older[8] = 3;
  damaged[good.size() - 100] = static_cast<char>(damaged[good.size() - 100] ^ 1);
  refused(older, "version 3");
  refused(damaged, "damaged");
  refused("a letter to somebody", "not a saved sequence");
  refused(good.substr(0, 12), "not a saved sequence");
  Session another("gemma4_e");
  std::ofstream(file.path, std::ios::binary) << good;
  for (const int32_t shift : {0, 7})  // whether it holds the beginning of the prompt or not
    CHECK(error_of([&] { another.answer(cache, 90, shift); }).find("another model") != std::string::npos);
  CHECK(read_file(file.path) == good);
  PromptFileFlags twice = cache;
  twice.load_state = file.path;
  CHECK(error_of([&] { check_prompt_files(twice); }).find("by itself") != std::string::npos);
  twice = {}, twice.cache_all = true;
  CHECK(error_of([&] { check_prompt_files(twice); }).find("needs a file") != std::string::npos);
}
