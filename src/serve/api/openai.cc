#include "serve/api/openai.h"

#include <algorithm>
#include <utility>

#include "serve/api/step_trace.h"

#include "serve/api/chat_fit.h"
#include "serve/api/chat_prompt.h"
#include "serve/api/logprobs.h"
#include "serve/api/readable.h"
#include "serve/api/refusals.h"

namespace carat {
namespace {

// How a job is told to the client; one for each endpoint.
class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual const char* object(bool stream) const = 0;
  virtual Json opening(Job&, int) const { return nullptr; }          // a choice of a stream's first chunk
  virtual std::vector<Json> deltas(Job& job, int choice) const = 0;  // choices, from what is fresh
  virtual Json closing(Job& job, int choice) const = 0;              // a choice with its finish_reason
  virtual Json whole(Job& job, int choice) const = 0;
};

Json envelope(const ApiContext& api, const Job& job, const char* object) {
  return {{"id", job.id()},
          {"object", object},
          {"created", job.created()},
          {"model", api.config.names.front()},
          {"system_fingerprint", api.config.build}};
}

// vLLM's further fields of a choice: the prompt's tokens once, its own since the last time, and what stopped
// it.
void add_extras(Json& choice, Job& job, Choice& c) {
  if (job.options().wishes.return_token_ids) {
    if (!std::exchange(c.prompt_told, true)) choice["prompt_token_ids"] = c.prompt;
    const size_t from = std::exchange(c.fresh_tokens, c.tokens.size());
    choice["token_ids"] =
        std::vector<Token>(c.tokens.begin() + static_cast<std::ptrdiff_t>(from), c.tokens.end());
  }
  if (const Json reason = c.stop_reason(); !reason.is_null() && c.finish == Finish::stop &&
                                           choice.contains("finish_reason") &&
                                           choice["finish_reason"] != nullptr)
    choice["stop_reason"] = reason;
}

HttpResponse answer_whole(const ApiContext& api, Job& job, const Dialect& dialect,
                          const HttpRequest& request) {
  if (!job.run(request.gone, [](int) { return true; })) return error_response(499, "the client has gone");
  Json body = envelope(api, job, dialect.object(false));
  body["choices"] = Json::array();
  const bool ids = job.options().wishes.return_token_ids;
  for (int i = 0; i < static_cast<int>(job.choices().size()); ++i) {
    Choice& c = job.choices()[static_cast<size_t>(i)];
    if (c.finish == Finish::error) throw ApiError(c.status, why_failed(c), {}, "generation_failed");
    if (c.finish == Finish::cancelled) throw ApiError(503, kEnding, {}, "ending");
    Json choice = dialect.whole(job, i);
    add_extras(choice, job, c);
    body["choices"].push_back(std::move(choice));
  }
  if (ids) body["prompt_token_ids"] = job.choices().front().prompt;
  if (!job.prompt_text.empty()) body["prompt_text"] = job.prompt_text;
  body["usage"] = job.usage();
  body["timings"] = job.timings();
  return json_response(body);
}

HttpStream stream_job(const ApiContext& api, Job& job, const Dialect& dialect,
                      const std::function<bool()>& gone, const HttpWrite& write) {
  bool opened = false;
  const auto chunk = [&](Json choice) {
    Json body = envelope(api, job, dialect.object(true));
    body["choices"] = Json::array();
    if (!choice.is_null()) body["choices"].push_back(std::move(choice));
    if (job.options().include_usage) body["usage"] = nullptr;
    if (job.options().usage_each) body["usage"] = job.usage();
    if (opened && job.options().timings_each) body["timings"] = job.timings();
    if (std::string text = std::exchange(job.prompt_text, {}); !text.empty()) body["prompt_text"] = text;
    return body;
  };
  const int n = static_cast<int>(job.choices().size());
  Pulse pulse(write, kHeartbeat);
  for (int i = 0; i < n; ++i) {
    Json choice = dialect.opening(job, i);
    if (choice.is_null()) continue;
    add_extras(choice, job, job.choices()[static_cast<size_t>(i)]);
    if (!pulse.write(sse(dump_json(chunk(std::move(choice)))))) co_return;
  }
  opened = true;
  bool failed = false;
  int left = n;
  const auto on_change = [&](int i) {
    std::string out;
    Choice& c = job.choices()[static_cast<size_t>(i)];
    for (Json& choice : dialect.deltas(job, i)) {
      add_extras(choice, job, c);
      out += sse(dump_json(chunk(std::move(choice))));
    }
    if (std::exchange(c.progress_fresh, false)) {
      Json body = chunk(nullptr);
      body["prompt_progress"] = c.prompt_progress();
      out += sse(dump_json(body));
    }
    if (c.trace && !c.trace->fresh.empty()) {
      Json body = chunk(nullptr);
      body["steps"] = std::exchange(c.trace->fresh, Json::array());
      if (n > 1) body["index"] = i;
      out += sse(dump_json(body));
    }
    if (c.finish == Finish::error || c.finish == Finish::cancelled) {
      failed = true;
      out += c.finish == Finish::error
                 ? sse(dump_json(error_object(c.status, why_failed(c), {}, "generation_failed")))
                 : sse(dump_json(error_object(503, kEnding, {}, "ending")));
    } else if (c.finish != Finish::none) {
      Json closing = dialect.closing(job, i);
      add_extras(closing, job, c);
      Json last = chunk(std::move(closing));
      if (--left == 0) last["timings"] = job.timings();
      out += sse(dump_json(last));
    }
    return pulse.write(out) && !failed;
  };
  std::optional<bool> whole;
  while (!(whole = job.step(gone, on_change))) {
    pulse.beat();
    co_await job.more();
  }
  if (failed) co_return;
  if (!*whole) {  // a client that has gone does not get it
    write(sse(dump_json(error_object(503, kEnding, {}, "ending"))));
    co_return;
  }
  if (job.options().include_usage) {
    Json body = chunk(nullptr);
    body["usage"] = job.usage();
    body["timings"] = job.timings();
    if (!write(sse(dump_json(body)))) co_return;
  }
  write(sse("[DONE]"));
}

HttpResponse answer(const ApiContext& api, std::shared_ptr<Job> job, std::shared_ptr<const Dialect> dialect,
                    const HttpRequest& request) {
  if (!job->options().stream) return answer_whole(api, *job, *dialect, request);
  HttpResponse r;
  r.type = "text/event-stream";
  r.stream = [&api, job = std::move(job), dialect = std::move(dialect), gone = request.gone](
                 const HttpWrite& write) { return stream_job(api, *job, *dialect, gone, write); };
  return r;
}

Json chat_logprobs(const Job& job, const Choice& c, size_t first) {
  return {{"content", token_reports(job, c, first)}};
}

class ChatDialect : public Dialect {
 public:
  // echo: what is put in front.
  explicit ChatDialect(std::string echo) : echo_(std::move(echo)) {}
  const char* object(bool stream) const override {
    return stream ? "chat.completion.chunk" : "chat.completion";
  }
  Json opening(Job&, int i) const override {
    Json first = {{"role", "assistant"}};
    if (!echo_.empty()) first["content"] = echo_;
    return delta(i, std::move(first));
  }

  std::vector<Json> deltas(Job& job, int i) const override {
    Choice& c = job.choices()[static_cast<size_t>(i)];
    std::vector<Json> out;
    for (const ChatDelta& d : std::exchange(c.fresh, {})) out.push_back(delta(i, body(c, d)));
    if (!out.empty() && job.options().logprobs >= 0) {
      out.front()["logprobs"] = chat_logprobs(job, c, c.fresh_reports);
      c.fresh_reports = c.reports.size();
    }
    return out;
  }

  Json closing(Job& job, int i) const override {
    const Choice& c = job.choices()[static_cast<size_t>(i)];
    Json choice = delta(i, Json::object());
    if (job.options().logprobs >= 0 && c.fresh_reports < c.reports.size())
      choice["logprobs"] = chat_logprobs(job, c, c.fresh_reports);
    choice["finish_reason"] = c.finish_reason();
    return choice;
  }

  Json whole(Job& job, int i) const override {
    const Choice& c = job.choices()[static_cast<size_t>(i)];
    Json message = {{"role", "assistant"}, {"content", echo_ + c.content}};
    if (message["content"] == "" && !c.tools.empty()) message["content"] = nullptr;
    if (!c.thinking.empty() && job.options().wishes.include_reasoning)
      message["reasoning_content"] = c.thinking;
    for (const ToolCall& t : c.tools)
      message["tool_calls"].push_back(
          {{"id", t.id}, {"type", "function"}, {"function", {{"name", t.name}, {"arguments", t.arguments}}}});
    Json choice = {{"index", i}, {"message", std::move(message)}};
    choice["logprobs"] = job.options().logprobs >= 0 ? chat_logprobs(job, c, 0) : Json();
    choice["finish_reason"] = c.finish_reason();
    return choice;
  }

 private:
  static Json delta(int i, Json d) {
    return {{"index", i}, {"delta", std::move(d)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }
  static Json body(const Choice& c, const ChatDelta& d) {
    switch (d.kind) {
      case ChatDelta::Kind::content: return {{"content", d.text}};
      case ChatDelta::Kind::thinking: return {{"reasoning_content", d.text}};
      case ChatDelta::Kind::tool_end: break;
      case ChatDelta::Kind::tool_name:
        return {{"tool_calls", Json::array({{{"index", d.index},
                                             {"id", c.tools[static_cast<size_t>(d.index)].id},
                                             {"type", "function"},
                                             {"function", {{"name", d.text}, {"arguments", ""}}}}})}};
      case ChatDelta::Kind::tool_arguments:
        return {{"tool_calls", Json::array({{{"index", d.index}, {"function", {{"arguments", d.text}}}}})}};
    }
    return Json::object();
  }

  const std::string echo_;
};

// Characters, by their first bytes.
int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

class CompletionDialect : public Dialect {
 public:
  // echo: what is put in front, per choice.
  explicit CompletionDialect(std::vector<std::string> echo) : echo_(std::move(echo)) {}
  const char* object(bool) const override { return "text_completion"; }

  std::vector<Json> deltas(Job& job, int i) const override {
    Choice& c = job.choices()[static_cast<size_t>(i)];
    std::string text;
    for (const ChatDelta& d : std::exchange(c.fresh, {})) text += d.text;
    if (text.empty()) return {};
    std::vector<Json> out = {choice(i, text, nullptr, nullptr)};
    if (job.options().logprobs >= 0)
      out[0]["logprobs"] = reports(job, c, std::exchange(c.fresh_reports, c.reports.size()));
    return out;
  }
  Json opening(Job&, int i) const override {
    const std::string& echo = echo_.at(static_cast<size_t>(i));
    return echo.empty() ? Json() : choice(i, echo, nullptr, nullptr);
  }
  Json closing(Job& job, int i) const override {
    const Choice& c = job.choices()[static_cast<size_t>(i)];
    const bool more = job.options().logprobs >= 0 && c.fresh_reports < c.reports.size();
    return choice(i, "", more ? reports(job, c, c.fresh_reports) : Json(), c.finish_reason());
  }
  Json whole(Job& job, int i) const override {
    const Choice& c = job.choices()[static_cast<size_t>(i)];
    const std::string text = echo_.at(static_cast<size_t>(i)) + c.content;
    return choice(i, text, job.options().logprobs >= 0 ? reports(job, c, 0) : Json(), c.finish_reason());
  }

 private:
  static Json choice(int i, const std::string& text, Json logprobs, const char* reason) {
    Json j = {{"index", i}, {"text", text}, {"logprobs", std::move(logprobs)}};
    j["finish_reason"] = reason ? Json(reason) : Json();
    return j;
  }
  static Json top_of(const Job& job, const Logprobs& l, const std::string& said) {
    Json top = Json::object();
    for (const TokenLogprob& t : l.top)
      top[key_of(job, t.token, job.model().tokenizer.piece(t.token))] = finite_logprob(t.logprob);
    top[said] = finite_logprob(l.chosen);  // always there, as OpenAI has it
    return top;
  }
  // Pieces that are no text would all read the same.
  static std::string key_of(const Job& job, Token token, const std::string& piece) {
    if (job.options().wishes.tokens_as_ids) return id_text(token);
    Utf8Stream utf8;
    if (utf8.push(piece) + utf8.finish() == piece) return piece;
    std::string key = "bytes:";
    for (const char c : piece) key += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return key;
  }
  // The prompt's tokens come first if they are echoed and asked for; nothing precedes the first, so it has
  // none.
  static Json reports(const Job& job, const Choice& c, size_t first) {
    Json out = {{"tokens", Json::array()},
                {"token_logprobs", Json::array()},
                {"top_logprobs", Json::array()},
                {"text_offset", Json::array()}};
    int64_t offset = 0;
    const auto add = [&](Token token, const std::string& text, const Logprobs* l, bool seen = true) {
      const std::string key = key_of(job, token, text);
      out["tokens"].push_back(key);
      out["token_logprobs"].push_back(l ? Json(finite_logprob(l->chosen)) : Json());
      out["top_logprobs"].push_back(l ? top_of(job, *l, key) : Json());
      out["text_offset"].push_back(offset);
      if (seen) offset += characters(text);
    };
    const bool echoed = first == 0 && !c.prompt_logprobs.empty();
    for (size_t i = 0; echoed && i < c.prompt.size(); ++i)
      add(c.prompt[i], job.model().tokenizer.piece(c.prompt[i]), i ? &c.prompt_logprobs[i - 1] : nullptr,
          !job.model().tokenizer.decode({&c.prompt[i], 1}, false).empty());
    for (size_t i = 0; i < first; ++i) offset += characters(c.reports[i].text);
    for (size_t i = first; i < c.reports.size(); ++i)
      add(c.tokens.at(i), c.reports[i].text, &c.reports[i].logprobs);
    return out;
  }

  std::vector<std::string> echo_;
};

struct Prompt {
  std::string text;  // for echo
  std::vector<Token> tokens;
};

// A text, token ids, or an array of either.
std::vector<Prompt> read_prompts(const ApiContext& api, const Fields& f, const GenerateOptions& options) {
  const Json* j = f.find("prompt");
  const Tokenizer& tokenizer = api.model.tokenizer;
  std::vector<Prompt> out;
  const bool begin = f.get_bool("add_special_tokens", true);  // vLLM's
  const auto take = [&](const Json& p) {
    if (p.is_string()) {
      const auto& text = p.get_ref<const std::string&>();
      out.push_back({text, begin ? encode_prompt(tokenizer, text) : tokenizer.encode(text, true)});
    } else if (is_token_array(p) && !p.empty()) {
      const std::vector<Token> tokens = read_tokens(p, "prompt");
      for (const Token t : tokens)
        if (t >= tokenizer.size())
          throw ApiError(400, fmt::format("prompt: there is no token {}", t), "prompt");
      out.push_back({tokenizer.decode(tokens, options.wishes.special_tokens), tokens});
    } else {
      f.fail("prompt", "a text, an array of token ids, or an array of such");
    }
  };
  if (!j) f.fail("prompt", "given");
  if (j->is_array() && !j->empty() && !is_token_array(*j))
    for (const Json& p : *j) take(p);
  else
    take(*j);
  if (out.size() > 64) f.fail("prompt", "at most 64 prompts");
  for (Prompt& p : out) {
    if (p.tokens.empty()) f.fail("prompt", "at least one token long");
    const size_t whole = p.tokens.size();
    truncate_prompt(p.tokens, options.wishes, api.model.engine.config().context, options.max_tokens,
                    tokenizer.data().bos);
    if (p.tokens.size() < whole) p.text = tokenizer.decode(p.tokens, options.wishes.special_tokens);
    check_length(p.tokens.size(), api.model.engine.config().context, "prompt");
  }
  return out;
}

// The prompt's beginning is there already.
void go_on_behind(const std::vector<Token>& before, Token bos, PromptTokens& prompt) {
  std::vector<Token>& tokens = prompt.tokens;
  const size_t had = tokens.size();
  if (tokens.front() == bos) tokens.erase(tokens.begin());
  tokens.insert(tokens.begin(), before.begin(), before.end());
  for (SoftRows& s : prompt.soft) s.begin += static_cast<int32_t>(tokens.size()) - static_cast<int32_t>(had);
}

// What generation reads; before: tokens of an earlier conversation, which it goes on.
PromptTokens chat_tokens(const ApiContext& api, const ChatPrompt& chat, const GenerateOptions& options,
                         const std::vector<Token>& before) {
  PromptTokens prompt = encode_placed(api.model, chat, chat.media);
  std::vector<Token>& tokens = prompt.tokens;
  const Token bos = api.model.tokenizer.data().bos;
  if (!before.empty()) go_on_behind(before, bos, prompt);
  const size_t asked = tokens.size();
  truncate_prompt(tokens, options.wishes, api.model.engine.config().context, options.max_tokens, bos);
  if (!prompt.soft.empty() && tokens.size() < asked)
    throw ApiError(400, "a prompt with pictures or sounds is not truncated: shorten the messages",
                   "messages");
  check_length(tokens.size(), api.model.engine.config().context, "messages");
  return prompt;
}

}  // namespace

std::shared_ptr<Job> chat_job(const ApiContext& api, const Json& given, GenerateOptions options,
                              const std::string& id_prefix, std::vector<Token> before) {
  Json body = with_tools_for_functions(given);
  const ToolUse use = read_tool_use(body);
  if (options.wishes.drop_oldest) body = without_oldest_turns(api, std::move(body), use, options.max_tokens);
  const ChatPrompt chat = chat_prompt(api, body, use);
  PromptTokens prompt = chat_tokens(api, chat, options, before);
  const std::vector<Token>& tokens = prompt.tokens;
  const std::vector<int32_t> shared = shared_beginnings(api, body, use, chat.text, tokens);
  perceive(api.model, chat.media, prompt.soft);
  options.thought = api.model.chat->thought(chat.text);
  options.grammar = api.constraints.of_chat(body, use, *api.model.chat, chat.text, chat.thinking);
  auto job = std::make_shared<Job>(api.model, api.metrics, id_prefix, options, api.config.stuck_seconds);
  if (options.wishes.return_prompt_text) job->prompt_text = chat.text;
  for (int i = 0; i < options.n; ++i) {
    Choice& c = job->add(tokens);
    c.shared = shared;
    c.soft = prompt.soft;
    c.parser = api.model.chat->parser(chat.text, {use.tools, &api.model.tokenizer});
    c.special = api.model.chat->wants_special();
  }
  job->submit(false);
  return job;
}

namespace {

// llama.cpp's n_probs.
int32_t probabilities_asked(const Fields& f) {
  const int64_t n = f.get_int("n_probs", 0, 0, kMaxAlternatives);
  return n > 0 ? static_cast<int32_t>(n) : -1;
}

// vLLM's: the last message's text, where the answer is of the same role.
std::string echo_of(const Json& body) {
  const Fields f(body);
  if (!f.get_bool("echo", false) || !body.contains("messages") || body["messages"].empty()) return {};
  const Json& last = body["messages"].back();
  const bool same = last.value("role", "") == "assistant" || !f.get_bool("add_generation_prompt", true);
  return same && last.contains("content") ? content_text(last["content"]) : std::string();
}

}  // namespace

HttpResponse chat_completions(const ApiContext& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Fields f(body);
  GenerateOptions options = read_options(body, api.config, request);
  refuse_special_tokens(f);
  const int64_t top = f.get_int("top_logprobs", 0, 0, kMaxAlternatives);
  options.logprobs = probabilities_asked(f);
  if (f.get_bool("logprobs", false))
    options.logprobs = static_cast<int32_t>(top);
  else if (top > 0)
    f.fail("top_logprobs", "left out where `logprobs` is not true");
  const auto job = chat_job(api, body, options, "chatcmpl-");
  return answer(api, job, std::make_shared<ChatDialect>(echo_of(body)), request);
}

HttpResponse render_chat_completion(const ApiContext& api, const HttpRequest& request) {
  const Json body = with_tools_for_functions(parse_body(request.body));
  const ChatPrompt chat = chat_prompt(api, body, read_tool_use(body));
  return json_response(
      {{"token_ids", chat_tokens(api, chat, read_options(body, api.config, request), {}).tokens}});
}

HttpResponse render_completion(const ApiContext& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  Json out = Json::array();
  for (const Prompt& p : read_prompts(api, Fields(body), read_options(body, api.config, request)))
    out.push_back({{"token_ids", p.tokens}});
  return json_response(out);
}

HttpResponse completions(const ApiContext& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Fields f(body);
  GenerateOptions options = read_options(body, api.config, request);
  refuse_thinking_budget(f);
  options.logprobs = static_cast<int32_t>(f.get_int("logprobs", probabilities_asked(f), 0, kMaxAlternatives));
  options.grammar = api.constraints.of_text(body);
  const bool echo = f.get_bool("echo", false);
  const std::vector<Prompt> prompts = read_prompts(api, f, options);
  const auto job = std::make_shared<Job>(api.model, api.metrics, "cmpl-", options, api.config.stuck_seconds);
  std::vector<std::string> echoes;
  for (const Prompt& p : prompts)
    for (int i = 0; i < options.n; ++i) {
      job->add(p.tokens).special = options.wishes.special_tokens;
      echoes.push_back(echo ? p.text : "");
    }
  job->submit(echo && options.logprobs >= 0);
  return answer(api, job, std::make_shared<CompletionDialect>(std::move(echoes)), request);
}

}  // namespace carat
