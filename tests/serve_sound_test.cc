// Sound over HTTP: a model of the reference implementation that hears is sent the reference's sounds, in the
// forms of the APIs that have one, and says what the reference says.
#include <doctest/doctest.h>

#include "media/data_url.h"
#include "tests/media_scene.h"
#include "tests/sound_makers.h"

using namespace carat;
using namespace carat::test;

namespace {

constexpr Token kPlace = 503, kOpen = 504, kClose = 505;
const std::string kGolden = "gemma4_audio";

struct Heard {
  Goldens g{kGolden, "goldens_sound.safetensors"};
  std::vector<Token> prompt = g.get("input_ids").i, greedy = g.get("greedy_ids").i;
  // As a WAV file.
  std::vector<uint8_t> file(size_t i) const {
    std::string samples;
    for (const int32_t v : g.get(fmt::format("audio.{}.pcm", i)).i)
      samples += le(static_cast<uint16_t>(v), 2);
    return file_of(wav(1, 1, kSoundRate, 16, samples));
  }
};

EngineConfig engine_config() {
  EngineConfig c;
  c.context = 2048, c.sequences = 3, c.prefill_chunk = 48;
  c.cache_k = c.cache_v = DType::f32;
  return c;
}

TokenizerData tokens_of(const Heard& h) {
  std::set<Token> used(h.prompt.begin(), h.prompt.end());
  used.insert(h.greedy.begin(), h.greedy.end());
  return named_tokens(used,
                      {{kPlace, "<|audio|>"}, {kOpen, "<|audio>"}, {kClose, "<audio|>"}, {500, "<|image|>"}});
}

struct HasHeard {
  const Heard h;
};

class HearingServer : public HasHeard, public SceneServer {
 public:
  explicit HearingServer(EarsOptions options = {})
      : SceneServer(kGolden, tokens_of(h), "<|image|>", engine_config()) {
    ears =
        std::make_unique<Ears>(std::make_unique<SoundEncoder>(backend, load_ears(towers, *model, *backend)),
                               tokenizer, std::move(options));
    start();
  }
  std::string base64(size_t i) const { return encode_base64(h.file(i)); }
  // The reference's prompt as a content: texts, and what `sound` makes of each sound.
  Json parts(const std::function<Json(size_t)>& sound, const std::vector<size_t>& order = {0, 1},
             const char* text_type = "text") const {
    Json out = Json::array();
    size_t at = 0;
    const auto add_text = [&](size_t end) {
      out.push_back({{"type", text_type}, {"text", text_of(std::span(h.prompt).subspan(at, end - at))}});
    };
    for (const size_t which : order) {
      size_t place = at;
      while (h.prompt[place] != kPlace) ++place;
      add_text(place - 1);
      out.push_back(sound(which));
      while (h.prompt[place] == kPlace) ++place;
      at = place + 1;
    }
    add_text(h.prompt.size());
    return out;
  }
  Json input_audio(size_t i) const {
    return {{"type", "input_audio"}, {"input_audio", {{"data", base64(i)}, {"format", "wav"}}}};
  }
  Json body(const Json& content) const {
    return {{"messages", {{{"role", "user"}, {"content", content}}}},
            {"max_tokens", h.greedy.size()},
            {"temperature", 0},
            {"return_token_ids", true}};
  }
  Json openai(const std::vector<size_t>& order = {0, 1}) const {
    return body(parts([&](size_t i) { return input_audio(i); }, order));
  }
};

std::vector<Token> ids(const Json& answer) {
  return answer.at("choices").at(0).at("token_ids").get<std::vector<Token>>();
}

std::string base64_of(const std::vector<float>& samples) {
  return encode_base64(file_of(wav(1, 1, kSoundRate, 16, pcm16(samples))));
}

Json sound_part(const std::string& data) {
  return {{"type", "input_audio"}, {"input_audio", {{"data", data}, {"format", "wav"}}}};
}

}  // namespace

TEST_CASE("chat completions with sounds say what the reference says; usage counts them") {
  const HearingServer t;
  const auto got = t.post("/v1/chat/completions", t.openai());
  const int status = got.first;
  const Json& first = got.second;
  CAPTURE(first.dump());
  REQUIRE(status == 200);
  CHECK(first["prompt_token_ids"].get<std::vector<Token>>() == t.h.prompt);
  CHECK(ids(first) == t.h.greedy);
  CHECK(first["usage"]["prompt_tokens"] == t.h.prompt.size());
  CHECK(first["usage"]["prompt_tokens_details"]["audio_tokens"] == 41);
  CHECK(!first["usage"]["prompt_tokens_details"].contains("image_tokens"));
  CHECK(t.ears->encoded() == 2);
  const Json again = t.post("/v1/chat/completions", t.openai()).second;
  CHECK(ids(again) == t.h.greedy);
  CHECK(again["usage"]["prompt_tokens_details"]["cached_tokens"].get<size_t>() > t.h.prompt.size() / 2);
  const Json turned = t.post("/v1/chat/completions", t.openai({1, 0})).second;
  CHECK(ids(turned) != t.h.greedy);
  CHECK(turned["usage"]["prompt_tokens_details"]["cached_tokens"].get<size_t>() <=
        6);                       // up to the first sound
  CHECK(t.ears->encoded() == 2);  // heard before
  CHECK(t.post("/tokenize", t.openai()).second["tokens"].get<std::vector<Token>>() == t.h.prompt);
  httplib::Client client = t.client();
  CHECK(Json::parse(client.Get("/props")->body)["modalities"] == Json({{"vision", false}, {"audio", true}}));
  CHECK(Json::parse(client.Get("/v1/models")->body)["data"][0]["architecture"]["input_modalities"] ==
        Json::array({"text", "audio"}));
  const Json shown = Json::parse(client.Post("/api/show", R"({"model": "scene"})", "application/json")->body);
  CHECK(shown["capabilities"].dump().find("audio") != std::string::npos);
}

TEST_CASE("every API that has a form for sound takes it") {
  const HearingServer t;
  const auto check = [&](const Json& content) {
    const Json answer = t.post("/v1/chat/completions", t.body(content)).second;
    CAPTURE(answer.dump());
    CHECK(ids(answer) == t.h.greedy);
  };
  const auto url = [&](size_t i) { return "data:audio/wav;base64," + t.base64(i); };
  check(t.parts([&](size_t i) { return Json{{"type", "audio_url"}, {"audio_url", {{"url", url(i)}}}}; }));
  check(t.parts([&](size_t i) { return Json{{"type", "audio_url"}, {"audio_url", url(i)}}; }));
  check(t.parts([&](size_t i) { return Json{{"type", "audio"}, {"audio", t.base64(i)}}; }));
  check(t.parts([&](size_t i) { return Json{{"type", "input_audio"}, {"input_audio", {{"url", url(i)}}}}; }));
  const auto input = [&](size_t i) { return t.input_audio(i); };
  const Json responses = {{"input", {{{"role", "user"}, {"content", t.parts(input, {0, 1}, "input_text")}}}},
                          {"max_output_tokens", t.h.greedy.size()},
                          {"temperature", 0}};
  const Json answer = t.post("/v1/responses", responses).second;
  CAPTURE(answer.dump());
  CHECK(answer["output"][0]["content"][0]["text"] == t.tokenizer.decode(t.h.greedy, true));
  CHECK(answer["usage"]["input_tokens_details"]["audio_tokens"] == 41);
  CHECK(t.post("/v1/responses/input_tokens", responses).second["input_tokens"] == t.h.prompt.size());
  // Ollama's sounds come among its images, before the text.
  const std::string question = text_of(std::span(t.h.prompt).last(3));
  const Json options = {{"num_predict", 4}, {"temperature", 0}};
  const Json ollama = {
      {"messages", {{{"role", "user"}, {"content", question}, {"images", {t.base64(1), url(0)}}}}},
      {"stream", false},
      {"options", options}};
  const auto got = t.post("/api/chat", ollama);
  const Json& said = got.second;
  CAPTURE(said.dump());
  REQUIRE(got.first == 200);
  CHECK(said["prompt_eval_count"] == 41 + 4 + 3);
  CHECK(
      t.post(
           "/api/generate",
           {{"prompt", question}, {"images", {t.base64(1), url(0)}}, {"stream", false}, {"options", options}})
          .second["response"] == said["message"]["content"]);
}

TEST_CASE("a sound longer than the tower hears at once stands in pieces, cut where it is quiet") {
  const HearingServer t;
  std::vector<float> sound = tone(300, kSoundRate, 40);
  std::fill(sound.begin() + 28 * kSoundRate, sound.begin() + 28 * kSoundRate + 1600, 0.0f);
  const Json content = Json::array({sound_part(base64_of(sound)), {{"type", "text"}, {"text", "<t245>"}}});
  Json body = t.body(content);
  body["max_tokens"] = 1;
  const auto got = t.post("/v1/chat/completions", body);
  CAPTURE(got.second.dump());
  REQUIRE(got.first == 200);
  const auto prompt = got.second["prompt_token_ids"].get<std::vector<Token>>();
  CHECK(std::count(prompt.begin(), prompt.end(), kOpen) == 2);
  CHECK(std::count(prompt.begin(), prompt.end(), kClose) == 2);
  const auto first = std::find(prompt.begin(), prompt.end(), kClose) - prompt.begin() - 1;
  CHECK(first >= 28 * 25);
  CHECK(first <= 28 * 25 + 3);
  CHECK(got.second["usage"]["prompt_tokens_details"]["audio_tokens"] ==
        std::count(prompt.begin(), prompt.end(), kPlace));
  CHECK(t.ears->encoded() == 2);
  CHECK(t.post("/v1/chat/completions", body).first == 200);
  CHECK(t.ears->encoded() == 2);
}

TEST_CASE("a text that spells a place for a sound is a text") {
  const HearingServer t;
  const auto tokens = [&](const Json& content) {
    return t.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", content}}}}})
        .second["tokens"]
        .get<std::vector<Token>>();
  };
  const std::vector<Token> spelled = tokens("ab<|audio|>c<|audio|>");
  CHECK(std::count(spelled.begin(), spelled.end(), kPlace) == 0);
  CHECK(t.tokenizer.decode(spelled, true) == "ab<|audio|>c<|audio|>");
  const std::vector<Token> both =
      tokens(Json::array({{{"type", "text"}, {"text", "<|audio|>"}}, t.input_audio(0)}));
  CHECK(std::count(both.begin(), both.end(), kPlace) == 26);
  CHECK(both.size() == tokens("<|audio|>").size() + 28);
}

TEST_CASE("sounds that cannot be heard are refused with the reason") {
  const HearingServer t({.seconds = 60});
  const auto refused = [&](const Json& content, const char* word, const Json& more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", content}}}}, {"max_tokens", 1}};
    body.update(more);
    const auto got = t.post("/v1/chat/completions", body);
    const Json& j = got.second;
    CAPTURE(word);
    CAPTURE(j.dump());
    CHECK(got.first == 400);
    CHECK(j["error"]["message"].get<std::string>().find(word) != std::string::npos);
  };
  const auto data = [](const std::string& bytes) {
    return Json::array({sound_part(encode_base64(file_of(bytes)))});
  };
  refused(Json::array({sound_part("https://example.org/a.wav")}), "sounds are not loaded from elsewhere");
  refused(Json::array({sound_part("%%%")}), "no base64");
  refused(data("hello, this is no sound"), "messages[0].content[0]: the sound is of no format");
  refused(data("RIFF    WAVE"), "messages[0].content[0]");
  refused(Json::array({sound_part(base64_of(tone(300, kSoundRate, 0.005)))}), "shorter than 10 ms");
  const std::string half = base64_of(tone(300, kSoundRate, 40));
  refused(Json::array({sound_part(base64_of(tone(300, kSoundRate, 61)))}), "longer than the 60 s");
  refused(Json::array({sound_part(half), sound_part(half)}), "--audio-max-seconds");
  refused(Json::array({{{"type", "input_audio"}, {"input_audio", {{"format", "wav"}}}}}), "needs its bytes");
  refused(Json::array({t.input_audio(0)}), "is not truncated", {{"truncate_prompt_tokens", 20}});
  refused(Json::array({{{"type", "image_url"}, {"image_url", "data:image/png;base64,AAAA"}}}), "no images");
  Json many = Json::array();
  for (int i = 0; i < 17; ++i) many.push_back(t.input_audio(1));
  refused(many, "17 sounds");
  CHECK(t.ears->encoded() == 0);
}

TEST_CASE("a model without ears says so, and goes on with conversations that hold old sounds") {
  TestServer t;
  const auto message = [](const char* role, const Json& content) {
    return Json{{"role", role}, {"content", content}};
  };
  const Json old =
      message("user", Json::array({{{"type", "text"}, {"text", "what is this?"}}, sound_part("AAAA")}));
  Json body = {{"messages", {old}}, {"max_tokens", 1}};
  const auto got = t.post("/v1/chat/completions", body);
  CHECK(got.first == 400);
  CHECK(got.second["error"]["param"] == "messages[0].content");
  CHECK(got.second["error"]["message"].get<std::string>().find("does not hear") != std::string::npos);
  body["messages"].push_back(message("assistant", "A bell."));
  body["messages"].push_back(message("user", "And now?"));
  CHECK(t.post("/v1/chat/completions", body).first == 200);
  words_for_media(body["messages"], {t.engine, t.tokenizer, nullptr, "", "", ""});
  CHECK(body["messages"][0]["content"][1]["text"] == "[audio: it cannot be played to this model]");
}
