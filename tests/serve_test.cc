// The server over real sockets.
#include <doctest/doctest.h>

#include <set>

#include "tests/raw_client.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

Json chat_body(const std::string& text, Json more = Json::object()) {
  Json body = {{"messages", user(text)}, {"temperature", 0}};
  body.update(more);
  return body;
}

struct Streamed {
  std::string content, thinking, finish;
  std::vector<std::string> tool_names, tool_arguments, tool_ids;
  Json usage, timings;
  size_t chunks = 0, logprobs = 0;
  bool done = false, role_first = false;
};

Streamed read_stream(const std::string& body) {
  Streamed s;
  std::set<std::string> ids;
  for (const std::string& event : sse_events(body)) {
    CHECK_FALSE(s.done);
    if (event == "[DONE]") {
      s.done = true;
      continue;
    }
    const Json j = Json::parse(event);
    REQUIRE(j["object"] == "chat.completion.chunk");
    ids.insert(j["id"].get<std::string>());
    if (j.contains("usage") && !j["usage"].is_null()) s.usage = j["usage"];
    if (j.contains("timings")) s.timings = j["timings"];
    for (const Json& c : j["choices"]) {
      const Json& d = c["delta"];
      if (s.chunks++ == 0) s.role_first = d.value("role", "") == "assistant";
      if (d.contains("content")) s.content += d["content"].get<std::string>();
      if (d.contains("reasoning_content")) s.thinking += d["reasoning_content"].get<std::string>();
      if (c["logprobs"].is_object()) s.logprobs += c["logprobs"]["content"].size();
      for (const Json& t : d.value("tool_calls", Json::array())) {
        if (t.contains("id")) {
          s.tool_ids.push_back(t["id"]);
          s.tool_names.push_back(t["function"]["name"]);
          s.tool_arguments.emplace_back();
        }
        s.tool_arguments.at(t["index"].get<size_t>()) += t["function"]["arguments"].get<std::string>();
      }
      if (c["finish_reason"].is_string()) s.finish = c["finish_reason"];
    }
  }
  CHECK(ids.size() == 1);
  return s;
}

const std::string kText = "Größe: 你好 🌍, ok.";

}  // namespace

TEST_CASE("a chat answer") {
  TestServer t;
  t.script(kText);
  const auto [status, j] = t.post("/v1/chat/completions", chat_body("Hi"));
  REQUIRE(status == 200);
  CHECK(j["object"] == "chat.completion");
  CHECK(j["model"] == "tiny");
  CHECK(j["choices"][0]["message"]["role"] == "assistant");
  CHECK(j["choices"][0]["message"]["content"] == kText);
  CHECK(j["choices"][0]["finish_reason"] == "stop");
  const int64_t prompt = j["usage"]["prompt_tokens"], made = j["usage"]["completion_tokens"];
  CHECK(prompt == static_cast<int64_t>(t.tokenizer.encode("<bos>user: Hi\nmodel:", true).size()));
  CHECK(made == static_cast<int64_t>(t.tokenizer.encode(kText, false).size()) + 1);
  CHECK(j["usage"]["total_tokens"] == prompt + made);
  CHECK(j["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
  CHECK(j["timings"]["prompt_n"] == prompt);
  CHECK(j["timings"]["predicted_n"] == made);
  CHECK(j["timings"]["prompt_ms"].get<double>() > 0);
  CHECK(j["timings"]["predicted_per_second"].get<double>() > 0);
}

TEST_CASE("a streamed chat answer") {
  TestServer t;
  t.script(kText);
  Json body = chat_body("Hi", {{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  const auto [status, text] = t.post_text("/v1/chat/completions", body.dump());
  REQUIRE(status == 200);
  const Streamed s = read_stream(text);
  CHECK(s.role_first);
  CHECK(s.done);
  CHECK(s.content == kText);
  CHECK(s.finish == "stop");
  CHECK(s.chunks > 8);
  CHECK(s.usage["completion_tokens"] == t.tokenizer.encode(kText, false).size() + 1);
  CHECK(s.timings["predicted_n"] == s.usage["completion_tokens"]);
  t.script("x");
  body.erase("stream_options");
  CHECK(read_stream(t.post_text("/v1/chat/completions", body.dump()).second).usage.is_null());
}

TEST_CASE("thinking and tool calls, whole and streamed") {
  TestServer t;
  const std::string text = "<let me see>Fine.@weather({\"city\":\"台北\"})@time({})";
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "weather"}}}}});
  t.script(text);
  const auto [status, j] = t.post("/v1/chat/completions", chat_body("Hi", {{"tools", tools}}));
  REQUIRE(status == 200);
  const Json& m = j["choices"][0]["message"];
  CHECK(m["reasoning_content"] == "let me see");
  CHECK(m["content"] == "Fine.");
  REQUIRE(m["tool_calls"].size() == 2);
  CHECK(m["tool_calls"][0]["type"] == "function");
  CHECK(m["tool_calls"][0]["function"]["name"] == "weather");
  CHECK(m["tool_calls"][0]["function"]["arguments"] == "{\"city\":\"台北\"}");
  CHECK(m["tool_calls"][1]["function"]["name"] == "time");
  CHECK(m["tool_calls"][0]["id"] != m["tool_calls"][1]["id"]);
  CHECK(j["choices"][0]["finish_reason"] == "tool_calls");
  t.script(text);
  const Streamed s = read_stream(
      t.post_text("/v1/chat/completions", chat_body("Hi", {{"tools", tools}, {"stream", true}}).dump())
          .second);
  CHECK(s.thinking == "let me see");
  CHECK(s.content == "Fine.");
  CHECK(s.tool_names == std::vector<std::string>{"weather", "time"});
  CHECK(s.tool_arguments == std::vector<std::string>{"{\"city\":\"台北\"}", "{}"});
  CHECK(s.finish == "tool_calls");
}

TEST_CASE("stop strings end the answer and free the slot") {
  TestServer t;
  for (const bool stream : {false, true}) {
    t.script("one <END> two END three", false);
    const Json body = chat_body("Hi", {{"stop", {"END", "absent"}}, {"stream", stream}, {"max_tokens", 400}});
    const auto [status, text] = t.post_text("/v1/chat/completions", body.dump());
    REQUIRE(status == 200);
    const Json whole = stream ? Json() : Json::parse(text);
    const std::string content =
        stream ? read_stream(text).content : whole["choices"][0]["message"]["content"].get<std::string>();
    CHECK(content == "one  two ");  // the first END was a thought
    CHECK((stream ? read_stream(text).finish : whole["choices"][0]["finish_reason"].get<std::string>()) ==
          "stop");
    CHECK(t.idle());
    CHECK(t.engine.stats().kv_pages_used == 0);
  }
  t.script("abc");
  CHECK(t.post("/v1/completions", {{"prompt", "x"}, {"temperature", 0}, {"stop", "bc"}})
            .second["choices"][0]["text"] == "a");
}

TEST_CASE("max_tokens and the context's end") {
  TestServer t({.context = 48, .sequences = 1, .prefill_chunk = 64});
  const auto [status, j] =
      t.post("/v1/chat/completions", chat_body("Hi", {{"max_tokens", 3}, {"ignore_eos", true}}));
  CHECK(j["choices"][0]["finish_reason"] == "length");
  CHECK(j["usage"]["completion_tokens"] == 3);
  const Json full = t.post("/v1/completions", {{"prompt", "abc"}, {"ignore_eos", true}}).second;
  CHECK(full["choices"][0]["finish_reason"] == "length");
  CHECK(full["usage"]["total_tokens"] == 49);  // the last token needs no place
  const auto [long_status, e] = t.post("/v1/chat/completions", chat_body(std::string(300, '~')));
  CHECK(long_status == 400);
  CHECK(e["error"]["code"] == "context_length_exceeded");
  CHECK(e["error"]["param"] == "messages");
  CHECK(e["error"]["message"].get<std::string>().find("holds 48") != std::string::npos);
}

TEST_CASE("completions: prompts of every form, echo, log probabilities, several choices") {
  TestServer t;
  const Json base = {{"temperature", 0}, {"max_tokens", 5}, {"ignore_eos", true}};
  const auto ask = [&](Json more) {
    Json body = base;
    body.update(more);
    const auto [status, j] = t.post("/v1/completions", body);
    REQUIRE(status == 200);
    return j;
  };
  const std::string alone = ask({{"prompt", "hello"}})["choices"][0]["text"];
  const std::vector<Token> ids = encode_prompt(t.tokenizer, "hello");
  CHECK(ids.front() == t.tokenizer.data().bos);
  CHECK(ask({{"prompt", ids}})["choices"][0]["text"] == alone);
  CHECK(ask({{"prompt", "<bos>hello"}})["usage"]["prompt_tokens"] == ids.size());  // not a second one
  CHECK(ask({{"prompt", "hello"}, {"echo", true}})["choices"][0]["text"] == "hello" + alone);
  const Json two = ask({{"prompt", {"hello", "other"}}, {"n", 2}});
  REQUIRE(two["choices"].size() == 4);
  CHECK(two["choices"][0]["text"] == alone);
  CHECK(two["choices"][1]["text"] == alone);
  CHECK(two["choices"][3]["index"] == 3);
  CHECK(two["choices"][2]["text"] != alone);
  const Json l = ask({{"prompt", "hello"}, {"logprobs", 2}})["choices"][0]["logprobs"];
  REQUIRE(l["tokens"].size() == 5);
  CHECK(l["top_logprobs"][0].size() == 2);
  CHECK(l["token_logprobs"][0].get<double>() < 0);
  CHECK(l["text_offset"][0] == 0);
  const Json scored =
      ask({{"prompt", "hello"}, {"logprobs", 0}, {"echo", true}, {"max_tokens", 0}})["choices"][0];
  CHECK(scored["text"] == "hello");
  CHECK(scored["logprobs"]["tokens"].size() == ids.size());
  CHECK(scored["logprobs"]["token_logprobs"][0].is_null());
  CHECK(scored["logprobs"]["token_logprobs"][1].get<double>() < 0);
  Json sampled = {{"prompt", "hello"}, {"temperature", 1.5}, {"n", 2},
                  {"seed", 5},         {"top_k", 0},         {"top_p", 1}};
  const Json a = ask(sampled), b = ask(sampled);
  CHECK(a["choices"] == b["choices"]);
  CHECK(a["choices"][0]["text"] != a["choices"][1]["text"]);
  Json streamed = base;
  streamed.update({{"prompt", "hello"}, {"stream", true}, {"echo", true}, {"logprobs", 1}});
  std::string text;
  size_t reported = 0;
  for (const std::string& event : sse_events(t.post_text("/v1/completions", streamed.dump()).second)) {
    if (event == "[DONE]") continue;
    const Json c = Json::parse(event)["choices"][0];
    text += c["text"].get<std::string>();
    if (c["logprobs"].is_object()) reported += c["logprobs"]["tokens"].size();
  }
  CHECK(text == "hello" + alone);
  CHECK(reported == ids.size() + 5);
}

TEST_CASE("chat log probabilities") {
  TestServer t;
  const Json body =
      chat_body("Hi", {{"logprobs", true}, {"top_logprobs", 3}, {"max_tokens", 4}, {"ignore_eos", true}});
  const Json l = t.post("/v1/chat/completions", body).second["choices"][0]["logprobs"]["content"];
  REQUIRE(l.size() == 4);
  CHECK(l[0]["top_logprobs"].size() == 3);
  CHECK(l[0]["token"] == l[0]["top_logprobs"][0]["token"]);
  CHECK(l[0]["logprob"] == l[0]["top_logprobs"][0]["logprob"]);
  CHECK(l[0]["bytes"].is_array());
  Json streamed = body;
  streamed["stream"] = true;
  CHECK(read_stream(t.post_text("/v1/chat/completions", streamed.dump()).second).logprobs == 4);
}

TEST_CASE("wrong requests: status, and the field's name") {
  TestServer t;
  const std::string chat = "/v1/chat/completions", text = "/v1/completions";
  const auto rejects = [&](const std::string& path, const Json& more, const Json& param, int want = 400) {
    Json body =
        path == chat ? chat_body("Hi", {{"max_tokens", 1}}) : Json{{"prompt", "x"}, {"max_tokens", 1}};
    body.update(more);
    const auto [status, j] = t.post(path, body);
    CAPTURE(more.dump());
    CHECK(status == want);
    REQUIRE(j.contains("error"));
    CHECK(j["error"]["param"] == param);
    CHECK(j["error"]["type"] == "invalid_request_error");
    CHECK_FALSE(j["error"]["message"].get<std::string>().empty());
  };
  rejects(chat, {{"messages", nullptr}}, "messages");
  rejects(chat, {{"messages", "Hi"}}, "messages");
  rejects(chat, {{"messages", Json::array()}}, "messages");
  rejects(chat, {{"messages", {1}}}, "messages[0]");
  rejects(chat, {{"messages", {{{"content", "x"}}}}}, "messages[0].role");
  rejects(chat, {{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content");
  rejects(chat, {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
          "messages[0].content");
  rejects(chat, {{"messages", {{{"role", "impossible"}, {"content", "x"}}}}}, "messages");
  rejects(chat, {{"tools", {{{"type", "function"}}}}}, "tools");
  rejects(chat, {{"tool_choice", "required"}}, "tool_choice");
  rejects(chat, {{"response_format", {{"type", "yaml"}}}}, "response_format.type");
  rejects(chat, {{"guided_regex", "("}}, "guided_regex");
  rejects(chat, {{"grammar", "root ::= x"}}, "grammar");
  rejects(chat, {{"top_logprobs", 101}}, "top_logprobs");
  rejects(chat, {{"chat_template_kwargs", 1}}, "chat_template_kwargs");
  rejects(chat, {{"chat_template_kwargs", {{"messages", Json::array()}}}}, "chat_template_kwargs");
  for (const std::string& path : {chat, text}) {
    rejects(path, {{"temperature", "hot"}}, "temperature");
    rejects(path, {{"temperature", -1}}, "temperature");
    rejects(path, {{"top_p", 1.5}}, "top_p");
    rejects(path, {{"top_k", 1.5}}, "top_k");
    rejects(path, {{"min_p", 2}}, "min_p");
    rejects(path, {{"max_tokens", "many"}}, "max_tokens");
    rejects(path, {{"max_tokens", -2}}, "max_tokens");
    rejects(path, {{"n", 0}}, "n");
    rejects(path, {{"n", 1000}}, "n");
    rejects(path, {{"seed", "x"}}, "seed");
    rejects(path, {{"stop", 5}}, "stop");
    rejects(path, {{"stop", {"a", 5}}}, "stop");
    rejects(path, {{"stream", "yes"}}, "stream");
    rejects(path, {{"stream_options", {{"include_usage", 1}}}}, "stream_options.include_usage");
    rejects(path, {{"presence_penalty", 3}}, "presence_penalty");
    rejects(path, {{"logit_bias", {{"abc", 1}}}}, "logit_bias");
    rejects(path, {{"logit_bias", {{"5", "x"}}}}, "logit_bias");
  }
  rejects(text, {{"prompt", nullptr}}, "prompt");
  rejects(text, {{"prompt", 5}}, "prompt");
  rejects(text, {{"prompt", {-5}}}, "prompt");
  rejects(text, {{"prompt", {99999999}}}, "prompt");
  rejects(text, {{"prompt", Json::array()}}, "prompt");
  rejects(text, {{"logprobs", true}}, "logprobs");
  rejects("/tokenize", {{"content", nullptr}, {"prompt", nullptr}}, "content");
  rejects("/detokenize", {{"tokens", "x"}}, "tokens");
  rejects("/detokenize", {{"tokens", {1, 1e30}}}, "tokens");
  // logit_bias of a token out of the vocabulary is found by the engine.
  CHECK(t.post(text, {{"prompt", "x"}, {"logit_bias", {{"99999999", 1}}}}).first == 400);
  CHECK(t.post_text(chat, "not json").first == 400);
  CHECK(t.post_text(chat, "[1, 2]").first == 400);
  CHECK(t.post_text(chat, "").first == 400);
  CHECK(t.post_text(chat, "{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}").first == 400);
  // Unknown fields and nulls are no errors.
  CHECK(t.post(chat, chat_body("Hi", {{"max_tokens", 1}, {"user", "me"}, {"top_p", nullptr}, {"x", {1}}}))
            .first == 200);
}

TEST_CASE("unknown paths, wrong methods, large bodies") {
  ServeConfig config;
  config.http.max_body = 10'000;
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  const auto [status, text] = t.get("/nothing");
  CHECK(status == 404);
  CHECK(Json::parse(text)["error"]["type"] == "not_found_error");
  CHECK(t.get("/v1/chat/completions").first == 405);
  CHECK(t.post_text("/v1/models", "{}").first == 405);
  const auto [large, body] = t.post_text("/tokenize", "{\"content\": \"" + std::string(20'000, 'x') + "\"}");
  CHECK(large == 413);
  CHECK(Json::parse(body)["error"]["message"].get<std::string>().find("10000") != std::string::npos);
  // curl's default content type has its own limit in the library.
  httplib::Client c = t.client();
  const auto form = c.Post("/tokenize", "{\"content\": \"" + std::string(9000, 'x') + "\"}",
                           "application/x-www-form-urlencoded");
  REQUIRE(form);
  CHECK(form->status == 200);
  // A body without end is cut off.
  RawClient raw(t.server->port());
  raw.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string piece = "1000\r\n" + std::string(4096, 'x') + "\r\n";
  bool cut = false;
  for (int i = 0; i < 20'000 && !cut; ++i) cut = !raw.send(piece);
  CHECK(cut);
  RawClient nonsense(t.server->port());
  nonsense.send("\x16\x03\x01 hello\r\n\r\n");
  CHECK(nonsense.read_until("\r\n\r\n").find("400") != std::string::npos);
  CHECK(t.get("/health").first == 200);
}

TEST_CASE("the other endpoints") {
  TestServer t;
  const Json models = Json::parse(t.get("/v1/models").second);
  CHECK(models["object"] == "list");
  CHECK(models["data"][0]["id"] == "tiny");
  CHECK(models["data"][1]["id"] == "alias");
  CHECK(Json::parse(t.get("/health").second)["status"] == "ok");
  const Json props = Json::parse(t.get("/props").second);
  CHECK(props["default_generation_settings"]["n_ctx"] == 512);
  CHECK(props["total_slots"] == 4);
  const Json tokens = t.post("/tokenize", {{"content", kText}}).second;
  CHECK(tokens["tokens"].get<std::vector<Token>>() == t.tokenizer.encode(kText, true));
  CHECK(tokens["count"] == tokens["tokens"].size());
  CHECK(t.post("/detokenize", {{"tokens", tokens["tokens"]}}).second["content"] == kText);
  CHECK(t.post("/tokenize", {{"content", "a"}, {"add_special", true}}).second["tokens"][0] ==
        t.tokenizer.data().bos);
  CHECK(t.post("/tokenize", {{"content", "a"}, {"with_pieces", true}}).second["tokens"][0]["piece"] == "a");
  CHECK(t.post("/apply-template", {{"messages", user("Hi")}}).second["prompt"] == "<bos>user: Hi\nmodel:");
  const Json think = {{"messages", user("Hi")}, {"chat_template_kwargs", {{"enable_thinking", true}}}};
  CHECK(t.post("/apply-template", think).second["prompt"] == "<bos>user: Hi\nmodel <");
  t.post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}, {"ignore_eos", true}});
  const auto [status, metrics] = t.get("/metrics");
  CHECK(status == 200);
  CHECK(metrics.find("vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"} 2\n") !=
        std::string::npos);
  CHECK(metrics.find("finished_reason=\"length\"} 1\n") != std::string::npos);
}

TEST_CASE(
    "joules, where the machine tells them, stand in /metrics and in the times of those who ask for steps") {
  ServeConfig config;
  config.joules = [n = std::make_shared<double>(-6)] { return *n += 6; };  // copies share it
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  Json ask = {{"prompt", "x"}, {"max_tokens", 3}, {"ignore_eos", true}, {"stream", true}};
  CHECK(t.post_text("/v1/completions", ask.dump()).second.find("energy_j") == std::string::npos);
  ask["stream_options"] = {{"include_steps", true}};
  const std::string told = t.post_text("/v1/completions", ask.dump()).second;
  CHECK(told.find("\"energy_j\":6.0,\"energy_j_per_token\":2.0") != std::string::npos);
  CHECK(t.get("/metrics").second.find("\ncarat:energy_joules_total 12.000\n") != std::string::npos);
  TestServer silent({.context = 128, .sequences = 1, .prefill_chunk = 64});
  CHECK(silent.post_text("/v1/completions", ask.dump()).second.find("energy_j") == std::string::npos);
  CHECK(silent.get("/metrics").second.find("energy_joules") == std::string::npos);
}

TEST_CASE("the page is there without a key, and trusts nobody") {
  ServeConfig config;
  config.api_keys = {"key"};
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  httplib::Client c = t.client();
  const auto page = c.Get("/");
  REQUIRE(page);
  CHECK(page->status == 200);
  CHECK(page->get_header_value("Content-Type").find("text/html") == 0);
  const std::string policy = page->get_header_value("Content-Security-Policy");
  CHECK(policy.find("default-src 'none'") == 0);
  CHECK(policy.find("unsafe") == std::string::npos);
  // Every file that it asks for is there, and none of another place.
  for (const char* file : {"/app.js", "/app.css"}) {
    CHECK(page->body.find(std::string("\"") + file + "\"") != std::string::npos);
    CHECK(t.get(file).second.size() > 1000);
  }
  CHECK(page->body.find("https://") == std::string::npos);
  CHECK(t.get("/licenses.txt").second.find("preact") != std::string::npos);
  const auto again = c.Get("/", {{"If-None-Match", page->get_header_value("ETag")}});
  CHECK(again->status == 304);
  CHECK(again->body.empty());
  // Packed for those who can read it; what a frame shows of a model's HTML has an origin of its own.
  const auto packed = c.Get("/app.js", {{"Accept-Encoding", "br;q=1, gzip;q=0.5"}});
  const auto plain = c.Get("/app.js", {{"Accept-Encoding", "gzip;q=0, br"}});
  CHECK(packed->get_header_value("Content-Encoding") == "gzip");
  CHECK_FALSE(plain->has_header("Content-Encoding"));
  CHECK(plain->get_header_value("Vary") == "Accept-Encoding");
  CHECK(std::stoul(packed->get_header_value("Content-Length")) < plain->body.size() / 2);
  const auto frame = c.Get("/preview.html");
  CHECK(
      frame->get_header_value("Content-Security-Policy").find("sandbox allow-scripts; default-src 'none'") ==
      0);
  CHECK(policy.find("connect-src 'self';") != std::string::npos);
  config.page_origins = {"http://127.0.0.1:3000"};
  TestServer mcp({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  CHECK(mcp.client()
            .Get("/")
            ->get_header_value("Content-Security-Policy")
            .find("connect-src 'self' http://127.0.0.1:3000;") != std::string::npos);
}

TEST_CASE("an API key, if asked for") {
  ServeConfig config;
  config.api_keys = {"first", "second"};
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  const auto with = [&](const std::string& name, const std::string& value) {
    return t.get("/v1/models", {{name, value}}).first;
  };
  CHECK(t.get("/v1/models").first == 401);
  CHECK(with("Authorization", "Bearer wrong") == 401);
  CHECK(with("Authorization", "Bearer firs") == 401);
  CHECK(with("Authorization", "Bearer firstt") == 401);
  CHECK(with("Authorization", "Bearer ") == 401);
  CHECK(with("Authorization", "Bearer first") == 200);
  CHECK(with("Authorization", "Bearer second") == 200);
  CHECK(with("X-Api-Key", "second") == 200);
  CHECK(t.get("/health").first == 200);
  CHECK(t.post("/v1/completions", {{"prompt", "x"}}).second["error"]["code"] == "invalid_api_key");
}

TEST_CASE("pages of other origins are let in only if asked for") {
  {
    TestServer t;
    httplib::Client c = t.client();
    CHECK(c.Get("/health")->get_header_value("Access-Control-Allow-Origin").empty());
    CHECK(c.Options("/v1/models")->status == 405);
    // A form or a script without preflight: the answer would be hidden, the work done.
    for (const char* origin : {"https://example.org", "null", "http://127.0.0.1:1"}) {
      const auto r = c.Post("/tokenize", {{"Origin", origin}}, "{\"content\": \"x\"}", "text/plain");
      REQUIRE(r);
      CHECK(r->status == 403);
    }
    const std::string self = fmt::format("http://127.0.0.1:{}", t.server->port());
    CHECK(c.Post("/tokenize", {{"Origin", self}}, "{\"content\": \"x\"}", "application/json")->status == 200);
  }
  ServeConfig config;
  config.http.cors_origin = "https://example.org";
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  httplib::Client c = t.client();
  CHECK(c.Get("/health")->get_header_value("Access-Control-Allow-Origin") == "https://example.org");
  CHECK(c.Options("/v1/models")->status == 204);
  CHECK(c.Get("/v1/models", {{"Origin", "https://example.org"}})->status == 200);
  CHECK(c.Get("/v1/models", {{"Origin", "https://example.com"}})->status == 403);
}

TEST_CASE("a client that hangs up frees its slot") {
  TestServer t({.context = 8192, .sequences = 1, .prefill_chunk = 64});
  const Json endless = chat_body("Hi", {{"ignore_eos", true}});
  SUBCASE("in a stream") {
    RawClient raw(t.server->port());
    Json body = endless;
    body["stream"] = true;
    raw.post("/v1/chat/completions", body.dump());
    t.wait_generating();
    CHECK(t.engine.stats().running == 1);
    raw.close();
  }
  SUBCASE("waiting for a whole answer") {
    RawClient raw(t.server->port());
    raw.post("/v1/chat/completions", endless.dump());
    while (t.engine.stats().running == 0) std::this_thread::yield();
    raw.close();
  }
  SUBCASE("while waiting for a slot") {
    RawClient first(t.server->port()), second(t.server->port());
    first.post("/v1/chat/completions", endless.dump());
    while (t.engine.stats().running == 0) std::this_thread::yield();
    second.post("/v1/chat/completions", endless.dump());
    while (t.engine.stats().waiting == 0) std::this_thread::yield();
    second.close();
    for (int i = 0; i < 500 && t.engine.stats().waiting; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(t.engine.stats().waiting == 0);
    first.close();
  }
  CHECK(t.idle());
  CHECK(t.engine.stats().kv_pages_used == 0);
  CHECK(t.get("/metrics").second.find("finished_reason=\"abort\"}") != std::string::npos);
}

TEST_CASE("eight at once get what each gets alone") {
  TestServer t({.context = 256, .sequences = 3, .prefill_chunk = 16});
  const auto body = [](int i) {
    Json b = chat_body("Question " + std::string(static_cast<size_t>(i * 5), 'a') + std::to_string(i),
                       {{"max_tokens", 8 + i}, {"ignore_eos", true}, {"stream", i % 3 == 0}});
    if (i % 2) b.update({{"temperature", 1.3}, {"seed", 100 + i}});
    return b;
  };
  const auto content = [&](int i) {
    const std::string text = t.post_text("/v1/chat/completions", body(i).dump()).second;
    if (i % 3 == 0) return read_stream(text).content;
    return Json::parse(text)["choices"][0]["message"]["content"].get<std::string>();
  };
  std::vector<std::string> alone(8), together(8);
  for (int i = 0; i < 8; ++i) alone[static_cast<size_t>(i)] = content(i);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { together[static_cast<size_t>(i)] = content(i); });
  for (std::thread& thread : threads) thread.join();
  CHECK(together == alone);
}

TEST_CASE("one connection serves many requests") {
  TestServer t;
  httplib::Client c = t.client();
  c.set_keep_alive(true);
  for (int i = 0; i < 20; ++i) REQUIRE(c.Get("/health")->status == 200);
  for (int i = 0; i < 3; ++i) {
    t.script("hello");
    const auto r =
        c.Post("/v1/chat/completions", chat_body("Hi", {{"stream", true}}).dump(), "application/json");
    REQUIRE(r);
    CHECK(read_stream(r->body).content == "hello");
  }
}

TEST_CASE("a full queue is 429, a failed device 503") {
  TestServer t({.context = 4096, .sequences = 1, .prefill_chunk = 64, .max_queue = 1});
  RawClient first(t.server->port()), second(t.server->port());
  const Json endless = chat_body("Hi", {{"ignore_eos", true}});
  first.post("/v1/chat/completions", endless.dump());
  while (t.engine.stats().running == 0) std::this_thread::yield();
  second.post("/v1/chat/completions", endless.dump());
  while (t.engine.stats().waiting == 0) std::this_thread::yield();
  const auto [status, j] = t.post("/v1/chat/completions", endless);
  CHECK(status == 429);
  CHECK(j["error"]["type"] == "rate_limit_error");
  first.close();
  second.close();
  REQUIRE(t.idle());
  t.backend->before_step = [] { throw DeviceError("Matmul, layer 3: the device is gone"); };
  CHECK(t.post("/v1/chat/completions", endless).first == 500);
  CHECK(t.post("/v1/chat/completions", endless).first == 503);
  CHECK(t.get("/health").first == 503);
}

TEST_CASE("a stream that fails says so in the stream") {
  TestServer t;
  t.backend->before_step = [] { throw Error("out of scratch"); };
  const auto [status, text] = t.post_text("/v1/chat/completions", chat_body("Hi", {{"stream", true}}).dump());
  CHECK(status == 200);
  const std::vector<std::string> events = sse_events(text);
  CHECK(Json::parse(events.back())["error"]["message"] == "out of scratch");
}

TEST_CASE("a second server on the port is told so") {
  TestServer t;
  HttpConfig config;
  config.port = t.server->port();
  try {
    const HttpServer second(config);
    FAIL("it listens");
  } catch (const Error& e) {
    CHECK(std::string(e.what()).find("in use") != std::string::npos);
    CHECK(e.hint().find("--port") != std::string::npos);
  }
  config.host = "203.0.113.7";
  CHECK_THROWS_AS(HttpServer{config}, Error);
  config.host = "no such host";
  CHECK_THROWS_AS(HttpServer{config}, Error);
}

TEST_CASE("the server's end does not wait for what never ends") {
  const auto began = std::chrono::steady_clock::now();
  {
    TestServer t({.context = 8192, .sequences = 1, .prefill_chunk = 64});
    RawClient raw(t.server->port());
    raw.post("/v1/chat/completions", chat_body("Hi", {{"ignore_eos", true}, {"stream", true}}).dump());
    t.wait_generating();
    RawClient idle(t.server->port());
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
  HttpConfig config;
  config.port = 0;
  HttpServer never_run(config);
  never_run.stop();
}
