// OpenAI's Responses over real sockets; evaluations through echo and logprobs; what describes the server.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "apps/eval.h"
#include "apps/remote.h"
#include "serve/api/responses.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Told {
  std::string name;
  Json data;
};
std::vector<Told> events_of(const std::string& body) {
  std::vector<Told> out;
  for (size_t at = 0; at < body.size();) {
    const size_t line = body.find('\n', at), end = body.find("\n\n", at);
    REQUIRE(body.compare(at, 7, "event: ") == 0);
    REQUIRE(body.compare(line + 1, 6, "data: ") == 0);
    out.push_back({body.substr(at + 7, line - at - 7), Json::parse(body.substr(line + 7, end - line - 7))});
    CHECK(out.back().data["type"] == out.back().name);
    CHECK(out.back().data["sequence_number"] == out.size() - 1);
    at = end + 2;
  }
  return out;
}

const Json kTools =
    Json::array({{{"type", "function"}, {"name", "weather"}, {"parameters", {{"type", "object"}}}}});

}  // namespace

TEST_CASE("a response, whole and streamed") {
  TestServer t({.context = 512, .sequences = 4, .prefill_chunk = 256});
  const std::string text = "<let me see>Größe.@weather({\"city\":\"台北\"})";
  Json body = {{"input", "Hi"}, {"temperature", 0}, {"tools", kTools}, {"instructions", "Be brief."}};
  t.script(text);
  const auto [status, r] = t.post("/v1/responses", body);
  REQUIRE(status == 200);
  CHECK(r["object"] == "response");
  CHECK(r["status"] == "completed");
  CHECK(r["model"] == "tiny");
  CHECK(r["store"] == false);
  CHECK(r["tools"] == kTools);
  CHECK(r["instructions"] == "Be brief.");
  REQUIRE(r["output"].size() == 3);
  CHECK(r["output"][0]["type"] == "reasoning");
  CHECK(r["output"][0]["content"][0]["text"] == "let me see");
  CHECK(r["output"][1]["content"][0]["type"] == "output_text");
  CHECK(r["output"][1]["content"][0]["text"] == "Größe.");
  CHECK(r["output"][2]["type"] == "function_call");
  CHECK(r["output"][2]["name"] == "weather");
  CHECK(r["output"][2]["arguments"] == "{\"city\":\"台北\"}");
  CHECK(r["output"][2]["call_id"].get<std::string>().starts_with("call_"));
  const Json& usage = r["usage"];
  CHECK(usage["total_tokens"] == usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  CHECK(usage["output_tokens_details"]["reasoning_tokens"] == t.tokenizer.encode("let me see", false).size());

  t.script(text);
  body["stream"] = true;
  const std::vector<Told> events = events_of(t.post_text("/v1/responses", body.dump()).second);
  REQUIRE(events.size() > 8);
  CHECK(events[0].name == "response.created");
  CHECK(events[1].name == "response.in_progress");
  CHECK(events.back().name == "response.completed");
  std::string thinking, content, arguments;
  std::vector<std::string> order;
  for (const Told& e : events) {
    if (e.name == "response.reasoning_text.delta") thinking += e.data["delta"];
    if (e.name == "response.output_text.delta") content += e.data["delta"];
    if (e.name == "response.function_call_arguments.delta") arguments += e.data["delta"];
    if (e.name == "response.output_item.added" || e.name == "response.output_item.done")
      order.push_back(e.data["item"]["type"].get<std::string>() + e.name.substr(e.name.rfind('.')));
    if (e.name == "response.output_text.done") CHECK(e.data["text"] == content);
    if (e.name == "response.function_call_arguments.done") CHECK(e.data["arguments"] == arguments);
  }
  CHECK(thinking == "let me see");
  CHECK(content == "Größe.");
  CHECK(arguments == "{\"city\":\"台北\"}");
  CHECK(order == std::vector<std::string>{"reasoning.added", "reasoning.done", "message.added",
                                          "message.done", "function_call.added", "function_call.done"});
  const Json& last = events.back().data["response"];
  CHECK(last["output"].size() == 3);
  CHECK(last["output"][1]["content"] == r["output"][1]["content"]);
  CHECK(last["usage"]["total_tokens"] == usage["total_tokens"]);
}

TEST_CASE("a response that is cut, a form that is demanded, requests that are wrong") {
  TestServer t;
  t.script("many words come here", false);
  const Json cut =
      t.post("/v1/responses", {{"input", "Hi"}, {"temperature", 0}, {"max_output_tokens", 2}}).second;
  CHECK(cut["status"] == "incomplete");
  CHECK(cut["incomplete_details"]["reason"] == "max_output_tokens");
  const Json schema = {{"type", "object"},
                       {"properties", {{"n", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}}},
                       {"required", {"n"}}};
  const Json formed =
      t.post("/v1/responses",
             {{"input", "Hi"},
              {"text",
               {{"format", {{"type", "json_schema"}, {"name", "x"}, {"strict", true}, {"schema", schema}}}}}})
          .second;
  const Json value = Json::parse(formed["output"][0]["content"][0]["text"].get<std::string>());
  CHECK(value["n"].is_number_integer());
  const auto rejects = [&](const Json& body, const std::string& param) {
    const auto [status, j] = t.post("/v1/responses", body);
    CAPTURE(body.dump());
    CHECK(status == 400);
    REQUIRE(j.contains("error"));
    CHECK(j["error"]["param"] == param);
  };
  rejects(Json::object(), "input");
  rejects({{"input", Json::array()}}, "input");
  rejects({{"input", {5}}}, "input[0]");
  rejects({{"input", {{{"role", "robot"}, {"content", "x"}}}}}, "input[0].role");
  rejects({{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}},
          "input[0].content[0].type");
  rejects({{"input", {{{"type", "function_call_output"}, {"call_id", "x"}}}}}, "input[0].output");
  rejects({{"input", "x"}, {"tool_choice", 5}}, "tool_choice");
  rejects({{"input", "x"}, {"text", {{"format", {{"type", "yaml"}}}}}}, "response_format.type");
  rejects({{"input", "x"}, {"previous_response_id", "resp_1"}}, "previous_response_id");
  rejects({{"input", "x"}, {"background", true}}, "background");
  rejects({{"input", "x"}, {"temperature", "hot"}}, "temperature");
}

TEST_CASE("items become messages") {
  const Json chat = chat_of_responses(Json::parse(R"({"instructions": "Be brief.", "input": [
    {"role": "developer", "content": "More."},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"x\":1}"},
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    {"role": "user", "content": "And?"}]})"));
  const Json& m = chat["messages"];
  REQUIRE(m.size() == 7);
  CHECK(m[0] == Json{{"role", "system"}, {"content", "Be brief."}});
  CHECK(m[1]["role"] == "system");
  CHECK(m[2]["content"] == "ab");
  CHECK(m[3]["reasoning_content"] == "hm");
  CHECK(m[3]["content"] == "Wait.");
  CHECK(m[3]["tool_calls"].size() == 2);
  CHECK(m[3]["tool_calls"][1]["function"]["arguments"] == "{\"x\":1}");
  CHECK(m[5] == Json{{"role", "tool"}, {"tool_call_id", "c2"}, {"content", "two"}});
  CHECK(m[6]["content"] == "And?");
}

// As lm-evaluation-harness asks: token ids, echo, one alternative, one token more; it sums token_logprobs of
// the continuation and calls it greedy where each is the largest of its top_logprobs.
TEST_CASE("log likelihoods of prompts are those of the model") {
  TestServer t(
      {.context = 512, .sequences = 4, .prefill_chunk = 7, .cache_k = DType::f32, .cache_v = DType::f32});
  std::vector<std::vector<Token>> prompts;
  for (const char* text : {"The capital of Norway is Oslo.", "Größe 你好", "ab"}) {
    prompts.push_back(t.tokenizer.encode(text, false));
    prompts.back().insert(prompts.back().begin(), t.tokenizer.data().bos);
  }
  const auto [status, j] = t.post("/v1/completions", {{"model", "tiny"},
                                                      {"prompt", prompts},
                                                      {"max_tokens", 1},
                                                      {"logprobs", 1},
                                                      {"echo", true},
                                                      {"seed", 1234},
                                                      {"temperature", 0}});
  REQUIRE(status == 200);
  REQUIRE(j["choices"].size() == prompts.size());
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<Token>& tokens = prompts[p];
    const Json& l = j["choices"][p]["logprobs"];
    REQUIRE(l["token_logprobs"].size() == tokens.size() + 1);
  // The same as `carat eval logits` computes it.
