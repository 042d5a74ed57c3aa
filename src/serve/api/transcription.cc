#include "serve/api/transcription.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "media/data_url.h"
#include "serve/api/chat_prompt.h"
#include "serve/api/form.h"
#include "serve/api/logprobs.h"

namespace carat {
namespace {

constexpr int kPieceTokens = 1024;  // of an answer to a piece, unless the request says: models may loop

struct Asked {
  bool translate = false;
  std::string format, language, context;
  GenerateOptions options;
  std::vector<SpokenPiece> pieces;  // without texts
  std::vector<PromptMedium> sounds;
  double seconds = 0;
};

[[noreturn]] void bad(const char* field, const std::string& must) {
  throw ApiError(400, fmt::format("{} must be {}", field, must), field);
}

// What this API's clients may ask for that changes the answer, and what it is here.
void check_wishes(const Json& body) {
  const auto only = [&](const char* name, std::string_view value, const char* must) {
    if (!body.contains(name)) return;
    for (const Json& j : body[name].is_array() ? body[name] : Json::array({body[name]}))
      if (j != value) bad(name, must);
  };
  only("timestamp_granularities", "segment", "\"segment\": the times of words are not known");
  only("chunking_strategy", "auto", "\"auto\": sounds are cut where they are quiet");
  for (const char* name : {"include", "known_speaker_names", "known_speaker_references"})
    if (body.contains(name))
      bad(name, "left out: this server tells no log probabilities and no speakers of a transcript");
}

// Whoever writes "de" and "German" means the same; models know the names better.
std::string language_name(const std::string& code) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"ar", "Arabic"},     {"cs", "Czech"},     {"da", "Danish"},     {"de", "German"},
      {"el", "Greek"},      {"en", "English"},   {"es", "Spanish"},    {"fi", "Finnish"},
      {"fr", "French"},     {"he", "Hebrew"},    {"hi", "Hindi"},      {"hu", "Hungarian"},
      {"id", "Indonesian"}, {"it", "Italian"},   {"ja", "Japanese"},   {"ko", "Korean"},
      {"nl", "Dutch"},      {"no", "Norwegian"}, {"pl", "Polish"},     {"pt", "Portuguese"},
      {"ro", "Romanian"},   {"ru", "Russian"},   {"sv", "Swedish"},    {"th", "Thai"},
      {"tr", "Turkish"},    {"uk", "Ukrainian"}, {"vi", "Vietnamese"}, {"zh", "Chinese"}};
  for (const auto& [known, name] : kNames)
    if (code == known) return std::string(name);
  return code;
}

// In the words of the models' card, which they were trained with.
std::string question(const Asked& a) {
  const std::string spoken = a.language.empty() ? "its original language" : language_name(a.language);
  std::string out;
  if (a.translate)
    out =
        "Translate the following speech segment into English.\n\nFollow these specific instructions for "
        "formatting "
        "the answer:\n* Only output the translation, with no newlines.";
  else
    out = fmt::format(
        "Transcribe the following speech segment in {0} into {1} text.\n\nFollow these specific instructions "
        "for "
        "formatting the answer:\n* Only output the transcription, with no newlines.\n* When transcribing "
        "numbers, "
        "write the digits, i.e. write 1.7 and not one point seven, and write 3 instead of three.",
        spoken, a.language.empty() ? "that language's" : spoken);
  if (!a.context.empty()) out += "\n* Context of the speech: " + a.context;
  return out;
}

std::vector<uint8_t> file_of(const std::vector<FormPart>& form) {
  for (const FormPart& p : form) {
    if (p.name != "file") continue;
    if (!p.file) bad("file", "a file: its part needs a filename");
    if (p.body.size() > kMostFileBytes)
      throw ApiError(413, fmt::format("file has {} bytes, and {} are allowed", p.body.size(), kMostFileBytes),
                     "file");
    return {p.body.begin(), p.body.end()};
  }
  bad("file", "given: the sound");
}

// Pieces of the sound, each a prompt's medium.
void cut_sound(Ears& ears, const std::vector<uint8_t>& file, Asked& a) {
  Sound sound;
  try {
    sound = ears.decode(file);
  } catch (const DeviceError&) {
    throw;
  } catch (const Error& e) {
    throw ApiError(400, fmt::format("file: {}{}", e.what(), e.hint().empty() ? "" : " (" + e.hint() + ")"),
                   "file");
  }
  a.seconds = static_cast<double>(sound.samples.size()) / kSoundRate;
  for (const Piece& p : ears.cut(sound)) {
    a.pieces.push_back(
        {static_cast<double>(p.begin) / kSoundRate, static_cast<double>(p.end) / kSoundRate, {}});
    const auto begin = sound.samples.begin();
    std::vector<float> samples(begin + static_cast<std::ptrdiff_t>(p.begin),
                               begin + static_cast<std::ptrdiff_t>(p.end));
    PromptMedium m{Medium::sound, "file"};
    m.sound = std::make_shared<const Listened>(ears.listen(std::move(samples)));
    a.sounds.push_back(std::move(m));
  }
}

Asked read_asked(const ApiContext& api, const HttpRequest& request, bool translate) {
  const std::vector<FormPart> form = parse_form(request.header("content-type"), request.body);
  Json body = body_of_form(form, {"model", "language", "prompt", "response_format"});
  check_wishes(body);
  const Fields f(body);
  Asked a;
  a.translate = translate;
  a.format = f.get_string("response_format", "json");
  static constexpr std::string_view kFormats[] = {"json", "text", "verbose_json", "srt", "vtt"};
  if (std::find(std::begin(kFormats), std::end(kFormats), a.format) == std::end(kFormats))
    bad("response_format", "\"json\", \"text\", \"verbose_json\", \"srt\" or \"vtt\"");
  a.language = translate ? "" : f.get_string("language", "");
  if (a.language.size() > 40) bad("language", "a code such as \"en\", or a name");
  a.context = f.get_string("prompt", "");
  if (!body.contains("temperature")) body["temperature"] = 0;
  body.erase("prompt");
  a.options = read_options(body, api.config, request);
  if (a.options.max_tokens < 0) a.options.max_tokens = kPieceTokens;
  if (a.options.n != 1) bad("n", "1");
  if (a.format == "verbose_json") a.options.logprobs = 0;
  if (a.options.stream && a.format != "json" && a.format != "text")
    bad("response_format", "\"json\" or \"text\" where `stream` is true");
  if (!api.model.ears) throw ApiError(400, api.model.deaf, "file");
  if (!api.model.chat) throw ApiError(400, "this model has no chat format, which transcripts need", "model");
  cut_sound(*api.model.ears, file_of(form), a);
  return a;
}

// A choice for each piece.
std::shared_ptr<Job> job_of(const ApiContext& api, Asked& a) {
  const Json content = Json::array({{{"type", "audio"}}, {{"type", "text"}, {"text", question(a)}}});
  const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", content}}})},
                     {"enable_thinking", false}};
  const ToolUse use = read_tool_use(body);
  std::vector<ChatPrompt> chats;
  for (PromptMedium& m : a.sounds) chats.push_back(chat_prompt(api, body, use, {std::move(m)}));
  a.options.thought = api.model.chat->thought(chats.front().text);
  auto job =
      std::make_shared<Job>(api.model, api.metrics, "transcript-", a.options, api.config.stuck_seconds);
  for (const ChatPrompt& chat : chats) {
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
Json verbose(const Asked& a, Job& job) {
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
          {"language", a.translate          ? "english"
                       : a.language.empty() ? "unknown"
                                            : language_name(a.language)},
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

HttpResponse whole(Asked a, Job& job, const HttpRequest& request) {
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
  Asked a = read_asked(api, request, translate);
  const std::shared_ptr<Job> job = job_of(api, a);
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
