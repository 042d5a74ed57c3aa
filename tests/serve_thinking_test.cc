// Whether a model thinks: as its chat template does, unless the server's flags or the request say otherwise.
#include <doctest/doctest.h>

#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Way {
  const char* path;
  Json on, off;  // fields of a request
};

const std::vector<Way>& ways() {
  static const Json effort = {{"reasoning_effort", "high"}}, none = {{"reasoning_effort", "none"}};
  static const auto kwargs = [](bool on) {
    return Json{{"chat_template_kwargs", {{"enable_thinking", on}}}};
  };
  static const std::vector<Way> all = {
      {"/v1/chat/completions", effort, none},
      {"/v1/chat/completions", {{"reasoning_effort", "low"}}, {{"reasoning_effort", "minimal"}}},
      {"/v1/chat/completions", kwargs(true), kwargs(false)},
      {"/v1/chat/completions", {{"enable_thinking", true}}, {{"enable_thinking", false}}},
      {"/v1/responses", {{"reasoning", {{"effort", "medium"}}}}, {{"reasoning", {{"effort", "none"}}}}},
      {"/v1/messages",
       {{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}},
       {{"thinking", {{"type", "disabled"}}}}},
      {"/v1/messages", {{"thinking", {{"type", "adaptive"}}}}, {{"thinking", {{"type", "disabled"}}}}},
      {"/api/chat", {{"think", true}}, {{"think", false}}},
      {"/api/chat", {{"think", "high"}}, {{"think", false}}},
      {"/api/generate", {{"think", true}}, {{"think", false}}},
  };
  return all;
}

bool thought(TestServer& t, const std::string& path, Json body) {
  body["model"] = "tiny";
  if (path == "/v1/responses")
    body["input"] = "Hi";
  else if (path == "/api/generate")
    body["prompt"] = "Hi";
  else
    body["messages"] = user("Hi");
  if (path == "/v1/messages") body["max_tokens"] = 2000;
  if (path.starts_with("/api/")) body["stream"] = false;
  t.script("abc>xyz");
  const auto [status, r] = t.post(path, body);
  INFO(path, " ", body.dump(), " ", r.dump());
  REQUIRE(status == 200);
  if (path == "/v1/chat/completions") return r["choices"][0]["message"].contains("reasoning_content");
  if (path == "/v1/responses") return r["output"][0]["type"] == "reasoning";
  if (path == "/v1/messages") return r["content"][0]["type"] == "thinking";
  return (path == "/api/chat" ? r["message"] : r).contains("thinking");
}

}  // namespace

TEST_CASE("thinking is the template's choice, then the server's, then the request's") {
  for (const std::optional<bool> flag : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
    ServeConfig config;
    config.think = flag;
    TestServer t({.context = 512, .sequences = 4, .prefill_chunk = 64}, config);
    for (const bool by_default : {true, false}) {
      t.chat.think = by_default;
      CAPTURE(by_default);
      CAPTURE(flag.value_or(by_default));
      for (const Way& way : ways()) {
        CHECK(thought(t, way.path, Json::object()) == flag.value_or(by_default));
        CHECK(thought(t, way.path, way.on));
        CHECK_FALSE(thought(t, way.path, way.off));
      }
    }
  }
}

TEST_CASE("the more a request says of thinking, the more it counts") {
  TestServer t;
  t.chat.think = true;
  const auto chat = [&](const Json& more) { return thought(t, "/v1/chat/completions", more); };
  CHECK_FALSE(chat({{"thinking_token_budget", 0}}));
  CHECK_FALSE(chat({{"reasoning_effort", "high"}, {"chat_template_kwargs", {{"enable_thinking", false}}}}));
  CHECK(chat({{"reasoning_effort", "none"}, {"enable_thinking", true}}));
  CHECK(chat({{"chat_template_kwargs", {{"other", 1}}}}));
}
