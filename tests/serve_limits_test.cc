// What the server does with clients that are slow, many or gone, and with its own end.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/gate.h"
#include "tests/raw_client.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

using Clock = std::chrono::steady_clock;

Json endless() { return {{"prompt", "x"}, {"ignore_eos", true}, {"stream", true}}; }

}  // namespace

TEST_CASE("a reader that does not read loses its stream, not the server's memory") {
  ServeConfig config;
  config.http.write_seconds = 0.3;
  TestServer t({.context = 8192, .sequences = 1, .prefill_chunk = 64}, config);
  RawClient lazy(t.server->port(), 4096);  // takes little and reads nothing
  // Many alternatives a token: events that fill the sockets' buffers soon.
  Json body = endless();
  body["logprobs"] = 100;
  lazy.post("/v1/completions", body.dump());
  t.wait_generating();
  const auto began = Clock::now();
  CHECK(t.idle(30));
  CHECK(Clock::now() - began < std::chrono::seconds(30));
  CHECK(t.engine.stats().kv_pages_used == 0);
  CHECK(t.post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}}).first == 200);
}

TEST_CASE("a sender that does not send is cut off") {
  ServeConfig config;
  config.http.read_seconds = 0.3;
  config.http.idle_seconds = 0.3;
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  const auto began = Clock::now();
  RawClient silent(t.server->port()), half(t.server->port()), body(t.server->port());
  half.send("POST /tokenize HTTP/1.1\r\nHost: local");
  body.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  silent.read_until("never");
  half.read_until("never");
  body.read_until("never");
  CHECK(Clock::now() - began < std::chrono::seconds(10));
  CHECK(t.get("/health").first == 200);
}

TEST_CASE("a crowd of clients and of streams costs no threads") {
  ServeConfig config;
  config.http.idle_seconds = 0.5;
  Gate gate;
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  t.backend->before_step = [&] { gate.pass(); };
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  const auto before = threads();
  {
    std::vector<std::unique_ptr<RawClient>> crowd, streams;
    for (int i = 0; i < 60; ++i) crowd.push_back(std::make_unique<RawClient>(t.server->port()));
    for (const auto& c : crowd) c->send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (const auto& c : crowd) c->read_until("ok");
    for (int i = 0; i < 60; ++i) streams.push_back(std::make_unique<RawClient>(t.server->port()));
    for (const auto& c : streams) c->post("/v1/completions", endless().dump());
    for (const auto& c : streams) c->read_until("text/event-stream");
    for (int i = 0; i < 500 && threads() > before + 8; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(threads() <= before + 8);
  }
  gate.open();
  for (int i = 0; i < 500 && threads() > before + 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(threads() <= before + 1);
  CHECK(t.get("/health").first == 200);
}

TEST_CASE("whole answers that wait for the engine keep nobody from being served") {
  Gate gate;
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64});
  t.backend->before_step = [&] { gate.pass(); };
  std::vector<std::unique_ptr<RawClient>> waiting;
  const std::string body = Json{{"prompt", "x"}, {"max_tokens", 2}}.dump();
  for (int i = 0; i < 80; ++i) waiting.push_back(std::make_unique<RawClient>(t.server->port()));
  for (const auto& c : waiting) c->post("/v1/completions", body);
  gate.wait_until_held();
  while (t.engine.stats().waiting < 79) std::this_thread::yield();  // all of them, though 32 threads may work
  CHECK(t.get("/v1/models").first == 200);
  gate.open();
  for (const auto& c : waiting) CHECK(c->read_until("finish_reason").find(" 200 ") != std::string::npos);
}

TEST_CASE("clients have names, a rate and a record") {
  const auto dir = std::filesystem::temp_directory_path() / ("audit-serve-" + std::to_string(::getpid()));
  std::filesystem::create_directory(dir);
  const std::string record = (dir / "audit.log").string(), keys = (dir / "keys").string();
  std::ofstream(keys) << "anna one\nbert two\n";
  ServeConfig config;
  config.api_keys_file = keys;
  config.requests_per_minute = 2;
  config.http.audit_log = record;
  {
    TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
    httplib::Client c = t.client();
    const auto ask = [&](const char* key) {
      const auto r = c.Post("/tokenize", {{"Authorization", std::string("Bearer ") + key}},
                            R"({"content":"x"})", "application/json");
      REQUIRE(r);
      if (r->status == 429) {
        CHECK(std::stoi(r->get_header_value("Retry-After")) > 0);
        CHECK(Json::parse(r->body)["error"]["code"] == "rate_limit_exceeded");
      }
      return r->status;
    };
    CHECK(ask("wrong") == 401);
    CHECK(ask("one") == 200);
    CHECK(ask("one") == 200);
    CHECK(ask("one") == 429);
    CHECK(ask("two") == 200);
    CHECK(c.Get("/health")->status == 200);
  }
  std::ifstream in(record);
  std::vector<std::string> seen;
  for (std::string line; std::getline(in, line);) {
    const Json l = Json::parse(line);
    CHECK(l["address"] == "127.0.0.1");
    CHECK(l["path"] == "/tokenize");
    seen.push_back(l.value("client", "-") + " " + std::to_string(l["status"].get<int>()));
    CHECK(line.find("one\"") == std::string::npos);  // no key
  }
  CHECK(seen == std::vector<std::string>{"- 401", "anna 200", "anna 200", "anna 429", "bert 200"});
  std::filesystem::remove_all(dir);
}

TEST_CASE("refusals say when to come again") {
  Gate gate;
  TestServer t({.context = 4096, .sequences = 1, .prefill_chunk = 64, .max_queue = 1});
  t.backend->before_step = [&] { gate.pass(); };
  RawClient first(t.server->port()), second(t.server->port());
  const Json body = endless();
  first.post("/v1/completions", body.dump());
  gate.wait_until_held();
  second.post("/v1/completions", body.dump());
  while (t.engine.stats().waiting == 0) std::this_thread::yield();
  httplib::Client c = t.client();
  const auto r = c.Post("/v1/completions", body.dump(), "application/json");
  REQUIRE(r);
  CHECK(r->status == 429);
  CHECK(r->get_header_value("Retry-After") == "1");
  gate.open();
}

TEST_CASE("answers that are under way are finished when the server ends") {
  Gate gate;
  TestServer t({.context = 8192, .sequences = 2, .prefill_chunk = 64});
  t.backend->before_step = [&] { gate.pass(); };
  RawClient stream(t.server->port()), whole(t.server->port());
  Json body = {{"prompt", "x"}, {"ignore_eos", true}, {"max_tokens", 60}};
  whole.post("/v1/completions", body.dump());
  gate.wait_until_held();
  body["stream"] = true;
  stream.post("/v1/completions", body.dump());
  while (t.engine.stats().waiting == 0) std::this_thread::yield();
  gate.let(1);
  gate.wait_until_held();
  CHECK(t.engine.stats().running == 2);
  t.server->set_grace(60);
  t.server->stop();
  gate.open();
  CHECK(stream.read_until("[DONE]").find("\"length\"") != std::string::npos);
  CHECK(whole.read_until("\"timings\"").find("\"length\"") != std::string::npos);
  // And nobody new comes in.
  httplib::Client c = t.client();
  CHECK_FALSE(c.Get("/health"));
}

TEST_CASE("a server that drains finishes what runs and takes nothing new") {
  Gate gate(3);
  TestServer t({.context = 8192, .sequences = 2, .prefill_chunk = 64});
  t.backend->before_step = [&] { gate.pass(); };
  RawClient stream(t.server->port()), late(t.server->port());
  Json body = {{"prompt", "x"}, {"ignore_eos", true}, {"max_tokens", 200}, {"stream", true}};
  stream.post("/v1/completions", body.dump());
  gate.wait_until_held();
  t.server->set_grace(60);
  std::thread drain([&] { t.server->drain(); });
  while (t.get("/ready").first != 503) std::this_thread::yield();
  for (const char* path : {"/health", "/v1/health", "/ping", "/v2/health/ready"})
    CHECK(t.get(path).first == 503);
  for (const char* path : {"/live", "/v2/health/live"}) CHECK(t.get(path).first == 200);
  httplib::Client c = t.client();
  const auto refused = c.Post("/v1/completions", R"({"prompt": "x"})", "application/json");
  REQUIRE(refused);
  CHECK(refused->status == 503);
  CHECK(refused->get_header_value("Retry-After") == "1");
  CHECK(refused->get_header_value("Connection") == "close");
  CHECK(Json::parse(refused->body)["error"]["code"] == "ending");
  CHECK(t.post("/v1/messages", {}).second["error"]["type"] == "overloaded_error");
  gate.open();
  const std::string all = stream.read_until("[DONE]");
  CHECK(all.find("\"length\"") != std::string::npos);
  CHECK(all.find("error") == std::string::npos);
  drain.join();
  late.close();
  // Who had come before the port was closed is told, and soon nobody can come any more.
  httplib::Result after = c.Get("/health");
  for (; after; after = c.Get("/health")) {
    CHECK(after->status == 503);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK_FALSE(after);
}

TEST_CASE("a server that drains waits no longer than it may, and says why an answer is cut") {
  using Clock = std::chrono::steady_clock;
  struct Case {
    const char *path, *end;
    Json body;
  };
  const Json chat = user("hi");
  const std::vector<Case> cases = {
      {"/v1/completions", "\"code\":\"ending\"", {{"prompt", "x"}, {"ignore_eos", true}, {"stream", true}}},
      {"/v1/chat/completions", "\"code\":\"ending\"", {{"messages", chat}, {"ignore_eos", true}}},
      {"/v1/messages", "overloaded_error", {{"messages", chat}, {"stream", true}}},
      {"/v1/responses", "response.failed", {{"input", "hi"}, {"stream", true}}},
  };
  for (Case c : cases) {
    const std::string path = c.path;
    CAPTURE(path);
    TestServer t({.context = 8192, .sequences = 1, .prefill_chunk = 64});
    t.script(std::string(8000, 'a'), false);
    c.body["max_tokens"] = 8000;
    RawClient client(t.server->port()), slow(t.server->port());
    client.post(c.path, c.body.dump());
    // One that never sends all of its body.
    slow.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{");
    std::string all;
    if (c.body.contains("stream"))
      all = client.read_until("data: ");
    else
      t.wait_generating();
    t.server->set_grace(0.2);
    const auto began = Clock::now();
    t.server->drain();
    all += client.read_until("never");
    CHECK(all.find(c.end) != std::string::npos);
    CHECK(all.find("the server is ending") != std::string::npos);
    CHECK(slow.read_until("never").find(" 503 ") != std::string::npos);
    CHECK(Clock::now() - began < std::chrono::seconds(15));
  }
}

TEST_CASE("a request on a kept connection is answered, however late it comes while the server ends") {
  ServeConfig config;
  config.http.last_call_seconds = 30;
  for (const int wait_ms : {0, 1, 5, 20, 50, 150}) {
    CAPTURE(wait_ms);
    TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 64}, config);
    RawClient kept(t.server->port()), fresh(t.server->port());
    kept.send("GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(kept.read_until("ready\"}").find(" 200 ") != std::string::npos);
    std::thread drain([&] { t.server->drain(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    for (RawClient* c : {&kept, &fresh}) {
      c->post("/v1/completions", R"({"prompt": "x", "max_tokens": 1})");
      const std::string said = c->read_until("usage\":");
      const bool served = said.starts_with("HTTP/1.1 200 ");
      CHECK((served || said.starts_with("HTTP/1.1 503 ")));
      if (served) continue;
      CHECK(said.find("Connection: close\r\n") != std::string::npos);
      CHECK(said.find("\"ending\"") != std::string::npos);
    }
    kept.close();
    fresh.close();
    drain.join();
  }
}

TEST_CASE("with a delay requests are served while balancers are told already") {
  TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 64});
  t.server->set_drain_delay(600);
  RawClient kept(t.server->port());
  std::thread drain([&] { t.server->drain(); });
  while (t.get("/ready").first != 503) std::this_thread::yield();
  kept.post("/v1/completions", R"({"prompt": "x", "max_tokens": 1, "ignore_eos": true})");
  const std::string served = kept.read_until("never");  // until it ends, as it says it will
  CHECK(served.starts_with("HTTP/1.1 200 "));
  CHECK(served.find("Connection: close\r\n") != std::string::npos);
  CHECK(t.get("/health").first == 503);
  t.server->stop();
  drain.join();
}

TEST_CASE("after the delay new connections are refused, and what comes on open ones is served") {
  ServeConfig config;
  config.http.last_call_seconds = 20;
  TestServer t({.context = 512, .sequences = 2, .prefill_chunk = 64}, config);
  t.server->set_drain_delay(0.3);
  RawClient kept(t.server->port()), other(t.server->port());
  const int port = t.server->port();
  std::thread drain([&] { t.server->drain(); });
  while (httplib::Client("127.0.0.1", port).Get("/live"))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (RawClient* c : {&kept, &other}) {
    c->post("/v1/completions", R"({"prompt": "x", "max_tokens": 1, "ignore_eos": true})");
    const std::string served = c->read_until("never");
    CHECK(served.starts_with("HTTP/1.1 200 "));
    CHECK(served.find("Connection: close\r\n") != std::string::npos);
  }
  t.server->stop();
  drain.join();
}

TEST_CASE("nothing is fetched and no path leads to a file because a request says so") {
  TestServer t;
  const auto with = [](const char* part) {
    return Json{{"messages", {{{"role", "user"}, {"content", {Json::parse(part)}}}}}};
  };
  for (const char* part : {R"({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}})",
                           R"({"type": "input_audio", "input_audio": {"data": ""}})",
                           R"({"type": "file", "file": {"file_id": "/etc/passwd"}})"})
    CHECK(t.post("/v1/chat/completions", with(part)).first == 400);
  for (const char* path :
       {"/../../etc/passwd", "/app.js/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"}) {
    RawClient raw(t.server->port());
    raw.send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path));
    const std::string answer = raw.read_until("never");
    CHECK(answer.find(" 404 ") != std::string::npos);
    CHECK(answer.find("root:") == std::string::npos);
  }
  CHECK(t.get("/app.js").first == 200);
  CHECK(t.get("/app%1bjs").first == 404);  // nor does a path's dot stand for what would steer a terminal
}
