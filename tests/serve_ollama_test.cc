// Ollama's API over real sockets: chat and generate, whole and line by line, and what tells of models.
#include <doctest/doctest.h>

#include <sstream>

#include "serve/api/ollama.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

std::vector<Json> lines_of(const std::string& body) {
  std::vector<Json> out;
  std::istringstream in(body);
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

const Json kWeather = Json::array(
    {{{"type", "function"}, {"function", {{"name", "weather"}, {"parameters", {{"type", "object"}}}}}}});

}  // namespace

TEST_CASE("numbers of a call keep their digits in Ollama's chat, too") {
  TestServer t({.context = 512, .sequences = 4, .prefill_chunk = 256});
  const std::string arguments = R"({"a":-18446744073709551617,"b":[12345678901234567890123]})";
  Json body = {{"model", "tiny"}, {"messages", user("Hi")}, {"tools", kWeather}};
  for (const bool stream : {false, true}) {
    t.script("@weather(" + arguments + ")");
    body["stream"] = stream;
    const auto [status, text] = t.post_text("/api/chat", body.dump());
    CHECK(status == 200);
    CHECK(text.find("\"arguments\":" + arguments) != std::string::npos);
  }
}

TEST_CASE("Ollama's chat, whole and streamed") {
  TestServer t({.context = 512, .sequences = 4, .prefill_chunk = 256});
  const std::string text = "<let me see>Größe.@weather({\"city\":\"台北\"})";
  Json body = {{"model", "tiny"}, {"messages", user("Hi")}, {"tools", kWeather}, {"stream", false}};
  t.script(text);
  const auto [status, whole] = t.post("/api/chat", body);
  REQUIRE(status == 200);
  CHECK(whole["model"] == "tiny");
  CHECK(whole["message"]["role"] == "assistant");
  CHECK(whole["message"]["content"] == "Größe.");
  CHECK(whole["message"]["thinking"] == "let me see");
  REQUIRE(whole["message"]["tool_calls"].size() == 1);
  CHECK(whole["message"]["tool_calls"][0]["function"]["name"] == "weather");
  CHECK(whole["message"]["tool_calls"][0]["function"]["arguments"] == Json{{"city", "台北"}});
  CHECK(whole["done"] == true);
  CHECK(whole["done_reason"] == "stop");
  CHECK(whole["prompt_eval_count"].get<int>() > 4);
  CHECK(whole["eval_count"] == t.tokenizer.encode(text, false).size() + 1);
  CHECK(whole["total_duration"].get<int64_t>() >=
        whole["prompt_eval_duration"].get<int64_t>() + whole["eval_duration"].get<int64_t>());
  CHECK(whole["created_at"].get<std::string>().size() == 30);

  t.script(text);
  body.erase("stream");  // streaming is the default
  httplib::Client c = t.client();
  const auto r = c.Post("/api/chat", body.dump(), "application/json");
  REQUIRE(r);
  CHECK(r->get_header_value("Content-Type") == "application/x-ndjson");
  const std::vector<Json> lines = lines_of(r->body);
  REQUIRE(lines.size() > 3);
  std::string content, thinking;
  int calls = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& m = lines[i]["message"];
    content += m["content"];
    if (m.contains("thinking")) thinking += m["thinking"];
    if (m.contains("tool_calls")) {
      ++calls;
      CHECK(m["tool_calls"] ==
            Json::array(
                {{{"id", m["tool_calls"][0]["id"]},
                  {"function", {{"index", 0}, {"name", "weather"}, {"arguments", {{"city", "台北"}}}}}}}));
    }
    CHECK(lines[i]["done"] == (i + 1 == lines.size()));
  }
  CHECK(content == "Größe.");
  CHECK(thinking == "let me see");
  CHECK(calls == 1);
  CHECK(lines.back()["eval_count"] == whole["eval_count"]);
  CHECK(lines.back()["done_reason"] == "stop");
}

TEST_CASE("Ollama's generate: a system text, a prompt as it stands, a context to go on with") {
  TestServer t({.context = 512, .sequences = 4, .prefill_chunk = 256});
  t.script("One two.");
  Json r = t.post("/api/generate", {{"prompt", "Say"}, {"system", "Be brief."}, {"stream", false}}).second;
  CHECK(r["response"] == "One two.");
  const std::string said = t.tokenizer.decode(r["context"].get<std::vector<Token>>(), false);
  CHECK(said.find("system: Be brief.\nuser: Say\nmodel:One two.") != std::string::npos);
  const size_t before = r["context"].size();
  t.script("Three.");
  r = t.post("/api/generate", {{"prompt", "More"}, {"context", r["context"]}, {"stream", false}}).second;
  CHECK(r["response"] == "Three.");
  CHECK(r["context"].size() > before + 5);
  CHECK(r["prompt_eval_count"].get<size_t>() > before);

  t.script("@weather({})");
  r = t.post("/api/generate", {{"prompt", "abc"}, {"raw", true}, {"stream", false}}).second;
  CHECK(r["response"] == "@weather({})");  // nothing is read out of it
  CHECK(r["prompt_eval_count"] == encode_prompt(t.tokenizer, "abc").size());
  CHECK_FALSE(r.contains("context"));
  t.script("abcdef", false);
  r = t.post("/api/generate",
             {{"prompt", "x"}, {"raw", true}, {"stream", false}, {"options", {{"num_predict", 2}}}})
          .second;
  CHECK(r["done_reason"] == "length");
  CHECK(r["eval_count"] == 2);
  t.script("abcSTOPdef");
  r = t.post("/api/generate", {{"prompt", "x"}, {"stream", false}, {"options", {{"stop", {"STOP"}}}}}).second;
  CHECK(r["response"] == "abc");
  t.script("ab");
  r = t.post("/api/generate", {{"prompt", "x"}, {"stream", false}, {"logprobs", true}, {"top_logprobs", 2}})
          .second;
  REQUIRE(r["logprobs"].size() == t.tokenizer.encode("ab", false).size());
  CHECK(r["logprobs"][0]["top_logprobs"].size() == 2);
}

TEST_CASE("a format that Ollama's clients demand is kept") {
  TestServer t;
  const Json schema = {{"type", "object"},
                       {"properties", {{"n", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}}},
                       {"required", {"n"}}};
  const Json r =
      t.post("/api/chat", {{"messages", user("Hi")}, {"format", schema}, {"stream", false}}).second;
  CHECK(Json::parse(r["message"]["content"].get<std::string>())["n"].is_number_integer());
  const auto [status, j] = t.post("/api/chat", {{"messages", user("Hi")}, {"format", "yaml"}});
  CHECK(status == 400);
  CHECK(j["error"].get<std::string>().find("format") == 0);
}

TEST_CASE("histories of Ollama's clients become messages of a chat") {
  const Json m = chat_of_ollama(Json::parse(R"({"messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
      {"function": {"name": "f", "arguments": {"x": 1}}}, {"function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "content": "of g", "tool_name": "g"},
    {"role": "tool", "content": "of f"},
    {"role": "assistant", "content": "Two.", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "content": "again", "tool_call_id": "a"}],
    "think": false, "options": {"num_predict": -2, "num_ctx": 4096, "temperature": 0.5}})"))
                     .body;
  const Json& calls = m["messages"][2]["tool_calls"];
  CHECK(m["messages"][2]["reasoning_content"] == "hm");
  CHECK(calls[0]["function"]["arguments"] == Json{{"x", 1}});
  CHECK(m["messages"][3]["tool_call_id"] == calls[1]["id"]);
  CHECK(m["messages"][4]["tool_call_id"] == calls[0]["id"]);
  CHECK(m["messages"][6]["tool_call_id"] == "a");
  CHECK(m["enable_thinking"] == false);
  CHECK(m["max_tokens"] == -1);
  CHECK(m["temperature"] == 0.5);
  CHECK(m["stream"] == true);
  CHECK_FALSE(m.contains("num_ctx"));
}

TEST_CASE("what Ollama's API is asked and cannot do is refused with the reason") {
  TestServer t;
  const auto refused = [&](const char* path, const Json& body, int expected, const std::string& word) {
    const auto answer = t.post(path, body);
    const int status = answer.first;
    const Json& j = answer.second;
    CAPTURE(path);
    CAPTURE(j.dump());
    CHECK(status == expected);
    REQUIRE(j["error"].is_string());
    CHECK(j["error"].get<std::string>().find(word) != std::string::npos);
  };
  const Json picture = Json::array({{{"role", "user"}, {"content", "what?"}, {"images", {"aGk="}}}});
  refused("/api/chat", {{"messages", picture}}, 400, "images");
  refused("/api/generate", {{"prompt", "x"}, {"images", {"aGk="}}}, 400, "images");
  refused("/api/generate", {{"prompt", "x"}, {"template", "{{ .Prompt }}"}}, 400, "raw");
  refused("/api/generate", {{"prompt", "x"}, {"raw", true}, {"system", "y"}}, 400, "system");
  refused("/api/generate", {{"prompt", "x"}, {"context", {99999999}}}, 400, "no token");
  refused("/api/chat", {{"messages", user("Hi")}, {"think", "much"}}, 400, "think");
  refused("/api/chat", {{"messages", user("Hi")}, {"options", {{"temperature", "hot"}}}}, 400, "temperature");
  refused("/api/chat", {{"messages", {{{"role", "tool"}, {"content", "x"}}}}}, 400, "no call");
  refused("/api/embed", {{"model", "tiny"}, {"input", "x"}}, 400, "embeddings");
  refused("/api/embeddings", {{"model", "tiny"}, {"prompt", "x"}}, 400, "embeddings");
  refused("/api/create", {{"model", "x"}, {"from", "tiny"}}, 501, "convert");
  refused("/api/copy", {{"source", "tiny"}, {"destination", "x"}}, 501, "--alias");
  refused("/api/push", {{"model", "x"}}, 501, "publishes");
  refused("/api/pull", {{"model", "no/such"}}, 403, "carat pull");
  refused("/api/show", {{"model", "no/such"}}, 404, "not found");
  httplib::Client c = t.client();
  const auto r = c.Delete("/api/delete", Json{{"model", "tiny"}}.dump(), "application/json");
  REQUIRE(r);
  CHECK(r->status == 501);
  CHECK(Json::parse(r->body)["error"].is_string());
}

TEST_CASE("models in Ollama's words") {
  TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 64});
  const Json tags = Json::parse(t.get("/api/tags").second);
  REQUIRE(tags["models"].size() == 2);
  CHECK(tags["models"][0]["name"] == "tiny");
  CHECK(tags["models"][1]["name"] == "alias");
  CHECK(tags["models"][0]["digest"].get<std::string>().size() == 64);
  CHECK(t.post("/api/show", {{"model", "tiny:latest"}}).second["template"] == "template");
  const Json running = Json::parse(t.get("/api/ps").second);
  REQUIRE(running["models"].size() == 1);
  CHECK(running["models"][0]["context_length"] == 512);
  CHECK(Json::parse(t.get("/api/version").second)["version"].is_string());
  const std::vector<Json> pulled = lines_of(t.post_text("/api/pull", R"({"model": "tiny"})").second);
  CHECK(pulled.back()["status"] == "success");
  CHECK(t.post("/api/pull", {{"name", "tiny"}, {"stream", false}}).second == Json{{"status", "success"}});
  CHECK(t.post("/api/generate", {{"model", "tiny"}}).second["done_reason"] == "load");
  CHECK(t.post("/api/chat", {{"model", "tiny"}, {"messages", Json::array()}}).second["message"]["content"] ==
        "");
  CHECK(t.post("/api/generate", {{"model", "tiny"}, {"keep_alive", 0}}).second["done_reason"] == "unload");
  CHECK(t.client().Head("/")->status == 200);
}

TEST_CASE("times of Ollama's API") {
  CHECK(ollama_time(0) == "1970-01-01T00:00:00.000000000Z");
  CHECK(ollama_time(1'764'101'702'123'456'789) == "2025-11-25T20:15:02.123456789Z");
}
