// Versions of what is served: a candidate beside them, changes while requests run, and back again.
#include <doctest/doctest.h>

#include <filesystem>
#include <future>

#include "serve/promotion.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

// What a version's LiveModel refers to. flags.at(0): what it always says; "broken" cannot be opened.
struct Told {
  std::shared_ptr<HookedBackend> backend = std::make_shared<HookedBackend>();
  std::shared_ptr<const Model> model =
      std::make_shared<Model>(load_model(open_source(tiny_model()), *backend));
  Tokenizer tokenizer{tokenizer_from_source(*model->source)};
  PlainChat chat;
  Engine engine{backend, model, {.context = 512, .sequences = 2, .prefill_chunk = 64}};
};

std::shared_ptr<LiveModel> open_told(const std::vector<std::string>& flags, int version) {
  const std::string& word = flags.at(0);
  if (word == "broken") throw Error("not a model");
  auto told = std::make_shared<Told>();
  const Token token = told->tokenizer.encode(word, false).at(0);
  const bool slow = word == "slow";
  told->backend->after_step = [token, slow](const Tensor& logits) {
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    for (int64_t r = 0; r < logits.rows; ++r) {
      for (int32_t i = 0; i < logits.cols; ++i) logits.row<float>(r)[i] = 0;
      logits.row<float>(r)[token] = 100;
    }
  };
  ServeConfig config;
  config.names = {"model"};
  config.version = version;
  ServedModel served{told->engine, told->tokenizer, &told->chat, "", "", ""};
  return std::make_shared<LiveModel>(std::move(served), std::move(config), told);
}

std::string new_directory() {
  static int number = 0;
  return fmt::format("{}/promotion-{}", test_directory(), ++number);
}

class Versions {
 public:
  explicit Versions(const std::string& dir, const std::string& first = "a")
      : promotion(std::make_shared<Promotion>(
            dir, std::vector<std::string>{first},
            [](const auto& flags, int version, const auto&) { return open_told(flags, version); })),
        key(),
        server(source(), config()) {
    server.set_promotion(promotion);
    server.open_model();
    promotion->attach(server.models(), server.url());
    key = promotion_server(dir).key;
    thread = std::thread([this] { server.run(); });
  }
  ~Versions() {
    server.set_grace(0);
    server.stop();
    thread.join();
    promotion->stop();
  }
  httplib::Client client() {
    httplib::Client c("127.0.0.1", server.port());
    c.set_read_timeout(60);
    return c;
  }
  Json status() {
    const auto r = client().Get("/promotion");
    CARAT_CHECK(r, "no answer");
    return Json::parse(r->body);
  }
  int act(const Json& body) {
    const auto r =
        client().Post("/promotion", {{"Carat-Promotion-Key", key}}, body.dump(), "application/json");
    CARAT_CHECK(r, "no answer");
    return r->status;
  }
  // Until the candidate is open; false where it cannot be opened.
  bool start(const std::string& word, Json more = Json::object()) {
    more["action"] = "start", more["flags"] = {word};
    CARAT_CHECK(act(more) == 200, "refused");
    for (;;) {
      const Json s = status();
      if (s["open"].contains("candidate")) return true;
      if (s["candidate"] == 0) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  // The first letter of an answer and the version that it is said to come from.
  std::string ask(const std::string& question = "x", const std::string& wanted = "", bool stream = false) {
    httplib::Headers headers;
    if (!wanted.empty()) headers.emplace("Carat-Version", wanted);
    const auto r = client().Post(
        "/v1/chat/completions", headers,
        Json{{"messages", user(question)}, {"max_tokens", 4}, {"temperature", 0}, {"stream", stream}}.dump(),
        "application/json");
    CARAT_CHECK(r, "no answer");
    if (r->status != 200) return std::to_string(r->status);
    return answered_text(r->body).value_or("?").substr(0, 1) + r->get_header_value("Carat-Version");
  }

  std::shared_ptr<Promotion> promotion;
  std::string key;
  ApiServer server;
  std::thread thread;

 private:
  static ServeConfig config() {
    ServeConfig c;
    c.http.port = 0;
    c.names = {"model"};
    return c;
  }
  ModelHost::Source source() {
    ModelHost::Source s;
    s.list = [] { return std::vector<ModelHost::Known>{{"model", 0}}; };
    s.open = [p = promotion](const std::string&, const ModelHost::Report& report) {
      return p->open_serving(report);
    };
    return s;
  }
};

}  // namespace

TEST_CASE("a candidate takes the place of what serves, and goes back, while a stream goes on") {
  const std::string dir = new_directory();
  {
    Versions v(dir);
    CHECK(v.ask() == "a1");
    CHECK(v.act({{"action", "promote"}}) == 409);
    CHECK(v.act({{"action", "rollback"}}) == 409);
    CHECK(v.act({{"action", "dance"}}) == 400);
    CHECK(v.client().Post("/promotion", R"({"action": "rollback"})", "application/json")->status == 403);
    CHECK_FALSE(v.start("broken"));
    CHECK(v.status()["history"].back()["why"] == "not a model");
    REQUIRE(v.start("b"));
    CHECK(v.act({{"action", "start"}, {"flags", {"c"}}}) == 409);
    CHECK(v.ask() == "a1");
    CHECK(v.ask("x", "candidate") == "b3");
    CHECK(v.ask("x", "3", true) == "b3");
    CHECK(v.ask("x", "7") == "409");

    // A stream that began before the change ends as it began.
    std::promise<void> begun;
    std::atomic<bool> changed{false};
    std::string text;
    std::thread streaming([&] {
      httplib::Client c = v.client();
      httplib::Request r;
      r.method = "POST";
      r.path = "/v1/completions";
      r.body = Json{{"prompt", "x"}, {"max_tokens", 400}, {"temperature", 0}, {"stream", true}}.dump();
      bool told = false;
      r.content_receiver = [&](const char* data, size_t n, uint64_t, uint64_t) {
        text.append(data, n);
        if (!std::exchange(told, true)) begun.set_value();
        while (!changed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return true;
      };
      c.send(r);
    });
    begun.get_future().wait();
    CHECK(v.act({{"action", "promote"}}) == 200);
    CHECK(v.ask() == "b3");
    changed = true;
    streaming.join();
    const std::string said = answered_text(text).value_or("cut");
    CHECK(said.size() == 400);
    CHECK(said.find_first_not_of('a') == std::string::npos);
    CHECK(v.ask("x", "1") == "a1");  // it stands by
    CHECK(v.client().Get("/metrics")->body.find("model_name=\"model\",version=\"3\"") != std::string::npos);
  }
  {
    Versions again(dir);
    CHECK(again.ask() == "b3");
    CHECK(again.act({{"action", "rollback"}}) == 200);  // which has to be opened first
    while (again.status()["serving"] != 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(again.ask() == "a1");
    CHECK_THROWS_WITH_AS(Versions{dir}, doctest::Contains("another server"), Error);
  }
  Versions other(dir, "c");  // the command line says something else: that is wanted
  CHECK(other.ask() == "c4");
  CHECK(other.status()["fallback"] == 1);
}

TEST_CASE("what cannot be opened any more gives way to the version before") {
  const std::string dir = new_directory();
  {
    PromotionStore store(dir);
    PromotionState s;
    s.fallback = s.add({"a"}), s.serving = s.add({"broken"});
    s.command_line = {"a"};
    store.save(s);
  }
  Versions v(dir, "a");
  CHECK(v.ask() == "a1");
  CHECK(v.status()["history"].back()["event"] == "rolled back");
}

TEST_CASE("a canary answers its share of conversations, each of them alone") {
  Versions v(new_directory());
  REQUIRE(v.start("b", {{"canary", 0.3}}));
  int tried = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string question = "question " + std::to_string(i), first = v.ask(question);
    tried += first == "b2";
    if (i < 10) CHECK(v.ask(question) == first);
  }
  CHECK(tried > 10);
  CHECK(tried < 50);
  CHECK(v.act({{"action", "cancel"}}) == 200);
  CHECK(v.ask("question 1") == "a1");
}

TEST_CASE("a shadow's answers are compared and thrown away") {
  for (const bool same : {true, false}) {
    Versions v(new_directory());
    REQUIRE(v.start(same ? "a" : "b", {{"shadow", true}}));
    for (int i = 0; i < 4; ++i) CHECK(v.ask("x", "", i % 2) == "a1");
    const auto counted = [&] {
      const Json c = v.status()["compared"];
      return c["same"].get<int>() + c["other"].get<int>() + c["failed"].get<int>();
    };
    for (int i = 0; i < 2000 && counted() < 4; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(v.status()["compared"][same ? "same" : "other"] == 4);
  }
}

TEST_CASE("a version that is slow goes back by itself") {
  Versions v(new_directory());
  const Json rules = {{"rollback_on", "errors=10%,speed=90%,requests=4"}};
  for (int i = 0; i < 4; ++i) CHECK(v.ask() == "a1");
  REQUIRE(v.start("slow", rules));
  REQUIRE(v.act({{"action", "promote"}}) == 200);
  for (int i = 0; i < 50 && v.status()["serving"] != 1; ++i) v.ask();
  CHECK(v.status()["serving"] == 1);
  CHECK(v.status()["history"].back()["why"].get<std::string>().find("tok/s") != std::string::npos);
  CHECK(v.ask() == "a1");
}
