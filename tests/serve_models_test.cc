// The server while its model loads, and with a folder of models.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "apps/model_facts.h"
#include "apps/models_folder.h"
#include "model/files/gguf_writer.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

// What a LiveModel of the tiny model refers to.
struct Tiny {
  std::shared_ptr<HookedBackend> backend = std::make_shared<HookedBackend>();
  std::shared_ptr<const Model> model =
      std::make_shared<Model>(load_model(open_source(tiny_model()), *backend));
  Tokenizer tokenizer{tokenizer_from_source(*model->source)};
  PlainChat chat;
  Engine engine{backend, model, {.context = 2048, .sequences = 1, .prefill_chunk = 64}};
};

std::shared_ptr<LiveModel> open_tiny(const std::string& name, const ServeConfig& base) {
  auto tiny = std::make_shared<Tiny>();
  ServeConfig config = base;
  config.names = {name};
  ServedModel served{tiny->engine, tiny->tokenizer, &tiny->chat, "", "", ""};
  return std::make_shared<LiveModel>(std::move(served), std::move(config), tiny);
}

class Served {
 public:
  explicit Served(ModelHost::Source source) : server(std::move(source), config()) {
    thread = std::thread([this] { server.run(); });
  }
  ~Served() {
    server.set_grace(0);
    server.stop();
    thread.join();
  }
  static ServeConfig config() {
    ServeConfig c;
    c.http.port = 0;
    c.names = {"only"};
    return c;
  }
  std::pair<int, Json> get(const std::string& path) {
    const auto r = httplib::Client("127.0.0.1", server.port()).Get(path);
    CARAT_CHECK(r, "no answer from {}", path);
    return {r->status, Json::parse(r->body, nullptr, false)};
  }
  httplib::Result post(const std::string& path, const Json& body) {
    httplib::Client c("127.0.0.1", server.port());
    c.set_read_timeout(60);
    return c.Post(path, body.dump(), "application/json");
  }
  std::pair<int, Json> complete(const std::string& model) {
    const auto r =
        post("/v1/completions", {{"model", model}, {"prompt", "x"}, {"max_tokens", 2}, {"ignore_eos", true}});
    CARAT_CHECK(r, "no answer");
    return {r->status, Json::parse(r->body)};
  }
  std::string state_of(const std::string& name) {
    const Json list = get("/v1/models").second;
    for (const Json& m : list["data"])
      if (m["id"] == name) return m["status"]["value"];
    return "none";
  }
  ApiServer server;
  std::thread thread;
};

}  // namespace

TEST_CASE("while its model loads the server answers, and says how far it is") {
  std::promise<void> go;
  std::promise<void> begun;
  ModelHost::Source source;
  source.facts = [](const std::string&) {
    ModelFacts f;
    f.bytes = 123, f.context = 4096, f.parameters = "4.7B", f.quantization = "Q5_K";
    return f;
  };
  source.list = [] { return std::vector<ModelHost::Known>{{"only", 0}}; };
  source.open = [&](const std::string& name, const ModelHost::Report& report) {
    report(0.43);
    begun.set_value();
    go.get_future().wait();
    return open_tiny(name, Served::config());
  };
  Served s(source);
  std::thread loading([&] { s.server.open_model(); });
  begun.get_future().wait();
  CHECK(s.get("/live").first == 200);
  for (const char* path : {"/health", "/v1/health", "/ping"}) {  // llama.cpp's way
    const auto [code, health] = s.get(path);
    CHECK(code == 503);
    CHECK(health["error"]["code"] == "loading");
  }
  const auto [status, ready] = s.get("/ready");
  CHECK(status == 503);
  CHECK(ready["status"] == "loading");
  CHECK(ready["progress"] == 0.43);
  CHECK(s.state_of("only") == "loading");
  const Json meta = s.get("/v1/models").second["data"][0]["meta"];  // what its file says is known before
  CHECK(meta["size"] == 123);
  CHECK(meta["n_ctx_train"] == 4096);
  CHECK(meta["parameter_size"] == "4.7B");
  CHECK(meta["quantization_level"] == "Q5_K");
  const auto refused = s.post("/v1/chat/completions", {{"messages", user("Hi")}});
  REQUIRE(refused);
  CHECK(refused->status == 503);
  CHECK(refused->get_header_value("Retry-After") == "1");
  CHECK(refused->body.find("43 %") != std::string::npos);
  CHECK(s.get("/").first == 200);
  go.set_value();
  loading.join();
  CHECK(s.get("/ready").first == 200);
  CHECK(s.get("/health").second["status"] == "ok");
  CHECK(s.post("/ping", {})->status == 200);
  CHECK(s.complete("whatever it is called").first == 200);
}

TEST_CASE("a model that cannot be opened is told to who opens it") {
  ModelHost::Source source;
  source.list = [] { return std::vector<ModelHost::Known>{{"only", 0}}; };
  source.open = [](const std::string&, const ModelHost::Report&) -> std::shared_ptr<LiveModel> {
    throw Error("the file is cut off", "fetch it again");
  };
  Served s(source);
  CHECK_THROWS_WITH_AS(s.server.open_model(), "the file is cut off", Error);
}

TEST_CASE("models are opened when they are asked for, and closed for others") {
  int opened = 0;
  ModelHost::Source source;
  source.folder = true;
  source.memory_limit = 1;  // room for one
  source.patience = 0.2;
  source.list = [] { return std::vector<ModelHost::Known>{{"a", 100}, {"b", 100}, {"broken", 100}}; };
  source.open = [&](const std::string& name, const ModelHost::Report&) {
    ++opened;
    if (name == "broken") throw Error("not a model");
    return open_tiny(name, Served::config());
  };
  Served s(source);
  CHECK(s.get("/ready").first == 200);
  CHECK(s.get("/v1/models").second["data"].size() == 3);
  CHECK(s.get("/props").first == 200);
  CHECK(s.state_of("a") == "unloaded");
  CHECK(opened == 0);
  CHECK(s.complete("a").second["model"] == "a");
  CHECK(s.complete("a").first == 200);
  CHECK(s.complete("").second["model"] == "a");  // who names none gets the one used last
  CHECK(opened == 1);
  CHECK(s.complete("b").second["model"] == "b");
  CHECK(s.state_of("a") == "unloaded");
  CHECK(s.state_of("b") == "loaded");
  for (const char* name : {"c", "../a", "/etc/passwd", "a/../b"}) {
    const auto [status, j] = s.complete(name);
    CHECK(status == 404);
    CHECK(j["error"]["code"] == "model_not_found");
  }
  const auto [status, j] = s.complete("broken");
  CHECK(status == 503);
  CHECK(j["error"]["message"].get<std::string>().find("not a model") != std::string::npos);
  CHECK(s.complete("b").first == 200);

  // A model that answers is not closed.
  std::promise<void> begun;
  std::atomic<bool> enough{false};
  std::thread busy([&] {
    httplib::Client c("127.0.0.1", s.server.port());
    httplib::Request r;
    r.method = "POST";
    r.path = "/v1/completions";
    r.body = Json{{"model", "b"}, {"prompt", "x"}, {"ignore_eos", true}, {"stream", true}}.dump();
    bool told = false;
    r.content_receiver = [&](const char*, size_t, uint64_t, uint64_t) {
      if (!std::exchange(told, true)) begun.set_value();
      return !enough;
    };
    c.send(r);
  });
  begun.get_future().wait();
  CHECK(s.complete("a").second["error"]["code"] == "models_busy");
  enough = true;
  busy.join();
  int last = 0;
  for (int i = 0; i < 50 && last != 200; ++i) last = s.complete("a").first;
  CHECK(last == 200);
}

TEST_CASE("a folder's models have aliases, and are opened and closed by request") {
  ModelHost::Source source;
  source.folder = true;
  source.memory_limit = int64_t{1} << 40;
  source.list = [] { return std::vector<ModelHost::Known>{{"a", 100, {"nick", "gpt-4o"}}, {"b", 100, {}}}; };
  source.open = [&](const std::string& name, const ModelHost::Report&) {
    return open_tiny(name, Served::config());
  };
  Served s(source);
  const auto act = [&](const char* path, const char* model) {
    const auto r = s.post(path, {{"model", model}});
    CARAT_CHECK(r, "no answer");
    return r->status;
  };
  CHECK(s.get("/v1/models").second["data"].size() == 4);
  CHECK(s.complete("nick").first == 200);
  CHECK(s.complete("gpt-4o:latest").first == 200);
  CHECK(s.state_of("a") == "loaded");
  CHECK(s.state_of("nick") == "loaded");
  CHECK(act("/models/load", "b") == 200);
  CHECK(s.state_of("b") == "loaded");
  CHECK(act("/models/unload", "nick") == 200);
  CHECK(s.state_of("a") == "unloaded");
  CHECK(s.state_of("b") == "loaded");
  CHECK(act("/models/unload", "a") == 200);  // it is not open
  CHECK(act("/api/generate", "b") == 200);
  CHECK(s.post("/api/generate", {{"model", "b"}, {"keep_alive", "0s"}})->status == 200);
  CHECK(s.state_of("b") == "unloaded");
  CHECK(act("/models/load", "c") == 404);
  CHECK(act("/models/unload", "c") == 404);
  CHECK(act("/models/load", "") == 400);
}

TEST_CASE("of files only models can be served, and a list says what they are") {
  const std::string path = tiny_model();
  const ModelFacts f = model_facts(path);
  CHECK(f.family == "gemma4");
  CHECK(f.format == "gguf");
  CHECK(f.parameters.ends_with("M"));
  CHECK(f.quantization.starts_with("Q"));
  CHECK(f.bytes > 0);
  CHECK(f.modified > 1'600'000'000);
  CHECK(f.calls);
  CHECK(f.metadata["general.architecture"] == "gemma4");
  CHECK(f.metadata["tokenizer.ggml.tokens"].is_null());
  CHECK(can_be_served(path));
  const std::string dir = test_directory();
  for (const char* text : {"", "<html>not found</html>", "GGUF"}) {
    const std::string wrong = dir + "/wrong.gguf";
    std::ofstream(wrong) << text;
    CHECK_FALSE(can_be_served(wrong));
    CHECK_THROWS_AS(model_facts(wrong), Error);
    std::filesystem::remove(wrong);
  }
}

TEST_CASE("a folder's models by name") {
  const auto dir = std::filesystem::temp_directory_path() / fmt::format("carat-models-{}", ::getpid());
  std::filesystem::create_directories(dir / "hf-model");
  std::filesystem::create_directories(dir / "no-model");
  for (const char* name :
       {"one.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "lost-00002-of-00002.gguf",
        "notes.txt", "hf-model/config.json", "hf-model/x.safetensors"})
    std::ofstream(dir / name) << std::string_view("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
  for (const std::string_view text :
       {"", "1234", "<!doctype html>", "version https://git-lfs.github.com/spec/v1"})
    std::ofstream(dir / fmt::format("no{}.gguf", text.size())) << text;
  REQUIRE(::mkfifo((dir / "fifo.gguf").c_str(), 0600) == 0);  // opened, it would be waited for
  const auto other = [&](const char* key, const char* word) {
    Metadata meta;
    meta.set(key, std::string(word));
    meta.set("tokenizer.ggml.tokens", std::vector<std::string>(40000, "token"));  // more than is looked at
    GgufWriter writer(dir / fmt::format("{}.gguf", word), meta, {{"t", DType::f32, {32}}});
    const std::vector<float> zeros(32);
    writer.write(zeros.data(), 128);
    writer.finish();
  };
  for (const char* arch : {"clip", "dflash", "gemma4-assistant"}) other("general.architecture", arch);
  for (const char* type : {"mmproj", "adapter", "imatrix"}) other("general.type", type);
  const auto found = models_in(dir.string());
  REQUIRE(found.size() == 3);
  CHECK(found[0].name == "big");
  CHECK(found[0].bytes == 48);
  CHECK(found[0].path.ends_with("big-00001-of-00002.gguf"));
  CHECK(found[1].name == "hf-model");
  CHECK(found[2].name == "one");
  std::filesystem::remove_all(dir);
  CHECK_THROWS_AS(models_in(dir.string()), Error);
}
