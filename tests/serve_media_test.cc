// Pictures over HTTP: a model of the reference implementation that sees is sent the reference's pictures, in
// the forms of every API, and says what the reference says, whatever else the engine does.
#include <doctest/doctest.h>

#include <filesystem>

#include "media/data_url.h"
#include "tests/lossless.h"
#include "tests/media_scene.h"
#include "tests/picture_makers.h"

using namespace carat;
using namespace carat::test;

#ifdef CARAT_PNG
namespace {

constexpr Token kPlace = 500, kOpen = 501, kClose = 502, kFrame = 503, kStart = 504, kEnd = 505;

// What the reference was given and said.
struct Scene {
  explicit Scene(const std::string& model, const std::string& file = "goldens.safetensors", int32_t rows = 70,
                 const char* place = "<|image|>")
      : name(model),
        budget(rows),
        mark(place),
        g(model, file),
        prompt(g.get("input_ids").i),
        greedy(g.get("greedy_ids").i) {
    for (int i = 0; g.has(fmt::format("image.{}.rgb", i)); ++i) {
      const GoldenTensor t = g.get(fmt::format("image.{}.rgb", i));
      stored.push_back({static_cast<int>(t.shape[1]), static_cast<int>(t.shape[0]), t.u8});
    }
  }
  std::string name;
  int32_t budget;    // of a picture
  std::string mark;  // of a place
  Goldens g;
  std::vector<Token> prompt, greedy;
  std::vector<Picture> stored;  // as files have them
};

Scene qwen() { return Scene("qwen3_5_vision", "goldens_image.safetensors", 40, "<|image_pad|>"); }

TokenizerData tokens_of(const Scene& s) {
  std::set<Token> used(s.prompt.begin(), s.prompt.end());
  used.insert(s.greedy.begin(), s.greedy.end());
  return named_tokens(used, {{kPlace, s.mark},
                             {kOpen, "<|image>"},
                             {kClose, "<image|>"},
                             {kFrame, s.mark == "<|image|>" ? "<|video|>" : "<|video_pad|>"},
                             {kStart, "<|vision_start|>"},
                             {kEnd, "<|vision_end|>"}});
}

EngineConfig engine_config(int32_t chunk = 128) {
  EngineConfig c;
  c.context = 256, c.sequences = 3, c.prefill_chunk = chunk;
  c.cache_k = c.cache_v = DType::f32;
  return c;
}

struct Seeing {
  explicit Seeing(const std::string& name)
      : backend(make_cpu_backend(2, "")),
        model(std::make_shared<Model>(load_golden(golden_dir(name), *backend))) {}
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
};

std::unique_ptr<Encoder> encoder_of(const Scene& s, const Seeing& m) {
  return std::make_unique<Encoder>(m.backend,
                                   load_vision(open_towers(golden_dir(s.name)), *m.model, *m.backend));
}

// The prompt with these pictures in its places.
Request asked(const Scene& s, Eyes& eyes, const std::vector<Picture>& pictures) {
  Request r;
  r.prompt = s.prompt;
  r.sample.temperature = 0;
  r.max_tokens = static_cast<int32_t>(s.greedy.size());
  size_t at = 0;
  for (const Picture& p : pictures) {
    while (r.prompt[at] != kPlace) ++at;
    SoftRows rows = eyes.see(png(p), s.budget);
    rows.begin = static_cast<int32_t>(at);
    at += static_cast<size_t>(rows.rows);
    r.soft.push_back(std::move(rows));
  }
  return r;
}

std::vector<std::vector<Token>> said(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::vector<Token>> out;
  for (const Outcome& o : run_all(engine, requests)) {
    CHECK(o.error == "");
    out.push_back(o.tokens);
  }
  return out;
}

using Load = decltype(EyesOptions::load);

class SeeingServer : public SceneServer {
 public:
  explicit SeeingServer(const Scene& scene, Load load = {})
      : SceneServer(scene.name, tokens_of(scene), scene.mark, engine_config()), s(scene) {
    eyes = std::make_unique<Eyes>(std::make_unique<Encoder>(backend, load_vision(towers, *model, *backend)),
                                  tokenizer,
                                  EyesOptions{.budget = s.budget, .most_rows = 128, .load = std::move(load)});
    start();
  }
  std::string url(size_t which) const {
    return "data:image/png;base64," + encode_base64(png(s.stored[which]));
  }
  // The scene's prompt as a content: texts, and what `picture` makes of each picture.
  Json parts(const std::function<Json(size_t)>& picture, const std::vector<size_t>& order = {0, 1},
             const char* text_type = "text") const {
    Json out = Json::array();
    size_t at = 0;
    const auto add_text = [&](size_t end) {
      if (end > at)
        out.push_back({{"type", text_type}, {"text", text_of(std::span(s.prompt).subspan(at, end - at))}});
    };
    const size_t around = s.mark == "<|image|>";  // tokens that the server writes
    for (const size_t which : order) {
      size_t place = at;
      while (s.prompt[place] != kPlace) ++place;
      add_text(place - around);
      out.push_back(picture(which));
      while (s.prompt[place] == kPlace) ++place;
      at = place + around;
    }
    add_text(s.prompt.size());
    return out;
  }
  Json openai(const std::vector<size_t>& order = {0, 1}) const {
    const auto picture = [&](size_t i) {
      return Json{{"type", "image_url"}, {"image_url", {{"url", url(i)}}}};
    };
    return {{"messages", {{{"role", "user"}, {"content", parts(picture, order)}}}},
            {"max_tokens", s.greedy.size()},
            {"temperature", 0},
            {"return_token_ids", true}};
  }

  const Scene& s;
};

}  // namespace

TEST_CASE("an engine reads pictures: any chunk, together and alone, found in the cache or not") {
  for (const int which : {0, 1, 2}) {
    CAPTURE(which);
    const Scene s = which == 0   ? Scene("gemma4_vision")
                    : which == 1 ? Scene("gemma4_audio", "goldens_image.safetensors")
                                 : qwen();
    const Seeing m(s.name);
    const Tokenizer tokenizer(tokens_of(s));
    Eyes eyes(encoder_of(s, m), tokenizer, {.budget = s.budget});
    std::vector<Picture> turned = s.stored;
    for (uint8_t& byte : turned[0].rgb) byte = static_cast<uint8_t>(255 - byte);
    const Request right = asked(s, eyes, s.stored), other = asked(s, eyes, turned);
    Engine plain(m.backend, m.model, [&] {
      EngineConfig c = engine_config(256);
      c.prefix_cache_bytes = 0;
      return c;
    }());
    const std::vector<Token> of_other = said(plain, {other})[0];
    CHECK(said(plain, {right})[0] == s.greedy);
    CHECK(of_other != s.greedy);
    for (const int32_t chunk : {which == 0 ? 60 : 1, 64, 100}) {
      CAPTURE(chunk);
      Engine engine(m.backend, m.model, engine_config(chunk));
      CHECK(said(engine, {right, other, right}) ==
            std::vector<std::vector<Token>>{s.greedy, of_other, s.greedy});
      CHECK(said(engine, {other}) == std::vector<std::vector<Token>>{of_other});
      CHECK(engine.stats().prefix.hits > 0);
    }
    EngineConfig few = engine_config(64);  // who comes last waits, and reads its pictures again
    few.kv_tokens = 256, few.prefix_cache_bytes = 0;
    Engine tight(m.backend, m.model, few);
    CHECK(said(tight, {right, other, right}) ==
          std::vector<std::vector<Token>>{s.greedy, of_other, s.greedy});
  }
}

TEST_CASE("drafts change no token behind pictures") {
  for (const bool axes : {false, true}) {
    CAPTURE(axes);
    const Scene s = axes ? qwen() : Scene("gemma4_vision");
    const Seeing m(s.name);
    const Tokenizer tokenizer(tokens_of(s));
    Eyes eyes(encoder_of(s, m), tokenizer, {.budget = s.budget});
    const Request r = asked(s, eyes, s.stored);
    auto oracle = std::make_shared<Oracle>();
    oracle->vocab = 512;
    oracle->streams = {s.prompt};
    oracle->streams[0].insert(oracle->streams[0].end(), s.greedy.begin(), s.greedy.end());
    std::atomic<int> broken{0};
    for (const NamedDrafters& d : all_drafters(oracle, &broken)) {
      CAPTURE(d.name);
      EngineConfig c = engine_config(64);
      c.drafters = d.drafters, c.spec = d.config;
      Engine engine(m.backend, m.model, c);
      for (int again = 0; again < 2; ++again)
        CHECK(said(engine, {r, r}) == std::vector<std::vector<Token>>{s.greedy, s.greedy});
    }
    CHECK(broken == 0);
  }
}

TEST_CASE("an engine refuses pictures that no step holds") {
  const Scene s("gemma4_vision");
  const Seeing m(s.name);
  const Tokenizer tokenizer(tokens_of(s));
  Eyes eyes(encoder_of(s, m), tokenizer, {.budget = s.budget});
  Engine engine(m.backend, m.model, engine_config(59));
  Request r = asked(s, eyes, s.stored);
  r.sink = [](const Event&) {};
  CHECK_THROWS_WITH_AS(engine.submit(r), "a picture of 60 tokens, but a step reads 59 at most", Error);
}

TEST_CASE("chat completions with pictures say what the reference says; usage counts them") {
  const Scene s("gemma4_vision");
  const SeeingServer t(s);
  const auto ids = [](const Json& answer) {
    return answer.at("choices").at(0).at("token_ids").get<std::vector<Token>>();
  };
  const auto got = t.post("/v1/chat/completions", t.openai());
  const int status = got.first;
  const Json& first = got.second;
  CAPTURE(first.dump());
  REQUIRE(status == 200);
  CHECK(first["prompt_token_ids"].get<std::vector<Token>>() == s.prompt);
  CHECK(ids(first) == s.greedy);
  CHECK(first["usage"]["prompt_tokens"] == s.prompt.size());
  CHECK(first["usage"]["prompt_tokens_details"]["image_tokens"] == 120);
  CHECK(t.eyes->encoded() == 2);
  const Json again = t.post("/v1/chat/completions", t.openai()).second;
  CHECK(ids(again) == s.greedy);
  CHECK(again["usage"]["prompt_tokens_details"]["cached_tokens"].get<size_t>() > s.prompt.size() / 2);
  const Json turned = t.post("/v1/chat/completions", t.openai({1, 0})).second;
  CHECK(ids(turned) != s.greedy);
  CHECK(turned["usage"]["prompt_tokens_details"]["cached_tokens"].get<size_t>() < 64);
  CHECK(t.eyes->encoded() == 2);  // seen before
  Json small = t.openai();        // a picture in fewer tokens is another one
  small["messages"][0]["content"][1]["image_url"]["detail"] = "low";
  CHECK(t.post("/v1/chat/completions", small).first == 200);
  const Json counted = t.post("/tokenize", t.openai()).second;
  CHECK(counted["tokens"].get<std::vector<Token>>() == s.prompt);
  httplib::Client client("127.0.0.1", t.server->port());
  CHECK(Json::parse(client.Get("/props")->body)["modalities"]["vision"] == true);
  CHECK(Json::parse(client.Get("/v1/models")->body)["data"][0]["architecture"]["input_modalities"] ==
        Json::array({"text", "image"}));
}

TEST_CASE("a model whose positions have axes says over HTTP what the reference says") {
  const Scene s = qwen();
  const SeeingServer t(s);
  for (int again = 0; again < 2; ++again) {
    const auto got = t.post("/v1/chat/completions", t.openai());
    const int status = got.first;
    const Json& first = got.second;
    CAPTURE(first.dump());
    REQUIRE(status == 200);
    CHECK(first["prompt_token_ids"].get<std::vector<Token>>() == s.prompt);
    CHECK(first["choices"][0]["token_ids"].get<std::vector<Token>>() == s.greedy);
    CHECK(first["usage"]["prompt_tokens_details"]["image_tokens"] == 75);
  }
  CHECK(t.eyes->encoded() == 2);
}

TEST_CASE("every API takes pictures in its own form") {
  const Scene s("gemma4_vision");
  const SeeingServer t(s);
  const std::string want = t.tokenizer.decode(s.greedy, true);
  const auto check = [&](const char* path, Json body, const std::function<Json(const Json&)>& text) {
    body.update({{"temperature", 0}});
    const auto got = t.post(path, body);
    const int status = got.first;
    const Json& answer = got.second;
    CAPTURE(path);
    CAPTURE(answer.dump());
    REQUIRE(status == 200);
    CHECK(text(answer) == want);
  };
  const auto block = [&](size_t i) {
    return Json{
        {"type", "image"},
        {"source",
         {{"type", "base64"}, {"media_type", "image/png"}, {"data", encode_base64(png(s.stored[i]))}}}};
  };
  const Json anthropic = {{"messages", {{{"role", "user"}, {"content", t.parts(block)}}}},
                          {"max_tokens", s.greedy.size()}};
  const auto first_text = [](const Json& a) { return a.at("content").at(0).at("text"); };
  check("/v1/messages", anthropic, first_text);
  CHECK(t.post("/v1/messages/count_tokens", anthropic).second["input_tokens"] == s.prompt.size());
  // The same text as what a tool answered: agents send screenshots so.
  const Json use = {{"type", "tool_use"}, {"id", "t"}, {"name", "look"}, {"input", Json::object()}};
  const Json result = {{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", t.parts(block)}};
  check("/v1/messages",
        {{"messages",
          {{{"role", "assistant"}, {"content", Json::array({use})}},
           {{"role", "user"}, {"content", Json::array({result})}}}},
         {"max_tokens", s.greedy.size()}},
        first_text);
  const auto input_image = [&](size_t i) { return Json{{"type", "input_image"}, {"image_url", t.url(i)}}; };
  const Json responses = {
      {"input", {{{"role", "user"}, {"content", t.parts(input_image, {0, 1}, "input_text")}}}},
      {"max_output_tokens", s.greedy.size()}};
  check("/v1/responses", responses, [](const Json& a) { return a["output"][0]["content"][0]["text"]; });
  CHECK(t.post("/v1/responses/input_tokens", responses).second["input_tokens"] == s.prompt.size());
  // Ollama's pictures come before the text.
  const Json ollama = {{"messages",
                        {{{"role", "user"},
                          {"content", text_of(std::span(s.prompt).last(3))},
                          {"images", {encode_base64(png(s.stored[1]))}}}}},
                       {"stream", false},
                       {"options", {{"num_predict", 4}, {"temperature", 0}}}};
  const auto got = t.post("/api/chat", ollama);
  const int status = got.first;
  const Json& answer = got.second;
  CAPTURE(answer.dump());
  REQUIRE(status == 200);
  CHECK(answer["prompt_eval_count"] == 62 + 3);
  CHECK(t.post("/api/generate", {{"prompt", text_of(std::span(s.prompt).last(3))},
                                 {"images", {encode_base64(png(s.stored[1]))}},
                                 {"stream", false},
                                 {"options", {{"num_predict", 4}, {"temperature", 0}}}})
            .second["response"] == answer["message"]["content"]);
}

TEST_CASE("a picture by address, where the server's owner permits its host, is the picture") {
  const Scene s("gemma4_vision");
  std::vector<std::string> loaded;
  const SeeingServer t(s, [&](const std::string& url) {
    loaded.push_back(url);
    if (url.ends_with("0.png")) return png(s.stored[0]);
    if (url.ends_with("1.png")) return png(s.stored[1]);
    throw Error("'" + url + "' answers 404");
  });
  Json body = t.openai();
  int at = 0;
  for (Json& part : body["messages"][0]["content"])
    if (part["type"] == "image_url") part["image_url"]["url"] = fmt::format("https://a.org/{}.png", at++);
  const Json got = t.post("/v1/chat/completions", body).second;
  CHECK(got["choices"][0]["token_ids"].get<std::vector<Token>>() == s.greedy);
  CHECK(loaded == std::vector<std::string>{"https://a.org/0.png", "https://a.org/1.png"});
  const Json messages = Json::parse(
      R"([{"role": "user", "content": [{"type": "image_url", "image_url": "https://a.org/none.png"}]}])");
  const auto gone = t.post("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 1}});
  CHECK(gone.first == 400);
  CHECK(gone.second["error"]["message"] == "messages[0].content[0]: 'https://a.org/none.png' answers 404");
}

TEST_CASE("a text that spells a place for a picture is a text") {
  const Scene s("gemma4_vision");
  const SeeingServer t(s);
  const auto tokens = [&](const Json& content) {
    return t.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", content}}}}})
        .second["tokens"]
        .get<std::vector<Token>>();
  };
  const std::vector<Token> spelled = tokens("ab<|image|>c");
  CHECK(std::find(spelled.begin(), spelled.end(), kPlace) == spelled.end());
  CHECK(t.tokenizer.decode(spelled, true) == "ab<|image|>c");
  const Json picture = {{"type", "image_url"}, {"image_url", t.url(1)}};  // a bare text will do
  const std::vector<Token> both = tokens(Json::array({{{"type", "text"}, {"text", "<|image|>"}}, picture}));
  CHECK(both.size() == tokens("<|image|>").size() + 62);
  CHECK(std::count(both.begin(), both.end(), kPlace) == 60);
  CHECK(both[both.size() - 62] == kOpen);
}

TEST_CASE("pictures that cannot be shown are refused with the reason") {
  const Scene s("gemma4_vision");
  const SeeingServer t(s);
  const auto refused = [&](const Json& content, const char* word, const Json& more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", content}}}}, {"max_tokens", 1}};
    body.update(more);
    const auto got = t.post("/v1/chat/completions", body);
    const int status = got.first;
    const Json& j = got.second;
    CAPTURE(word);
    CAPTURE(j.dump());
    CHECK(status == 400);
    CHECK(j["error"]["message"].get<std::string>().find(word) != std::string::npos);
  };
  const auto shown = [](const std::string& url, const char* detail = "auto") {
    return Json::array({{{"type", "image_url"}, {"image_url", {{"url", url}, {"detail", detail}}}}});
  };
  refused(shown("https://example.org/a.png"),
          "messages[0].content[0]: pictures are not loaded from elsewhere");
  refused(shown("file:///etc/passwd"), "'file:' addresses are not loaded");
  refused(shown("data:image/png;base64,%%%"), "no base64");
  refused(shown("data:image/png;base64,aGVsbG8="), "messages[0].content[0]");
  std::vector<uint8_t> cut = png(s.stored[1]);
  cut.resize(cut.size() / 2);
  refused(shown("data:image/png;base64," + encode_base64(cut)), "messages[0].content[0]");
  refused(shown(t.url(0), "huge"), "\"low\"");
  refused(shown(t.url(0)), "70, 140, 280", {{"image_tokens", 100}});
  refused(shown(t.url(0)), "at most 128", {{"image_tokens", 280}});
  refused(shown(t.url(0)), "is not truncated", {{"truncate_prompt_tokens", 20}});
  refused(Json::array({{{"type", "image_url"}, {"image_url", {{"file_id", "f"}}}}}), "needs its bytes");
  Json many = Json::array();
  for (int i = 0; i < 17; ++i) many.push_back(shown(t.url(1))[0]);
  refused(many, "17 pictures");
  Json long_one = Json::array();
  for (int i = 0; i < 5; ++i) long_one.push_back(shown(t.url(1))[0]);
  refused(long_one, "the prompt has 31");  // five of 62 tokens, counted before one is looked at
  CHECK(t.eyes->encoded() == 0);
}

TEST_CASE("a video's frames stand with their times, in every form; usage counts them apart") {
  for (const bool clock : {true, false}) {
    const Scene s = clock ? Scene("gemma4_vision") : qwen();
    const SeeingServer t(s);
    const auto content = [&](const Json& video) {
      return Json::array({{{"type", "text"}, {"text", "<t10>"}}, video, {{"type", "text"}, {"text", "ab"}}});
    };
    const auto tokens = [&](const Json& video) {
      return t.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", content(video)}}}}})
          .second.at("tokens")
          .get<std::vector<Token>>();
    };
    const Json frames = {{{"image", t.url(0)}, {"t", 0}}, {{"image_url", {{"url", t.url(1)}}}, {"t", 65.52}}};
    const Json video = {{"type", "video_frames"}, {"frames", frames}};
    std::vector<Token> want;
    const auto add_text = [&](const char* text) {
      for (const Token x : t.tokenizer.encode(text, true)) want.push_back(x);
    };
    const auto add_frame = [&](size_t which) {
      want.push_back(clock ? kOpen : kStart);
      want.insert(want.end(), static_cast<size_t>(t.eyes->rows(png(s.stored[which]), 70)), kFrame);
      want.push_back(clock ? kClose : kEnd);
    };
    add_text(clock ? "<t10>00:00 " : "<t10><0.0 seconds>");
    add_frame(0);
    add_text(clock ? " 01:05 " : "<65.5 seconds>");
    add_frame(1);
    add_text("ab");
    CHECK(tokens(video) == want);

    const Json ask = {{"messages", {{{"role", "user"}, {"content", content(video)}}}}, {"max_tokens", 2}};
    const auto got = t.post("/v1/chat/completions", ask);
    const Json& answer = got.second;
    CAPTURE(answer.dump());
    REQUIRE(got.first == 200);
    const Json of_prompt = answer["usage"]["prompt_tokens_details"];
    CHECK(of_prompt["video_tokens"] == std::count(want.begin(), want.end(), kFrame));
    CHECK(!of_prompt.contains("image_tokens"));
    CHECK(answer["usage"]["prompt_tokens"] == want.size());
    CHECK(t.eyes->encoded() == 2);

    const auto bare = [&](size_t i) { return encode_base64(png(s.stored[i])); };
    const Json halves = {{"type", "video_frames"},
                         {"frames", {{{"image", bare(0)}}, {{"image", bare(1)}, {"t", 2}}}}};
    const Json vllm = {{"type", "video_url"},
                       {"fps", 0.5},
                       {"video_url", {{"url", "data:video/jpeg;base64," + bare(0) + "," + bare(1)}}}};
    const Json of_qwen = {{"type", "video"}, {"video", {t.url(0), t.url(1)}}, {"fps", 0.5}};
    CHECK(tokens(vllm) == tokens(halves));
    CHECK(tokens(of_qwen) == tokens(halves));
    CHECK(tokens(halves) != want);
    Json parts = content(video);
    parts[0]["type"] = parts[2]["type"] = "input_text";
    CHECK(t.post("/v1/responses/input_tokens", {{"input", {{{"role", "user"}, {"content", parts}}}}})
              .second["input_tokens"] == want.size());
    const std::vector<Token> spelled = tokens({{"type", "text"}, {"text", s.mark + "<|video|>"}});
    CHECK(std::count(spelled.begin(), spelled.end(), kFrame) == 0);
  }
}

TEST_CASE("videos that cannot be shown are refused with what to send instead") {
  const Scene s("gemma4_vision");
  const SeeingServer t(s);
  const auto refused = [&](const Json& part, const char* word) {
    const auto got = t.post("/v1/chat/completions",
                            {{"messages", {{{"role", "user"}, {"content", {part}}}}}, {"max_tokens", 1}});
    CAPTURE(got.second.dump());
    CHECK(got.first == 400);
    CHECK(got.second["error"]["message"].get<std::string>().find(word) != std::string::npos);
  };
  const auto by_url = [](const std::string& url) {
    return Json{{"type", "video_url"}, {"video_url", {{"url", url}}}};
  };
  const auto of_frames = [](const Json& frames) {
    return Json{{"type", "video_frames"}, {"frames", frames}};
  };
  refused(by_url("data:video/mp4;base64,AAAAIGZ0eXA="), "videos are not decoded; send a video as pictures");
  refused(by_url("https://example.org/a.mp4"), "`ffmpeg -i FILE");
  refused({{"type", "video_url"}}, "messages[0].content[0]: send a video as pictures");
  refused(by_url("data:video/jpeg;base64,AAAA,,AAAA"), "a frame without its bytes");
  refused(of_frames({{{"image", t.url(0)}, {"t", 2}}, {{"image", t.url(1)}, {"t", 1}}}),
          "frame 1 is earlier");
  refused(of_frames({{{"image", t.url(0)}, {"t", -1}}}), "must be a number from 0");
  refused({{"type", "video"}, {"video", {t.url(0)}}, {"fps", 0}}, "above 0");
  refused(of_frames(std::vector<Json>(33, {{"image", t.url(0)}})), "33 frames of videos up to here");
  refused(of_frames({{{"image", "data:image/png;base64,AAAA"}}}), "messages[0].content[0]");
  CHECK(t.eyes->encoded() == 0);
}

TEST_CASE("a model without eyes says so, and goes on with conversations that hold old pictures") {
  TestServer t;
  const Json picture = {{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64,AAAA"}}}};
  const auto message = [](const char* role, const Json& content) {
    return Json{{"role", role}, {"content", content}};
  };
  const Json old = message("user", Json::array({{{"type", "text"}, {"text", "what is this?"}}, picture}));
  Json body = {{"messages", {old}}, {"max_tokens", 1}};
  const auto got = t.post("/v1/chat/completions", body);
  const int status = got.first;
  const Json& j = got.second;
  CHECK(status == 400);
  CHECK(j["error"]["param"] == "messages[0].content");
  CHECK(j["error"]["message"].get<std::string>().find("--mmproj FILE") != std::string::npos);
  body["messages"].push_back(message("assistant", "A cat."));
  body["messages"].push_back(message("user", "And now?"));
  CHECK(t.post("/v1/chat/completions", body).first == 200);
  words_for_media(body["messages"], {t.engine, t.tokenizer, nullptr, "", "", ""});
  CHECK(body["messages"][0]["content"][1]["text"] == "[image: it cannot be shown to this model]");
}
#endif
