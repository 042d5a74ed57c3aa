#include "serve/api/anthropic.h"

#include <algorithm>

namespace carat {
namespace {

using Kind = ChatDelta::Kind;

[[noreturn]] void bad(const std::string& field, const std::string& must) {
  throw ApiError(400, fmt::format("{} must be {}", field, must), field);
}

// A text, or blocks that are texts.
std::string text_of(const Json& j, const std::string& at) {
  if (j.is_null()) return {};
  if (j.is_string()) return j.get<std::string>();
  if (!j.is_array()) bad(at, "a string or an array of text blocks");
  std::string out;
  for (const Json& block : j) {
    const bool text = block.is_object() && block.value("type", "") == "text" && block.contains("text");
    if (!text || !block["text"].is_string()) bad(at, "made of text: this server takes no other blocks there");
    out += block["text"].get<std::string>();
  }
  return out;
}

std::string string_in(const Json& block, const char* name, const std::string& at) {
  if (!block.contains(name) || !block[name].is_string()) bad(at + "." + name, "a string");
  return block[name].get<std::string>();
}

// One message may become several: results of tools stand in messages of their own.
void add_message(Json& out, const Json& m, const std::string& at) {
  if (!m.is_object()) bad(at, "an object");
  const std::string role = string_in(m, "role", at);
  if (role != "user" && role != "assistant") bad(at + ".role", "\"user\" or \"assistant\"");
  if (!m.contains("content")) bad(at + ".content", "given");
  if (m["content"].is_string()) {
    out.push_back({{"role", role}, {"content", m["content"]}});
    return;
  }
  if (!m["content"].is_array()) bad(at + ".content", "a string or an array of blocks");
  std::string text, thinking;
  Json calls = Json::array();
  bool results = false, texts = false;
  for (size_t i = 0; i < m["content"].size(); ++i) {
    const Json& block = m["content"][i];
    const std::string here = fmt::format("{}.content[{}]", at, i);
    if (!block.is_object()) bad(here, "an object");
    const std::string type = string_in(block, "type", here);
    if (type == "text") {
      text += string_in(block, "text", here);
      texts = true;
    } else if (type == "tool_result" && role == "user") {
      out.push_back({{"role", "tool"},
                     {"tool_call_id", string_in(block, "tool_use_id", here)},
                     {"content", text_of(block.value("content", Json()), here + ".content")}});
      results = true;
    } else if (type == "tool_use" && role == "assistant") {
      calls.push_back({{"id", string_in(block, "id", here)},
                       {"type", "function"},
                       {"function",
                        {{"name", string_in(block, "name", here)},
                         {"arguments", block.value("input", Json::object())}}}});
    } else if (type == "thinking" && role == "assistant") {
      thinking += string_in(block, "thinking", here);
    } else if (type != "redacted_thinking") {
      bad(here + ".type", "a block this server takes: text, tool_use, tool_result, thinking");
    }
  }
  if (role == "user" && results && !texts) return;
  Json message = {{"role", role}, {"content", text}};
  if (!thinking.empty()) message["reasoning_content"] = thinking;
  if (!calls.empty()) message["tool_calls"] = calls;
  out.push_back(std::move(message));
}

Json tools_of(const Json& tools) {
  if (!tools.is_array()) bad("tools", "an array");
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& t = tools[i];
    const std::string at = fmt::format("tools[{}]", i);
    if (!t.is_object()) bad(at, "an object");
    if (t.contains("type") && !t["type"].is_null() && t["type"] != "custom")
      bad(at + ".type", "\"custom\": this server has no tools of its own");
    Json function = {{"name", string_in(t, "name", at)}};
    if (t.contains("description")) function["description"] = string_in(t, "description", at);
    if (!t.contains("input_schema") || !t["input_schema"].is_object()) bad(at + ".input_schema", "an object");
    function["parameters"] = t["input_schema"];
    if (t.contains("strict")) function["strict"] = t["strict"];
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void add_tool_choice(Json& out, const Json& choice) {
  if (!choice.is_object()) bad("tool_choice", "an object");
  const std::string type = string_in(choice, "type", "tool_choice");
  if (type == "auto" || type == "none")
    out["tool_choice"] = type;
  else if (type == "any")
    out["tool_choice"] = "required";
  else if (type == "tool")
    out["tool_choice"] = {{"type", "function"},
                          {"function", {{"name", string_in(choice, "name", "tool_choice")}}}};
  else
    bad("tool_choice.type", "\"auto\", \"any\", \"tool\" or \"none\"");
  if (choice.value("disable_parallel_tool_use", false)) out["parallel_tool_calls"] = false;
}

const char* stop_reason(const Choice& c) {
  if (c.by_stop_string) return "stop_sequence";
  if (c.finish == Finish::length) return "max_tokens";
  return c.tools.empty() ? "end_turn" : "tool_use";
}
Json stop_sequence(const Choice& c) { return c.by_stop_string ? Json(c.stop.matched()) : Json(); }

Json usage_of(const Choice& c, int64_t generated) {
  return {{"input_tokens", static_cast<int64_t>(c.prompt.size()) - c.cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", c.cached},
          {"output_tokens", generated}};
}

Json input_of(const std::string& arguments) {
  Json input = Json::parse(arguments, nullptr, false);
  return input.is_object() ? input : Json::object();
}

Json envelope(const ApiContext& api, const Job& job) {
  return {{"id", job.id()}, {"type", "message"}, {"role", "assistant"}, {"model", api.config.names.front()}};
}

HttpResponse whole(const ApiContext& api, Job& job, const HttpRequest& request) {
  if (!job.run(request.gone, [](int) { return true; })) return error_response(499, "the client has gone");
  const Choice& c = job.choices().front();
  if (c.finish == Finish::error) throw ApiError(500, why_failed(c));
  if (c.finish == Finish::cancelled) throw ApiError(503, kEnding);
  Json body = envelope(api, job);
  Json content = Json::array();
  if (!c.thinking.empty())
    content.push_back({{"type", "thinking"}, {"thinking", c.thinking}, {"signature", ""}});
  if (!c.content.empty()) content.push_back({{"type", "text"}, {"text", c.content}});
  for (const ToolCall& t : c.tools)
    content.push_back(
        {{"type", "tool_use"}, {"id", t.id}, {"name", t.name}, {"input", input_of(t.arguments)}});
  body["content"] = std::move(content);
  body["stop_reason"] = stop_reason(c);
  body["stop_sequence"] = stop_sequence(c);
  body["usage"] = usage_of(c, c.generated);
  return json_response(body);
}

// Deltas as blocks with a beginning and an end: one is open at a time.
class BlockWriter {
 public:
  void delta(const Choice& c, const ChatDelta& d) {
    if (d.kind == Kind::tool_name) {
      start({{"type", "tool_use"},
             {"id", c.tools[static_cast<size_t>(d.index)].id},
             {"name", d.text},
             {"input", Json::object()}},
            Kind::tool_arguments);
      return;
    }
    if (!open_ || kind_ != d.kind) {
      if (d.kind == Kind::thinking)
        start({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, d.kind);
      else
        start({{"type", "text"}, {"text", ""}}, d.kind);
    }
    if (d.kind == Kind::thinking) add({{"type", "thinking_delta"}, {"thinking", d.text}});
    if (d.kind == Kind::content) add({{"type", "text_delta"}, {"text", d.text}});
    if (d.kind == Kind::tool_arguments) add({{"type", "input_json_delta"}, {"partial_json", d.text}});
  }
  void event(const char* name, Json data) {
    Json whole = {{"type", name}};
    whole.update(data);
    out_ += fmt::format("event: {}\n", name) + sse(dump_json(whole));
  }
  void close() {
    if (!std::exchange(open_, false)) return;
    if (kind_ == Kind::thinking) add({{"type", "signature_delta"}, {"signature", ""}});
    event("content_block_stop", {{"index", index_++}});
  }
  std::string take() { return std::exchange(out_, {}); }

 private:
  void start(Json block, Kind kind) {
    close();
    event("content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
    open_ = true;
    kind_ = kind;
  }
  void add(Json delta) { event("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}}); }

  std::string out_;
  int index_ = 0;
  bool open_ = false;
  Kind kind_ = Kind::content;
};

HttpStream stream(const ApiContext& api, Job& job, const std::function<bool()>& gone,
                  const HttpWrite& write) {
  BlockWriter w;
  Json message = envelope(api, job);
  message.update({{"content", Json::array()}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}});
  message["usage"] = usage_of(job.choices().front(), 0);
  w.event("message_start", {{"message", std::move(message)}});
  w.event("ping", Json::object());
  if (!write(w.take())) co_return;
  const auto fail = [&](const char* type, const std::string& why) {
    w.event("error", {{"error", {{"type", type}, {"message", why}}}});
  };
  const auto on_change = [&](int) {
    Choice& c = job.choices().front();
    for (const ChatDelta& d : std::exchange(c.fresh, {})) w.delta(c, d);
    if (c.finish == Finish::error) {
      fail("api_error", why_failed(c));
    } else if (c.finish == Finish::cancelled) {
      fail("overloaded_error", kEnding);
    } else if (c.finish != Finish::none) {
      w.close();
      w.event("message_delta",
              {{"delta", {{"stop_reason", stop_reason(c)}, {"stop_sequence", stop_sequence(c)}}},
               {"usage", usage_of(c, c.generated)}});
      w.event("message_stop", Json::object());
    }
    return write(w.take());
  };
  std::optional<bool> whole;
  while (!(whole = job.step(gone, on_change))) co_await job.more();
  if (*whole) co_return;
  fail("overloaded_error", kEnding);  // nobody hears it if the client has gone
  write(w.take());
}

const char* type_of(int status) {
  switch (status) {
    case 400: return "invalid_request_error";
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404:
    case 405: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return "api_error";
  }
}

}  // namespace

Json chat_of_messages(const Json& body) {
  Json out = Json::object();
  // What has the same name and meaning; ours that Anthropic's API does not have among them.
  for (const char* name : {"temperature", "top_p", "top_k", "max_tokens", "stream", "min_p", "seed",
                           "repeat_penalty", "grammar", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "structured_outputs", "chat_template_kwargs", "logit_bias"})
    if (body.contains(name)) out[name] = body[name];
  if (body.contains("stop_sequences") && !body["stop_sequences"].is_null()) {
    if (!body["stop_sequences"].is_array()) bad("stop_sequences", "an array of strings");
    out["stop"] = body["stop_sequences"];
  }
  Json list = Json::array();
  const std::string system = text_of(body.value("system", Json()), "system");
  if (!system.empty()) list.push_back({{"role", "system"}, {"content", system}});
  if (!body.contains("messages") || !body["messages"].is_array() || body["messages"].empty())
    bad("messages", "a non-empty array");
  for (size_t i = 0; i < body["messages"].size(); ++i)
    add_message(list, body["messages"][i], fmt::format("messages[{}]", i));
  out["messages"] = std::move(list);
  if (body.contains("tools") && !body["tools"].is_null()) out["tools"] = tools_of(body["tools"]);
  if (body.contains("tool_choice") && !body["tool_choice"].is_null())
    add_tool_choice(out, body["tool_choice"]);
  if (body.contains("thinking") && !body["thinking"].is_null()) {
    if (!body["thinking"].is_object()) bad("thinking", "an object");
    out["enable_thinking"] = string_in(body["thinking"], "type", "thinking") != "disabled";
  }
  return out;
}

HttpResponse anthropic_error(HttpResponse openai) {
  if (openai.status < 400 || openai.stream) return openai;
  const Json given = Json::parse(openai.body, nullptr, false);
  Json message = "the request failed";
  if (given.is_object() && given.contains("error")) message = given["error"]["message"];
  openai.body =
      dump_json({{"type", "error"}, {"error", {{"type", type_of(openai.status)}, {"message", message}}}});
  return openai;
}

HttpResponse messages(const ApiContext& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  if (!body.contains("max_tokens") || !body["max_tokens"].is_number())
    bad("max_tokens", "a number of at least 1");
  const Json chat = chat_of_messages(body);
  const auto job = chat_job(api, chat, read_options(chat, api.config), "msg_");
  if (!job->options().stream) return whole(api, *job, request);
  HttpResponse r;
  r.type = "text/event-stream";
  r.stream = [&api, job, gone = request.gone](const HttpWrite& write) {
    return stream(api, *job, gone, write);
  };
  return r;
}

HttpResponse count_tokens(const ApiContext& api, const HttpRequest& request) {
  const std::string prompt = render_chat(api, chat_of_messages(parse_body(request.body)));
  return json_response({{"input_tokens", encode_prompt(api.model.tokenizer, prompt).size()}});
}

}  // namespace carat
