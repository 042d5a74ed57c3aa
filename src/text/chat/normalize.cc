// Clients send what OpenAI's API allows; templates expect a stricter form. Null contents become "", one text
// part becomes a string, arguments given as JSON text become objects, tool results get the name of the call
// they answer.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "text/chat/chat.h"

namespace carat {
namespace {

constexpr int kMaxArgumentDepth = 100;  // of arguments given as JSON text

[[noreturn]] void bad(const std::string& field, const std::string& what, std::string hint = {}) {
  throw Error(field + ": " + what, std::move(hint));
}

bool has(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && !at->is_null();
}

// Integers that no 64 bits hold would be read as floating-point numbers, which have other digits. They are
// read as binary values, which hold the digits (jinja::from_json).
constexpr size_t kDigits64 = 18;  // so many always fit

// What no string of the text begins with.
std::string unused_mark(std::string_view text) {
  std::string mark = "#";
  while (text.find(mark) != text.npos) mark += '#';
  return mark;
}

// Such integers as strings that begin with the mark.
std::string with_marked_integers(std::string_view text, std::string_view mark) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '"') in_string = !in_string;
    const bool number = !in_string && (text[i] == '-' || (text[i] >= '0' && text[i] <= '9'));
    size_t end = i + (in_string && text[i] == '\\' ? 2 : 1);
    if (number) end = std::min(text.find_first_not_of("+-.0123456789Ee", end), text.size());
    const std::string_view part = text.substr(i, end - i);
    const size_t first = part.starts_with('-');
    const bool large = number && part.size() > kDigits64 && part[first] != '0' &&
                       part.find_first_not_of("0123456789", first) == part.npos;
    out += large ? fmt::format("\"{}{}\"", mark, part) : std::string(part);
    i += part.size();
  }
  return out;
}

void unmark_integers(Json& j, std::string_view mark) {
  if (j.is_structured()) {
    for (Json& item : j) unmark_integers(item, mark);
  } else if (j.is_string() && j.get_ref<const std::string&>().starts_with(mark)) {
    const std::string digits = j.get<std::string>().substr(mark.size());
    j = Json::parse(digits, nullptr, false);
    if (j.is_number_float()) j = Json::binary({digits.begin(), digits.end()});
  }
}

Json parse_arguments(const std::string& text, const std::string& field) {
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return c <= ' '; })) return Json::object();
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxArgumentDepth;
    return !too_deep;
  };
  const std::string mark = unused_mark(text), marked = with_marked_integers(text, mark);
  Json out = Json::parse(marked, watch, false);
  if (marked != text && !too_deep) unmark_integers(out, mark);
  if (too_deep) bad(field, fmt::format("nested deeper than {}", kMaxArgumentDepth));
  if (!out.is_object()) bad(field, "must be a JSON object, or the text of one");
  return out;
}

Json parts(const Json& content, const std::string& field) {
  Json out = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string at = fmt::format("{}[{}]", field, i);
    if (part.is_string()) {
      out.push_back({{"type", "text"}, {"text", part}});
      continue;
    }
    if (!part.is_object()) bad(at, "must be an object with a type");
    if (!part.contains("type") || !part["type"].is_string()) bad(at + ".type", "missing, or not a string");
    const std::string& type = part["type"].get_ref<const std::string&>();
    static constexpr std::string_view kMedia[] = {"image", "image_url", "audio", "input_audio", "video"};
    if (type == "text" || type == "input_text" || type == "output_text") {
      if (!part.contains("text") || !part["text"].is_string()) bad(at + ".text", "missing, or not a string");
      out.push_back({{"type", "text"}, {"text", part["text"]}});
    } else if (std::find(std::begin(kMedia), std::end(kMedia), type) != std::end(kMedia)) {
      out.push_back(part);
    } else {
      bad(at + ".type", fmt::format("'{}' is not known", type), "known: text, image_url, input_audio, video");
    }
  }
  if (out.empty()) return "";
  if (out.size() == 1 && out[0]["type"] == "text") return out[0]["text"];
  return out;
}

Json content_of(const Json& message, const std::string& role, const std::string& field) {
  if (!has(message, "content")) {
    if (role == "assistant" || role == "tool") return "";
    bad(field, "missing");
  }
  const Json& content = message["content"];
  if (content.is_string()) return content;
  if (content.is_array()) return parts(content, field);
  if (role == "tool") return content.dump();
  bad(field, "must be a string or an array of parts");
}

Json calls_of(const Json& message, const std::string& field) {
  const Json& calls = message["tool_calls"];
  if (!calls.is_array()) bad(field, "must be an array");
  Json out = calls;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", field, i);
    Json& call = out[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      bad(at + ".function", "missing, or not an object");
    Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string())
      bad(at + ".function.name", "missing, or not a string");
    if (!has(function, "arguments")) function["arguments"] = Json::object();
    Json& arguments = function["arguments"];
    const std::string name = at + ".function.arguments";
    if (arguments.is_string())
      arguments = parse_arguments(arguments.get<std::string>(), name);
    else if (!arguments.is_object())
      bad(name, "must be a JSON object, or the text of one");
  }
  return out;
}

// The call that a tool message answers: by its id; without one by its name, or as the only call there is.
std::string answered_name(const Json& message, const Json& calls, const std::string& at) {
  if (calls.empty()) bad(at, "a tool result without an assistant message with tool_calls before it");
  if (has(message, "tool_call_id")) {
    for (const Json& call : calls) {
      if (call.contains("id") && call["id"] == message["tool_call_id"]) return call["function"]["name"];
    }
    bad(at + ".tool_call_id", "no call of the assistant message before it has this id");
  }
  if (has(message, "name")) {
    if (!message["name"].is_string()) bad(at + ".name", "must be a string");
    return message["name"];
  }
  if (calls.size() != 1) bad(at + ".tool_call_id", "missing");
  return calls[0]["function"]["name"];
}

bool blank(const Json& content) {
  if (!content.is_string()) return content.empty();
  const std::string& text = content.get_ref<const std::string&>();
  return text.find_first_not_of(" \t\r\n\f\v") == std::string::npos;
}

Json checked_tools(const Json& tools) {
  if (tools.is_null()) return nullptr;
  if (!tools.is_array()) bad("tools", "must be an array");
  if (tools.empty()) return nullptr;
  Json out = tools;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    Json& tool = out[i];
    if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object()) {
      bad(at + ".function", "missing, or not an object", "only tools of the type \"function\" are supported");
    }
    Json& function = tool["function"];
    if (!function.contains("name") || !function["name"].is_string())
      bad(at + ".function.name", "missing, or not a string");
    for (const char* key : {"description", "parameters"}) {
      if (function.contains(key) && function[key].is_null()) function.erase(key);
    }
    if (function.contains("description") && !function["description"].is_string())
      bad(at + ".function.description", "must be a string");
    if (function.contains("parameters") && !function["parameters"].is_object())
      bad(at + ".function.parameters", "must be an object");
  }
  return out;
}

}  // namespace

ChatInput normalize_chat(const ChatInput& input, bool split_calls) {
  ChatInput out = input;
  out.tools = checked_tools(input.tools);
  if (!input.extra.is_null() && !input.extra.is_object()) bad("chat_template_kwargs", "must be an object");
  if (!input.messages.is_array() || input.messages.empty())
    bad("messages", "must be an array with at least one message");
  out.messages = Json::array();
  Json open_calls = Json::array();  // of the assistant messages that tool messages may answer now
  for (size_t i = 0; i < input.messages.size(); ++i) {
    const std::string at = fmt::format("messages[{}]", i);
    const Json& given = input.messages[i];
    if (!given.is_object()) bad(at, "must be an object");
    if (!given.contains("role") || !given["role"].is_string()) bad(at + ".role", "missing, or not a string");
    const std::string role = given["role"];
    static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
    if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
      bad(at + ".role", fmt::format("'{}' is not known", role),
          "known: system, developer, user, assistant, tool");
    }
    Json message = given;
    message["content"] = content_of(given, role, at + ".content");
    for (const char* key : {"reasoning", "reasoning_content"}) {
      if (!message.contains(key)) continue;
      if (message[key].is_null())
        message.erase(key);
      else if (!message[key].is_string())
        bad(at + "." + key, "must be a string");
    }
    message.erase("tool_calls");
    Json calls = Json::array();
    if (has(given, "tool_calls")) {
      if (role != "assistant") bad(at + ".tool_calls", "only an assistant message can have them");
      calls = calls_of(given, at + ".tool_calls");
    }
    if (role == "tool")
      message["name"] = answered_name(given, open_calls, at);
    else if (role != "assistant")
      open_calls = Json::array();
    for (const Json& call : calls) open_calls.push_back(call);
    if (!calls.empty() && split_calls && !blank(message["content"])) {
      out.messages.push_back(std::move(message));
      message = {{"role", "assistant"}, {"content", ""}};
    }
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    out.messages.push_back(std::move(message));
  }
  return out;
}

}  // namespace carat
