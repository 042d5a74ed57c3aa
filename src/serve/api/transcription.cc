#include "serve/api/transcription.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "serve/api/chat_prompt.h"
#include "serve/api/logprobs.h"

namespace carat {
namespace {

// A choice for each piece.
std::shared_ptr<Job> job_of(const ApiContext& api, TranscriptAsked& a, const std::function<bool()>& gone) {
  const Json content = Json::array({{{"type", "audio"}}, {{"type", "text"}, {"text", a.question()}}});
  const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", content}}})},
                     {"enable_thinking", false}};
  const ToolUse use = read_tool_use(body);
  std::vector<ChatPrompt> chats;
  for (PromptMedium& m : a.sounds) chats.push_back(chat_prompt(api, body, use, {std::move(m)}));
  a.options.thought = api.model.chat->thought(chats.front().text);
  auto job =
      std::make_shared<Job>(api.model, api.metrics, "transcript-", a.options, api.config.stuck_seconds);
  for (const ChatPrompt& chat : chats) {
    if (gone()) throw ApiError(499, "the client has gone");
    PromptTokens prompt = encode_placed(api.model, chat, chat.media);
    check_length(prompt.tokens.size(), api.model.engine.config().context, "file");
    perceive(api.model, chat.media, prompt.soft);
    Choice& c = job->add(std::move(prompt.tokens));
    c.soft = std::move(prompt.soft);
    c.parser = api.model.chat->parser(chat.text, {use.tools, &api.model.tokenizer});
    c.special = api.model.chat->wants_special();
  }
  job->submit(false);
  return job;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpaces = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

void check_end(const Choice& c) {
  if (c.finish == Finish::error) throw ApiError(c.status, why_failed(c), {}, "generation_failed");
  if (c.finish == Finish::cancelled) throw ApiError(503, kEnding, {}, "ending");
}

std::string whole_text(const std::vector<SpokenPiece>& pieces) {
  std::string out;
  for (const SpokenPiece& p : pieces) {
    if (p.text.empty()) continue;
    if (!out.empty()) out += ' ';
    out += p.text;
  }
  return out;
}

Json usage_of(const Job& job) {
  const Json u = job.usage();
  const int64_t input = u["prompt_tokens"],
                audio = u["prompt_tokens_details"].value("audio_tokens", int64_t{0});
  return {{"type", "tokens"},
          {"input_tokens", input},
          {"input_token_details", {{"text_tokens", input - audio}, {"audio_tokens", audio}}},
          {"output_tokens", u["completion_tokens"]},
          {"total_tokens", u["total_tokens"]}};
}

// Typed clients want every field of a segment; how compressible a text is and whether nothing was said is not
// looked at.
Json verbose(const TranscriptAsked& a, Job& job) {
  Json segments = Json::array();
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    const SpokenPiece& p = a.pieces[i];
    const Choice& c = job.choices()[i];
    double sum = 0;
    for (const TokenReport& r : c.reports) sum += finite_logprob(r.logprobs.chosen);
    const auto n = static_cast<double>(std::max<size_t>(1, c.reports.size()));
    segments.push_back({{"id", i},
                        {"seek", static_cast<int64_t>(100 * p.begin)},
                        {"start", p.begin},
                        {"end", p.end},
                        {"text", p.text},
                        {"tokens", c.tokens},
                        {"temperature", a.options.sample.temperature},
                        {"avg_logprob", sum / n},
                        {"compression_ratio", 1.0},
                        {"no_speech_prob", 0.0}});
  }
  return {{"task", a.translate ? "translate" : "transcribe"},
          {"language", a.told_language()},
          {"duration", a.seconds},
          {"text", whole_text(a.pieces)},
          {"segments", std::move(segments)},
          {"usage", {{"type", "duration"}, {"seconds", static_cast<int64_t>(std::ceil(a.seconds))}}}};
}

HttpResponse text_response(std::string text) {
  HttpResponse r;
  r.type = "text/plain; charset=utf-8";
  r.body = std::move(text);
  return r;
}

HttpResponse whole(TranscriptAsked a, Job& job, const HttpRequest& request) {
  if (!job.run(request.gone, [](int) { return true; })) return error_response(499, "the client has gone");
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    check_end(job.choices()[i]);
    a.pieces[i].text = trimmed(job.choices()[i].content);
  }
  if (a.format == "text") return text_response(whole_text(a.pieces) + "\n");
  if (a.format == "srt") return text_response(srt_of(a.pieces));
  if (a.format == "vtt") return text_response(vtt_of(a.pieces));
  if (a.format == "verbose_json") return json_response(verbose(a, job));
  return json_response({{"text", whole_text(a.pieces)}, {"usage", usage_of(job)}});
}

// Texts of pieces as they grow, told in the pieces' order: white space around each is left out, a space
// stands between two.
class InOrder {
 public:
  explicit InOrder(Job& job) : job_(job) {}
  // What is new.
  std::string take() {
    std::string out;
    for (; now_ < job_.choices().size(); ++now_, said_ = false, held_.clear()) {
      Choice& c = job_.choices()[now_];
      for (const ChatDelta& d : std::exchange(c.fresh, {}))
        if (d.kind == ChatDelta::Kind::content) add(d.text, out);
      if (c.finish == Finish::none) break;
    }
    all_ += out;
    return out;
  }
  const std::string& all() const { return all_; }

 private:
  void add(const std::string& text, std::string& out) {
    const std::string seen = trimmed(text);
    if (seen.empty()) {
      held_ += text;
      return;
    }
    const size_t at = text.find(seen);
    if (std::exchange(said_, true))
      out += held_ + text.substr(0, at);
    else if (!all_.empty() || !out.empty())
      out += ' ';
    out += seen;
    held_ = text.substr(at + seen.size());
  }
  Job& job_;
  size_t now_ = 0;
  bool said_ = false;  // something of the piece that grows now
  std::string held_, all_;
};

HttpStream stream(Job& job, const std::function<bool()>& gone, const HttpWrite& write) {
  Pulse pulse(write, kHeartbeat);
  InOrder texts(job);
  bool failed = false;
  const auto event = [](const Json& j) { return sse(dump_json(j)); };
  const auto on_change = [&](int i) {
    const Choice& c = job.choices()[static_cast<size_t>(i)];
    if (c.finish == Finish::error || c.finish == Finish::cancelled) {
      failed = true;
      pulse.write(event(c.finish == Finish::error
                            ? error_object(c.status, why_failed(c), {}, "generation_failed")
                            : error_object(503, kEnding, {}, "ending")));
      return false;
    }
    const std::string fresh = texts.take();
    return fresh.empty() || pulse.write(event({{"type", "transcript.text.delta"}, {"delta", fresh}}));
  };
  std::optional<bool> all;
  while (!(all = job.step(gone, on_change))) {
    pulse.beat();
    co_await job.more();
  }
  if (failed) co_return;
  if (!*all) {  // a client that has gone does not get it
    write(event(error_object(503, kEnding, {}, "ending")));
    co_return;
  }
  write(event({{"type", "transcript.text.done"}, {"text", texts.all()}, {"usage", usage_of(job)}}) +
        sse("[DONE]"));
}

HttpResponse answer(const ApiContext& api, const HttpRequest& request, bool translate) {
  TranscriptAsked a = read_transcript(api, request, translate);
  const std::shared_ptr<Job> job = job_of(api, a, request.gone);
  if (!a.options.stream) return whole(std::move(a), *job, request);
  HttpResponse r;
  r.type = "text/event-stream";
  r.stream = [job, gone = request.gone](const HttpWrite& write) { return stream(*job, gone, write); };
  return r;
}

std::string clock(double seconds, char point) {
  const auto ms = static_cast<int64_t>(std::llround(1000 * seconds));
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", ms / 3'600'000, ms / 60'000 % 60, ms / 1000 % 60, point,
                     ms % 1000);
}

}  // namespace

HttpResponse transcriptions(const ApiContext& api, const HttpRequest& request) {
  return answer(api, request, false);
}
HttpResponse translations(const ApiContext& api, const HttpRequest& request) {
  return answer(api, request, true);
}

std::string srt_of(const std::vector<SpokenPiece>& pieces) {
  std::string out;
  for (size_t i = 0; i < pieces.size(); ++i)
    out += fmt::format("{}\n{} --> {}\n{}\n\n", i + 1, clock(pieces[i].begin, ','), clock(pieces[i].end, ','),
                       pieces[i].text);
  return out;
}

std::string vtt_of(const std::vector<SpokenPiece>& pieces) {
  std::string out = "WEBVTT\n\n";
  for (const SpokenPiece& p : pieces)
    out += fmt::format("{} --> {}\n{}\n\n", clock(p.begin, '.'), clock(p.end, '.'), p.text);
  return out;
}

}  // namespace carat
