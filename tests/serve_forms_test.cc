// Answers of a demanded form, from a model that knows nothing, over real sockets.
#include <doctest/doctest.h>

#include <regex>

#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

Json body_of(uint64_t seed, const Json& more) {
  Json body = {{"messages", user("Go")}, {"temperature", 1}, {"seed", seed}, {"max_tokens", 200}};
  body.update(more);
  return body;
}

// The answers to two seeds; all must have ended by themselves.
std::vector<Json> ask(const TestServer& server, const Json& more) {
  std::vector<Json> out;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const auto [status, answer] = server.post("/v1/chat/completions", body_of(seed, more));
    INFO(answer.dump());
    REQUIRE(status == 200);
    const Json& choice = answer["choices"][0];
    REQUIRE(choice["finish_reason"] != "length");
    out.push_back(choice["message"]);
  }
  return out;
}

const Json kSchema = Json::parse(R"({"type":"object","properties":{"color":{"enum":["red","green"]},
  "count":{"type":"integer","minimum":1,"maximum":20},"ok":{"type":"boolean"}},
  "required":["color","count"],"additionalProperties":false})");

void check_schema(const std::string& text) {
  INFO(text);
  const Json v = Json::parse(text);
  CHECK((v["color"] == "red" || v["color"] == "green"));
  CHECK((v["count"].is_number_integer() && v["count"] >= 1 && v["count"] <= 20));
  CHECK(v.size() == 2 + v.contains("ok"));
}

Json tool(const char* name, bool strict = false) {
  Json t = {{"type", "function"}, {"function", {{"name", name}, {"parameters", kSchema}}}};
  if (strict) t["function"]["strict"] = true;
  return t;
}

}  // namespace

TEST_CASE("every way to ask for a form gives it") {
  const TestServer server;
  const Json named = {{"name", "x"}, {"strict", true}, {"schema", kSchema}};
  for (const Json& more : {Json{{"response_format", {{"type", "json_schema"}, {"json_schema", named}}}},
                           Json{{"response_format", {{"type", "json_object"}, {"schema", kSchema}}}},
                           Json{{"guided_json", kSchema}}, Json{{"guided_json", kSchema.dump()}},
                           Json{{"json_schema", kSchema}}, Json{{"structured_outputs", {{"json", kSchema}}}}})
    for (const Json& m : ask(server, more)) check_schema(m["content"]);
  for (const Json& more : {Json{{"guided_choice", {"red", "deep blue"}}},
                           Json{{"structured_outputs", {{"choice", {"red", "deep blue"}}}}},
                           Json{{"guided_regex", "red|deep blue"}},
                           Json{{"grammar", "root ::= \"red\" | \"deep \" [b] \"lue\""}}})
    for (const Json& m : ask(server, more)) CHECK((m["content"] == "red" || m["content"] == "deep blue"));
  const auto [status, text] =
      server.post("/v1/completions", {{"prompt", "a"}, {"guided_regex", "[0-9]{3}"}, {"ignore_eos", true}});
  CHECK(status == 200);
  CHECK(std::regex_match(text["choices"][0]["text"].get<std::string>(), std::regex("[0-9]{3}")));
  CHECK(text["choices"][0]["finish_reason"] == "stop");
}

TEST_CASE("json_object is an object, also when the model wants to say something else") {
  TestServer server;
  server.script("{\"a\": [1, true], \"b\": \"x\\n\"}");
  auto [status, answer] = server.post(
      "/v1/chat/completions",
      {{"messages", user("Go")}, {"temperature", 0}, {"response_format", {{"type", "json_object"}}}});
  CHECK(Json::parse(answer["choices"][0]["message"]["content"].get<std::string>()) ==
        Json::parse(R"({"a":[1,true],"b":"x\n"})"));
  server.script("Sure! Here it is:");
  std::tie(status, answer) =
      server.post("/v1/chat/completions", {{"messages", user("Go")},
                                           {"temperature", 0},
                                           {"max_tokens", 40},
                                           {"response_format", {{"type", "json_object"}}}});
  CHECK(answer["choices"][0]["message"]["content"].get<std::string>().starts_with("{"));
}

TEST_CASE("streams and several choices keep the form too") {
  const TestServer server;
  Json body = body_of(5, {{"guided_json", kSchema}, {"stream", true}, {"n", 3}});
  std::vector<std::string> texts(3);
  for (const std::string& event : sse_events(server.post_text("/v1/chat/completions", body.dump()).second)) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    for (const Json& c : chunk["choices"])
      if (c["delta"].contains("content"))
        texts[c["index"].get<size_t>()] += c["delta"]["content"].get<std::string>();
  }
  for (const std::string& text : texts) check_schema(text);
}

TEST_CASE("calls that must be made, with arguments of the schema") {
  const TestServer server;
  const Json tools = {tool("paint"), tool("wash")};
  for (const Json& m :
       ask(server, {{"tools", tools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}})) {
    REQUIRE(m["tool_calls"].size() == 1);
    CHECK(m["content"].is_null());
    check_schema(m["tool_calls"][0]["function"]["arguments"]);
  }
  for (const Json& m : ask(server, {{"tools", tools},
                                    {"tool_choice", {{"type", "function"}, {"function", {{"name", "wash"}}}}},
                                    {"parallel_tool_calls", false}})) {
    REQUIRE(m["tool_calls"].size() == 1);
    CHECK(m["tool_calls"][0]["function"]["name"] == "wash");
    check_schema(m["tool_calls"][0]["function"]["arguments"]);
  }
  // Strict and free to call or not: whatever it does, calls keep the schema.
  for (const Json& m :
       ask(server,
           {{"tools", {tool("paint", true)}}, {"guided_choice", {"no"}}, {"parallel_tool_calls", false}})) {
    if (m.contains("tool_calls"))
      check_schema(m["tool_calls"][0]["function"]["arguments"]);
    else
      CHECK(m["content"] == "no");
  }
}

TEST_CASE("a form that takes too much work ends its own request, and says so") {
  const TestServer server;
  const Json more = {{"guided_regex", "([a-z ]{1,40}|[a-m ]{1,60}){1,40}"},
                     {"max_tokens", 300},
                     {"min_tokens", 299},
                     {"temperature", 1}};
  const auto [status, answer] = server.post("/v1/chat/completions", body_of(1, more));
  INFO(answer.dump());
  CHECK(status == 400);
  CHECK(answer["error"]["type"] == "invalid_request_error");
  CHECK(answer["error"]["message"].get<std::string>().find("takes too long") != std::string::npos);
  CHECK(server.post("/v1/chat/completions", body_of(1, {{"max_tokens", 2}})).first == 200);
}

TEST_CASE("what cannot be demanded is refused and named") {
  const TestServer server;
  const auto rejects = [&](const Json& more, const std::string& param) {
    const auto [status, answer] = server.post("/v1/chat/completions", body_of(1, more));
    INFO(answer.dump());
    CHECK(status == 400);
    CHECK(answer["error"]["param"] == param);
  };
  const Json tools = {tool("paint")};
  rejects({{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema");
  rejects({{"response_format",
            {{"type", "json_schema"}, {"json_schema", {{"schema", {{"not", Json::object()}}}}}}}},
          "response_format.json_schema.schema");
  rejects({{"guided_choice", Json::array()}}, "guided_choice");
  rejects({{"guided_regex", "a"}, {"grammar", "root ::= \"a\""}}, "guided_regex");
  rejects({{"grammar", "root ::= root \"a\" | \"b\""}}, "grammar");
  rejects({{"guided_json", "{"}}, "guided_json");
  rejects({{"structured_outputs", {{"regex", 1}}}}, "structured_outputs.regex");
  rejects({{"tool_choice", "required"}}, "tool_choice");
  rejects({{"tools", tools}, {"tool_choice", "always"}}, "tool_choice");
  rejects({{"tools", tools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "wash"}}}}}},
          "tool_choice");
}
