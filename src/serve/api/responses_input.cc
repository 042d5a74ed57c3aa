// What a Responses body asks for, as a chat body.
#include "serve/api/responses.h"

namespace carat {
namespace {

[[noreturn]] void bad(const std::string& field, const std::string& must) {
  throw ApiError(400, fmt::format("{} must be {}", field, must), field);
}

std::string string_in(const Json& item, const char* name, const std::string& at) {
  if (!item.contains(name) || !item[name].is_string()) bad(at + "." + name, "a string");
  return item[name].get<std::string>();
}

// A text, or parts that are texts.
std::string text_of(const Json& j, const std::string& at) {
  if (j.is_null()) return {};
  if (j.is_string()) return j.get<std::string>();
  if (!j.is_array()) bad(at, "a string or an array of parts");
  std::string out;
  for (size_t i = 0; i < j.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", at, i);
    if (!j[i].is_object()) bad(here, "an object");
    const std::string type = string_in(j[i], "type", here);
    if (type == "refusal")
      out += string_in(j[i], "refusal", here);
    else if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text")
      out += string_in(j[i], "text", here);
    else
      bad(here + ".type", "a part this server takes: input_text, output_text");
  }
  return out;
}

// Items of `input` as messages: calls and thoughts belong to the assistant's message they stand beside.
class Conversation {
 public:
  void add(const Json& item, const std::string& at) {
    if (!item.is_object()) bad(at, "an object");
    const std::string type = item.contains("type") ? string_in(item, "type", at) : "message";
    if (type == "message") {
      message(item, at);
    } else if (type == "function_call") {
      assistant()["tool_calls"].push_back(
          {{"id", string_in(item, "call_id", at)},
           {"type", "function"},
           {"function",
            {{"name", string_in(item, "name", at)}, {"arguments", string_in(item, "arguments", at)}}}});
    } else if (type == "function_call_output") {
      if (!item.contains("output")) bad(at + ".output", "given");
      push({{"role", "tool"},
            {"tool_call_id", string_in(item, "call_id", at)},
            {"content", text_of(item["output"], at + ".output")}});
    } else if (type == "reasoning") {
      const std::string thought = text_of(item.value("content", Json()), at + ".content");
      if (!thought.empty()) assistant()["reasoning_content"] = thought;
    } else {
      bad(at + ".type", "an item this server takes: message, function_call, function_call_output, reasoning");
    }
  }
  void push(Json message) {
    open_ = false;
    list_.push_back(std::move(message));
  }
  Json take() { return std::move(list_); }

 private:
  void message(const Json& item, const std::string& at) {
    std::string role = string_in(item, "role", at);
    if (role == "developer") role = "system";
    if (role != "user" && role != "assistant" && role != "system")
      bad(at + ".role", "\"user\", \"assistant\", \"system\" or \"developer\"");
    const std::string text = text_of(item.value("content", Json()), at + ".content");
    if (role == "assistant" && open_ && list_.back()["content"] == "") {
      list_.back()["content"] = text;
      return;
    }
    push({{"role", role}, {"content", text}});
    open_ = role == "assistant";
  }
  Json& assistant() {
    if (!open_) push({{"role", "assistant"}, {"content", ""}});
    open_ = true;
    return list_.back();
  }

  Json list_ = Json::array();
  bool open_ = false;  // the last message is the assistant's and may grow
};

Json tools_of(const Json& tools) {
  if (!tools.is_array()) bad("tools", "an array");
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) bad(at, "an object");
    if (string_in(tools[i], "type", at) != "function")
      bad(at + ".type", "\"function\": this server has no tools of its own");
    Json function = {{"name", string_in(tools[i], "name", at)}};
    for (const char* name : {"description", "parameters", "strict"})
      if (tools[i].contains(name) && !tools[i][name].is_null()) function[name] = tools[i][name];
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

Json tool_choice_of(const Json& choice) {
  if (choice.is_string()) return choice;
  if (!choice.is_object() || choice.value("type", "") != "function")
    bad("tool_choice", "\"auto\", \"none\", \"required\" or a function by name");
  return {{"type", "function"}, {"function", {{"name", string_in(choice, "name", "tool_choice")}}}};
}

Json format_of(const Json& format) {
  if (!format.is_object()) bad("text.format", "an object");
  const std::string type = string_in(format, "type", "text.format");
  if (type != "json_schema") return {{"type", type}};
  Json schema = {{"name", format.value("name", "answer")}};
  for (const char* name : {"schema", "strict", "description"})
    if (format.contains(name) && !format[name].is_null()) schema[name] = format[name];
  return {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

bool given(const Json& body, const char* name) { return body.contains(name) && !body[name].is_null(); }

void refuse_what_needs_memory(const Json& body) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"})
    if (given(body, name))
      throw ApiError(
          400, fmt::format("{}: this server keeps no responses; send the conversation in `input`", name),
          name);
  if (given(body, "background") && body["background"] != false)
    throw ApiError(400, "background: this server keeps no responses; use `stream`", "background");
}

}  // namespace

Json chat_of_responses(const Json& body) {
  refuse_what_needs_memory(body);
  Json out = Json::object();
  for (const char* name :
       {"temperature", "top_p", "top_k", "min_p", "seed", "stream", "parallel_tool_calls", "repeat_penalty",
        "presence_penalty", "frequency_penalty", "logit_bias", "grammar", "guided_json", "guided_regex",
        "guided_choice", "guided_grammar", "structured_outputs", "chat_template_kwargs", "enable_thinking"})
    if (given(body, name)) out[name] = body[name];
  if (given(body, "max_output_tokens")) out["max_tokens"] = body["max_output_tokens"];
  if (given(body, "tools")) out["tools"] = tools_of(body["tools"]);
  if (given(body, "tool_choice")) out["tool_choice"] = tool_choice_of(body["tool_choice"]);
  if (given(body, "reasoning")) {
    if (!body["reasoning"].is_object()) bad("reasoning", "an object");
    if (given(body["reasoning"], "effort")) out["reasoning_effort"] = body["reasoning"]["effort"];
  }
  if (given(body, "text")) {
    if (!body["text"].is_object()) bad("text", "an object");
    if (given(body["text"], "format")) out["response_format"] = format_of(body["text"]["format"]);
  }
  Conversation conversation;
  if (given(body, "instructions"))
    conversation.push({{"role", "system"}, {"content", text_of(body["instructions"], "instructions")}});
  if (!given(body, "input")) bad("input", "given");
  const Json& input = body["input"];
  if (input.is_string()) {
    conversation.push({{"role", "user"}, {"content", input}});
  } else {
    if (!input.is_array() || input.empty()) bad("input", "a text or a non-empty array of items");
    for (size_t i = 0; i < input.size(); ++i) conversation.add(input[i], fmt::format("input[{}]", i));
  }
  out["messages"] = conversation.take();
  return out;
}

}  // namespace carat
