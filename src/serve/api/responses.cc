#include "serve/api/responses.h"

#include <algorithm>
#include <utility>

#include "serve/api/chat_prompt.h"
#include "serve/api/logprobs.h"
#include "serve/api/stream.h"

namespace carat {
namespace {

using Kind = ChatDelta::Kind;

const char* status_of(const Choice& c) {
  switch (c.finish) {
    case Finish::none: return "in_progress";
    case Finish::length: return "incomplete";
    case Finish::stop: return "completed";
    case Finish::cancelled:
    case Finish::error: return "failed";
  }
  return "failed";
}

// A request, and what its tools are called here.
struct Asked {
  Json body;
  ToolOrigins origins;
};

// The text that is a custom tool's only argument.
std::string custom_input(const std::string& arguments) {
  const Json j = Json::parse(arguments, nullptr, false);
  return j.is_object() && j.contains("input") && j["input"].is_string() ? j["input"].get<std::string>()
                                                                        : arguments;
}

// The answer as items, told in events while it grows.
class ResponseWriter {
 public:
  ResponseWriter(const ApiContext& api, const Asked& asked, Job& job)
      : api_(api), body_(asked.body), origins_(asked.origins), job_(job) {}

  void delta(const ChatDelta& d) {
    const Json reports = fresh_reports();
    if (d.kind == Kind::tool_name) {
      close();
      call_ = d.index;
      open_call(d);
      return;
    }
    if (!open_ || kind_ != d.kind) open_text(d.kind);
    text_ += d.text;
    if (custom_ && kind_ == Kind::tool_arguments) return;  // its text is known when it ends
    Json more = {{"delta", d.text}};
    if (job_.options().timings_each) more["timings"] = job_.timings();
    if (kind_ == Kind::content) {
      more["logprobs"] = reports;
      logprobs_.insert(logprobs_.end(), reports.begin(), reports.end());
    }
    event(name_of("delta"), place(std::move(more)));
  }

  void close() {
    if (!std::exchange(open_, false)) return;
    const bool call = kind_ == Kind::tool_arguments, custom = call && custom_;
    std::string text = std::exchange(text_, {});
    if (custom) {
      text = custom_input(text);
      event(name_of("delta"), place({{"delta", text}}));
    }
    const char* field = custom ? "input" : call ? "arguments" : "text";
    Json done = {{field, text}};
    if (call && !custom) done["name"] = item_["name"];
    if (kind_ == Kind::content) done["logprobs"] = logprobs_;
    event(name_of("done"), place(std::move(done)));
    if (call) {
      item_[field] = text;
    } else {
      item_["content"] = Json::array({part(text)});
      event("response.content_part.done", place({{"part", part(text)}}));
    }
    const auto& calls = choice().tools;
    const bool cut = call && !calls.at(static_cast<size_t>(call_)).whole;
    if (kind_ != Kind::thinking) item_["status"] = cut ? "incomplete" : "completed";
    event("response.output_item.done", {{"output_index", items_.size()}, {"item", item_}});
    items_.push_back(std::move(item_));
  }

  void event(const std::string& name, Json data) {
    Json whole = {{"type", name}, {"sequence_number", sequence_++}};
    whole.update(data);
    out_ += fmt::format("event: {}\n", name) + sse(dump_json(whole));
  }
  std::string take() { return std::exchange(out_, {}); }
  Json response() const;

 private:
  // Under the name that the client knows.
  void open_call(const ChatDelta& d) {
    const auto at = origins_.find(d.text);
    const ToolOrigin origin = at == origins_.end() ? ToolOrigin{d.text, "", false} : at->second;
    custom_ = origin.custom;
    Json item = {{"id", (custom_ ? "ctc_" : "fc_") + random_id(24)},
                 {"type", custom_ ? "custom_tool_call" : "function_call"},
                 {"status", "in_progress"},
                 {"call_id", choice().tools[static_cast<size_t>(d.index)].id},
                 {"name", origin.name},
                 {custom_ ? "input" : "arguments", ""}};
    if (!origin.space.empty()) item["namespace"] = origin.space;
    start(Kind::tool_arguments, std::move(item));
  }
  const Choice& choice() const { return job_.choices().front(); }
  // Of the tokens since the last time; of several that came at once the first piece of text has all.
  Json fresh_reports() {
    Choice& c = job_.choices().front();
    if (job_.options().logprobs < 0) return Json::array();
    return token_reports(job_, c, std::exchange(c.fresh_reports, c.reports.size()));
  }

  void open_text(Kind kind) {
    close();
    if (kind == Kind::thinking)
      start(kind, {{"id", "rs_" + random_id(24)},
                   {"type", "reasoning"},
                   {"summary", Json::array()},
                   {"content", Json::array()}});
    else
      start(kind, {{"id", "msg_" + random_id(24)},
                   {"type", "message"},
                   {"status", "in_progress"},
                   {"role", "assistant"},
                   {"content", Json::array()}});
    event("response.content_part.added", place({{"part", part("")}}));
  }
  void start(Kind kind, Json item) {
    kind_ = kind;
    item_ = std::move(item);
    open_ = true;
    logprobs_ = Json::array();
    event("response.output_item.added", {{"output_index", items_.size()}, {"item", item_}});
  }
  Json part(const std::string& text) const {
    if (kind_ == Kind::thinking) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", logprobs_}};
  }
  std::string name_of(const char* what) const {
    const char* of = kind_ == Kind::thinking  ? "reasoning_text"
                     : kind_ == Kind::content ? "output_text"
                     : custom_                ? "custom_tool_call_input"
                                              : "function_call_arguments";
    return fmt::format("response.{}.{}", of, what);
  }
  Json place(Json more) const {
    Json j = {{"item_id", item_["id"]}, {"output_index", items_.size()}};
    if (kind_ != Kind::tool_arguments) j["content_index"] = 0;
    j.update(more);
    return j;
  }

  const ApiContext& api_;
  const Json& body_;
  const ToolOrigins& origins_;
  Job& job_;
  std::string out_, text_;
  Json items_ = Json::array(), item_, logprobs_ = Json::array();
  Kind kind_ = Kind::content;
  bool open_ = false, custom_ = false;
  int call_ = 0;  // number of the call that is open
  int64_t sequence_ = 0;
};

// The request's own fields are told back, as OpenAI does.
Json ResponseWriter::response() const {
  const Choice& c = choice();
  const Json chat_usage = job_.usage();
  const SampleParams& sample = job_.options().sample;
  Json r = {{"id", job_.id()},
            {"object", "response"},
            {"created_at", job_.created()},
            {"status", status_of(c)},
            {"background", false},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"instructions", nullptr},
            {"max_output_tokens", nullptr},
            {"metadata", Json::object()},
            {"model", api_.config.names.front()},
            {"output", items_},
            {"parallel_tool_calls", true},
            {"previous_response_id", nullptr},
            {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
            {"store", false},
            {"temperature", sample.temperature},
            {"text", {{"format", {{"type", "text"}}}}},
            {"tool_choice", "auto"},
            {"tools", Json::array()},
            {"top_p", sample.top_p},
            {"truncation", "disabled"},
            {"usage", nullptr}};
  for (const char* name : {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls",
                           "reasoning", "text", "tool_choice", "tools", "max_tool_calls", "truncation"})
    if (body_.contains(name) && !body_[name].is_null()) r[name] = body_[name];
  if (c.finish == Finish::none) return r;
  if (c.finish == Finish::length) r["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (c.finish == Finish::error || c.finish == Finish::cancelled)
    r["error"] = {{"code", "server_error"},
                  {"message", c.finish == Finish::error ? why_failed(c) : std::string(kEnding)}};
  r["usage"] = {{"input_tokens", chat_usage["prompt_tokens"]},
                {"input_tokens_details", chat_usage["prompt_tokens_details"]},
                {"output_tokens", c.generated},
                {"output_tokens_details", {{"reasoning_tokens", c.thought}}},
                {"total_tokens", chat_usage["total_tokens"]}};
  r["timings"] = job_.timings();
  return r;
}

// "include": ["message.output_text.logprobs"], with `top_logprobs`; -1: not asked for.
int32_t logprobs_of(const Json& body) {
  const Fields f(body);
  const auto top = static_cast<int32_t>(f.get_int("top_logprobs", 0, 0, kMaxAlternatives));
  const Json* include = f.find("include");
  if (include && !include->is_array()) f.fail("include", "an array of names");
  const bool asked = include && std::find(include->begin(), include->end(), "message.output_text.logprobs") !=
                                    include->end();
  return asked || top > 0 ? top : -1;
}

HttpResponse whole(const ApiContext& api, const Asked& asked, Job& job, const HttpRequest& request) {
  ResponseWriter w(api, asked, job);
  Choice& c = job.choices().front();
  const auto on_change = [&](int) {
    for (const ChatDelta& d : std::exchange(c.fresh, {})) w.delta(d);
    w.take();
    return true;
  };
  if (!job.run(request.gone, on_change)) return error_response(499, "the client has gone");
  if (c.finish == Finish::error) throw ApiError(c.status, why_failed(c), {}, "generation_failed");
  if (c.finish == Finish::cancelled) throw ApiError(503, kEnding, {}, "ending");
  w.close();
  return json_response(w.response());
}

HttpStream stream(const ApiContext& api, const Asked& asked, Job& job, const std::function<bool()>& gone,
                  const HttpWrite& write) {
  ResponseWriter w(api, asked, job);
  for (const char* name : {"response.created", "response.in_progress"})
    w.event(name, {{"response", w.response()}});
  Pulse pulse(write, kHeartbeat);
  if (!pulse.write(w.take())) co_return;
  Choice& c = job.choices().front();
  const auto end = [&] {
    w.close();
    w.event(fmt::format("response.{}", status_of(c)),
            {{"response", w.response()}, {"timings", job.timings()}});
  };
  const auto on_change = [&](int) {
    if (std::exchange(c.progress_fresh, false))
      w.event("response.in_progress", {{"response", w.response()}, {"prompt_progress", c.prompt_progress()}});
    for (const ChatDelta& d : std::exchange(c.fresh, {})) w.delta(d);
    if (c.finish != Finish::none) end();
    return pulse.write(w.take());
  };
  std::optional<bool> whole;
  while (!(whole = job.step(gone, on_change))) {
    pulse.beat();
    co_await job.more();
  }
  if (*whole) co_return;
  c.finish = Finish::cancelled;  // a client that has gone does not get it
  end();
  write(w.take());
}

}  // namespace

HttpResponse responses(const ApiContext& api, const HttpRequest& request) {
  auto asked = std::make_shared<Asked>();
  asked->body = parse_body(request.body);
  const Json chat = chat_of_responses(asked->body, &asked->origins);
  GenerateOptions options = read_options(chat, api.config, request);
  options.logprobs = logprobs_of(asked->body);
  const auto job = chat_job(api, chat, options, "resp_");
  if (!options.stream) return whole(api, *asked, *job, request);
  HttpResponse r;
  r.type = "text/event-stream";
  r.stream = [&api, asked, job, gone = request.gone](const HttpWrite& write) {
    return stream(api, *asked, *job, gone, write);
  };
  return r;
}

HttpResponse count_input_tokens(const ApiContext& api, const HttpRequest& request) {
  const Json chat = chat_of_responses(parse_body(request.body));
  return json_response(
      {{"object", "response.input_tokens"}, {"input_tokens", chat_tokens(api, chat).size()}});
}

}  // namespace carat
