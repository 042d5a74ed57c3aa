#include "text/chat/qwen.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace carat {
namespace {

const Json kNull;

constexpr std::string_view kCallRules =
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
    "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple "
    "lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be "
    "nested "
    "within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function "
    "call, "
    "but NOT after\n- If there is no function call available, answer the question like normal with your "
    "current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT>";

const Json& get(const Json& object, std::string_view key) {
  if (!object.is_object()) return kNull;
  const auto at = object.find(key);
  return at == object.end() ? kNull : *at;
}
std::string trim(std::string_view s) { return std::string(jinja::strip(s, nullptr, true, true)); }

std::string json_text(const Json& v) {
  jinja::Budget budget(1'000'000, size_t{16} << 20);
  try {
    return jinja::to_json(jinja::from_json(v), {}, budget);
  } catch (const jinja::Fail& fail) {
    throw Error(fail.what);
  }
}

std::string content_of(const Json& message, size_t index) {
  const Json& c = get(message, "content");
  if (c.is_string()) return trim(c.get_ref<const std::string&>());
  std::string out;
  if (!c.is_array()) return out;
  for (const Json& part : c) {
    const Json& type = get(part, "type");
    const bool image = type == "image" || type == "image_url", video = type == "video";
    if ((image || video) && get(message, "role") == "system")
      throw Error(fmt::format("messages[{}].content: a system message cannot show images", index));
    if (image || video)
      out += image ? "<|vision_start|><|image_pad|><|vision_end|>"
                   : "<|vision_start|><|video_pad|><|vision_end|>";
    else if (get(part, "text").is_string())
      out += part["text"].get_ref<const std::string&>();
    else
      throw Error(fmt::format("messages[{}].content: parts of the type '{}' are not known to this model",
                              index, type.is_string() ? type.get<std::string>() : ""));
  }
  return trim(out);
}

class Renderer {
 public:
  explicit Renderer(const ChatInput& input) : in_(input) {}

  std::string run() {
    if (!in_.messages.is_array() || in_.messages.empty()) throw Error("messages: there are none");
    const Json& keep = get(in_.extra, "preserve_thinking");
    keep_thoughts_ = keep.is_boolean() && keep.get<bool>();
    find_query();
    const bool system = is_system(0);
    system_turn(system);
    for (size_t i = system ? 1 : 0; i < in_.messages.size(); ++i) message(i);
    if (in_.add_generation_prompt)
      out_ += in_.think.value_or(true) ? "<|im_start|>assistant\n<think>\n"
                                       : "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    return std::move(out_);
  }

 private:
  const Json& role(size_t i) const { return get(in_.messages[i], "role"); }
  bool is_system(size_t i) const { return role(i) == "system" || role(i) == "developer"; }
  bool is_tool(size_t i) const { return i < in_.messages.size() && role(i) == "tool"; }

  // The last message of a user that is not a tool's answer.
  void find_query() {
    for (size_t i = in_.messages.size(); i-- > 0;) {
      if (role(i) != "user") continue;
      const std::string text = content_of(in_.messages[i], i);
      if (text.starts_with("<tool_response>") && text.ends_with("</tool_response>")) continue;
      last_query_ = i;
      return;
    }
    throw Error("messages: there is no question of a user", "add a message with the role 'user'");
  }

  void system_turn(bool message) {
    const std::string text = message ? content_of(in_.messages[0], 0) : "";
    if (in_.tools.is_array() && !in_.tools.empty()) {
      out_ += "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>";
      for (const Json& tool : in_.tools) (out_ += '\n') += json_text(tool);
      out_ += "\n</tools>\n\n" + std::string(kCallRules);
      if (!text.empty()) out_ += "\n\n" + text;
      out_ += "<|im_end|>\n";
    } else if (message) {
      out_ += "<|im_start|>system\n" + text + "<|im_end|>\n";
    }
  }

  void message(size_t i) {
    const Json& m = in_.messages[i];
    if (is_system(i)) throw Error(fmt::format("messages[{}]: a system message must be the first one", i));
    if (is_tool(i)) return tool_result(i);
    if (role(i) == "assistant") return answer(m, i);
    out_ += "<|im_start|>user\n" + content_of(m, i) + "<|im_end|>\n";
  }

  void tool_result(size_t i) {
    if (i == 0 || !is_tool(i - 1)) out_ += "<|im_start|>user";
    out_ += "\n<tool_response>\n" + content_of(in_.messages[i], i) + "\n</tool_response>";
    if (!is_tool(i + 1)) out_ += "<|im_end|>\n";
  }

  void answer(const Json& m, size_t i) {
    std::string text = content_of(m, i), thought;
    const Json& given =
        get(m, "reasoning_content").is_string() ? get(m, "reasoning_content") : get(m, "reasoning");
    if (given.is_string()) {
      thought = trim(given.get_ref<const std::string&>());
    } else if (const size_t end = text.find("</think>"); end != std::string::npos) {
      const std::string before = text.substr(0, end);
      const size_t open = before.rfind("<think>");
      thought = trim(open == std::string::npos ? before : before.substr(open + 7));
      const size_t rest = text.rfind("</think>") + 8;
      text = text.substr(std::min(text.find_first_not_of('\n', rest), text.size()));
    }
    out_ += "<|im_start|>assistant\n";
    if (keep_thoughts_ || i > last_query_) out_ += "<think>\n" + thought + "\n</think>\n\n";
    out_ += text;
    const Json& calls = get(m, "tool_calls");
    for (size_t k = 0; calls.is_array() && k < calls.size(); ++k) {
      if (k > 0 || !trim(text).empty()) out_ += k > 0 ? "\n" : "\n\n";
      call(get(calls[k], "function"), i, k);
    }
    out_ += "<|im_end|>\n";
  }

  void call(const Json& function, size_t i, size_t k) {
    const Json &name = get(function, "name"), &arguments = get(function, "arguments");
    if (!name.is_string())
      throw Error(fmt::format("messages[{}].tool_calls[{}].function.name: missing", i, k));
    out_ += "<tool_call>\n<function=" + name.get<std::string>() + ">\n";
    if (arguments.is_object())
      for (const auto& [key, value] : arguments.items())
        out_ += "<parameter=" + key + ">\n" +
                (value.is_string() ? value.get<std::string>() : json_text(value)) + "\n</parameter>\n";
    out_ += "</function>\n</tool_call>";
  }

  const ChatInput& in_;
  std::string out_;
  bool keep_thoughts_ = false;
  size_t last_query_ = 0;
};

}  // namespace

std::string render_qwen(const ChatInput& input) { return Renderer(input).run(); }

}  // namespace carat
