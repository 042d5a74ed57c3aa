// What the answers and the questions of several APIs have in common.
#include <optional>
#include <string>
#include <string_view>

#include "serve/promotion.h"

namespace carat {
namespace {

void append(std::string& text, const Json& j, const char* name) {
  if (const auto it = j.find(name); it != j.end() && it->is_string()) text += it->get<std::string>();
}

void append_message(std::string& text, const Json& m) {
  append(text, m, "reasoning_content");
  append(text, m, "content");
  if (const auto calls = m.find("tool_calls"); calls != m.end() && calls->is_array())
    for (const Json& c : *calls)
      if (c.is_object() && c.contains("function") && c["function"].is_object()) {
        append(text, c["function"], "name");
        append(text, c["function"], "arguments");
      }
}

// OpenAI's, Anthropic's, llama.cpp's; whole or a piece.
void append_answer(std::string& text, const Json& j) {
  if (const auto choices = j.find("choices"); choices != j.end() && choices->is_array()) {
    for (const Json& c : *choices) {
      append(text, c, "text");
      for (const char* name : {"message", "delta"})
        if (c.contains(name) && c[name].is_object()) append_message(text, c[name]);
    }
    return;
  }
  const auto append_block = [&](const Json& block) {
    if (!block.is_object()) return;
    for (const char* name : {"thinking", "text", "name", "partial_json"}) append(text, block, name);
    if (block.contains("input") && block["input"].is_object() && !block["input"].empty())
      text += block["input"].dump();
  };
  if (const auto content = j.find("content"); content != j.end()) {
    if (content->is_array())
      for (const Json& block : *content) append_block(block);
    append(text, j, "content");
  }
  if (j.contains("content_block")) append_block(j["content_block"]);
  if (j.contains("delta")) append_block(j["delta"]);
}

bool ends(const Json& j) {
  return j.contains("error") ? false
                             : j.value("type", "") == "message_stop" || j.value("stop", Json()) == true;
}

}  // namespace

std::optional<std::string> answered_text(std::string_view body) {
  std::string text;
  if (body.starts_with('{')) {
    const Json j = Json::parse(body, nullptr, false);
    if (!j.is_object() || j.contains("error")) return {};
    append_answer(text, j);
    return text;
  }
  bool whole = false;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find('\n', at), body.size());
    std::string_view line = body.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with("data: ")) continue;
    line.remove_prefix(6);
    if (line == "[DONE]") whole = true;
    const Json j = Json::parse(line, nullptr, false);
    if (!j.is_object()) continue;
    if (j.contains("error")) return {};
    append_answer(text, j);
    whole |= ends(j);
  }
  if (!whole) return {};
  return text;
}

uint64_t conversation_hash(const HttpRequest& r) {
  std::string what = r.client.empty() ? r.remote : r.client;
  const Json body = Json::parse(r.body, nullptr, false);
  const Json* question = nullptr;
  if (body.is_object())
    for (const char* name : {"messages", "input", "prompt"}) {
      const auto it = body.find(name);
      if (it == body.end() || question) continue;
      question = &*it;
      if (!it->is_array()) continue;
      for (const Json& m : *it)
        if (m.is_object() && m.value("role", Json()) == "user") {
          question = &m;
          break;
        }
    }
  constexpr size_t kMost = 512;  // a prompt that grows with each turn begins the same
  if (question) what += question->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kMost);
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : what) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  h ^= h >> 33, h *= 0xff51afd7ed558ccd, h ^= h >> 33;  // the low digits alone are looked at
  return h;
}

}  // namespace carat
