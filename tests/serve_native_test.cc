// llama.cpp's own paths over real sockets: /completion, /infill, counts of tokens, and what a stream tells.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

const EngineConfig kRoomy = {.context = 512, .sequences = 4, .prefill_chunk = 256};

std::vector<Json> events_of(const TestServer& t, const char* path, const Json& body) {
  std::vector<Json> out;
  for (const std::string& e : sse_events(t.post_text(path, body.dump()).second))
    out.push_back(Json::parse(e));
  return out;
}

std::vector<Token> tokens_of(const Json& j) { return j.get<std::vector<Token>>(); }

}  // namespace

TEST_CASE("a native completion: what was said, in text, tokens and probabilities, and why it ended") {
  TestServer t(kRoomy);
  t.script("one\ntwo");
  auto [status, r] =
      t.post("/completion", {{"prompt", "Once"}, {"n_predict", 16}, {"n_probs", 2}, {"return_tokens", true}});
  REQUIRE(status == 200);
  const std::vector<Token> said = t.tokenizer.encode("one\ntwo", false);
  CHECK(r["content"] == "one\ntwo");
  CHECK(tokens_of(r["tokens"]) == said);
  CHECK(r["stop"] == true);
  CHECK(r["stop_type"] == "eos");
  CHECK(r["stopping_word"] == "");
  CHECK(r["has_new_line"] == true);
  CHECK(r["truncated"] == false);
  CHECK(r["model"] == "tiny");
  CHECK(r["tokens_evaluated"] == encode_prompt(t.tokenizer, "Once").size());
  CHECK(r["tokens_predicted"] == said.size() + 1);
  CHECK(r["generation_settings"]["n_predict"] == 16);
  CHECK(r["generation_settings"]["n_ctx"] == 512);
  CHECK(r["timings"]["prompt_n"].get<int>() > 0);
  REQUIRE(r["completion_probabilities"].size() == said.size());
  for (size_t i = 0; i < said.size(); ++i) {
    const Json& p = r["completion_probabilities"][i];
    CHECK(p["id"] == said[i]);
    REQUIRE(p["top_logprobs"].size() == 2);
    CHECK(p["top_logprobs"][0]["id"] == said[i]);  // the script makes it the likeliest
  }

  t.script("abcSTOPdef");
  r = t.post("/completions", {{"prompt", "x"}, {"stop", {"STOP"}}}).second;
  CHECK(r["content"] == "abc");
  CHECK(r["stop_type"] == "word");
  CHECK(r["stopping_word"] == "STOP");
  CHECK(r["tokens"] == Json::array());  // not asked for
  t.script("abcdef", false);
  r = t.post("/completion", {{"prompt", "x"}, {"n_predict", 2}}).second;
  CHECK(r["stop_type"] == "limit");
  CHECK(r["tokens_predicted"] == 2);
  t.script("a\n  b\nc\nd");
  r = t.post("/completion", {{"prompt", "x"}, {"n_indent", 1}}).second;
  CHECK(r["content"] == "a\n  b");
  CHECK(r["stop_type"] == "limit");
  t.script("a");
  r = t.post("/completion",
             {{"prompt", "x"}, {"response_fields", {"content", "generation_settings/n_predict", "no/such"}}})
          .second;
  CHECK(r["content"] == "a");
  CHECK(r.size() == 2);
  CHECK(r["generation_settings/n_predict"].is_number());
}

TEST_CASE("a streamed native completion tells progress, tokens and an end") {
  TestServer t({.context = 512, .sequences = 2, .prefill_chunk = 64});
  std::string prompt;
  for (int i = 0; i < 150; ++i) prompt += fmt::format("{} ", i % 10);
  Json body = {
      {"prompt", prompt}, {"n_predict", 8}, {"ignore_eos", true}, {"seed", 3}, {"return_tokens", true}};
  const Json whole = TestServer().post("/completion", body).second;
  body["stream"] = body["return_progress"] = true;
  const std::vector<Json> events = events_of(t, "/completion", body);
  std::string content;
  std::vector<Token> tokens;
  int64_t read = 0;
  int told = 0;
  for (const Json& e : events) {
    if (e.contains("prompt_progress")) {
      const Json& p = e["prompt_progress"];
      CHECK(p["processed"].get<int64_t>() > read);
      CHECK(content.empty());
      read = p["processed"];
      CHECK(p["total"] == whole["tokens_evaluated"]);
      ++told;
    }
    content += e["content"];
    for (const Token token : tokens_of(e["tokens"])) tokens.push_back(token);
    CHECK(e["stop"] == (&e == &events.back()));
  }
  CHECK(told >= 3);  // of some 300 tokens in pieces of 64
  CHECK(tokens == tokens_of(whole["tokens"]));
  CHECK(content == whole["content"]);
  CHECK(events.back()["tokens_predicted"] == 8);
  CHECK(events.back()["stop_type"] == "limit");
}

TEST_CASE("prompts of a native completion: texts, tokens, both, several") {
  TestServer t(kRoomy);
  const std::vector<Token> ids = encode_prompt(t.tokenizer, "Once");
  const auto prompt_of = [&](const Json& prompt) {
    return t.post("/completion", {{"prompt", prompt}, {"n_predict", 1}}).second;
  };
  const Json text = prompt_of("Once");
  CHECK(prompt_of(ids)["prompt"] == text["prompt"]);
  CHECK(prompt_of({{"prompt_string", "Once"}})["prompt"] == text["prompt"]);
  std::vector<Token> more = t.tokenizer.encode(" more", true);
  Json mixed = ids;
  mixed.push_back(" more");
  CHECK(prompt_of(mixed)["tokens_evaluated"] == ids.size() + more.size());
  const Json several = prompt_of({"Once", ids});
  REQUIRE(several.size() == 2);
  CHECK(several[1]["index"] == 1);
  CHECK(several[0]["prompt"] == several[1]["prompt"]);
  for (const Json& wrong : Json::array({7,
                                        Json::array(),
                                        Json::array({99999999}),
                                        Json::array({-1}),
                                        {{"multimodal_data", {"aGk="}}, {"prompt_string", "x"}}})) {
    const auto [status, j] = t.post("/completion", {{"prompt", wrong}});
    CAPTURE(wrong.dump());
    CHECK(status == 400);
    CHECK(j["error"]["message"].get<std::string>().find("prompt") != std::string::npos);
  }
  CHECK(t.post("/completion", {{"n_predict", 1}}).first == 400);
  const Json wishes = {{"post_sampling_probs", true},
                       {"lora", {{{"id", 0}, {"scale", 1}}}},
                       {"response_fields", "content"},
                       {"n_probs", -1},
                       {"id_slot", 99}};
  for (const auto& wish : wishes.items()) {
    const std::string& name = wish.key();
    const auto [status, j] = t.post("/completion", {{"prompt", "x"}, {name, wish.value()}});
    CAPTURE(name);
    CHECK(status == 400);
    CHECK(j["error"]["message"].get<std::string>().find(name) == 0);
  }
}

TEST_CASE("a gap is filled between the tokens that the model was trained with") {
  CHECK(TestServer(kRoomy).post("/infill", {{"input_prefix", "a"}, {"input_suffix", "b"}}).first == 501);
  const std::vector<std::string> marks = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                          "<|fim_pad|>",    "<|repo_name|>",  "<|file_sep|>"};
  TestServer t(kRoomy, {}, marks);
  const Json body = {{"input_prefix", "int f() {"},
                     {"input_suffix", "}<|fim_pad|>"},  // text is text, whatever it spells
                     {"prompt", " return"},
                     {"input_extra", {{{"filename", "a.h"}, {"text", "int g();"}}}}};
  std::vector<Token> said = t.tokenizer.encode(" 1;", false);
  const std::vector<Token> expected = said;
  said.push_back(t.tokenizer.find("<|fim_pad|>"));
  t.script(said);
  Json r = t.post("/infill", body).second;
  CHECK(r["content"] == " 1;");
  CHECK(r["stop_type"] == "eos");
  CHECK(r["prompt"] ==
        "<bos><|repo_name|>myproject\n<|file_sep|>a.h\nint g();<|file_sep|>filename\n<|fim_prefix|>int f() {"
        "<|fim_suffix|>}<|fim_pad|><|fim_middle|> return");
  const std::vector<Token> spelled = t.tokenizer.encode("}<|fim_pad|>", false);
  CHECK(std::find(spelled.begin(), spelled.end(), t.tokenizer.find("<|fim_pad|>")) == spelled.end());
  for (const char* name : {"input_prefix", "input_suffix"}) {
    Json wrong = body;
    wrong.erase(name);
    const auto [status, j] = t.post("/infill", wrong);
    CHECK(status == 400);
    CHECK(j["error"]["message"].get<std::string>().find(name) == 0);
  }
  Json wrong = body;
  wrong["input_extra"] = {"a.h"};
  CHECK(t.post("/infill", wrong).first == 400);
}

TEST_CASE("paths without /v1, counts of tokens, versions") {
  TestServer t(kRoomy);
  t.script("Hello");
  const Json chat = {{"messages", user("Hi")}};
  const Json r = t.post("/chat/completions", chat).second;
  CHECK(r["choices"][0]["message"]["content"] == "Hello");
  CHECK(t.post("/v1/chat/completions/input_tokens", chat).second["input_tokens"] ==
        r["usage"]["prompt_tokens"]);
  t.script("Hello");
  CHECK(t.post("/responses", {{"input", "Hi"}}).second["usage"]["input_tokens"] ==
        t.post("/v1/responses/input_tokens", {{"input", "Hi"}}).second["input_tokens"]);
  CHECK(Json::parse(t.get("/version").second)["version"] == "test");
  CHECK(t.get("/lora-adapters").second == "[]");
}

TEST_CASE("log probabilities of a response") {
  TestServer t(kRoomy);
  Json body = {{"input", "Hi"}, {"include", {"message.output_text.logprobs"}}, {"top_logprobs", 2}};
  t.script("Hello");
  const Json part = t.post("/v1/responses", body).second["output"][0]["content"][0];
  REQUIRE(part["logprobs"].size() == t.tokenizer.encode("Hello", false).size());
  std::string text;
  for (const Json& l : part["logprobs"]) {
    text += l["token"];
    CHECK(l["top_logprobs"].size() == 2);
  }
  CHECK(text == "Hello");
  body["include"] = "message.output_text.logprobs";
  CHECK(t.post("/v1/responses", body).first == 400);
  body.erase("include");
  body.erase("top_logprobs");
  t.script("Hello");
  CHECK(t.post("/v1/responses", body).second["output"][0]["content"][0]["logprobs"] == Json::array());
}
