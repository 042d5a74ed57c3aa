#include "serve/api/readable.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "base/log.h"

namespace carat {
namespace {

constexpr size_t kLongest = 20'000;  // bytes of the fields of a part that is no text

std::string type_of(const Json& part) {
  return part.is_object() && part.contains("type") && part["type"].is_string()
             ? part["type"].get<std::string>()
             : "";
}

// Without what only its maker can read.
Json legible(const Json& j) {
  static constexpr std::string_view kOpaque[] = {
      "data",        "encrypted_content", "encrypted_index", "signature", "image_url", "audio_url",
      "input_audio", "file_data",         "b64_json",        "video_url", "video",     "frames"};
  if (j.is_array()) {
    Json out = Json::array();
    for (const Json& e : j) out.push_back(legible(e));
    return out;
  }
  if (!j.is_object()) return j;
  Json out = Json::object();
  for (const auto& [key, value] : j.items())
    if (std::find(std::begin(kOpaque), std::end(kOpaque), key) == std::end(kOpaque))
      out[key] = legible(value);
  return out;
}

// The texts of a document: given plainly, or as blocks.
std::string document_text(const Json& part) {
  const Json source = part.value("source", Json());
  if (!source.is_object()) return {};
  if (type_of(source) == "text" && source.contains("data") && source["data"].is_string())
    return source["data"].get<std::string>();
  const Json content = source.value("content", Json());
  if (content.is_string()) return content.get<std::string>();
  std::string out;
  if (content.is_array())
    for (const Json& block : content) out += readable(block);
  return out;
}

// A call's arguments as an object, whatever a model once wrote: the conversation must go on.
Json tolerant_arguments(const Json& given) {
  if (!given.is_string()) return given;
  const std::string& text = given.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return given;
  const Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_object()) return given;
  return {{"arguments", text}};
}

Json in_words(const Json& content, const Senses& senses) {
  if (!content.is_array()) return content;
  Json out = Json::array();
  for (const Json& part : content) {
    const bool text = type_of(part) == "text" || !part.is_object() || senses.take(part);
    out.push_back(text ? part : Json({{"type", "text"}, {"text", readable(part)}}));
  }
  return out;
}

void modernize(Json& m, size_t number) {
  const std::string id = fmt::format("function_call_{}", number);
  if (m.contains("function_call") && m["function_call"].is_object()) {
    m["tool_calls"] = Json::array({{{"id", id}, {"type", "function"}, {"function", m["function_call"]}}});
    m.erase("function_call");
  }
  if (m.contains("role") && m["role"] == "function") m["role"] = "tool";
}

}  // namespace

std::string content_text(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string out;
  if (content.is_array())
    for (const Json& part : content) out += readable(part);
  return out;
}

bool is_picture(const Json& part) {
  const std::string type = type_of(part);
  return type == "image" || type == "image_url" || type == "input_image";
}
bool is_sound(const Json& part) {
  const std::string type = type_of(part);
  return type == "audio" || type == "audio_url" || type == "input_audio";
}

std::string readable(const Json& part) {
  if (part.is_string()) return part.get<std::string>();
  const std::string type = type_of(part);
  for (const char* name : {"text", "refusal", "thinking"})
    if (part.is_object() && part.contains(name) && part[name].is_string())
      return part[name].get<std::string>();
  if (is_picture(part)) return "[image: it cannot be shown to this model]";
  if (is_sound(part)) return "[audio: it cannot be played to this model]";
  if (is_video(part)) return "[video: it cannot be shown to this model]";
  if (type == "document") {
    std::string text = document_text(part);
    if (!text.empty()) return text;
  }
  if (type == "document" || type == "input_file" || type == "file")
    return fmt::format("[{}: it cannot be shown to this model]", type);
  std::string fields = dump_json(legible(part));
  if (fields.size() > kLongest) fields = fields.substr(0, kLongest) + "...";
  return fmt::format("[{}]", fields);
}

void say_left_out(std::string_view kind) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> said;
  const std::string name(kind.substr(0, 40));
  {
    const std::lock_guard lock(mutex);
    if (said.size() >= 64 || !said.insert(name).second) return;
  }
  log_info("tools of the type '{}' are left out: this server has no tools of its own", name);
}

Json tolerant_messages(const Json& messages, const Senses& senses) {
  Json out = messages;
  for (size_t i = 0; i < out.size(); ++i) {
    Json& m = out[i];
    if (!m.is_object()) continue;
    modernize(m, i);
    if (m.contains("role") && m["role"] == "tool" && m.contains("content"))
      m["content"] = in_words(m["content"], senses);
    if (m.contains("role") && m["role"] == "assistant" && m.contains("content") && m["content"].is_array())
      for (Json& part : m["content"])
        if (type_of(part) == "refusal") part = {{"type", "text"}, {"text", readable(part)}};
    if (!m.contains("tool_calls") || !m["tool_calls"].is_array()) continue;
    for (Json& call : m["tool_calls"])
      if (call.is_object() && call.contains("function") && call["function"].is_object() &&
          call["function"].contains("arguments"))
        call["function"]["arguments"] = tolerant_arguments(call["function"]["arguments"]);
  }
  return out;
}

Json with_tools_for_functions(const Json& body) {
  const Fields f(body);
  const Json* functions = f.find("functions");
  const Json* call = f.find("function_call");
  if (!functions && !call) return body;
  if (f.find("tools") || f.find("tool_choice")) f.fail("functions", "left out where `tools` are given");
  Json out = body;
  if (functions) {
    if (!functions->is_array()) f.fail("functions", "an array");
    out["tools"] = Json::array();
    for (const Json& function : *functions)
      out["tools"].push_back({{"type", "function"}, {"function", function}});
  }
  if (call) {
    if (call->is_string())
      out["tool_choice"] = *call;
    else if (call->is_object() && call->contains("name"))
      out["tool_choice"] = {{"type", "function"}, {"function", {{"name", (*call)["name"]}}}};
    else
      f.fail("function_call", "\"auto\", \"none\" or {\"name\": ...}");
  }
  out["parallel_tool_calls"] = false;
  return out;
}

}  // namespace carat
