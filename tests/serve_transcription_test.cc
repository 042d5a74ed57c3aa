// /v1/audio/transcriptions and translations over HTTP: forms as clients send them, every format of an answer,
// and what is refused. The scripted model says what is said; the golden one hears.
#include <doctest/doctest.h>

#include "serve/api/form.h"
#include "serve/api/transcription.h"
#include "tests/media_scene.h"
#include "tests/sound_makers.h"

using namespace carat;
using namespace carat::test;
using namespace std::string_literals;

namespace {

constexpr const char* kType = "multipart/form-data; boundary=b1";

std::string part(const std::string& name, const std::string& value, const std::string& more = {}) {
  return "--b1\r\nContent-Disposition: form-data; name=\"" + name + "\"" + more + "\r\n\r\n" + value + "\r\n";
}
const std::string kEnd = "--b1--\r\n";

std::string wav_file(double seconds) {
  return wav(1, 1, kSoundRate, 16, pcm16(tone(300, kSoundRate, seconds)));
}

TokenizerData tokens() {
  return named_tokens({}, {{500, "<|image|>"}, {503, "<|audio|>"}, {504, "<|audio>"}, {505, "<audio|>"}});
}

class Listener : public SceneServer {
 public:
  Listener()
      : SceneServer("gemma4_audio", tokens(), "<|image|>", [] {
          EngineConfig c;
          c.context = 4096, c.sequences = 3, c.prefill_chunk = 256;
          return c;
        }()) {
    ears =
        std::make_unique<Ears>(std::make_unique<SoundEncoder>(backend, load_ears(towers, *model, *backend)),
                               tokenizer, EarsOptions{.seconds = 60});
    start();
  }
  httplib::Result send(const std::string& fields, const std::string& file,
                       const char* path = "/v1/audio/transcriptions") const {
    const std::string body = part("model", "scene") + fields +
                             part("file", file, "; filename=\"a.wav\"\r\nContent-Type: audio/wav") + kEnd;
    return client().Post(path, body, kType);
  }
};

std::string refusal(const std::string& body, const char* type = kType) {
  try {
    body_of_form(parse_form(type, body), {"text"});
  } catch (const ApiError& e) {
    CHECK(e.status() == 400);
    return e.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("forms are read as RFC 7578 has them") {
  const std::string file = "a\r\n--b\r\n--b2x\0\xff"s;
  const std::string body = "nobody reads this\r\n" + part("text", "7") + part("n", "7") + part("on", "true") +
                           part("empty", "") + part("list[]", "a") + part("list[]", "2.5") +
                           "--b1 \r\ncontent-type: audio/wav\r\nCONTENT-DISPOSITION: form-data; "
                           "filename=\"a\\\"b;c.wav\"; name=file\r\n\r\n" +
                           file + "\r\n--b1--\r\nnor this";
  const std::vector<FormPart> form =
      parse_form("Multipart/Form-Data; charset=utf-8; boundary=\"b1\"", body);  // parts lie in the body
  REQUIRE(form.size() == 7);
  CHECK(form[6].file);
  CHECK(form[6].name == "file");
  CHECK(form[6].filename == "a\"b;c.wav");
  CHECK(form[6].body == file);
  CHECK(body_of_form(form, {"text"}) ==
        Json({{"text", "7"}, {"n", 7}, {"on", true}, {"empty", ""}, {"list", {"a", 2.5}}}));
}

TEST_CASE("forms that are none are refused with the reason") {
  CHECK(refusal("{}", "application/json") ==
        "the body must be multipart/form-data, with the sound as `file`");
  CHECK(refusal("x", "multipart/form-data") ==
        "the form has no boundary of 1 to 70 bytes in its Content-Type");
  CHECK(refusal("x") == "the form has no part: its boundary does not occur");
  CHECK(refusal("--b1") == "the form has a boundary that no line ends");
  CHECK(refusal(part("a", "x")) == "the form ends in the middle of the part 'a'");
  CHECK(refusal("--b1\r\nContent-Disposition: form-data; name=a\r\n\r\nx") ==
        "the form ends in the middle of the part 'a'");
  CHECK(refusal("--b1\r\nContent-Type: x\r\n\r\nx\r\n" + kEnd) == "the form has a part without a name");
  CHECK(refusal("--b1\r\n\r\nx\r\n" + kEnd).find("form has a part") != std::string::npos);
  CHECK(refusal("--b1\r\n" + std::string(9000, 'x')).find("within 8192 bytes") != std::string::npos);
  CHECK(refusal(part("a", "x") + part("a", "y") + kEnd) == "a comes twice");
  CHECK(refusal(part("a", "\xff") + kEnd) == "a is not UTF-8");
  CHECK(refusal(part("a", std::string(70'000, 'x')) + kEnd).find("65536 are allowed") != std::string::npos);
  std::string many;
  for (int i = 0; i < 65; ++i) many += part("a[]", "x");
  CHECK(refusal(many + kEnd) == "the form has more than the 64 parts that are allowed");
  CHECK(
      refusal(
          "--b1\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n" +
          kEnd)
          .find("encoding of its own") != std::string::npos);
}

TEST_CASE("a transcript in every format, with the times of its pieces") {
  const Listener t;
  const std::string sound = wav_file(40), few = part("max_tokens", "3");
  const auto plain = t.send(few, sound);
  REQUIRE(plain);
  CAPTURE(plain->body);
  REQUIRE(plain->status == 200);
  const Json json = Json::parse(plain->body);
  const std::string text = json["text"];
  CHECK(!text.empty());
  CHECK(json["usage"]["input_token_details"]["audio_tokens"] == 1000);
  CHECK(json["usage"]["output_tokens"] == 6);  // three of each piece
  CHECK(t.ears->encoded() == 2);
  CHECK(t.send(few + part("response_format", "text"), sound)->body == text + "\n");
  const Json verbose = Json::parse(
      t.send(few + part("response_format", "verbose_json") + part("language", "en"), sound)->body);
  CHECK(verbose["language"] == "english");
  CHECK(verbose["duration"] == 40.0);
  REQUIRE(verbose["segments"].size() == 2);
  const double cut = verbose["segments"][0]["end"];
  CHECK((cut >= 27 && cut <= 30));
  CHECK(verbose["segments"][1]["start"] == cut);
  CHECK(verbose["segments"][1]["end"] == 40.0);
  CHECK(verbose["segments"][1]["tokens"].size() == 3);
  CHECK(verbose["segments"][1]["avg_logprob"].get<double>() < 0);
  const std::string srt = t.send(few + part("response_format", "srt"), sound)->body;
  CHECK(srt.starts_with("1\n00:00:00,000 --> 00:00:2"));
  CHECK(srt.find("\n\n2\n00:00:2") != std::string::npos);
  CHECK(t.send(few + part("response_format", "vtt"), sound)
            ->body.starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:2"));
  std::string streamed, done;
  const std::string events = t.send(few + part("stream", "true"), sound)->body;
  for (size_t at = 0; (at = events.find("data: {", at)) != events.npos; ++at) {
    const Json event = Json::parse(events.substr(at + 6, events.find('\n', at) - at - 6));
    if (event["type"] == "transcript.text.delta") streamed += event["delta"];
    if (event["type"] == "transcript.text.done") done = event["text"];
  }
  CHECK(streamed == text);
  CHECK(done == text);
  CHECK(t.ears->encoded() == 2);  // heard before
  const auto english = t.send(few + part("response_format", "verbose_json"), sound, "/v1/audio/translations");
  CHECK(Json::parse(english->body)["task"] == "translate");
  CHECK(Json::parse(english->body)["language"] == "english");
  TranscriptAsked asked;
  CHECK(
      asked.question().starts_with("Transcribe the following speech segment in its original language into "));
  asked.translate = true, asked.spoken = "French", asked.written = "German", asked.context = "Names: Anna";
  CHECK(asked.question().starts_with("Translate the following speech segment in French into German.\n"));
  CHECK(asked.question().ends_with("Names: Anna"));
}

TEST_CASE("times of subtitles") {
  const std::vector<SpokenPiece> pieces = {{0, 29.3396, "one"}, {3661.5, 3662, "two"}};
  CHECK(srt_of(pieces) ==
        "1\n00:00:00,000 --> 00:00:29,340\none\n\n2\n01:01:01,500 --> 01:01:02,000\ntwo\n\n");
  CHECK(vtt_of(pieces) ==
        "WEBVTT\n\n00:00:00.000 --> 00:00:29.340\none\n\n01:01:01.500 --> 01:01:02.000\ntwo\n\n");
}

TEST_CASE("what a transcript cannot have is refused with the reason") {
  const Listener t;
  const std::string sound = wav_file(1);
  const auto refused = [&](const std::string& fields, const std::string& file, const char* word) {
    const auto r = t.send(fields, file);
    REQUIRE(r);
    CAPTURE(r->body);
    CHECK(r->status == 400);
    CHECK(r->body.find(word) != std::string::npos);
  };
  refused(part("response_format", "xml"), sound, "verbose_json");
  refused(part("response_format", "srt") + part("stream", "true"), sound, "`stream` is true");
  refused(part("timestamp_granularities[]", "word"), sound, "times of words");
  refused(part("include[]", "logprobs"), sound, "log probabilities");
  refused(part("temperature", "warm"), sound, "temperature");
  refused(part("to_language", "de"), sound, "/v1/audio/translations translates");
  refused(part("other", sound, "; filename=\"b.wav\""), sound, "only file");
  refused("", "no sound at all", "the sound is of no format");
  refused("", "", "the sound is empty");
  refused("", wav_file(61), "longer than the 60 s");
  const auto nothing = t.client().Post("/v1/audio/transcriptions", part("model", "scene") + kEnd, kType);
  CHECK(nothing->body.find("file must be given") != std::string::npos);
  const auto json = t.client().Post("/v1/audio/transcriptions", "{}", "application/json");
  CHECK(json->status == 400);
  CHECK(json->body.find("multipart/form-data") != std::string::npos);
  TestServer deaf;
  const auto r =
      deaf.client().Post("/v1/audio/transcriptions", part("file", sound, "; filename=a") + kEnd, kType);
  CHECK(r->status == 400);
  CHECK(r->body.find("does not hear") != std::string::npos);
}
