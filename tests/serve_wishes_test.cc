// What requests ask of their answers beside the form: each wish is kept or refused by name, never dropped.
#include <doctest/doctest.h>

#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

// The choice of an answer to a chat.
Json ask(const TestServer& server, const Json& more) {
  const auto [status, answer] = server.post(
      "/v1/chat/completions", with({{"messages", user("Go")}, {"temperature", 0}, {"max_tokens", 40}}, more));
  INFO(answer.dump());
  REQUIRE(status == 200);
  Json choice = answer["choices"][0];
  choice["usage"] = answer["usage"];
  return choice;
}

void check_refused(const TestServer& server, const Json& more, const std::string& param) {
  const Json body = with({{"messages", user("Go")}, {"prompt", "Go"}, {"max_tokens", 2}}, more);
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const auto [status, answer] = server.post(path, body);
    INFO(more.dump(), " ", answer.dump());
    CHECK(status == 400);
    CHECK(answer["error"]["param"] == param);
    CHECK(answer["error"]["message"].get<std::string>().find(param) != std::string::npos);
  }
}

std::string text_of(const Json& choice) { return choice["message"]["content"]; }

}  // namespace

TEST_CASE("an answer ends at stop tokens, and not before min_tokens") {
  TestServer server;
  const std::string text = "one two three four";
  const std::vector<Token> tokens = server.tokenizer.encode(text, false);
  REQUIRE(tokens.size() > 4);
  const Token stop = tokens[3];
  REQUIRE(std::find(tokens.begin(), tokens.begin() + 3, stop) == tokens.begin() + 3);
  const std::string before = server.tokenizer.decode({tokens.data(), 3}, false);

  server.script(text);
  Json choice = ask(server, {{"stop_token_ids", {stop}}});
  CHECK(text_of(choice) == before);
  CHECK(choice["finish_reason"] == "stop");
  CHECK(choice["stop_reason"] == stop);
  server.script(text);
  choice = ask(server, {{"stop_token_ids", {stop}}, {"include_stop_str_in_output", true}});
  CHECK(text_of(choice) == before + server.tokenizer.piece(stop));
  server.script(text);
  choice = ask(server, {{"stop", "three"}, {"include_stop_str_in_output", true}});
  CHECK(text_of(choice) == "one two three");
  CHECK(choice["stop_reason"] == "three");
  server.script(text);
  choice = ask(server, Json::object());
  CHECK(text_of(choice) == text);
  CHECK_FALSE(choice.contains("stop_reason"));

  server.script(text);
  CHECK(ask(server, {{"min_tokens", 30}})["usage"]["completion_tokens"] >= 30);
  server.script(text);
  CHECK(ask(server, {{"min_tokens", 30}, {"stop_token_ids", {stop}}})["usage"]["completion_tokens"] >= 30);
  server.script("stop one stop two");
  const size_t first = server.tokenizer.encode("stop one", false).size();
  CHECK(text_of(ask(server, {{"min_tokens", first}, {"stop", "stop"}})) == "stop one ");
}

TEST_CASE("words that may not be said, tokens that alone may be said") {
  TestServer server;
  const std::vector<Token> tokens = server.tokenizer.encode("one two three", false);
  server.script("one two three");
  CHECK(text_of(ask(server, {{"bad_words", {"two"}}})).find("two") == std::string::npos);
  server.script("one two three");
  CHECK(text_of(ask(server, {{"bad_words", {"one", "three"}}})).find("one") == std::string::npos);

  const std::vector<Token> allowed = {tokens[0], tokens[1]};
  const Json choice = ask(
      server,
      {{"allowed_token_ids", allowed}, {"temperature", 1}, {"return_token_ids", true}, {"ignore_eos", true}});
  CHECK(choice["finish_reason"] == "length");
  REQUIRE(choice["token_ids"].size() == 40);
  for (const Json& t : choice["token_ids"]) CHECK((t == allowed[0] || t == allowed[1]));
  CHECK(choice["prompt_token_ids"].size() == choice["usage"]["prompt_tokens"]);
  // With a grammar both hold.
  const Json form = ask(server, {{"guided_choice", {"one", "two"}}, {"bad_words", {"one"}}});
  CHECK(text_of(form) == "two");
}

TEST_CASE("streams carry the same tokens") {
  TestServer server;
  for (const char* path : {"/v1/chat/completions", "/v1/completions"})
    for (const Json& more : {Json::object(), Json{{"stop", "three"}}, Json{{"max_tokens", 3}}}) {
      Json body = with({{"return_token_ids", true}, {"temperature", 0}, {"max_tokens", 40}}, more);
      if (std::string_view(path) == "/v1/completions")
        body["prompt"] = "Go";
      else
        body["messages"] = user("Go");
      server.script("one two three four");
      const Json whole = server.post(path, body).second["choices"][0];
      REQUIRE(whole["token_ids"].size() > 2);
      body["stream"] = true;
      server.script("one two three four");
      const auto [status, text] = server.post_text(path, body.dump());
      REQUIRE(status == 200);
      Json said = Json::array(), prompts = Json::array();
      for (const std::string& event : sse_events(text)) {
        if (event == "[DONE]") continue;
        const Json chunk = Json::parse(event);
        for (const Json& c : chunk["choices"]) {
          for (const Json& t : c.value("token_ids", Json::array())) said.push_back(t);
          if (c.contains("prompt_token_ids")) prompts.push_back(c["prompt_token_ids"]);
        }
      }
      CHECK(said == whole["token_ids"]);
      CHECK(prompts == Json::array({whole["prompt_token_ids"]}));  // once
    }
}

TEST_CASE("a thought ends where its budget does") {
  ServeConfig config;
  config.think = true;
  config.reasoning_budget_message = "!";
  TestServer server({.context = 512, .sequences = 4, .prefill_chunk = 64}, config);
  const std::string text = "one two three four five>six";
  const auto thought = [&](const Json& more) {
    server.script(text);
    return ask(server, more);
  };
  Json choice = thought(Json::object());
  CHECK(choice["message"]["reasoning_content"] == "one two three four five");
  CHECK(text_of(choice) == "six");
  const int64_t whole = choice["usage"]["completion_tokens_details"]["reasoning_tokens"];
  for (const char* name : {"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"}) {
    choice = thought({{name, 3}});
    const std::string said = choice["message"]["reasoning_content"];
    CHECK(said.starts_with("one"));
    CHECK(said.ends_with("!"));
    CHECK(choice["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4);  // the message, too
    CHECK(thought({{name, -1}})["usage"]["completion_tokens_details"]["reasoning_tokens"] == whole);
    CHECK_FALSE(thought({{name, 0}})["message"].contains("reasoning_content"));
  }
  server.script(text);
  const auto [status, answer] =
      server.post("/v1/messages", {{"messages", user("Go")},
                                   {"max_tokens", 40},
                                   {"temperature", 0},
                                   {"thinking", {{"type", "enabled"}, {"budget_tokens", 3}}}});
  REQUIRE(status == 200);
  REQUIRE(answer["content"][0]["type"] == "thinking");
  CHECK(answer["content"][0]["thinking"].get<std::string>().ends_with("!"));
}

TEST_CASE("prompts are cut where that is asked for") {
  TestServer server;
  std::string text;
  for (int i = 0; i < 50; ++i) text += " word" + std::to_string(i);
  const auto tokens = [&](const Json& more) {
    const auto [status, answer] =
        server.post("/v1/completions", with({{"prompt", text}, {"max_tokens", 1}}, more));
    REQUIRE(status == 200);
    return answer["usage"]["prompt_tokens"].get<int>();
  };
  CHECK(tokens({{"truncate_prompt_tokens", 7}}) == 7);
  CHECK(tokens({{"truncate_prompt_tokens", -1}}) == tokens(Json::object()));
  for (int i = 0; i < 200; ++i) text += " word" + std::to_string(i);
  CHECK(server.post("/v1/completions", {{"prompt", text}, {"max_tokens", 1}}).first == 400);
  CHECK(tokens({{"truncate_prompt_tokens", -1}}) == 511);
}

TEST_CASE("every sampler of llama.cpp is taken, and its range named") {
  const TestServer server;
  for (const Json& more :
       {Json{{"top_n_sigma", 1}}, Json{{"typical_p", 0.5}},
        Json{{"xtc_probability", 0.5}, {"xtc_threshold", 0.01}},
        Json{{"dynatemp_range", 0.5}, {"dynatemp_exponent", 1.5}},
        Json{{"mirostat", 1}, {"mirostat_tau", 3}, {"mirostat_eta", 0.2}}, Json{{"mirostat", 2}},
        Json{{"dry_multiplier", 0.8},
             {"dry_base", 2},
             {"dry_allowed_length", 1},
             {"dry_penalty_last_n", 64},
             {"dry_sequence_breakers", {"\n", "ab"}}},
        Json{{"samplers", {"penalties", "top_k", "typ_p", "temperature"}}, {"top_k", 3}},
        Json{{"samplers", {"temperature", "top_k", "min_p"}}}, Json{{"samplers", "kyt"}, {"top_k", 3}}}) {
    const Json body = with({{"temperature", 1.2}, {"seed", 5}, {"ignore_eos", true}}, more);
    const std::string once = text_of(ask(server, body));
    CHECK(once == text_of(ask(server, body)));
    if (!more.contains("samplers")) CHECK(once != text_of(ask(server, {{"temperature", 1.2}, {"seed", 5}})));
  }
  for (const char* name :
       {"top_n_sigma", "typical_p", "xtc_probability", "xtc_threshold", "dynatemp_range", "mirostat",
        "mirostat_tau", "mirostat_eta", "dry_multiplier", "dry_allowed_length", "dry_penalty_last_n"}) {
    check_refused(server, {{name, -7}}, name);
    check_refused(server, {{name, "much"}}, name);
  }
  check_refused(server, {{"dry_sequence_breakers", {1}}}, "dry_sequence_breakers");
  for (const Json& order :
       {Json{"top_p", "top_k"}, Json{"unknown"}, Json{"top_k", "top_k"}, Json("pk"), Json("kz"), Json(7)})
    check_refused(server, {{"samplers", order}}, "samplers");
}

TEST_CASE("a prompt begins as asked, a refusal is history, pieces are told") {
  TestServer server;
  const auto count = [&](const Json& more) {
    const auto [status, answer] =
        server.post("/v1/completions", with({{"prompt", "Go"}, {"max_tokens", 1}}, more));
    REQUIRE(status == 200);
    return answer["usage"]["prompt_tokens"].get<size_t>();
  };
  CHECK(count(Json::object()) == encode_prompt(server.tokenizer, "Go").size());
  CHECK(count({{"add_special_tokens", false}}) == server.tokenizer.encode("Go", true).size());
  const Json said = {{"role", "assistant"},
                     {"content", Json::array({{{"type", "refusal"}, {"refusal", "I will not."}}})}};
  const Json told = {{"role", "assistant"},
                     {"content", Json::array({{{"type", "text"}, {"text", "I will not."}}})}};
  const auto prompt = [&](const Json& m) {
    return server.post("/apply-template", {{"messages", Json::array({user("Go")[0], m, user("Why")[0]})}})
        .second["prompt"];
  };
  CHECK(prompt(said) == prompt(told));
  const Json tokens = server.post("/tokenize", {{"prompt", "Go"}, {"return_token_strs", true}}).second;
  CHECK(tokens["token_strs"].size() == tokens["tokens"].size());
}

TEST_CASE("what is not done, and nonsense, is refused by its name") {
  const TestServer server;
  const int vocab = server.tokenizer.size();
  const auto refused = [&](const char* name, const Json& value) {
    check_refused(server, {{name, value}}, name);
  };
  refused("suffix", "end");
  refused("prompt_logprobs", 1);
  refused("best_of", 2);
  refused("use_beam_search", true);
  refused("adaptive_target", 0.5);
  refused("min_tokens", -1);
  refused("min_tokens", 3);  // more than max_tokens
  refused("stop_token_ids", "x");
  refused("stop_token_ids", {vocab});
  refused("allowed_token_ids", Json::array());
  refused("allowed_token_ids", {-1});
  refused("bad_words", {""});
  refused("bad_words", "two");
  refused("truncate_prompt_tokens", 0);
  refused("truncate_prompt_tokens", -2);
  refused("thinking_token_budget", -5);
  refused("stream_options", {{"include_usage", true}});
  // A completion's thoughts are not told apart.
  for (const char* path : {"/v1/completions", "/completion"})
    for (const char* name : {"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"}) {
      const auto [status, answer] = server.post(path, {{"prompt", "Go"}, {"max_tokens", 2}, {name, 5}});
      CHECK(status == 400);
      CHECK(answer["error"]["param"] == name);
      CHECK(answer["error"]["message"].get<std::string>().find("/v1/chat/completions") != std::string::npos);
      CHECK(server.post(path, {{"prompt", "Go"}, {"max_tokens", 2}, {name, -1}}).first == 200);
    }
  const auto chat = [&](const Json& more) {
    return server.post("/v1/chat/completions", with({{"messages", user("Go")}, {"max_tokens", 2}}, more))
        .first;
  };
  CHECK(chat({{"reasoning_effort", "enormous"}}) == 400);
  CHECK(chat({{"reasoning_effort", "high"}}) == 200);
  CHECK(chat({{"top_logprobs", 2}}) == 400);
  CHECK(chat({{"top_logprobs", 0}}) == 200);
  for (const Json& fine : {Json{{"suffix", ""}}, Json{{"best_of", 1}}, Json{{"best_of", 2}, {"n", 2}},
                           Json{{"use_beam_search", false}}, Json{{"prompt_logprobs", nullptr}},
                           Json{{"adaptive_target", -1}}, Json{{"length_penalty", 1.0}}})
    CHECK(chat(fine) == 200);
  // The same through the other APIs.
  CHECK(server.post("/v1/messages", {{"messages", user("Go")}, {"max_tokens", 2}, {"typical_p", 7}}).first ==
        400);
  CHECK(server.post("/v1/responses", {{"input", "Go"}, {"max_output_tokens", 2}, {"bad_words", 7}}).first ==
        400);
}

TEST_CASE("a conversation that is too long loses its oldest turns, and keeps its system text") {
  const TestServer server({.context = 256, .sequences = 1, .prefill_chunk = 256});
  const std::string filler(120, 'y');
  Json list = {{{"role", "system"}, {"content", "Rules."}}};
  for (const char* name : {"first", "second", "third", "last"}) {
    list.push_back({{"role", "user"}, {"content", name + filler}});
    list.push_back({{"role", "assistant"}, {"content", "ok"}});
  }
  list.push_back({{"role", "user"}, {"content", "Go"}});
  const Json ask = {{"messages", list}, {"max_tokens", 8}, {"return_prompt_text", true}};
  CHECK(server.post("/v1/chat/completions", ask).first == 400);
  const auto [status, answer] = server.post("/v1/chat/completions", with(ask, {{"truncation", "auto"}}));
  INFO(answer.dump());
  REQUIRE(status == 200);
  const std::string prompt = answer["prompt_text"];
  CHECK(prompt.find("Rules.") != std::string::npos);
  CHECK(prompt.find("first") == std::string::npos);
  CHECK(prompt.find("user: last") != std::string::npos);
  CHECK(answer["usage"]["prompt_tokens"].get<int>() <= 256 - 8);
  Json one = {{"messages", user(std::string(2000, 'y'))}, {"truncation", "auto"}, {"max_tokens", 8}};
  CHECK(server.post("/v1/chat/completions", one).first == 400);  // the last turn is never cut
}
