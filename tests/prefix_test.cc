// Texts that are found in the prefix cache against texts that are read: the same tokens and log
// probabilities, with drafters, beside others, after cancellations; and what is left to read is what is new.
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/speculate/draft_nextn.h"
#include "engine/speculate/draft_ngram.h"
#include "state/snapshot.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/hooked_backend.h"
#include "tests/lossless.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

std::vector<Token> some_prompt(int n, int salt) {
  std::vector<Token> p;
  for (int i = 0; i < n; ++i) p.push_back((i % 17 * 37 + (i / 40) * 5 + salt * 101 + 11) % 512);
  return p;
}
std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::shared_ptr<Backend> fast_backend() {
  std::vector<NamedBackend> cpu = cpu_backends(1);
  return cpu.empty() ? make_ref_backend() : std::move(cpu.back().backend);
}

struct Target {
  explicit Target(const std::string& golden)
      : backend(fast_backend()), model(std::make_shared<Model>(load_golden(golden_dir(golden), *backend))) {}
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
};

EngineConfig config(int32_t sequences, int64_t cache = -1) {
  EngineConfig c;
  c.context = 400, c.sequences = sequences, c.prefill_chunk = 24;
  c.prefix_cache_bytes = cache;
  return c;
}

// Texts that begin alike: at a page's end, inside one, and one that is part of another.
std::vector<Request> family(bool sampled) {
  const auto base = some_prompt(200, 1);
  std::vector<Request> out;
  for (const int32_t common : {0, 64, 100, 131, 199, 200, 200}) {
    Request r;
    r.prompt = joined({base.begin(), base.begin() + common},
                      common == 200 ? std::vector<Token>{} : some_prompt(30 + common / 10, common));
    r.sample.temperature = sampled ? 0.8F : 0;
    r.sample.seed = 11;
    r.max_tokens = 20;
    r.logprobs = common % 2 ? 1 : -1;
    r.ignore_eos = true;
    out.push_back(std::move(r));
  }
  return out;
}

std::vector<NamedDrafters> drafters(const Target& t, const std::shared_ptr<Oracle>& oracle,
                                    std::atomic<int>* broken) {
  SpecConfig fixed;
  fixed.adaptive = false;
  fixed.draft_max = 6;
  SpecConfig trees = fixed;
  trees.tree_nodes = 14;
  std::vector<NamedDrafters> all{{"none", {}, {}}};
  all.push_back({"corrupted", {make_guesser(oracle, {.guess = Guess::corrupted, .broken = broken})}, fixed});
  all.push_back({"tree", {make_guesser(oracle, {.guess = Guess::tree, .broken = broken})}, trees});
  all.push_back({"suffix", {std::shared_ptr<Drafter>(make_ngram("suffix", {}))}, fixed});
  if (t.model->family->nextn)
    if (auto head = t.model->family->nextn(*t.model, *t.backend, {}))
      all.push_back({"own head", {make_nextn_drafter(std::move(head), t.model->spec)}, fixed});
  return all;
}

// One that is cancelled after some tokens.
void run_doomed(Engine& engine, Request r, size_t after) {
  std::atomic<uint64_t> id{0};
  std::atomic<bool> over{false};
  size_t came = 0;
  r.max_tokens = 150;
  r.sink = [&](const Event& e) {
    if ((came += e.tokens.size()) >= after && id) engine.cancel(id);
    if (e.finish != Finish::none) over = true;
  };
  id = engine.submit(r);
  while (!over) std::this_thread::yield();
}

}  // namespace

TEST_CASE("found or read: the same tokens, with every kind of drafter, alone and together") {
  for (const char* golden : {"gemma4_e", "qwen3_5"}) {
    CAPTURE(golden);
    const Target t(golden);
    for (const bool sampled : {std::string_view(golden) == "gemma4_e"}) {
      const std::vector<Request> requests = family(sampled);
      std::vector<Outcome> plain;
      {
        Engine engine(t.backend, t.model, config(3, 0));
        plain = run_all(engine, requests);
        CHECK(engine.stats().prefix.queries == 0);
      }
      auto oracle = std::make_shared<Oracle>();
      oracle->vocab = 512;
      for (size_t i = 0; i < plain.size(); ++i)
        oracle->streams.push_back(joined(requests[i].prompt, plain[i].tokens));
      std::atomic<int> broken{0};
      for (const int32_t batch : {1, 3, 16})
        for (const NamedDrafters& d : drafters(t, oracle, &broken)) {
          CAPTURE(d.name);
          CAPTURE(batch);
          EngineConfig c = config(batch);
          c.drafters = d.drafters, c.spec = d.config;
          Engine engine(t.backend, t.model, c);
          run_doomed(engine, requests[4], 7);
          for (int pass = 0; pass < 2; ++pass) {
            CAPTURE(pass);
            const std::vector<Outcome> got = run_all(engine, requests);
            for (size_t i = 0; i < got.size(); ++i) {
              CAPTURE(i);
              CHECK(got[i] == plain[i]);
            }
            CHECK(broken == 0);
          }
          const PrefixStats s = engine.stats().prefix;
          CHECK(s.hits > s.queries / 4);
          CHECK(engine.stats().kv_pages_used == 0);
        }
    }
  }
}

TEST_CASE("a backend without protected rows refuses them, and leaves them alone where nothing needs them") {
  struct Plain : HookedBackend {
    bool protects_rows() const override { return false; }
  };
  const auto backend = std::make_shared<Plain>();
  const auto model = std::make_shared<const Model>(load_model(open_source(tiny_model("tiny")), *backend));
  EngineConfig c = config(1);
  c.kv_protect = KvProtect{4, 40};
  CHECK_NOTHROW(Engine(backend, model, c));
  c.cache_v = DType::kv4;
  CHECK_THROWS_AS(Engine(backend, model, c), Error);
  c.kv_protect.reset(), c.kv_policy = "auto";
  CHECK_NOTHROW(Engine(backend, model, c));
}

TEST_CASE("found or read with sinks and recent positions in f16: the same tokens") {
  const auto backend = fast_backend();
  const auto model = std::make_shared<const Model>(load_model(open_source(tiny_model("tiny")), *backend));
  const auto with = [](int32_t sequences, int64_t cache) {
    EngineConfig c = config(sequences, cache);
    c.cache_k = c.cache_v = DType::tq3, c.kv_protect = KvProtect{4, 40};
    return c;
  };
  const std::vector<Request> requests = family(true);
  std::vector<Outcome> plain, bare;
  {
    Engine engine(backend, model, with(3, 0));
    plain = run_all(engine, requests);
  }
  {
    EngineConfig c = with(3, 0);
    c.kv_protect.reset();
    Engine engine(backend, model, c);
    bare = run_all(engine, requests);
  }
  CHECK_FALSE(plain == bare);  // it is in use
  for (const int32_t batch : {1, 3}) {
    CAPTURE(batch);
    EngineConfig c = with(batch, -1);
    c.drafters = {std::shared_ptr<Drafter>(make_ngram("suffix", {}))};
    c.spec.adaptive = false;
    Engine engine(backend, model, c);
    for (int pass = 0; pass < 2; ++pass) {
      CAPTURE(pass);
      CHECK(run_all(engine, requests) == plain);
    }
    CHECK(engine.stats().prefix.hits > engine.stats().prefix.queries / 4);
  }
}

TEST_CASE("a conversation reads what is new; so does another answer to the same question") {
  for (const char* golden : {"gemma4_e", "gemma4_dense", "qwen3_5"}) {
    CAPTURE(golden);
    const Target t(golden);
    Engine engine(t.backend, t.model, config(2)), bare(t.backend, t.model, config(2, 0));
    Request r;
    r.prompt = some_prompt(70, 3);
    r.sample.seed = 5;
    r.max_tokens = 9;
    r.ignore_eos = true;
    for (int turn = 0; turn < 8; ++turn) {
      const uint64_t before = engine.stats().prompt_tokens;
      const Outcome got = run_all(engine, {r})[0];
      CHECK(got == run_all(bare, {r})[0]);
      // The last token of the turn before was said and not run.
      CHECK(engine.stats().prompt_tokens - before == (turn ? 1 + 20 : 70));
      Request again = r;
      again.sample.seed = 6;
      const uint64_t at = engine.stats().prompt_tokens;
      CHECK(run_all(engine, {again})[0] == run_all(bare, {again})[0]);
      const bool recurrent = std::string_view(golden) == "qwen3_5";
      CHECK(engine.stats().prompt_tokens - at <= (recurrent ? 64 + 21 : 1));
      r.prompt = joined(joined(r.prompt, got.tokens), some_prompt(20, 40 + turn));
    }
  }
}

TEST_CASE("where texts are said to part, the first one that goes on otherwise starts") {
  for (const char* golden : {"qwen3_5", "gemma4_e"}) {
    CAPTURE(golden);
    const Target t(golden);
    for (const bool said : {true, false}) {
      CAPTURE(said);
      Engine engine(t.backend, t.model, config(1)), bare(t.backend, t.model, config(1, 0));
      Request r;
      r.max_tokens = 9;
      r.ignore_eos = true;
      for (const int salt : {2, 3}) {
        r.prompt = joined(some_prompt(150, 1), some_prompt(130, salt));
        if (said) r.shared = {150};
        const uint64_t before = engine.stats().prompt_tokens;
        CHECK(run_all(engine, {r})[0] == run_all(bare, {r})[0]);
        const uint64_t read = engine.stats().prompt_tokens - before;
        if (salt == 2) CHECK(read == 280);
        if (salt == 3) CHECK((read == 130) == said);
      }
    }
  }
}

TEST_CASE("log probabilities of a prompt are those of a prompt that was read") {
  const Target t("gemma4_e");
  Engine engine(t.backend, t.model, config(1));
  Request r = family(true)[5];
  run_all(engine, {r});
  r.prompt_logprobs = true;
  r.logprobs = 2;
  const Outcome got = run_all(engine, {r})[0];
  CHECK(got.prompt_logprobs.size() == 199);
  Engine bare(t.backend, t.model, config(1, 0));
  CHECK(run_all(bare, {r})[0] == got);
}

TEST_CASE("little memory: the cache keeps its bound, and tokens stay") {
  const Target t("gemma4_e");
  std::vector<Request> requests = family(true);
  Engine bare(t.backend, t.model, config(2, 0));
  const std::vector<Outcome> plain = run_all(bare, requests);
  for (const int64_t bytes : {int64_t{1}, int64_t{60000}, int64_t{400000}}) {
    Engine engine(t.backend, t.model, config(2, bytes));
    for (int pass = 0; pass < 2; ++pass) {
      CHECK(run_all(engine, requests) == plain);
      CHECK(engine.stats().prefix.bytes <= bytes);
    }
  }
}

TEST_CASE("paused for want of pages: the same tokens, and everybody ends") {
  for (const char* golden : {"gemma4_e", "qwen3_5"}) {
    CAPTURE(golden);
    const Target t(golden);
    std::vector<Request> requests = family(true);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].max_tokens = 70 - static_cast<int32_t>(i);
      if (i == 3) requests[i].prompt_logprobs = true;
    }
    std::vector<Outcome> plain;
    {
      Engine engine(t.backend, t.model, config(7, 0));
      plain = run_all(engine, requests);
      CHECK(engine.stats().preemptions == 0);
    }
    auto oracle = std::make_shared<Oracle>();
    oracle->vocab = 512;
    for (size_t i = 0; i < plain.size(); ++i)
      oracle->streams.push_back(joined(requests[i].prompt, plain[i].tokens));
    std::atomic<int> broken{0};
    for (const int64_t cache : {0, 60000})
      for (const NamedDrafters& d : drafters(t, oracle, &broken)) {
        if (cache > 0 && d.name != "none" && d.name != "tree") continue;
        CAPTURE(d.name);
        CAPTURE(cache);
        EngineConfig c = config(7, cache);
        c.kv_tokens = 600;
        c.drafters = d.drafters, c.spec = d.config;
        Engine engine(t.backend, t.model, c);
        const std::vector<Outcome> got = run_all(engine, requests);
        for (size_t i = 0; i < got.size(); ++i) {
          CAPTURE(i);
          CHECK(got[i] == plain[i]);
        }
        CHECK(broken == 0);
        const EngineStats s = engine.stats();
        if (cache == 0) CHECK(s.preemptions > 0);
        CHECK(s.steps < 300);  // who reads again does so in chunks
        CHECK(s.kv_pages_used == 0);
        CHECK(s.running + s.waiting == 0);
      }
  }
}

TEST_CASE("who is more urgent goes first, then who came first") {
  const Target t("gemma4_e");
  Engine engine(t.backend, t.model, config(1));
  std::mutex mutex;
  std::vector<int> order;
  std::atomic<bool> began{false};
  std::vector<Request> requests(5, family(false)[0]);
  const int32_t priorities[] = {0, 5, -1, 0, -1};
  for (int i = 0; i < 5; ++i) {
    Request& r = requests[static_cast<size_t>(i)];
    r.priority = priorities[i];
    r.sink = [&, i](const Event& e) {
      began = true;
      const std::lock_guard lock(mutex);
      if (e.finish != Finish::none) order.push_back(i);
    };
  }
  run_all(engine, requests, [&](size_t i, uint64_t) {
    while (i == 0 && !began) std::this_thread::yield();
  });
  CHECK(order == std::vector<int>{0, 2, 4, 3, 1});
}

TEST_CASE("what was read outlives the engine on disk; damaged files are left out") {
  namespace fs = std::filesystem;
  const fs::path directory = fs::path(test_directory()) / "prefix-disk";
  const auto files = [&] {
    std::vector<fs::path> all;
    for (const auto& e : fs::directory_iterator(directory))
      if (e.path().filename() != "notes.kv") all.push_back(e.path());
    return all;
  };
  for (const char* golden : {"gemma4_e", "qwen3_5"}) {
    CAPTURE(golden);
    fs::remove_all(directory);
    const Target t(golden);
    Engine bare(t.backend, t.model, config(2, 0));
    EngineConfig c = config(3);
    c.prefix_cache_dir = directory.string();
    std::vector<Request> turns{family(true)[3], family(true)[5]};
    // Every engine is another process's.
    for (int turn = 0; turn < 3; ++turn) {
      CAPTURE(turn);
      if (turn == 1) {
        const std::string name = "0123456789abcdef0123456789abcdef.kv";
        std::ofstream(directory / (name + ".tmp.999999999")) << "half";  // no process has this number
        std::ofstream(directory / name) << "nonsense";
        std::ofstream(directory / "notes.kv") << "somebody else's";
      }
      const std::vector<fs::path> before = turn ? files() : std::vector<fs::path>();
      if (turn == 2)
        for (const fs::path& f : before) {
          CHECK(fs::exists(directory / "notes.kv"));
          std::fstream file(f, std::ios::in | std::ios::out | std::ios::binary);
          file.seekp(-100, std::ios::end);
          file.put('!').put('?');
        }
      const std::vector<Outcome> want = run_all(bare, turns);
      Engine engine(t.backend, t.model, c);
      CHECK(files().size() == (turn ? 2 : 0));
      const std::vector<Outcome> got = run_all(engine, turns);
      CHECK(got == want);
      // The last token of the turn before was said and not run.
      if (turn == 1) CHECK(engine.stats().prompt_tokens == 2 * (1 + 20));
      if (turn == 2) CHECK(engine.stats().prompt_tokens >= turns[0].prompt.size());
      if (turn == 2)  // an idle engine may have saved others by now
        for (const fs::path& f : before) CHECK_FALSE(fs::exists(f));
      for (size_t i = 0; i < turns.size(); ++i)
        turns[i].prompt = joined(joined(turns[i].prompt, got[i].tokens), some_prompt(20, 9));
    }
  }
  fs::remove_all(directory);
}

// Two engines as two processes would be: neither knows of the other but by the directory.
TEST_CASE("engines share a directory: what one has saved the other finds, and nothing is lost or wrong") {
  namespace fs = std::filesystem;
  const fs::path directory = fs::path(test_directory()) / "shared";
  fs::remove_all(directory);
  fs::create_directories(directory);
  const fs::path half = directory / fmt::format("{:032x}.kv.tmp.{}", 1, ::getpid());  // somebody writes it
  std::ofstream(half) << "half";
  const Target t("gemma4_e");
  EngineConfig c = config(2, 0);
  c.context = 640;
  Engine bare(t.backend, t.model, c);
  c.prefix_cache_bytes = -1;
  c.prefix_cache_dir = directory.string();
  Engine one(t.backend, t.model, c), two(t.backend, t.model, c);
  CHECK(fs::exists(half));
  // Of the one text that should be there in the end; 0: it is on its way.
  const auto saved = [&]() -> size_t {
    std::vector<std::string> whole;
    for (const auto& e : fs::directory_iterator(directory))
      if (e.path().extension() == ".kv") whole.push_back(e.path().string());
    try {
      return whole.size() == 1 ? saved_head(whole[0]).tokens.size() : 0;
    } catch (const Error&) {  // gone while we looked
      return 0;
    }
  };
  Request turn = family(true)[3];
  uint64_t read[2] = {0, 0};
  for (int i = 0; i < 3; ++i) {  // the conversation's turns go to one and the other
    CAPTURE(i);
    Engine& engine = i % 2 ? two : one;
    const std::vector<Outcome> got = run_all(engine, {turn});
    CHECK(got == run_all(bare, {turn}));
    const uint64_t now = engine.stats().prompt_tokens - read[i % 2];
    read[i % 2] += now;
    if (i) CHECK(now == 1 + 80);  // the last token of the turn before was said and not run
    const size_t all = turn.prompt.size() + got[0].tokens.size() - 1;
    for (int wait = 0; wait < 3000 && saved() != all; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(saved() == all);
    turn.prompt = joined(joined(turn.prompt, got[0].tokens), some_prompt(80, 9 + i));
  }
  CHECK(fs::exists(half));
  fs::remove_all(directory);
}

TEST_CASE("what was read with one salt counts as unread with another; tokens are the same") {
  for (const char* golden : {"gemma4_e", "qwen3_5"}) {
    CAPTURE(golden);
    const Target t(golden);
    Engine engine(t.backend, t.model, config(2));
    Request r = family(true)[5];
    uint64_t before = 0;
    std::vector<Outcome> first;
    const auto read = [&](uint64_t salt) {
      r.salt = salt;
      const std::vector<Outcome> got = run_all(engine, {r});
      if (first.empty()) first = got;
      CHECK(got == first);
      return engine.stats().prompt_tokens - std::exchange(before, engine.stats().prompt_tokens);
    };
    const uint64_t all = r.prompt.size();
    CHECK(read(0) == all);
    CHECK(read(0) < all / 4);
    CHECK(read(7) == all);
    CHECK(read(7) < all / 4);
    CHECK(read(8) == all);
    CHECK(read(uint64_t{7} << 32) == all);
    CHECK(read(0) < all / 4);
  }
}

// Same names, shapes and sizes: the model's texts are not the other's.
TEST_CASE("what is saved belongs to its weights, and to its owner alone") {
  namespace fs = std::filesystem;
  const fs::path directory = fs::path(test_directory()) / "whose",
                 other = fs::path(test_directory()) / "other";
  fs::remove_all(other);
  fs::create_directories(other);
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy_file(fs::path(golden_dir("gemma4_e")) / file, other / file);
  {
    std::fstream file(other / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-3, std::ios::end);
    const int was = file.get();
    file.seekp(-3, std::ios::end);
    file.put(static_cast<char>(was ^ 1));
  }
  const std::shared_ptr<Backend> backend = fast_backend();
  EngineConfig c = config(2);
  c.prefix_cache_dir = directory.string();
  const std::vector<Request> ask{family(false)[5]};
  const auto read = [&](const std::string& path) {
    Engine engine(backend, std::make_shared<Model>(load_golden(path, *backend)), c);
    run_all(engine, ask);
    return engine.stats().prompt_tokens;
  };
  const uint64_t all = ask[0].prompt.size();
  CHECK(read(golden_dir("gemma4_e")) == all);
  for (const auto& e : fs::directory_iterator(directory))
    CHECK((fs::status(e).permissions() & (fs::perms::group_all | fs::perms::others_all)) == fs::perms::none);
  CHECK(read(golden_dir("gemma4_e")) == 1);
  CHECK(read(other.string()) == all);
  fs::remove_all(directory);
  fs::remove_all(other);
}

TEST_CASE("an erased slot's text is on no disk either") {
  namespace fs = std::filesystem;
  const fs::path directory = fs::path(test_directory()) / "erased";
  const Target t("gemma4_e");
  EngineConfig c = config(2);
  c.prefix_cache_dir = directory.string();
  std::vector<Request> turns{family(false)[3], family(false)[5]};
  {
    Engine engine(t.backend, t.model, c);
    turns[0].prompt = joined(joined(turns[0].prompt, run_all(engine, turns)[0].tokens), some_prompt(20, 9));
  }
  CHECK(std::distance(fs::directory_iterator(directory), {}) == 2);
  c.sequences = 1;
  {
    Engine engine(t.backend, t.model, c);
    run_all(engine, {turns[0]});
    CHECK(engine.erase_slot(0).tokens > static_cast<int32_t>(turns[0].prompt.size()));
    CHECK(std::distance(fs::directory_iterator(directory), {}) == 1);
  }
  CHECK(std::distance(fs::directory_iterator(directory), {}) == 1);  // the other one
  fs::remove_all(directory);
}

TEST_CASE("a request's slot is the one that is saved, erased and restored") {
  const auto directory = std::filesystem::path(test_directory()) / "own-slots";
  std::filesystem::create_directories(directory);
  ServeConfig sc;
  sc.slot_save_path = directory.string();
  TestServer t({.context = 512, .sequences = 3, .prefill_chunk = 256}, sc);
  const auto run = [&](const std::string& prompt, Json more = Json::object(),
                       const std::string& path = "/completion") {
    more.update(
        {{path == "/completion" ? "prompt" : "messages", path == "/completion" ? Json(prompt) : user(prompt)},
         {"temperature", 0},
         {"ignore_eos", true},
         {path == "/completion" ? "n_predict" : "max_tokens", 4}});
    const auto [status, answer] = t.post(path, more);
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer;
  };
  const auto act = [&](int slot, const std::string& action, const std::string& file = "") {
    const auto [status, answer] =
        t.post(fmt::format("/slots/{}?action={}", slot, action), Json{{"filename", file}});
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer;
  };
  const std::string king = "Once upon a time there was a king who had twelve daughters.";
  const std::string sea = "The sea was as calm as a mirror, and far below lived the mermaids.";
  const Json first = run(king, {{"id_slot", 2}});
  CHECK(first["id_slot"] == 2);
  const int64_t tokens = first["tokens_evaluated"];
  CHECK(run(sea, {{"id_slot", 0}})["id_slot"] == 0);
  CHECK(act(2, "save", "king.kv")["n_saved"] == tokens + 3);
  CHECK(act(2, "erase")["n_erased"] == tokens + 3);
  CHECK(t.post("/slots/2?action=save", {{"filename", "none.kv"}}).first == 400);  // nothing is left there
  CHECK(act(2, "restore", "king.kv")["n_restored"] == tokens + 3);
  const Json again = run(king, {{"id_slot", 2}});
  CHECK(again["timings"]["cache_n"] == tokens - 1);
  CHECK(again["content"] == first["content"]);
  // A chat's, too: what a slot saves is what ran there last.
  const int64_t chat = run("Hello there", {{"id_slot", 2}}, "/v1/chat/completions")["usage"]["total_tokens"];
  CHECK(act(2, "save", "chat.kv")["n_saved"] == chat - 1);
  // Not asked for: the slot of the text that goes on, or the one used longest ago.
  CHECK(run(sea + " One of them")["id_slot"] == 0);
  CHECK(run("An altogether different beginning of a text, which nothing has had.")["id_slot"] == 1);
  for (const char* path : {"/completion", "/v1/completions"}) {
    const auto [status, refused] = t.post(path, {{"prompt", "x"}, {"id_slot", 3}});
    CHECK(status == 400);
    CHECK(refused["error"]["message"].get<std::string>().find("id_slot: there is no slot 3") == 0);
  }
}

TEST_CASE("slots: saved, erased, restored; names are no paths") {
  const auto directory = std::filesystem::path(test_directory()) / "slots";
  std::filesystem::create_directories(directory);
  ServeConfig sc;
  sc.slot_save_path = directory.string();
  TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 256}, sc);
  const Json ask = {{"prompt", "Once upon a time there was a king who had twelve daughters."},
                    {"temperature", 0},
                    {"max_tokens", 8}};
  const auto run = [&] { return t.post("/v1/completions", ask).second; };
  const Json first = run();
  const int64_t prompt = first["timings"]["prompt_n"];
  const auto [status, saved] = t.post("/slots/0?action=save", {{"filename", "king.kv"}});
  REQUIRE(status == 200);
  CHECK(saved["n_saved"] == prompt + 7);
  CHECK(saved["n_written"] == static_cast<int64_t>(std::filesystem::file_size(directory / "king.kv")));
  CHECK(run()["timings"]["cache_n"] == prompt - 1);
  CHECK(t.post("/slots/0?action=erase", Json::object()).second["n_erased"] == prompt + 7);
  CHECK(run()["timings"]["cache_n"] == 0);
  CHECK(t.post("/slots/0?action=erase", Json::object()).first == 200);
  const auto [ok, restored] = t.post("/slots/0?action=restore", {{"filename", "king.kv"}});
  REQUIRE(ok == 200);
  CHECK(restored["n_restored"] == prompt + 7);
  const Json again = run();
  CHECK(again["timings"]["cache_n"] == prompt - 1);
  CHECK(again["choices"] == first["choices"]);
  for (const char* name : {"", "../king.kv", "/etc/passwd", ".hidden", "a/b", "a b", "nul\\u0000"}) {
    CAPTURE(name);
    CHECK(t.post_text("/slots/0?action=restore", fmt::format(R"({{"filename": "{}"}})", name)).first == 400);
    CHECK(t.post_text("/slots/0?action=save", fmt::format(R"({{"filename": "{}"}})", name)).first == 400);
  }
  CHECK(t.post("/slots/0?action=restore", {{"filename", "nobody.kv"}}).first == 400);
  CHECK(t.post("/slots/0?action=dance", Json::object()).first == 400);
  CHECK(t.post("/slots/1?action=erase", Json::object()).first == 404);
  TestServer closed;
  CHECK(closed.post("/slots/0?action=save", {{"filename", "king.kv"}}).first == 501);
}

// Twenty turns of an agent that calls tools: what is read of a turn is what no turn before has run.
TEST_CASE("an agent's conversation through the server never reads its history again") {
  TestServer t({.context = 4096, .sequences = 2, .prefill_chunk = 512});
  Json body = {{"messages", user("What is the weather in all of these towns, one after the other?")},
               {"tools", Json::parse(R"([{"type": "function", "function": {"name": "weather",
                   "description": "The weather of a town", "parameters": {"type": "object",
                   "properties": {"town": {"type": "string"}}, "required": ["town"]}}}])")},
               {"temperature", 0}};
  std::vector<Token> ran;  // what the last turn left
  int64_t read = 0, all = 0;
  for (int turn = 0; turn < 20; ++turn) {
    CAPTURE(turn);
    const std::string say = fmt::format("Town {}.", turn);
    t.script(say + fmt::format("@weather({{\"town\": \"T{}\"}})", turn));
    const auto [status, j] = t.post("/v1/chat/completions", body);
    REQUIRE(status == 200);
    CHECK(j["choices"][0]["finish_reason"] == "tool_calls");
    ChatInput in;
    in.messages = body["messages"];
    in.tools = body["tools"];
    in.bos = t.tokenizer.piece(t.tokenizer.data().bos);
    in.add_generation_prompt = true;
    std::vector<Token> prompt = t.tokenizer.encode(t.chat.render(in), true);
    const auto n = static_cast<int64_t>(prompt.size());
    REQUIRE(j["usage"]["prompt_tokens"] == n);
    const auto common =
        std::mismatch(ran.begin(), ran.end(), prompt.begin(), prompt.end()).first - ran.begin();
    CHECK(j["timings"]["cache_n"] == common);
    CHECK(j["timings"]["prompt_n"] == n - common);
    CHECK(j["usage"]["prompt_tokens_details"]["cached_tokens"] == common);
    if (turn) CHECK(n - common < 80);
    read += n - common, all += n;
    ran = prompt;
    for (const Token token :
         t.tokenizer.encode(say + fmt::format("@weather({{\"town\": \"T{}\"}})", turn), false))
      ran.push_back(token);
    const Json& message = j["choices"][0]["message"];
    body["messages"].push_back(message);
    body["messages"].push_back({{"role", "tool"},
                                {"tool_call_id", message["tool_calls"][0]["id"]},
                                {"content", fmt::format("{} degrees and rain", turn)}});
  }
  CHECK(read * 5 < all);
  CHECK(t.engine.stats().prompt_tokens == static_cast<uint64_t>(read));
  const auto [status, metrics] = t.get("/metrics");
  CHECK(metrics.find(fmt::format("vllm:prefix_cache_hits_total{{engine=\"0\",model_name=\"tiny\"}} {}\n",
                                 all - read)) != std::string::npos);
  CHECK(metrics.find(fmt::format("vllm:prefix_cache_queries_total{{engine=\"0\",model_name=\"tiny\"}} {}\n",
                                 all)) != std::string::npos);
}
