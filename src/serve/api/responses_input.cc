// What a Responses body asks for, as a chat body.
#include <algorithm>
#include <set>

#include "serve/api/readable.h"
#include "serve/api/refusals.h"
#include "serve/api/responses.h"
#include "serve/api/wishes.h"

namespace carat {
namespace {

std::string item_text(const Json& item, const char* name, const std::string& at) {
  if (!item.contains(name) || !item[name].is_string()) must_be(at + "." + name, "a string");
  return item[name].get<std::string>();
}

// A text, or parts that are texts.
std::string text_of(const Json& j, const std::string& at) {
  if (j.is_null()) return {};
  if (j.is_string()) return j.get<std::string>();
  if (!j.is_array()) must_be(at, "a string or an array of parts");
  std::string out;
  for (size_t i = 0; i < j.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", at, i);
    if (!j[i].is_object()) must_be(here, "an object");
    const std::string type = item_text(j[i], "type", here);
    if (type == "refusal")
      out += item_text(j[i], "refusal", here);
    else if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text")
      out += item_text(j[i], "text", here);
    else
      must_be(here + ".type",
              "a part this server takes: input_text, output_text, input_image, input_audio, video_frames");
  }
  return out;
}

bool is_medium(const Json& part) { return is_picture(part) || is_sound(part) || is_video(part); }

// A message's content: a text, or parts with pictures and sounds.
Json content_of(const Json& j, const std::string& at) {
  if (!j.is_array() || std::none_of(j.begin(), j.end(), is_medium)) return text_of(j, at);
  MixedContent out;
  for (size_t i = 0; i < j.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", at, i);
    if (!is_medium(j[i]))
      out.add(text_of(Json::array({j[i]}), here));
    else if (is_picture(j[i]) && !j[i].contains("image_url"))
      must_be(here + ".type", "a part with its bytes: \"image_url\": \"data:image/png;base64,...\"");
    else
      out.add_part(j[i]);
  }
  return out.take();
}

// What a tool answered: a text, or parts of which those that are neither texts nor media become words.
Json output_of(const Json& output, bool media) {
  if (!output.is_array()) return output.is_null() ? std::string() : readable(output);
  MixedContent out;
  for (const Json& part : output) {
    if (media && is_medium(part))
      out.add_part(part);
    else
      out.add(readable(part));
  }
  return out.take();
}

// A tool of a namespace, as the model knows it.
std::string flat_name(const std::string& space, const std::string& name) {
  if (space.empty()) return name;
  return space + (space.ends_with("__") ? "" : "__") + name;
}

// Items of `input` as messages: calls and thoughts belong to the assistant's message they stand beside.
class InputItems {
 public:
  void add(const Json& item, const std::string& at) {
    if (!item.is_object()) must_be(at, "an object");
    const std::string type = item.contains("type") ? item_text(item, "type", at) : "message";
    if (type == "message") {
      message(item, at);
    } else if (type == "function_call") {
      call(item, at, item_text(item, "arguments", at));
    } else if (type == "custom_tool_call") {
      call(item, at, dump_json({{"input", item_text(item, "input", at)}}));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      if (!item.contains("output")) must_be(at + ".output", "given");
      result(item, at);
    } else if (type == "reasoning") {
      const std::string thought = text_of(item.value("content", Json()), at + ".content");
      if (!thought.empty()) assistant()["reasoning_content"] = thought;
    } else if (type.ends_with("_output")) {  // of a tool that is not ours: words for the model
      push({{"role", "user"}, {"content", readable(item)}});
    } else if (type != "item_reference" && type != "compaction") {
      std::string said = list_.empty() || !open_ ? "" : list_.back()["content"].get<std::string>();
      if (!said.empty()) said += "\n";
      assistant()["content"] = said + readable(item);
    }
  }
  void push(Json message) {
    open_ = false;
    list_.push_back(std::move(message));
  }
  Json take() { return std::move(list_); }

 private:
  void call(const Json& item, const std::string& at, const std::string& arguments) {
    const std::string space =
        item.contains("namespace") && item["namespace"].is_string() ? item["namespace"] : Json("");
    const std::string name = flat_name(space, item_text(item, "name", at));
    calls_.insert(item_text(item, "call_id", at));
    assistant()["tool_calls"].push_back({{"id", item["call_id"]},
                                         {"type", "function"},
                                         {"function", {{"name", name}, {"arguments", arguments}}}});
  }
  // A result whose call has been cut off the history stays as words.
  void result(const Json& item, const std::string& at) {
    const std::string id = item_text(item, "call_id", at);
    const bool called = calls_.contains(id);
    Json content = output_of(item["output"], called);
    if (called)
      push({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(content)}});
    else
      push({{"role", "user"}, {"content", std::move(content)}});
  }
  void message(const Json& item, const std::string& at) {
    std::string role = item_text(item, "role", at);
    if (role == "developer") role = "system";
    if (role != "user" && role != "assistant" && role != "system")
      must_be(at + ".role", "\"user\", \"assistant\", \"system\" or \"developer\"");
    const std::string here = at + ".content";
    const Json given = item.value("content", Json());
    Json content = role == "user" ? content_of(given, here) : Json(text_of(given, here));
    if (role == "assistant" && open_ && list_.back()["content"] == "") {
      list_.back()["content"] = std::move(content);
      return;
    }
    push({{"role", role}, {"content", std::move(content)}});
    open_ = role == "assistant";
  }
  Json& assistant() {
    if (!open_) push({{"role", "assistant"}, {"content", ""}});
    open_ = true;
    return list_.back();
  }

  Json list_ = Json::array();
  std::set<std::string> calls_;
  bool open_ = false;  // the last message is the assistant's and may grow
};

// Tools as the chat declares them; namespaces are flattened, what cannot be served is left out.
class Tools {
 public:
  explicit Tools(ToolOrigins* origins) : origins_(origins) {}
  void add(const Json& tools, const std::string& at, const std::string& space = {}) {
    if (!tools.is_array()) must_be(at, "an array");
    for (size_t i = 0; i < tools.size(); ++i) {
      const std::string here = fmt::format("{}[{}]", at, i);
      if (!tools[i].is_object()) must_be(here, "an object");
      const std::string type = item_text(tools[i], "type", here);
      if (type == "namespace" && space.empty())
        add(tools[i].value("tools", Json::array()), here + ".tools", item_text(tools[i], "name", here));
      else if (type == "function" || type == "custom")
        function(tools[i], here, space, type == "custom");
      else
        say_left_out(type);
    }
  }
  Json take() { return std::move(list_); }

 private:
  void function(const Json& tool, const std::string& at, const std::string& space, bool custom) {
    const std::string name = item_text(tool, "name", at), flat = flat_name(space, name);
    Json function = {{"name", flat}};
    for (const char* field : {"description", "parameters", "strict"})
      if (tool.contains(field) && !tool[field].is_null()) function[field] = tool[field];
    if (custom) {
      function["parameters"] = {{"type", "object"},
                                {"properties", {{"input", {{"type", "string"}}}}},
                                {"required", {"input"}},
                                {"additionalProperties", false}};
      if (tool.contains("format") && tool["format"].is_object() && tool["format"].contains("definition"))
        function["description"] = function.value("description", "") + "\nThe input keeps this grammar:\n" +
                                  readable(tool["format"]["definition"]);
    }
    if (origins_ && (custom || !space.empty())) (*origins_)[flat] = {name, space, custom};
    list_.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  ToolOrigins* origins_;
  Json list_ = Json::array();
};

Json chosen(const Json& choice) {
  const Json space = choice.value("namespace", Json(""));
  return {{"type", "function"},
          {"function",
           {{"name", flat_name(space.is_string() ? space.get<std::string>() : "",
                               item_text(choice, "name", "tool_choice"))}}}};
}

Json tool_choice_of(const Json& choice) {
  if (choice.is_string()) return choice;
  const std::string type =
      choice.is_object() && choice.contains("type") ? item_text(choice, "type", "tool_choice") : "";
  if (type == "function" || type == "custom") return chosen(choice);
  if (type != "allowed_tools" || !choice.contains("tools") || !choice["tools"].is_array())
    must_be("tool_choice", "\"auto\", \"none\", \"required\", allowed_tools or a function by name");
  Json tools = Json::array();
  for (const Json& t : choice["tools"])
    if (t.is_object() && t.contains("name")) tools.push_back(chosen(t));
  return {{"type", "allowed_tools"}, {"mode", choice.value("mode", "auto")}, {"tools", std::move(tools)}};
}

Json format_of(const Json& format) {
  if (!format.is_object()) must_be("text.format", "an object");
  const std::string type = item_text(format, "type", "text.format");
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
  if (given(body, "context_management") && !body["context_management"].empty())
    throw ApiError(400, "context_management is not supported: use `truncation`, or shorten `input`",
                   "context_management");
}

}  // namespace

Json chat_of_responses(const Json& body, ToolOrigins* origins) {
  refuse_what_is_not_done(Fields(body));
  refuse_special_tokens(Fields(body));
  refuse_what_needs_memory(body);
  Json out = Json::object();
  copy_shared_fields(body, out);
  for (const char* name :
       {"parallel_tool_calls", "stop", "truncation", "return_progress", "timings_per_token"})
    if (given(body, name)) out[name] = body[name];
  const Fields f(body);
  if (f.find("max_output_tokens")) out["max_tokens"] = f.get_int("max_output_tokens", 1, 1, 1 << 30);
  f.get_int("max_tool_calls", 0, 0);  // of the server's own tools: there are none
  if (given(body, "tools")) {
    Tools tools(origins);
    tools.add(body["tools"], "tools");
    out["tools"] = tools.take();
  }
  const bool none = !out.contains("tools") || out["tools"].empty();
  if (given(body, "tool_choice") && !(none && body["tool_choice"] == "auto"))
    out["tool_choice"] = tool_choice_of(body["tool_choice"]);
  if (given(body, "reasoning")) {
    if (!body["reasoning"].is_object()) must_be("reasoning", "an object");
    if (given(body["reasoning"], "effort")) out["reasoning_effort"] = body["reasoning"]["effort"];
  }
  if (given(body, "text")) {
    if (!body["text"].is_object()) must_be("text", "an object");
    if (given(body["text"], "format")) out["response_format"] = format_of(body["text"]["format"]);
  }
  InputItems conversation;
  if (given(body, "instructions"))
    conversation.push({{"role", "system"}, {"content", text_of(body["instructions"], "instructions")}});
  if (!given(body, "input")) must_be("input", "given");
  const Json& input = body["input"];
  if (input.is_string()) {
    conversation.push({{"role", "user"}, {"content", input}});
  } else {
    if (!input.is_array() || input.empty()) must_be("input", "a text or a non-empty array of items");
    for (size_t i = 0; i < input.size(); ++i) conversation.add(input[i], fmt::format("input[{}]", i));
  }
  out["messages"] = conversation.take();
  return out;
}

}  // namespace carat
