// What coding agents send: system messages anywhere, tools of kinds that this server does not have, histories
// with pictures and broken calls.
#include <doctest/doctest.h>

#include <fstream>

#include "serve/api/anthropic.h"
#include "serve/api/readable.h"
#include "serve/api/responses.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

Json message(const char* role, const Json& content) { return {{"role", role}, {"content", content}}; }
Json block(const char* text) { return {{"type", "text"}, {"text", text}}; }

// What a streamed chat says: the message that a client keeps of it, with its finish_reason; checks the usage.
Json streamed(TestServer& t, const Json& body) {
  const auto [status, text] = t.post_text("/v1/chat/completions", body.dump());
  REQUIRE_MESSAGE(status == 200, text);
  Json out = {{"role", "assistant"}, {"content", nullptr}};
  bool usage = false;
  for (const std::string& line : sse_events(text)) {
    if (line == "[DONE]") continue;
    const Json event = Json::parse(line);
    usage |= event.contains("usage") && event["usage"].is_object();
    for (const Json& choice : event["choices"]) {
      if (!choice["finish_reason"].is_null()) out["finish_reason"] = choice["finish_reason"];
      const Json& delta = choice["delta"];
      if (delta.contains("content") && delta["content"].is_string())
        out["content"] = (out["content"].is_null() ? "" : out["content"].get<std::string>()) +
                         delta["content"].get<std::string>();
      for (const Json& piece : delta.value("tool_calls", Json::array())) {
        if (piece.contains("id"))
          out["tool_calls"].push_back(piece);
        else
          out["tool_calls"].back()["function"]["arguments"].get_ref<std::string&>() +=
              piece["function"]["arguments"];
      }
    }
  }
  CHECK(usage);
  return out;
}

}  // namespace

TEST_CASE(
    "Claude Code's requests: system messages inside, its first block, server tools, pictures in results") {
  const Json with = {{"messages", {message("user", "hi"), message("system", "Be brief.")}}};
  CHECK(chat_of_messages(with)["messages"][1] == message("system", "Be brief."));
  for (const char* changes : {"cc_version=2.1; cch=1;", "cc_version=9; cch=2;"}) {
    const std::string first = std::string("x-anthropic-billing-header: ") + changes;
    const Json chat = chat_of_messages(
        {{"system", {block(first.c_str()), block("Help.")}}, {"messages", {message("user", "hi")}}});
    CHECK(chat["messages"][0] == message("system", "Help."));
    CHECK(chat_of_messages({{"system", first}, {"messages", {message("user", "hi")}}})["messages"].size() ==
          1);
  }
  const Json tools = chat_of_messages(
      {{"messages", {message("user", "hi")}},
       {"tool_choice", {{"type", "auto"}}},
       {"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}, {"max_uses", 8}}}}});
  CHECK(tools["tools"].empty());
  CHECK_FALSE(tools.contains("tool_choice"));
  const Json image = {{"type", "image"}, {"source", {{"type", "base64"}, {"data", "AAAA"}}}};
  const Json document = {{"type", "document"}, {"source", {{"type", "text"}, {"data", "Its text."}}}};
  const Json result = chat_of_messages(
      {{"messages",
        {message("user", {{{"type", "tool_result"},
                           {"tool_use_id", "t"},
                           {"content", {block("seen: "), image, document}}}})}}})["messages"][0];
  const Json words = tolerant_messages(Json::array({result}))[0]["content"];
  CHECK(words[0]["text"] == "seen: ");
  CHECK(words[1]["text"] == "[image: it cannot be shown to this model]");
  CHECK(words[2]["text"] == "Its text.");
  CHECK(tolerant_messages(Json::array({result}), {.sees = true})[0]["content"][1] == image);
  TestServer blind;
  CHECK(blind.post("/v1/messages", {{"max_tokens", 1}, {"messages", {message("user", {image})}}}).first ==
        400);
}

TEST_CASE("an assistant's last message is gone on with, a demanded form is kept") {
  TestServer t;
  const Json open = {message("user", "hi"), message("assistant", "The end is near: ")};
  const auto prompt = [&](const Json& more) {
    Json body = {{"messages", open}};
    body.update(more);
    return t.post("/apply-template", body);
  };
  CHECK(prompt({{"continue_final_message", true}}).second["prompt"].get<std::string>().ends_with("near: "));
  CHECK_FALSE(prompt(Json::object()).second["prompt"].get<std::string>().ends_with("near: "));
  CHECK(prompt({{"continue_final_message", true}, {"add_generation_prompt", true}}).first == 400);
  CHECK(chat_of_messages({{"messages", open}})["continue_final_message"] == true);
  const Json schema = {{"type", "object"},
                       {"properties", {{"a", {{"const", 7}}}}},
                       {"required", {"a"}},
                       {"additionalProperties", false}};
  const Json format = {{"type", "json_schema"}, {"schema", schema}};
  for (const Json& more : {Json{{"output_format", format}}, Json{{"output_config", {{"format", format}}}}}) {
    Json body = {{"max_tokens", 200}, {"messages", {message("user", "x")}}};
    body.update(more);
    const Json m = t.post("/v1/messages", body).second;
    CHECK(Json::parse(m["content"].back()["text"].get<std::string>()) == Json{{"a", 7}});
  }
  const auto [status, long_one] =
      t.post("/v1/messages", {{"max_tokens", 5}, {"messages", {message("user", std::string(4000, 'x'))}}});
  CHECK(status == 400);
  CHECK(long_one["error"]["message"].get<std::string>().starts_with("prompt is too long: "));
}

TEST_CASE(
    "Codex's requests: namespaces and custom tools have the client's names again, others are left out") {
  const Json body = Json::parse(R"({"input": [
      {"role": "user", "content": "hi"},
      {"type": "function_call", "call_id": "a", "name": "add", "namespace": "mcp__notes", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": "x"}]},
      {"type": "custom_tool_call", "call_id": "b", "name": "edit", "input": "x"},
      {"type": "custom_tool_call_output", "call_id": "b", "output": "ok"},
      {"type": "web_search_call", "id": "w", "status": "completed"},
      {"type": "function_call_output", "call_id": "gone", "output": "left"}],
    "tools": [{"type": "web_search"}, {"type": "local_shell"}, {"type": "custom", "name": "edit"},
      {"type": "namespace", "name": "mcp__notes", "tools": [{"type": "function", "name": "add"}]}]})");
  ToolOrigins origins;
  const Json chat = chat_of_responses(body, &origins);
  REQUIRE(chat["tools"].size() == 2);
  CHECK(chat["tools"][1]["function"]["name"] == "mcp__notes__add");
  CHECK(origins.at("mcp__notes__add").name == "add");
  CHECK(origins.at("edit").custom);
  const Json& m = chat["messages"];
  CHECK(m[1]["tool_calls"][0]["function"]["name"] == "mcp__notes__add");
  CHECK(tolerant_messages(m)[2]["content"][0]["text"] == "[image: it cannot be shown to this model]");
  CHECK(m[3]["tool_calls"][0]["function"]["arguments"] == R"({"input":"x"})");
  CHECK(m[6] == message("user", "left"));

  TestServer t({.context = 2048,
                .sequences = 2,
                .prefill_chunk = 1024});  // a script begins behind a prompt of one step
  t.script(R"(@edit({"input":"a\nb"})@mcp__notes__add({"t":1}))");
  const Json out = t.post("/v1/responses", body).second["output"];
  REQUIRE(out.size() == 2);
  CHECK(out[0]["type"] == "custom_tool_call");
  CHECK(out[0]["input"] == "a\nb");
  CHECK(out[1]["type"] == "function_call");
  CHECK(out[1]["name"] == "add");
  CHECK(out[1]["namespace"] == "mcp__notes");
}

TEST_CASE("histories that clients cannot take back do not end a conversation") {
  const Json messages = Json::parse(R"([{"role": "user", "content": "x"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
      "function": {"name": "w", "arguments": "{\"city\": \"Gra"}}]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])");
  const Json m = tolerant_messages(messages);
  CHECK(m[1]["tool_calls"][0]["function"]["arguments"]["arguments"] == "{\"city\": \"Gra");
  CHECK(m[2]["content"][0]["text"] == "[image: it cannot be shown to this model]");
  CHECK(with_tools_for_functions(Json::parse(
            R"({"functions": [{"name": "f"}], "function_call": {"name": "f"}})"))["tool_choice"]["function"]
                                                                                 ["name"] == "f");
}

TEST_CASE("text held back for a stop string comes before the call behind it; usage tells of thoughts") {
  TestServer t;
  t.script("ok@f({})");
  Json body = {{"messages", {message("user", "x")}},
               {"stop", {"ok !"}},
               {"stream", true},
               {"temperature", 0},
               {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}};
  const auto r = t.client().Post("/v1/chat/completions", body.dump(), "application/json");
  REQUIRE(r);
  CHECK(r->body.find(R"("content":"ok")") < r->body.find("tool_calls"));
  CHECK(r->body.find(R"("content":"")") == std::string::npos);
  t.script("<a thought>done");
  const Json usage =
      t.post("/v1/chat/completions", {{"messages", {message("user", "x")}}, {"temperature", 0}})
          .second["usage"];
  CHECK(usage["completion_tokens_details"]["reasoning_tokens"] > 0);
}

TEST_CASE(
    "requests in the shapes of opencode, Qwen Code, pi, Continue and Cline: a call, and its result back") {
  std::ifstream file("tests/data/agents/requests.json");
  TestServer t({.context = 4096, .sequences = 2, .prefill_chunk = 2048});
  for (const Json& request : Json::parse(file)) {
    CAPTURE(request["agent"].get<std::string>());
    Json body = request["body"];
    if (request.contains("calls")) {
      t.script(fmt::format("@{}({})", request["calls"][0].get<std::string>(), request["calls"][1].dump()));
      const Json called = streamed(t, body);
      REQUIRE(called.contains("tool_calls"));
      CHECK(called["finish_reason"] == "tool_calls");
      CHECK(called["content"].is_null());
      const Json& function = called["tool_calls"][0]["function"];
      CHECK(function["name"] == request["calls"][0]);
      CHECK(Json::parse(function["arguments"].get<std::string>()) == request["calls"][1]);
      Json result = request["result"];
      result.update({{"role", "tool"}, {"tool_call_id", called["tool_calls"][0]["id"]}});
      body["messages"].push_back(called);
      body["messages"].push_back(result);
    }
    t.script("It ran.");
    const Json last = streamed(t, body);
    CHECK(last["content"] == "It ran.");
    CHECK(last["finish_reason"] == "stop");
    CHECK_FALSE(last.contains("tool_calls"));
  }
}

TEST_CASE("numbers of calls have the digits that the model wrote, on every API") {
  TestServer t({.context = 2048, .sequences = 2, .prefill_chunk = 1024});
  const std::string arguments = R"({"id":12345678901234567890123,"price":1.10,"name":"a"})";
  const Json schema = {{"type", "object"}};
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}};
  Json flat = tool["function"];
  flat["type"] = "function";
  const std::pair<const char*, Json> requests[] = {
      {"/v1/chat/completions", {{"messages", user("x")}, {"tools", {tool}}}},
      {"/v1/responses", {{"input", "x"}, {"tools", {flat}}}},
      {"/v1/messages",
       {{"max_tokens", 99},
        {"messages", user("x")},
        {"tools", {{{"name", "f"}, {"input_schema", schema}}}}}}};
  for (const auto& [path, request] : requests) {
    CAPTURE(path);
    t.script("@f(" + arguments + ")");
    std::string text = t.post_text(path, request.dump()).second;
    std::erase(text, '\\');  // of arguments as JSON text
    CHECK(text.find(arguments) != std::string::npos);
  }
}

// That they are then read once, scripts/agents.sh shows: it demands what a second session finds in the cache.
TEST_CASE("system messages behind the first question come before it, others stay") {
  const Json list = {message("user", "why"),     message("system", "folder"), message("user", "now"),
                     message("assistant", "so"), message("user", "how"),      message("system", "date")};
  const Json chat = systems_first(chat_of_messages({{"system", "rules"}, {"messages", list}}));
  const std::string before = systems_first(chat)["messages"].dump();
  CHECK(chat["messages"].dump() == before);  // once is enough
  std::string said;
  for (const Json& m : chat["messages"]) said += m["content"].get<std::string>() + " ";
  CHECK(said == "rules folder why now so how date ");
}
