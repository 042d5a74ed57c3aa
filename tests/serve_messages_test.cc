// Anthropic's Messages API over real sockets, and what keeps the server up.
#include <doctest/doctest.h>

#include <atomic>

#include "serve/api/anthropic.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

Json ask(const std::string& text, const Json& more = Json::object()) {
  Json body = {{"model", "tiny"}, {"max_tokens", 60}, {"temperature", 0}, {"messages", user(text)}};
  body.update(more);
  return body;
}

struct Events {
  std::vector<std::string> names;
  std::vector<Json> data;
  const Json& first(const std::string& name) const {
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return data[i];
    FAIL("no event " << name);
    return data[0];
  }
};
Events events_of(const std::string& body) {
  Events out;
  for (size_t at = 0; at < body.size();) {
    const size_t line = body.find('\n', at), end = body.find("\n\n", at);
    REQUIRE(body.compare(at, 7, "event: ") == 0);
    out.names.push_back(body.substr(at + 7, line - at - 7));
    REQUIRE(body.compare(line + 1, 6, "data: ") == 0);
    out.data.push_back(Json::parse(body.substr(line + 7, end - line - 7)));
    CHECK(out.data.back()["type"] == out.names.back());
    at = end + 2;
  }
  return out;
}

Json tools() {
  return Json::parse(R"([{"name":"add","description":"adds","input_schema":{"type":"object","properties":{
    "a":{"type":"integer","minimum":0,"maximum":9},"b":{"type":"integer","minimum":0,"maximum":9}},
    "required":["a","b"],"additionalProperties":false}}])");
}

}  // namespace

TEST_CASE("a message") {
  TestServer t;
  t.script("Hello there");
  const auto [status, m] = t.post("/v1/messages", ask("Hi", {{"system", "Be brief."}}));
  REQUIRE(status == 200);
  CHECK(m["type"] == "message");
  CHECK(m["role"] == "assistant");
  CHECK(m["model"] == "tiny");
  CHECK(m["id"].get<std::string>().starts_with("msg_"));
  CHECK(m["content"] == Json::parse(R"([{"type":"text","text":"Hello there"}])"));
  CHECK(m["stop_reason"] == "end_turn");
  CHECK(m["stop_sequence"].is_null());
  CHECK(m["usage"]["output_tokens"] > 0);
  const auto [counted, tokens] =
      t.post("/v1/messages/count_tokens", {{"messages", user("Hi")}, {"system", "Be brief."}});
  CHECK(counted == 200);
  CHECK(tokens["input_tokens"] == m["usage"]["input_tokens"]);
}

TEST_CASE("ends of a message") {
  TestServer t;
  t.script("one two three");
  auto m = t.post("/v1/messages", ask("Hi", {{"stop_sequences", {"xx", " thr"}}})).second;
  CHECK(m["content"][0]["text"] == "one two");
  CHECK(m["stop_reason"] == "stop_sequence");
  CHECK(m["stop_sequence"] == " thr");
  t.script("one two three");
  m = t.post("/v1/messages", ask("Hi", {{"max_tokens", 2}})).second;
  CHECK(m["stop_reason"] == "max_tokens");
}

TEST_CASE("thinking, text and calls, whole and as events") {
  TestServer t({.context = 1024, .sequences = 1, .prefill_chunk = 512});
  const std::string script = "<hm, so>It is @add({\"a\":1,\"b\":2})@add({\"a\":3,\"b\":4})";
  t.script(script);
  const Json body =
      ask("Hi", {{"tools", tools()}, {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}});
  const Json m = t.post("/v1/messages", body).second;
  INFO(m.dump());
  REQUIRE(m["content"].size() == 4);
  CHECK(m["content"][0]["thinking"] == "hm, so");
  CHECK(m["content"][1]["text"] == "It is ");
  CHECK(m["content"][2]["name"] == "add");
  CHECK(m["content"][2]["input"] == Json::parse(R"({"a":1,"b":2})"));
  CHECK(m["content"][3]["input"] == Json::parse(R"({"a":3,"b":4})"));
  CHECK(m["stop_reason"] == "tool_use");

  t.script(script);
  Json streamed = body;
  streamed["stream"] = true;
  const Events e = events_of(t.post_text("/v1/messages", streamed.dump()).second);
  CHECK(e.names.front() == "message_start");
  CHECK(e.names.back() == "message_stop");
  CHECK(e.first("message_start")["message"]["usage"]["input_tokens"] == m["usage"]["input_tokens"]);
  CHECK(e.first("message_delta")["delta"]["stop_reason"] == "tool_use");
  CHECK(e.first("message_delta")["usage"]["output_tokens"] == m["usage"]["output_tokens"]);
  Json blocks = Json::array();  // put together again as the client library does
  int open = -1;
  for (const Json& d : e.data) {
    if (d["type"] == "content_block_start") {
      CHECK(open == -1);
      open = d["index"];
      CHECK(static_cast<size_t>(open) == blocks.size());
      blocks.push_back(d["content_block"]);
      blocks.back()["json"] = "";
    } else if (d["type"] == "content_block_delta") {
      REQUIRE(d["index"] == open);
      const Json& delta = d["delta"];
      Json& block = blocks.back();
      if (delta["type"] == "text_delta")
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      if (delta["type"] == "thinking_delta")
        block["thinking"] = block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      if (delta["type"] == "input_json_delta")
        block["json"] = block["json"].get<std::string>() + delta["partial_json"].get<std::string>();
    } else if (d["type"] == "content_block_stop") {
      CHECK(d["index"] == open);
      open = -1;
    }
  }
  REQUIRE(blocks.size() == 4);
  CHECK(blocks[0]["thinking"] == "hm, so");
  CHECK(blocks[1]["text"] == "It is ");
  CHECK(blocks[2]["json"] == R"({"a":1,"b":2})");
  CHECK(blocks[3]["json"] == R"({"a":3,"b":4})");
  CHECK(blocks[2]["id"] != blocks[3]["id"]);
}

TEST_CASE("a tool that must be used, and its result") {
  TestServer t;
  for (const Json& choice : {Json{{"type", "any"}, {"disable_parallel_tool_use", true}},
                             Json{{"type", "tool"}, {"name", "add"}, {"disable_parallel_tool_use", true}}}) {
    const Json m =
        t.post("/v1/messages", ask("Hi", {{"tools", tools()}, {"tool_choice", choice}, {"temperature", 1}}))
            .second;
    INFO(m.dump());
    REQUIRE(m["content"].size() == 1);
    CHECK(m["content"][0]["type"] == "tool_use");
    CHECK(m["content"][0]["input"].size() == 2);
    CHECK(m["stop_reason"] == "tool_use");
  }
  const Json body = Json::parse(R"({"messages":[{"role":"user","content":"1+2?"},
    {"role":"assistant","content":[{"type":"thinking","thinking":"add","signature":""},{"type":"text","text":"Let me see"},
      {"type":"tool_use","id":"t1","name":"add","input":{"a":1,"b":2}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"3"}]},{"type":"text","text":"So?"}]}]})");
  const Json chat = chat_of_messages(body)["messages"];
  REQUIRE(chat.size() == 4);
  CHECK(chat[1]["reasoning_content"] == "add");
  CHECK(chat[1]["tool_calls"][0]["function"]["arguments"] == Json::parse(R"({"a":1,"b":2})"));
  CHECK(chat[2] == Json::parse(R"({"role":"tool","tool_call_id":"t1","content":"3"})"));
  CHECK(chat[3]["content"] == "So?");
}

TEST_CASE("errors of the Messages API have its shape") {
  ServeConfig config;
  config.api_keys = {"secret"};
  const TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 64}, config);
  httplib::Client c = t.client();
  const auto post = [&](const Json& body, const httplib::Headers& headers) {
    const auto r = c.Post("/v1/messages", headers, body.dump(), "application/json");
    REQUIRE(r);
    return std::pair(r->status, Json::parse(r->body));
  };
  const auto check = [](const std::pair<int, Json>& got, int status, const char* type) {
    INFO(got.second.dump());
    CHECK(got.first == status);
    CHECK(got.second["type"] == "error");
    CHECK(got.second["error"]["type"] == type);
    CHECK_FALSE(got.second["error"]["message"].get<std::string>().empty());
  };
  const httplib::Headers key = {{"x-api-key", "secret"}};
  check(post(ask("Hi"), {}), 401, "authentication_error");
  check(post({{"messages", user("Hi")}}, key), 400, "invalid_request_error");
  check(post(ask("Hi", {{"messages", Json::array()}}), key), 400, "invalid_request_error");
  check(post(ask("Hi", {{"tool_choice", {{"type", "any"}}}}), key), 400, "invalid_request_error");
  check(post(ask("Hi", {{"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}}), key), 400,
        "invalid_request_error");
}

TEST_CASE("a stuck step: who waits is told, /health turns red and green again") {
  ServeConfig config;
  config.stuck_seconds = 0.3;
  TestServer t({.context = 512, .sequences = 2, .prefill_chunk = 64}, config);
  CHECK(t.get("/health").first == 200);
  CHECK(t.get("/ready").first == 200);
  std::atomic<bool> hang = true;
  t.backend->before_step = [&] {
    while (hang) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  std::pair<int, std::string> streamed;
  std::thread other([&] { streamed = t.post_text("/v1/messages", ask("Hi", {{"stream", true}}).dump()); });
  const auto [status, j] = t.post("/v1/chat/completions", {{"messages", user("Hi")}});
  other.join();
  CHECK(status == 500);
  CHECK(j["error"]["message"].get<std::string>().find("stuck") != std::string::npos);
  CHECK(streamed.second.find("event: error") != std::string::npos);
  CHECK(t.get("/health").first == 503);
  CHECK(t.get("/ready").first == 503);
  CHECK(t.post("/v1/chat/completions", {{"messages", user("Hi")}}).first == 503);
  hang = false;
  REQUIRE(t.idle());
  CHECK(t.get("/health").first == 200);
  CHECK(t.post("/v1/chat/completions", {{"messages", user("Hi")}, {"max_tokens", 3}}).first == 200);
}

TEST_CASE("names other than this machine's are refused; requests have ids") {
  const TestServer t;
  const auto status = [&](const char* host) { return t.get("/v1/models", {{"Host", host}}).first; };
  for (const char* good : {"localhost", "LOCALHOST:8080", "127.0.0.1:1234", "[::1]:8080"}) {
    INFO(std::string(good));
    CHECK(status(good) == 200);
  }
  for (const char* bad : {"evil.example", "evil.example:8080", "localhost.evil.example", "192.168.0.1"}) {
    INFO(std::string(bad));
    CHECK(status(bad) == 403);
  }
  httplib::Client c = t.client();
  CHECK(c.Get("/health", {{"X-Request-Id", "abc-1"}})->get_header_value("X-Request-Id") == "abc-1");
  CHECK(c.Get("/health", {{"X-Request-Id", "a b\tc"}})->get_header_value("X-Request-Id").starts_with("req-"));
  CHECK(c.Get("/health")->get_header_value("X-Request-Id") !=
        c.Get("/health")->get_header_value("X-Request-Id"));
}
