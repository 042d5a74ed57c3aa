#include "serve/api/ollama.h"

#include <chrono>
#include <ctime>
#include <utility>

#include "serve/api/call_arguments.h"
#include "serve/api/logprobs.h"
#include "serve/api/stream.h"

namespace carat {
namespace {

using Kind = ChatDelta::Kind;

Json call_json(const Choice& c, size_t i) {
  const ToolCall& call = c.tools[i];
  return {{"id", call.id},
          {"function", {{"index", i}, {"name", call.name}, {"arguments", arguments_mark(call)}}}};
}

// The answer as objects: of /api/chat with a message, of /api/generate with a response.
class OllamaWriter {
 public:
  OllamaWriter(const ApiContext& api, Job& job, bool chat, bool raw)
      : api_(api), job_(job), chat_(chat), raw_(raw) {}

  // What is fresh, a line for each piece. A call is told when it is whole.
  std::string deltas() {
    Choice& c = choice();
    std::vector<Json> pieces;
    for (const ChatDelta& d : std::exchange(c.fresh, {})) {
      if (d.kind == Kind::content) pieces.push_back(piece(d.text, {}));
      if (d.kind == Kind::thinking) pieces.push_back(piece({}, d.text));
    }
    for (; calls_ < c.tools.size() && c.tools[calls_].whole; ++calls_) {
      pieces.push_back(piece({}, {}));
      pieces.back()["message"]["tool_calls"] = Json::array({call_json(c, calls_)});
    }
    if (pieces.empty()) return {};
    add_logprobs(pieces.front());
    std::string out;
    for (Json& p : pieces) out += line(p);
    return with_arguments(c.tools, std::move(out), true);
  }
  std::string last() {
    Json out = ending(piece({}, {}));
    add_logprobs(out);
    return line(out);
  }
  Json whole() {
    const Choice& c = choice();
    Json out = ending(piece(c.content, c.thinking));
    for (size_t i = 0; i < c.tools.size(); ++i)  // a call that was cut would look finished
      if (c.tools[i].whole) out["message"]["tool_calls"].push_back(call_json(c, i));
    add_logprobs(out);
    return out;
  }
  // Changes nothing for the client: lines have no comments.
  std::string heartbeat() { return line(piece({}, {})); }
  static std::string line(const Json& j) { return dump_json(j) + "\n"; }
  static std::string error(const std::string& why) { return line({{"error", why}}); }
  Choice& choice() { return job_.choices().front(); }

 private:
  Json piece(const std::string& content, const std::string& thinking) const {
    Json out = {{"model", api_.config.names.front()}, {"created_at", ollama_now()}};
    if (chat_)
      out["message"] = {{"role", "assistant"}, {"content", content}};
    else
      out["response"] = content;
    if (!thinking.empty()) (chat_ ? out["message"] : out)["thinking"] = thinking;
    out["done"] = false;
    return out;
  }
  Json ending(Json out) {
    const Choice& c = choice();
    const Json timings = job_.timings();
    const auto nanoseconds = [](double ms) { return static_cast<int64_t>(1e6 * ms); };
    out["done"] = true;
    out["done_reason"] = c.finish == Finish::length ? "length" : "stop";
    if (!chat_ && !raw_) {
      out["context"] = c.prompt;
      for (const Token t : c.tokens) out["context"].push_back(t);
      if (c.end_token >= 0) out["context"].push_back(c.end_token);
    }
    out["total_duration"] = nanoseconds(1e3 * job_.elapsed());
    out["load_duration"] = 0;
    out["prompt_eval_count"] = c.prompt.size();
    out["prompt_eval_duration"] = nanoseconds(timings["prompt_ms"].get<double>());
    out["eval_count"] = c.generated;
    out["eval_duration"] = nanoseconds(timings["predicted_ms"].get<double>());
    return out;
  }
  void add_logprobs(Json& out) {
    Choice& c = choice();
    if (job_.options().logprobs < 0 || c.fresh_reports >= c.reports.size()) return;
    out["logprobs"] = token_reports(job_, c, std::exchange(c.fresh_reports, c.reports.size()));
  }

  const ApiContext& api_;
  Job& job_;
  const bool chat_, raw_;
  size_t calls_ = 0;  // told
};

HttpStream stream(Job& job, OllamaWriter& w, const std::function<bool()>& gone, const HttpWrite& write) {
  Pulse pulse(write, w.heartbeat());
  const auto on_change = [&](int) {
    const Choice& c = w.choice();
    std::string out = w.deltas();
    if (c.finish == Finish::error)
      out += w.error(why_failed(c));
    else if (c.finish == Finish::cancelled)
      out += w.error(kEnding);
    else if (c.finish != Finish::none)
      out += w.last();
    return pulse.write(out);
  };
  std::optional<bool> whole;
  while (!(whole = job.step(gone, on_change))) {
    pulse.beat();
    co_await job.more();
  }
  if (!*whole) write(w.error(kEnding));  // a client that has gone does not get it
}

HttpResponse answer(const ApiContext& api, std::shared_ptr<Job> job, bool chat, bool raw,
                    const HttpRequest& request) {
  auto writer = std::make_shared<OllamaWriter>(api, *job, chat, raw);
  if (job->options().stream) {
    HttpResponse r;
    r.type = "application/x-ndjson";
    r.stream = [job, writer, gone = request.gone](const HttpWrite& write) {
      return stream(*job, *writer, gone, write);
    };
    return r;
  }
  if (!job->run(request.gone, [](int) { return true; })) return error_response(499, "the client has gone");
  const Choice& c = writer->choice();
  if (c.finish == Finish::error) throw ApiError(c.status, why_failed(c));
  if (c.finish == Finish::cancelled) throw ApiError(503, kEnding);
  HttpResponse r = json_response(writer->whole());
  r.body = with_arguments(c.tools, std::move(r.body), true);
  return r;
}

GenerateOptions options_of(const ApiContext& api, const Json& body, const HttpRequest& request) {
  const Fields f(body);
  GenerateOptions options = read_options(body, api.config, request);
  const int64_t top = f.get_int("top_logprobs", 0, 0, kMaxAlternatives);
  if (f.get_bool("logprobs", false)) options.logprobs = static_cast<int32_t>(top);
  return options;
}

}  // namespace

std::string ollama_time(int64_t unix_nanoseconds) {
  constexpr int64_t kSecond = 1'000'000'000;
  const std::time_t seconds = unix_nanoseconds / kSecond;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, unix_nanoseconds % kSecond);
}

std::string ollama_now() {
  using namespace std::chrono;
  return ollama_time(duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

HttpResponse ollama_error(HttpResponse openai) {
  if (openai.status < 400 || openai.stream) return openai;
  const Json given = Json::parse(openai.body, nullptr, false);
  Json message = "the request failed";
  if (given.is_object() && given.contains("error") && given["error"].is_object())
    message = given["error"]["message"];
  openai.body = dump_json({{"error", message}});
  return openai;
}

HttpResponse ollama_chat(const ApiContext& api, const HttpRequest& request) {
  const OllamaAsked asked = chat_of_ollama(parse_body(request.body));
  return answer(api, chat_job(api, asked.body, options_of(api, asked.body, request), "chat_"), true, false,
                request);
}

HttpResponse ollama_generate(const ApiContext& api, const HttpRequest& request) {
  const OllamaAsked asked = generate_of_ollama(parse_body(request.body));
  GenerateOptions options = options_of(api, asked.body, request);
  for (const Token t : asked.context)
    if (t >= api.model.tokenizer.size())
      throw ApiError(400, fmt::format("context: there is no token {}", t), "context");
  if (!asked.raw)
    return answer(api, chat_job(api, asked.body, options, "gen_", asked.context), false, false, request);
  options.grammar = api.constraints.of_text(asked.body);
  auto tokens = encode_prompt(api.model.tokenizer, asked.body["prompt"].get<std::string>());
  truncate_prompt(tokens, options.wishes, api.model.engine.config().context, options.max_tokens,
                  api.model.tokenizer.data().bos);
  check_length(tokens.size(), api.model.engine.config().context, "prompt");
  const auto job = std::make_shared<Job>(api.model, api.metrics, "gen_", options, api.config.stuck_seconds);
  job->add(tokens);
  job->submit(false);
  return answer(api, job, false, true, request);
}

}  // namespace carat
