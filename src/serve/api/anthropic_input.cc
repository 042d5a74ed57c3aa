// What an Anthropic body asks for, as a chat body.
#include <algorithm>

#include "serve/api/anthropic.h"
#include "serve/api/readable.h"
#include "serve/api/refusals.h"
#include "serve/api/wishes.h"

namespace carat {
namespace {

// Claude Code's first block of the system text. It differs in every session, so nothing behind it would be
// found in the cache, and it is not meant for the model.
constexpr std::string_view kBilling = "x-anthropic-billing-header:";

// A system text, or blocks that are texts.
std::string system_of(const Json& j, const std::string& at) {
  if (j.is_null()) return {};
  if (j.is_string()) return j.get<std::string>().starts_with(kBilling) ? std::string() : j.get<std::string>();
  if (!j.is_array()) must_be(at, "a string or an array of text blocks");
  std::string out;
  for (const Json& block : j) {
    const bool text = block.is_object() && block.value("type", "") == "text" && block.contains("text");
    if (!text || !block["text"].is_string())
      must_be(at, "made of text: this server takes no other blocks there");
    const std::string& more = block["text"].get_ref<const std::string&>();
    if (!more.starts_with(kBilling)) out += more;
  }
  return out;
}

Json picture_of(const Json& block) {
  return {{"type", "image"}, {"source", block.value("source", Json::object())}};
}

// What a tool answered; blocks that are neither texts nor pictures become words about them.
Json result_of(const Json& j, const std::string& at) {
  if (j.is_null()) return "";
  if (j.is_string()) return j;
  if (!j.is_array()) must_be(at, "a string or an array of blocks");
  MixedContent out;
  for (const Json& block : j) {
    if (!block.is_object()) must_be(at, "made of blocks");
    if (is_picture(block))
      out.add_part(picture_of(block));
    else
      out.add(readable(block));
  }
  return out.take();
}

// {"type": "json_schema", "schema": ...}: what the answer must be.
Json format_of(const Json& format, const std::string& at) {
  if (!format.is_object() || format.value("type", "") != "json_schema" || !format.contains("schema"))
    must_be(at, "{\"type\": \"json_schema\", \"schema\": ...}");
  return {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", format["schema"]}}}};
}

std::string string_in(const Json& block, const char* name, const std::string& at) {
  if (!block.contains(name) || !block[name].is_string()) must_be(at + "." + name, "a string");
  return block[name].get<std::string>();
}

// One message may become several: results of tools stand in messages of their own.
void add_message(Json& out, const Json& m, const std::string& at) {
  if (!m.is_object()) must_be(at, "an object");
  const std::string role = string_in(m, "role", at);
  if (role != "user" && role != "assistant" && role != "system")
    must_be(at + ".role", "\"user\", \"assistant\" or \"system\"");
  if (!m.contains("content")) must_be(at + ".content", "given");
  if (role == "system") {
    const std::string text = system_of(m["content"], at + ".content");
    if (!text.empty()) out.push_back({{"role", role}, {"content", text}});
    return;
  }
  if (m["content"].is_string()) {
    out.push_back({{"role", role}, {"content", m["content"]}});
    return;
  }
  if (!m["content"].is_array()) must_be(at + ".content", "a string or an array of blocks");
  std::string thinking;
  MixedContent content;
  Json calls = Json::array();
  bool results = false, texts = false;
  for (size_t i = 0; i < m["content"].size(); ++i) {
    const Json& block = m["content"][i];
    const std::string here = fmt::format("{}.content[{}]", at, i);
    if (!block.is_object()) must_be(here, "an object");
    const std::string type = string_in(block, "type", here);
    if (type == "text") {
      content.add(string_in(block, "text", here));
      texts = true;
    } else if (type == "tool_result" && role == "user") {
      out.push_back({{"role", "tool"},
                     {"tool_call_id", string_in(block, "tool_use_id", here)},
                     {"content", result_of(block.value("content", Json()), here + ".content")}});
      results = true;
    } else if (type == "tool_use" && role == "assistant") {
      calls.push_back({{"id", string_in(block, "id", here)},
                       {"type", "function"},
                       {"function",
                        {{"name", string_in(block, "name", here)},
                         {"arguments", block.value("input", Json::object())}}}});
    } else if (type == "thinking" && role == "assistant") {
      thinking += string_in(block, "thinking", here);
    } else if (type == "image") {
      content.add_part(picture_of(block));
      texts = true;
    } else if (type == "audio" || type == "video") {
      must_be(here + ".type", "a block this server takes: text and pictures");
    } else if (type != "redacted_thinking") {  // documents, and what servers with tools of their own add
      content.add(readable(block));
      texts = true;
    }
  }
  if (role == "user" && results && !texts) return;
  Json message = {{"role", role}, {"content", content.take()}};
  if (!thinking.empty()) message["reasoning_content"] = thinking;
  if (!calls.empty()) message["tool_calls"] = calls;
  out.push_back(std::move(message));
}

Json tools_of(const Json& tools) {
  if (!tools.is_array()) must_be("tools", "an array");
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& t = tools[i];
    const std::string at = fmt::format("tools[{}]", i);
    if (!t.is_object()) must_be(at, "an object");
    if (t.contains("type") && !t["type"].is_null() && t["type"] != "custom") {
      say_left_out(string_in(t, "type", at));
      continue;
    }
    Json function = {{"name", string_in(t, "name", at)}};
    if (t.contains("description")) function["description"] = string_in(t, "description", at);
    if (!t.contains("input_schema") || !t["input_schema"].is_object())
      must_be(at + ".input_schema", "an object");
    function["parameters"] = t["input_schema"];
    if (t.contains("strict")) function["strict"] = t["strict"];
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void add_tool_choice(Json& out, const Json& choice) {
  if (!choice.is_object()) must_be("tool_choice", "an object");
  const std::string type = string_in(choice, "type", "tool_choice");
  if (type == "auto" || type == "none")
    out["tool_choice"] = type;
  else if (type == "any")
    out["tool_choice"] = "required";
  else if (type == "tool")
    out["tool_choice"] = {{"type", "function"},
                          {"function", {{"name", string_in(choice, "name", "tool_choice")}}}};
  else
    must_be("tool_choice.type", "\"auto\", \"any\", \"tool\" or \"none\"");
  if (choice.value("disable_parallel_tool_use", false)) out["parallel_tool_calls"] = false;
}

}  // namespace

Json chat_of_messages(const Json& body) {
  refuse_what_is_not_done(Fields(body));
  refuse_special_tokens(Fields(body));
  Json out = Json::object();
  copy_shared_fields(body, out);  // ours that Anthropic's API does not have among them
  if (body.contains("max_tokens")) out["max_tokens"] = body["max_tokens"];
  if (body.contains("stop_sequences") && !body["stop_sequences"].is_null()) {
    if (!body["stop_sequences"].is_array()) must_be("stop_sequences", "an array of strings");
    out["stop"] = body["stop_sequences"];
  }
  Json list = Json::array();
  const std::string system = system_of(body.value("system", Json()), "system");
  if (!system.empty()) list.push_back({{"role", "system"}, {"content", system}});
  if (!body.contains("messages") || !body["messages"].is_array() || body["messages"].empty())
    must_be("messages", "a non-empty array");
  for (size_t i = 0; i < body["messages"].size(); ++i)
    add_message(list, body["messages"][i], fmt::format("messages[{}]", i));
  if (list.empty()) must_be("messages", "more than empty system messages");
  const Json& last = list.back();  // its answer goes on behind what the assistant has begun to say
  if (last["role"] == "assistant" && !last.contains("tool_calls") && last["content"] != "")
    out["continue_final_message"] = true;
  out["messages"] = std::move(list);
  if (body.contains("tools") && !body["tools"].is_null()) out["tools"] = tools_of(body["tools"]);
  const bool tools = out.contains("tools") && !out["tools"].empty();
  if (body.contains("tool_choice") && !body["tool_choice"].is_null() &&
      (tools || body["tool_choice"] != Json({{"type", "auto"}})))
    add_tool_choice(out, body["tool_choice"]);
  if (body.contains("thinking") && !body["thinking"].is_null()) {
    if (!body["thinking"].is_object()) must_be("thinking", "an object");
    const bool thinks = string_in(body["thinking"], "type", "thinking") != "disabled";
    out["enable_thinking"] = thinks;
    const Fields thinking(body["thinking"], "thinking.");
    if (thinks && thinking.find("budget_tokens"))
      out["thinking_token_budget"] = thinking.get_int("budget_tokens", 1, 1, 1 << 30);
    if (thinking.get_string("display", "") == "omitted") out["include_reasoning"] = false;
  }
  const Json* format = nullptr;
  if (body.contains("output_config") && body["output_config"].is_object())
    format = Fields(body["output_config"]).find("format");
  if (!format) format = Fields(body).find("output_format");
  if (format) out["response_format"] = format_of(*format, "output_config.format");
  return out;
}

Json systems_first(Json chat) {
  Json& list = chat["messages"];
  const auto answer =
      std::find_if(list.begin(), list.end(), [](const Json& m) { return m["role"] == "assistant"; });
  std::stable_partition(list.begin(), answer, [](const Json& m) { return m["role"] == "system"; });
  return chat;
}

}  // namespace carat
