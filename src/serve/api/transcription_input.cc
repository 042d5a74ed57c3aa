// What the form of a transcript asks for.
#include <algorithm>

#include "media/data_url.h"
#include "serve/api/form.h"
#include "serve/api/refusals.h"
#include "serve/api/transcription.h"

namespace carat {
namespace {

constexpr int kPieceTokens = 1024;  // of an answer to a piece, unless the request says: models may loop

// What this API's clients may ask for that changes the answer, and what it is here.
void check_wishes(const Json& body) {
  const auto only = [&](const char* name, std::string_view value, const char* must) {
    if (!body.contains(name)) return;
    for (const Json& j : body[name].is_array() ? body[name] : Json::array({body[name]}))
      if (j != value) must_be(name, must);
  };
  only("timestamp_granularities", "segment", "\"segment\": the times of words are not known");
  only("chunking_strategy", "auto", "\"auto\": sounds are cut where they are quiet");
  for (const char* name : {"include", "known_speaker_names", "known_speaker_references"})
    if (body.contains(name))
      must_be(name, "left out: this server tells no log probabilities and no speakers of a transcript");
}

// "de" and "German" are the same language; models know names better than codes.
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

std::string language_in(const Fields& f, const char* name) {
  constexpr size_t kLongest = 40;
  const std::string given = f.get_string(name, "");
  if (given.size() > kLongest) must_be(name, "a code such as \"en\", or a name");
  return language_name(given);
}

// The one file. Others would be dropped without a word.
std::vector<uint8_t> file_of(const std::vector<FormPart>& form) {
  const FormPart* file = nullptr;
  for (const FormPart& p : form) {
    if (!p.file && p.name != "file") continue;
    if (!p.file) must_be("file", "a file: its part needs a filename");
    if (p.name != "file" || file)
      must_be("file", fmt::format("the form's only file, but '{}' is one, too", p.name));
    file = &p;
  }
  if (!file) must_be("file", "given: the sound");
  if (file->body.size() > kMostFileBytes)
    throw ApiError(
        413, fmt::format("file has {} bytes, and {} are allowed", file->body.size(), kMostFileBytes), "file");
  return {file->body.begin(), file->body.end()};
}

// Pieces of the sound, each a prompt's medium.
void cut_sound(Ears& ears, const std::vector<uint8_t>& file, TranscriptAsked& a) {
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

}  // namespace

// In the words of the models' card, which they were trained with.
std::string TranscriptAsked::question() const {
  std::string out;
  if (translate)
    out = fmt::format(
        "Translate the following speech segment{} into {}.\n\nFollow these specific instructions for "
        "formatting "
        "the answer:\n* Only output the translation, with no newlines.",
        spoken.empty() ? "" : " in " + spoken, written);
  else
    out = fmt::format(
        "Transcribe the following speech segment in {} into {} text.\n\nFollow these specific instructions "
        "for "
        "formatting the answer:\n* Only output the transcription, with no newlines.\n* When transcribing "
        "numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 instead of three.",
        spoken.empty() ? "its original language" : spoken, spoken.empty() ? "that language's" : spoken);
  if (!context.empty()) out += "\n* Context of the speech: " + context;
  return out;
}

std::string TranscriptAsked::told_language() const {
  std::string out = translate ? written : spoken.empty() ? "unknown" : spoken;
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

TranscriptAsked read_transcript(const ApiContext& api, const HttpRequest& request, bool translate) {
  const std::vector<FormPart> form = parse_form(request.header("content-type"), request.body);
  Json body = body_of_form(form, {"model", "language", "to_language", "prompt", "response_format"});
  check_wishes(body);
  const Fields f(body);
  TranscriptAsked a;
  a.translate = translate;
  a.format = f.get_string("response_format", "json");
  static constexpr std::string_view kFormats[] = {"json", "text", "verbose_json", "srt", "vtt"};
  if (std::find(std::begin(kFormats), std::end(kFormats), a.format) == std::end(kFormats))
    must_be("response_format", "\"json\", \"text\", \"verbose_json\", \"srt\" or \"vtt\"");
  a.spoken = language_in(f, "language");
  a.written = language_in(f, "to_language");
  if (!translate && !a.written.empty()) must_be("to_language", "left out: /v1/audio/translations translates");
  if (translate && a.written.empty()) a.written = "English";
  a.context = f.get_string("prompt", "");
  if (!body.contains("temperature")) body["temperature"] = 0;
  body.erase("prompt");
  a.options = read_options(body, api.config, request);
  if (a.options.max_tokens < 0) a.options.max_tokens = kPieceTokens;
  if (a.options.n != 1) must_be("n", "1");
  if (a.format == "verbose_json") a.options.logprobs = 0;
  if (a.options.stream && a.format != "json" && a.format != "text")
    must_be("response_format", "\"json\" or \"text\" where `stream` is true");
  if (!api.model.ears) throw ApiError(400, api.model.deaf, "file");
  if (!api.model.chat) throw ApiError(400, "this model has no chat format, which transcripts need", "model");
  cut_sound(*api.model.ears, file_of(form), a);
  return a;
}

}  // namespace carat
