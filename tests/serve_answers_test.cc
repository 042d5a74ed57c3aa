// label: slow
// tests/data/parser_cases.json through a whole server: the same content, thoughts and calls from four APIs,
// streamed or not, and a call that max_tokens cuts looks finished in none of them.
#include <doctest/doctest.h>

#include "base/file.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

const char* const kPaths[] = {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"};

struct Told {
  std::string content, thinking, end;
  std::vector<std::pair<std::string, std::string>> calls;  // names, arguments
  std::vector<bool> whole;
};

std::vector<std::string> marks_of(const Json& cases, const std::string& family) {
  std::vector<std::string> out;
  if (family == "qwen") out = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
  for (const Json& c : cases)
    for (const Json& part : c["answer"])
      if (c["family"] == family && part[0] == "token" &&
          std::find(out.begin(), out.end(), part[1].get<std::string>()) == out.end())
        out.push_back(part[1]);
  return out;
}

std::vector<Token> tokens_of(const Tokenizer& t, const Json& answer) {
  std::vector<Token> out;
  for (const Json& part : answer) {
    const auto more = t.encode(part[1].get_ref<const std::string&>(), part[0] == "token");
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

Json tools_for(const std::string& path, const Json& tools) {
  Json out = Json::array();
  for (const Json& t : tools) {
    Json f = t["function"];
    const Json parameters = f.contains("parameters") ? f["parameters"] : Json{{"type", "object"}};
    if (path == "/v1/messages")
      out.push_back({{"name", f["name"]}, {"input_schema", parameters}});
    else if (path == "/v1/responses")
      out.push_back({{"type", "function"}, {"name", f["name"]}, {"parameters", parameters}});
    else
      out.push_back(t);
  }
  return out;
}

Json request_for(const std::string& path, const Json& c, int64_t limit, bool stream) {
  const bool thinks = c.value("thinking", false);
  Json body = {{"model", "tiny"}, {"stream", stream}};
  if (path == "/v1/responses") {
    body["input"] = "Hi";
    body["max_output_tokens"] = limit;
    body["reasoning"] = {{"effort", thinks ? "high" : "none"}};
  } else {
    body["messages"] = user("Hi");
    if (path == "/api/chat")
      body["options"] = {{"num_predict", limit}}, body["think"] = thinks;
    else
      body["max_tokens"] = limit;
    if (path == "/v1/messages") body["thinking"] = {{"type", thinks ? "adaptive" : "disabled"}};
    if (path == "/v1/chat/completions") body["enable_thinking"] = thinks;
  }
  if (const Json tools = c.value("tools", Json::array()); !tools.empty())
    body["tools"] = tools_for(path, tools);
  return body;
}

// The text of an object's member, digits as they came: a value parsed would have lost them.
std::string raw_member(const std::string& text, const std::string& name, size_t from) {
  size_t at = text.find("\"" + name + "\":", from) + name.size() + 3;
  const size_t begin = at;
  int depth = 0;
  for (bool inside = false; at < text.size(); ++at) {
    const char ch = text[at];
    if (inside) {
      if (ch == '\\') ++at;
      if (ch == '"') inside = false;
      continue;
    }
    if (ch == '"') inside = true;
    depth += ch == '{' || ch == '[';
    depth -= ch == '}' || ch == ']';
    if (depth == 0 && (ch == '}' || ch == ']')) break;
  }
  return text.substr(begin, at + 1 - begin);
}

void take_chat(Told& out, const Json& m) {
  const auto text = [&](const char* key) {
    return m.contains(key) && m[key].is_string() ? m[key].get<std::string>() : "";
  };
  out.content += text("content");
  out.thinking += text("reasoning_content");
  for (const Json& call : m.value("tool_calls", Json::array())) {
    const size_t i = call.contains("index") ? call["index"].get<size_t>() : out.calls.size();
    if (i >= out.calls.size()) out.calls.resize(i + 1);
    out.calls[i].first += call["function"].value("name", "");
    out.calls[i].second += call["function"].value("arguments", "");
  }
}

Told chat_of(const std::string& body, bool stream) {
  Told out;
  if (!stream) {
    const Json choice = Json::parse(body)["choices"][0];
    take_chat(out, choice["message"]);
    out.end = choice["finish_reason"];
  } else {
    for (const std::string& e : sse_events(body)) {
      if (e == "[DONE]") continue;
      const Json event = Json::parse(e);
      if (event["choices"].empty()) continue;
      take_chat(out, event["choices"][0]["delta"]);
      if (event["choices"][0]["finish_reason"].is_string()) out.end = event["choices"][0]["finish_reason"];
    }
  }
  if (out.end == "tool_calls") out.end = "stop";
  for (const auto& call : out.calls) out.whole.push_back(Json::accept(call.second));
  return out;
}

// The data of named events.
std::vector<std::string> named_events(const std::string& body) {
  std::vector<std::string> out;
  for (size_t at = 0; (at = body.find("\ndata: ", at)) != std::string::npos;) {
    at += 7;
    out.push_back(body.substr(at, body.find('\n', at) - at));
  }
  return out;
}

Told messages_of(const std::string& body, bool stream) {
  Told out;
  if (!stream) {
    const Json m = Json::parse(body);
    size_t from = 0;
    for (const Json& block : m["content"]) {
      if (block["type"] == "text") out.content += block["text"].get<std::string>();
      if (block["type"] == "thinking") out.thinking += block["thinking"].get<std::string>();
      if (block["type"] != "tool_use") continue;
      from = body.find("\"id\":\"" + block["id"].get<std::string>(), from);
      out.calls.emplace_back(block["name"], raw_member(body, "input", from));
    }
    out.end = m["stop_reason"];
  } else {
    for (const std::string& e : named_events(body)) {
      const Json event = Json::parse(e);
      const std::string type = event["type"];
      if (type == "content_block_start" && event["content_block"]["type"] == "tool_use")
        out.calls.emplace_back(event["content_block"]["name"], "");
      if (type == "message_delta") out.end = event["delta"]["stop_reason"];
      if (type != "content_block_delta") continue;
      const Json& d = event["delta"];
      if (d["type"] == "text_delta") out.content += d["text"].get<std::string>();
      if (d["type"] == "thinking_delta") out.thinking += d["thinking"].get<std::string>();
      if (d["type"] == "input_json_delta") out.calls.back().second += d["partial_json"].get<std::string>();
    }
  }
  out.end = out.end == "max_tokens" ? "length" : "stop";
  for (const auto& call : out.calls) out.whole.push_back(Json::accept(call.second));
  return out;
}

Told responses_of(const std::string& body, bool stream) {
  Json r = stream ? Json::parse(named_events(body).back())["response"] : Json::parse(body);
  Told out;
  for (const Json& item : r["output"]) {
    if (item["type"] == "function_call") {
      out.calls.emplace_back(item["name"], item["arguments"]);
      out.whole.push_back(item["status"] == "completed");
      continue;
    }
    for (const Json& part : item["content"])
      (item["type"] == "reasoning" ? out.thinking : out.content) += part["text"].get<std::string>();
  }
  out.end = r["status"] == "incomplete" ? "length" : "stop";
  return out;
}

Told ollama_of(const std::string& body) {
  Told out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find('\n', at), body.size());
    const std::string line = body.substr(at, end - at);
    at = end + 1;
    const Json piece = Json::parse(line), m = piece["message"];
    out.content += m.value("content", "");
    out.thinking += m.value("thinking", "");
    size_t from = 0;
    for (const Json& call : m.value("tool_calls", Json::array())) {
      from = line.find("\"arguments\":", from + 1);
      out.calls.emplace_back(call["function"]["name"], raw_member(line, "arguments", from));
      out.whole.push_back(true);
    }
    if (piece["done"] == true) out.end = piece["done_reason"];
  }
  return out;
}

Told ask(TestServer& t, const std::string& path, const Json& c, std::vector<Token> tokens, int64_t limit,
         bool stream) {
  tokens.push_back(t.tokenizer.data().end_of_generation.at(0));
  t.script(tokens);
  const auto [status, body] = t.post_text(path, request_for(path, c, limit, stream).dump());
  INFO(path, " ", body);
  REQUIRE(status == 200);
  if (path == "/v1/chat/completions") return chat_of(body, stream);
  if (path == "/v1/messages") return messages_of(body, stream);
  return path == "/v1/responses" ? responses_of(body, stream) : ollama_of(body);
}

std::string json_of(const std::string& text) { return Json::parse(text, nullptr, false).dump(); }

// Of the calls those that are whole.
std::string shown(const Told& t) {
  std::string out = fmt::format("{} | {} | {}", t.thinking, t.content, t.end);
  for (size_t i = 0; i < t.calls.size(); ++i)
    if (t.whole[i]) out += fmt::format(" | {} {}", t.calls[i].first, json_of(t.calls[i].second));
  return out;
}

// Numbers of many digits stand in the arguments as the answer spelled them.
void check_digits(const Json& answer, const Told& told) {
  std::string all, text;
  for (const auto& call : told.calls) all += call.second;
  for (const Json& part : answer) text += part[1].get<std::string>();
  for (size_t at = 0;
       !told.calls.empty() && (at = text.find_first_of("0123456789", at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
    if (end - at > 15) CHECK(all.find(text.substr(at, end - at)) != std::string::npos);
    at = end;
  }
}

void check_family(const std::string& family, const std::string& arch) {
  const Json cases = Json::parse(read_file(CARAT_TEST_DATA "/parser_cases.json"))["cases"];
  TestServer t({.context = 4096, .sequences = 2, .prefill_chunk = 2048}, {}, marks_of(cases, family),
               make_chat_format(arch, ""), make_cpu_backend(1, ""));  // the script decides, not the numbers
  int asked = 0;
  for (const Json& c : cases) {
    if (c["family"] != family) continue;
    const std::string name = c["name"];
    CAPTURE(name);
    const std::vector<Token> tokens = tokens_of(t.tokenizer, c["answer"]);
    const auto n = static_cast<int64_t>(tokens.size());
    const Told whole = ask(t, kPaths[0], c, tokens, n + 1, false);
    CHECK(whole.end == "stop");
    for (const char* path : kPaths)
      for (const bool stream : {false, true}) {
        const Told other = ask(t, path, c, tokens, n + 1, stream);
        CAPTURE(path);
        CAPTURE(stream);
        CHECK(shown(other) == shown(whole));
        check_digits(c["answer"], other);
      }
    const Json& right = c["right"];
    if (!right.is_array() || !right[0].contains("calls") || whole.calls.empty()) continue;
    // Cut by max_tokens: every API in turn.
    for (int64_t limit = 1; limit <= n; ++limit, ++asked) {
      const char* path = kPaths[asked % 4];
      const Told cut = ask(t, path, c, tokens, limit, asked / 4 % 2 == 1);
      CAPTURE(path);
      CAPTURE(limit);
      CAPTURE(shown(cut));
      CHECK(cut.end == "length");
      REQUIRE(cut.calls.size() <= whole.calls.size());
      for (size_t i = 0; i < cut.calls.size(); ++i) {
        CHECK(cut.calls[i].first == whole.calls[i].first);
        if (cut.whole[i]) CHECK(json_of(cut.calls[i].second) == json_of(whole.calls[i].second));
        if (!cut.whole[i]) CHECK_FALSE(Json::accept(cut.calls[i].second));
      }
    }
  }
  MESSAGE(asked << " cuts");
}

}  // namespace

TEST_CASE("Gemma's answers are the same from four APIs, at every cut") { check_family("gemma", "gemma4"); }
TEST_CASE("Qwen's answers are the same from four APIs, at every cut") { check_family("qwen", "qwen35"); }
