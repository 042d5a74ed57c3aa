#include "text/chat/gemma.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace carat {
namespace {

const Json kNull;

const Json& get(const Json& object, std::string_view key) {
  if (!object.is_object()) return kNull;
  const auto at = object.find(key);
  return at == object.end() ? kNull : *at;
}

bool truthy(const Json& v) {
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number()) return v.get<double>() != 0;
  if (v.is_string()) return !v.get_ref<const std::string&>().empty();
  return !v.is_null() && !v.empty();
}

// As the template language prints it.
std::string printed(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  jinja::Budget budget(1'000'000, size_t{16} << 20);
  try {
    return jinja::to_str(jinja::from_json(v), budget);
  } catch (const jinja::Fail& fail) {
    throw Error(fail.what);
  }
}

std::string trim(std::string_view s) { return std::string(jinja::strip(s, nullptr, true, true)); }
std::string quoted(const std::string& s) { return "<|\"|>" + s + "<|\"|>"; }
std::string upper_type(const Json& object) {
  const Json& type = get(object, "type");
  return type.is_null() && !(object.is_object() && object.contains("type")) ? ""
                                                                            : jinja::upper(printed(type));
}

using Entry = std::pair<std::string, const Json*>;
std::vector<Entry> sorted(const Json& object) {
  std::vector<std::pair<std::string, Entry>> keyed;
  for (const auto& [key, value] : object.items()) keyed.emplace_back(jinja::lower(key), Entry{key, &value});
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Entry> out;
  for (auto& [lowered, entry] : keyed) out.push_back(std::move(entry));
  return out;
}

// Parts with commas between them.
class List {
 public:
  explicit List(std::string& out) : out_(out) {}
  std::string& next() {
    if (!std::exchange(first_, false)) out_ += ',';
    return out_;
  }

 private:
  std::string& out_;
  bool first_ = true;
};

std::string argument(const Json& v, bool quote_keys, int depth = 0) {
  if (depth > jinja::kMaxValueDepth) throw Error("a tool argument or schema is nested too deeply");
  if (v.is_null()) return "null";
  if (v.is_string()) return quoted(v.get<std::string>());
  if (v.is_boolean()) return v.get<bool>() ? "true" : "false";
  std::string out;
  List list(out);
  if (v.is_object()) {
    for (const auto& [key, value] : sorted(v)) {
      list.next() += (quote_keys ? quoted(key) : key) + ":" + argument(*value, quote_keys, depth + 1);
    }
    return "{" + out + "}";
  }
  if (v.is_array()) {
    for (const Json& item : v) list.next() += argument(item, quote_keys, depth + 1);
    return "[" + out + "]";
  }
  return printed(v);
}

std::string names(const Json& required) {
  std::string out;
  List list(out);
  if (required.is_array()) {
    for (const Json& name : required) list.next() += quoted(printed(name));
  }
  return "required:[" + out + "]";
}

std::string parameters(const Json& properties, bool skip_keywords, int depth);

std::string array_items(const Json& items, int depth) {
  std::string out;
  List list(out);
  for (const auto& [key, value] : sorted(items)) {
    if (value->is_null()) continue;
    std::string& o = list.next();
    if (key == "properties") {
      o += "properties:{" + (value->is_object() ? parameters(*value, false, depth + 1) : "") + "}";
    } else if (key == "required") {
      o += names(*value);
    } else if (key == "type" && value->is_string()) {
      o += "type:" + argument(jinja::upper(value->get<std::string>()), true);
    } else if (key == "type") {
      Json types = Json::array();
      for (const Json& type : *value) types.push_back(jinja::upper(printed(type)));
      o += "type:" + argument(types, true);
    } else {
      o += key + ":" + argument(*value, true);
    }
  }
  return "items:{" + out + "}";
}

std::string property(const Json& value, int depth) {
  std::string out;
  List list(out);
  const std::string type = upper_type(value);
  if (truthy(get(value, "description")))
    list.next() += "description:" + quoted(printed(get(value, "description")));
  if (type == "STRING" && truthy(get(value, "enum")))
    list.next() += "enum:" + argument(get(value, "enum"), true);
  if (type == "ARRAY" && get(value, "items").is_object() && truthy(get(value, "items"))) {
    list.next() += array_items(get(value, "items"), depth);
  }
  if (truthy(get(value, "nullable"))) list.next() += "nullable:true";
  if (type == "OBJECT") {
    const bool listed = get(value, "properties").is_object();
    list.next() +=
        "properties:{" + parameters(listed ? get(value, "properties") : value, !listed, depth + 1) + "}";
    if (truthy(get(value, "required"))) list.next() += names(get(value, "required"));
  }
  list.next() += "type:" + quoted(type);
  return out;
}

// skip_keywords: an object schema without "properties" lists them beside its keywords.
std::string parameters(const Json& properties, bool skip_keywords, int depth) {
  if (depth > jinja::kMaxValueDepth) throw Error("a tool's parameters are nested too deeply");
  static constexpr std::string_view kKeywords[] = {"description", "type", "properties", "required",
                                                   "nullable"};
  std::string out;
  List list(out);
  for (const auto& [key, value] : sorted(properties)) {
    if (skip_keywords && std::find(std::begin(kKeywords), std::end(kKeywords), key) != std::end(kKeywords))
      continue;
    list.next() += key + ":{" + property(*value, depth) + "}";
  }
  return out;
}

std::string declaration(const Json& tool) {
  const Json& function = get(tool, "function");
  const Json& schema = get(function, "parameters");
  std::string out = "declaration:" + printed(get(function, "name")) + "{description:";
  out += quoted(function.contains("description") ? printed(function["description"]) : "");
  if (truthy(schema)) {
    out += ",parameters:{";
    if (truthy(get(schema, "properties")))
      out += "properties:{" + parameters(get(schema, "properties"), false, 0) + "},";
    if (truthy(get(schema, "required"))) out += names(get(schema, "required")) + ",";
    if (truthy(get(schema, "type"))) out += "type:" + quoted(upper_type(schema)) + "}";
  }
  if (function.contains("response")) {
    const Json& response = function["response"];
    out += ",response:{";
    if (truthy(get(response, "description")))
      out += "description:" + quoted(printed(response["description"])) + ",";
    if (upper_type(response) == "OBJECT") out += "type:" + quoted("OBJECT") + "}";
  }
  return trim(out + "}");
}

// Without anything between <|channel> and <channel|>.
std::string without_thoughts(std::string_view text) {
  std::string out;
  for (const std::string_view part : jinja::split(text, "<channel|>", -1))
    out += part.substr(0, part.find("<|channel>"));
  return trim(out);
}

std::string response(const std::string& name, const Json& body) {
  std::string fields;
  List list(fields);
  if (body.is_object()) {
    for (const auto& [key, value] : sorted(body)) list.next() += key + ":" + argument(*value, false);
  } else {
    fields = "value:" + argument(body, false);
  }
  return "<|tool_response>response:" + name + "{" + fields + "}<tool_response|>";
}

std::string media(const Json& part) {
  const Json& type = get(part, "type");
  if (type == "image" || type == "image_url") return "<|image|>";
  if (type == "audio" || type == "input_audio") return "<|audio|>";
  return type == "video" ? "<|video|>" : "";
}

class Renderer {
 public:
  Renderer(const ChatInput& input, bool empty_thought)
      : in_(input), think_(input.think.value_or(false)), empty_thought_(empty_thought) {}

  std::string run() {
    if (!in_.messages.is_array()) throw Error("messages: must be an array");
    const bool system = !in_.messages.empty() && is_system(in_.messages[0]);
    first_ = system ? 1 : 0;
    out_ = in_.bos;
    if (think_ || truthy(in_.tools) || system) system_turn(system);
    for (size_t i = first_; i < in_.messages.size(); ++i) {
      if (get(in_.messages[i], "role") == "user") last_user_ = static_cast<long>(i);
    }
    for (size_t i = first_; i < in_.messages.size(); ++i) {
      if (get(in_.messages[i], "role") != "tool") message(i);
    }
    if (in_.add_generation_prompt) generation_prompt();
    return std::move(out_);
  }

 private:
  enum class Last : uint8_t { other, call, response };

  static bool is_system(const Json& m) { return get(m, "role") == "system" || get(m, "role") == "developer"; }

  const std::string& text_of(const Json& v, size_t message, const char* field) const {
    if (!v.is_string()) throw Error(fmt::format("messages[{}].{}: must be a string", message, field));
    return v.get_ref<const std::string&>();
  }

  void system_turn(bool message) {
    out_ += "<|turn>system\n";
    if (think_) out_ += "<|think|>\n";
    const Json& content = message ? get(in_.messages[0], "content") : kNull;
    if (content.is_string()) out_ += trim(content.get<std::string>());
    if (content.is_array()) {
      for (const Json& part : content) out_ += trim(text_of(get(part, "text"), 0, "content[].text")) + " ";
    }
    if (in_.tools.is_array()) {
      for (size_t i = 0; i < in_.tools.size(); ++i) {
        if (!get(in_.tools[i], "function").is_object())
          throw Error(fmt::format("tools[{}].function: missing", i));
        out_ += "<|tool>" + declaration(in_.tools[i]) + "<tool|>";
      }
    }
    out_ += "<turn|>\n";
  }

  void calls(const Json& m, size_t i) {
    const Json& all = get(m, "tool_calls");
    for (size_t k = 0; k < all.size(); ++k) {
      const Json& function = get(all[k], "function");
      const Json& arguments = get(function, "arguments");
      out_ += "<|tool_call>call:" + text_of(get(function, "name"), i, "tool_calls[].function.name") + "{";
      if (!arguments.is_object() && !arguments.is_null()) {
        throw Error(fmt::format("messages[{}].tool_calls[{}].function.arguments: must be an object", i, k));
      }
      List list(out_);
      if (arguments.is_object()) {
        for (const auto& [key, value] : sorted(arguments)) list.next() += key + ":" + argument(*value, false);
      }
      out_ += "}<tool_call|>";
    }
  }

  // The tool messages that follow message i, as responses to its calls. True if there are any.
  bool responses(const Json& m, size_t i) {
    size_t k = i + 1;
    for (; k < in_.messages.size() && get(in_.messages[k], "role") == "tool"; ++k) {
      const Json& tool = in_.messages[k];
      std::string name = truthy(get(tool, "name")) ? printed(get(tool, "name")) : "unknown";
      for (const Json& call : get(m, "tool_calls")) {
        if (get(call, "id") == get(tool, "tool_call_id"))
          name = text_of(get(get(call, "function"), "name"), i, "tool_calls[].function.name");
      }
      const Json& body = get(tool, "content");
      if (body.is_object())
        throw Error(fmt::format("messages[{}].content: must be a string or an array of parts", k));
      if (!body.is_array()) {
        out_ += response(name, body);
        continue;
      }
      std::string text, after;
      for (const Json& part : body) {
        if (get(part, "type") == "text" && part.contains("text"))
          text += text_of(part["text"], k, "content[].text");
        after += media(part);
      }
      out_ += response(name, text) + after;
    }
    return k > i + 1;
  }

  std::string content(const Json& m, size_t i, bool model) const {
    const Json& c = get(m, "content");
    const auto cleaned = [&](const std::string& s) { return model ? without_thoughts(s) : trim(s); };
    if (c.is_string()) return cleaned(c.get<std::string>());
    std::string out;
    if (c.is_array()) {
      for (const Json& part : c) {
        if (get(part, "type") == "text")
          out += cleaned(text_of(get(part, "text"), i, "content[].text"));
        else
          out += media(part);
      }
    }
    return out;
  }

  void message(size_t i) {
    const Json& m = in_.messages[i];
    const std::string& role = text_of(get(m, "role"), i, "role");
    const bool model = role == "assistant";
    if (!model || previous_role_ != "assistant") out_ += "<|turn>" + (model ? "model" : role) + "\n";
    const bool has_calls = truthy(get(m, "tool_calls"));
    const Json& reasoning = truthy(get(m, "reasoning")) ? get(m, "reasoning") : get(m, "reasoning_content");
    const bool current = static_cast<long>(i) > last_user_;
    if (truthy(reasoning) && (current || (has_calls && truthy(get(in_.extra, "preserve_thinking"))))) {
      out_ += "<|channel>thought\n" + text_of(reasoning, i, "reasoning_content") + "\n<channel|>";
    }
    last_ = has_calls ? Last::call : Last::other;
    if (has_calls) calls(m, i);
    bool answered = false;
    if (truthy(get(m, "tool_responses"))) {  // older form: the results inside the message
      for (const Json& r : m["tool_responses"]) {
        out_ += response(truthy(get(r, "name")) ? printed(r["name"]) : "unknown", get(r, "response"));
        answered = true;
      }
    } else if (has_calls) {
      answered = responses(m, i);
    }
    if (answered) last_ = Last::response;
    const std::string text = content(m, i, model);
    out_ += text;
    end_of_message(i, model, has_calls, answered, !trim(text).empty());
    previous_role_ = role;
  }

  void end_of_message(size_t i, bool model, bool has_calls, bool answered, bool has_content) {
    size_t next = i + 1;
    while (next < in_.messages.size() && get(in_.messages[next], "role") == "tool") ++next;
    const bool more = next < in_.messages.size();
    const bool continues =
        model && more && get(in_.messages[next], "role") == "assistant" && (!has_calls || answered);
    if (last_ == Last::call && !answered)
      out_ += "<|tool_response>";
    else if (!continues && (!answered || has_content || more))
      out_ += "<turn|>\n";
  }

  void generation_prompt() {
    if (last_ == Last::other) {
      out_ += "<|turn>model\n";
      if (!think_ && empty_thought_) out_ += "<|channel>thought\n<channel|>";
    } else if (last_ == Last::response && think_) {
      out_ += "<|channel>thought\n";
    }
  }

  const ChatInput& in_;
  const bool think_, empty_thought_;
  std::string out_, previous_role_;
  size_t first_ = 0;
  long last_user_ = -1;
  Last last_ = Last::other;
};

}  // namespace

std::string render_gemma4(const ChatInput& input, bool empty_thought) {
  return Renderer(input, empty_thought).run();
}

}  // namespace carat
