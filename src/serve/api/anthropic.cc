#include "serve/api/anthropic.h"

#include <algorithm>

#include "serve/api/anthropic_context.h"
#include "serve/api/call_arguments.h"
#include "serve/api/chat_prompt.h"
#include "serve/api/stream.h"

namespace carat {
namespace {

using Kind = ChatDelta::Kind;

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

Json envelope(const ApiContext& api, const Job& job) {
  return {{"id", job.id()}, {"type", "message"}, {"role", "assistant"}, {"model", api.config.names.front()}};
}

// What was asked, as a chat body; what was taken out of it goes to `edits`.
Json edited_chat(const ApiContext& api, const Json& body, ContextEdits& edits) {
  Json chat = systems_first(chat_of_messages(body));
  edits = manage_context(chat, body.value("context_management", Json()),
                         [&](const Json& c) { return static_cast<int64_t>(chat_tokens(api, c).size()); });
  return chat;
}
void tell_edits(const ContextEdits& edits, Json& out) {
  if (edits.asked) out["context_management"] = {{"applied_edits", edits.applied}};
}

HttpResponse whole(const ApiContext& api, Job& job, const ContextEdits& edits, const HttpRequest& request) {
  if (!job.run(request.gone, [](int) { return true; })) return error_response(499, "the client has gone");
  const Choice& c = job.choices().front();
  if (c.finish == Finish::error) throw ApiError(c.status, why_failed(c));
  if (c.finish == Finish::cancelled) throw ApiError(503, kEnding);
  Json body = envelope(api, job);
  Json content = Json::array();
  if (!c.thinking.empty() && job.options().wishes.include_reasoning)
    content.push_back({{"type", "thinking"}, {"thinking", c.thinking}, {"signature", ""}});
  if (!c.content.empty()) content.push_back({{"type", "text"}, {"text", c.content}});
  for (const ToolCall& t : c.tools) {
    if (!t.whole) continue;  // cut: its input would look finished
    content.push_back({{"type", "tool_use"}, {"id", t.id}, {"name", t.name}, {"input", arguments_mark(t)}});
  }
  body["content"] = std::move(content);
  body["stop_reason"] = stop_reason(c);
  body["stop_sequence"] = stop_sequence(c);
  body["usage"] = usage_of(c, c.generated);
  tell_edits(edits, body);
  HttpResponse r = json_response(body);
  r.body = with_arguments(c.tools, std::move(r.body), false);
  return r;
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

HttpStream stream(const ApiContext& api, Job& job, const ContextEdits& edits,
                  const std::function<bool()>& gone, const HttpWrite& write) {
  BlockWriter w;
  Json message = envelope(api, job);
  message.update({{"content", Json::array()}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}});
  message["usage"] = usage_of(job.choices().front(), 0);
  w.event("message_start", {{"message", std::move(message)}});
  w.event("ping", Json::object());
  Pulse pulse(write, "event: ping\ndata: {\"type\": \"ping\"}\n\n");
  if (!pulse.write(w.take())) co_return;
  const auto fail = [&](const char* type, const std::string& why) {
    w.event("error", {{"error", {{"type", type}, {"message", why}}}});
  };
  const auto on_change = [&](int) {
    Choice& c = job.choices().front();
    for (const ChatDelta& d : std::exchange(c.fresh, {})) w.delta(c, d);
    if (c.finish == Finish::error) {
      fail(c.status == 400 ? "invalid_request_error" : "api_error", why_failed(c));
    } else if (c.finish == Finish::cancelled) {
      fail("overloaded_error", kEnding);
    } else if (c.finish != Finish::none) {
      w.close();
      Json end = {{"delta", {{"stop_reason", stop_reason(c)}, {"stop_sequence", stop_sequence(c)}}},
                  {"usage", usage_of(c, c.generated)}};
      tell_edits(edits, end);
      w.event("message_delta", std::move(end));
      w.event("message_stop", Json::object());
    }
    return pulse.write(w.take());
  };
  std::optional<bool> whole;
  while (!(whole = job.step(gone, on_change))) {
    pulse.beat();
    co_await job.more();
  }
  if (*whole) co_return;
  fail("overloaded_error", kEnding);  // a client that has gone does not get it
  write(w.take());
}

const char* anthropic_type(int status) {
  switch (status) {
    case 400:
    case 405: return "invalid_request_error";
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return "api_error";
  }
}

}  // namespace

HttpResponse anthropic_error(HttpResponse openai) {
  if (openai.status < 400 || openai.stream) return openai;
  const Json given = Json::parse(openai.body, nullptr, false);
  Json message = "the request failed";
  if (given.is_object() && given.contains("error")) message = given["error"]["message"];
  openai.body = dump_json(
      {{"type", "error"}, {"error", {{"type", anthropic_type(openai.status)}, {"message", message}}}});
  return openai;
}

HttpResponse messages(const ApiContext& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Fields f(body);
  if (!f.find("max_tokens")) f.fail("max_tokens", "a number of at least 1");
  f.get_int("max_tokens", 1, 1, 1 << 30);
  ContextEdits edits;
  const Json chat = edited_chat(api, body, edits);
  std::shared_ptr<Job> job;
  try {
    job = chat_job(api, chat, read_options(chat, api.config, request), "msg_");
  } catch (const PromptTooLong& e) {  // clients of this API know it by these words, and shorten
    throw ApiError(400, fmt::format("prompt is too long: {} tokens > {} maximum", e.tokens, e.most),
                   e.param(), e.code());
  }
  if (!job->options().stream) return whole(api, *job, edits, request);
  HttpResponse r;
  r.type = "text/event-stream";
  r.stream = [&api, job, edits, gone = request.gone](const HttpWrite& write) {
    return stream(api, *job, edits, gone, write);
  };
  return r;
}

HttpResponse count_tokens(const ApiContext& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  ContextEdits edits;
  const Json chat = edited_chat(api, body, edits);
  const int64_t left = static_cast<int64_t>(chat_tokens(api, chat).size());
  Json out = {{"input_tokens", left}};
  if (edits.asked) {
    int64_t before = left;
    for (const Json& e : edits.applied) before += e["cleared_input_tokens"].get<int64_t>();
    out["context_management"] = {{"original_input_tokens", before}};
  }
  return json_response(out);
}

}  // namespace carat
