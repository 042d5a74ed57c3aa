// OpenAI's Responses over real sockets; evaluations through echo and logprobs; what describes the server.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "apps/eval.h"
#include "apps/remote.h"
#include "serve/api/responses.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Told {
  std::string name;
  Json data;
};
std::vector<Told> events_of(const std::string& body) {
  std::vector<Told> out;
  for (size_t at = 0; at < body.size();) {
    const size_t line = body.find('\n', at), end = body.find("\n\n", at);
    REQUIRE(body.compare(at, 7, "event: ") == 0);
    REQUIRE(body.compare(line + 1, 6, "data: ") == 0);
    out.push_back({body.substr(at + 7, line - at - 7), Json::parse(body.substr(line + 7, end - line - 7))});
    CHECK(out.back().data["type"] == out.back().name);
    CHECK(out.back().data["sequence_number"] == out.size() - 1);
    at = end + 2;
  }
  return out;
}

const Json kTools =
    Json::array({{{"type", "function"}, {"name", "weather"}, {"parameters", {{"type", "object"}}}}});

}  // namespace

TEST_CASE("a response, whole and streamed") {
  TestServer t({.context = 512, .sequences = 4, .prefill_chunk = 256});
  const std::string text = "<let me see>Größe.@weather({\"city\":\"台北\"})";
  Json body = {{"input", "Hi"}, {"temperature", 0}, {"tools", kTools}, {"instructions", "Be brief."}};
  t.script(text);
  const auto [status, r] = t.post("/v1/responses", body);
  REQUIRE(status == 200);
  CHECK(r["object"] == "response");
  CHECK(r["status"] == "completed");
  CHECK(r["model"] == "tiny");
  CHECK(r["store"] == false);
  CHECK(r["tools"] == kTools);
  CHECK(r["instructions"] == "Be brief.");
  REQUIRE(r["output"].size() == 3);
  CHECK(r["output"][0]["type"] == "reasoning");
  CHECK(r["output"][0]["content"][0]["text"] == "let me see");
  CHECK(r["output"][1]["content"][0]["type"] == "output_text");
  CHECK(r["output"][1]["content"][0]["text"] == "Größe.");
  CHECK(r["output"][2]["type"] == "function_call");
  CHECK(r["output"][2]["name"] == "weather");
  CHECK(r["output"][2]["arguments"] == "{\"city\":\"台北\"}");
  CHECK(r["output"][2]["call_id"].get<std::string>().starts_with("call_"));
  const Json& usage = r["usage"];
  CHECK(usage["total_tokens"] == usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  CHECK(usage["output_tokens_details"]["reasoning_tokens"] == t.tokenizer.encode("let me see", false).size());

  t.script(text);
  body["stream"] = true;
  const std::vector<Told> events = events_of(t.post_text("/v1/responses", body.dump()).second);
  REQUIRE(events.size() > 8);
  CHECK(events[0].name == "response.created");
  CHECK(events[1].name == "response.in_progress");
  CHECK(events.back().name == "response.completed");
  std::string thinking, content, arguments;
  std::vector<std::string> order;
  for (const Told& e : events) {
    if (e.name == "response.reasoning_text.delta") thinking += e.data["delta"];
    if (e.name == "response.output_text.delta") content += e.data["delta"];
    if (e.name == "response.function_call_arguments.delta") arguments += e.data["delta"];
    if (e.name == "response.output_item.added" || e.name == "response.output_item.done")
      order.push_back(e.data["item"]["type"].get<std::string>() + e.name.substr(e.name.rfind('.')));
    if (e.name == "response.output_text.done") CHECK(e.data["text"] == content);
    if (e.name == "response.function_call_arguments.done") CHECK(e.data["arguments"] == arguments);
  }
  CHECK(thinking == "let me see");
  CHECK(content == "Größe.");
  CHECK(arguments == "{\"city\":\"台北\"}");
  CHECK(order == std::vector<std::string>{"reasoning.added", "reasoning.done", "message.added",
                                          "message.done", "function_call.added", "function_call.done"});
  const Json& last = events.back().data["response"];
  CHECK(last["output"].size() == 3);
  CHECK(last["output"][1]["content"] == r["output"][1]["content"]);
  CHECK(last["usage"]["total_tokens"] == usage["total_tokens"]);
}

TEST_CASE("a response that is cut, a form that is demanded, requests that are wrong") {
  TestServer t;
  t.script("many words come here", false);
  const Json cut =
      t.post("/v1/responses", {{"input", "Hi"}, {"temperature", 0}, {"max_output_tokens", 2}}).second;
  CHECK(cut["status"] == "incomplete");
  CHECK(cut["incomplete_details"]["reason"] == "max_output_tokens");
  const Json schema = {{"type", "object"},
                       {"properties", {{"n", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}}},
                       {"required", {"n"}}};
  const Json formed =
      t.post("/v1/responses",
             {{"input", "Hi"},
              {"text",
               {{"format", {{"type", "json_schema"}, {"name", "x"}, {"strict", true}, {"schema", schema}}}}}})
          .second;
  const Json value = Json::parse(formed["output"][0]["content"][0]["text"].get<std::string>());
  CHECK(value["n"].is_number_integer());
  const auto rejects = [&](const Json& body, const std::string& param) {
    const auto [status, j] = t.post("/v1/responses", body);
    CAPTURE(body.dump());
    CHECK(status == 400);
    REQUIRE(j.contains("error"));
    CHECK(j["error"]["param"] == param);
  };
  rejects(Json::object(), "input");
  rejects({{"input", Json::array()}}, "input");
  rejects({{"input", {5}}}, "input[0]");
  rejects({{"input", {{{"role", "robot"}, {"content", "x"}}}}}, "input[0].role");
  rejects({{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}},
          "input[0].content[0].type");
  rejects({{"input", {{{"type", "function_call_output"}, {"call_id", "x"}}}}}, "input[0].output");
  rejects({{"input", "x"}, {"tool_choice", 5}}, "tool_choice");
  rejects({{"input", "x"}, {"text", {{"format", {{"type", "yaml"}}}}}}, "response_format.type");
  rejects({{"input", "x"}, {"previous_response_id", "resp_1"}}, "previous_response_id");
  rejects({{"input", "x"}, {"background", true}}, "background");
  rejects({{"input", "x"}, {"temperature", "hot"}}, "temperature");
}

TEST_CASE("items become messages") {
  const Json chat = chat_of_responses(Json::parse(R"({"instructions": "Be brief.", "input": [
    {"role": "developer", "content": "More."},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"x\":1}"},
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    {"role": "user", "content": "And?"}]})"));
  const Json& m = chat["messages"];
  REQUIRE(m.size() == 7);
  CHECK(m[0] == Json{{"role", "system"}, {"content", "Be brief."}});
  CHECK(m[1]["role"] == "system");
  CHECK(m[2]["content"] == "ab");
  CHECK(m[3]["reasoning_content"] == "hm");
  CHECK(m[3]["content"] == "Wait.");
  CHECK(m[3]["tool_calls"].size() == 2);
  CHECK(m[3]["tool_calls"][1]["function"]["arguments"] == "{\"x\":1}");
  CHECK(m[5] == Json{{"role", "tool"}, {"tool_call_id", "c2"}, {"content", "two"}});
  CHECK(m[6]["content"] == "And?");
}

// As lm-evaluation-harness asks: token ids, echo, one alternative, one token more; it sums token_logprobs of
// the continuation and calls it greedy where each is the largest of its top_logprobs.
TEST_CASE("log likelihoods of prompts are those of the model") {
  TestServer t(
      {.context = 512, .sequences = 4, .prefill_chunk = 7, .cache_k = DType::f32, .cache_v = DType::f32});
  std::vector<std::vector<Token>> prompts;
  for (const char* text : {"The capital of Norway is Oslo.", "Größe 你好", "ab"}) {
    prompts.push_back(t.tokenizer.encode(text, false));
    prompts.back().insert(prompts.back().begin(), t.tokenizer.data().bos);
  }
  const auto [status, j] = t.post("/v1/completions", {{"model", "tiny"},
                                                      {"prompt", prompts},
                                                      {"max_tokens", 1},
                                                      {"logprobs", 1},
                                                      {"echo", true},
                                                      {"seed", 1234},
                                                      {"temperature", 0}});
  REQUIRE(status == 200);
  REQUIRE(j["choices"].size() == prompts.size());
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<Token>& tokens = prompts[p];
    const Json& l = j["choices"][p]["logprobs"];
    REQUIRE(l["token_logprobs"].size() == tokens.size() + 1);
    // The same as `carat eval logits` computes it.
    const KvFormats f32{.k = DType::f32, .v = DType::f32, .sliding_k = DType::f32, .sliding_v = DType::f32};
    Feeder feeder(Opened{t.backend, t.model, nullptr, nullptr, {}, {}}, 64, f32, 512);
    feeder.feed(tokens, 0, [&](int32_t at, std::span<const float> z) {
      const size_t i = static_cast<size_t>(at) + 1;
      if (i >= tokens.size()) return;
      const double total = log_sum_exp(z), said = l["token_logprobs"][i];
      CHECK(said == doctest::Approx(z[static_cast<size_t>(tokens[i])] - total).epsilon(1e-5));
      REQUIRE_FALSE(l["top_logprobs"][i].empty());  // the likeliest, and the token itself
      double best = said;
      for (const auto& [key, value] : l["top_logprobs"][i].items())
        best = std::max(best, value.get<double>());
      CHECK(best == doctest::Approx(*std::max_element(z.begin(), z.end()) - total).epsilon(1e-5));
      const bool likeliest = z[static_cast<size_t>(tokens[i])] == *std::max_element(z.begin(), z.end());
      CHECK((said == best) == likeliest);
    });
    CHECK(l["token_logprobs"][0].is_null());
  }
}

TEST_CASE("the description names every route, and no other") {
  TestServer t;
  const auto [status, text] = t.get("/openapi.json");
  REQUIRE(status == 200);
  const Json doc = Json::parse(text);
  CHECK(doc["openapi"].get<std::string>().starts_with("3.1"));
  std::set<std::pair<std::string, std::string>> described, served;
  for (const auto& [path, methods] : doc["paths"].items())
    for (const auto& [method, operation] : methods.items()) {
      described.emplace(method == "get" ? "GET" : method == "delete" ? "DELETE" : "POST", path);
      if (method != "post" || path.find('{') != std::string::npos) continue;
      // Its example is taken.
      const Json& content = operation["requestBody"]["content"];
      const Json example =
          content.contains("application/json") ? content["application/json"]["example"] : Json();
      const int got = t.post(path, example).first;
      CAPTURE(path);
      CHECK(got == operation.value("x-status", path.find("embedding") == std::string::npos ? 200 : 400));
    }
  for (auto [method, path] : t.server->routes()) {
    if (const size_t at = path.find("(\\d+)"); at != std::string::npos) path.replace(at, 5, "{id}");
    if (path.ends_with("(.+)")) path.replace(path.size() - 4, 4, "{id}");
    served.emplace(method, path);
  }
  CHECK(described == served);
}

TEST_CASE("slots, and no embeddings") {
  TestServer t({.context = 8192, .sequences = 3, .prefill_chunk = 64});
  Json slots = Json::parse(t.get("/slots").second);
  REQUIRE(slots.size() == 3);
  CHECK(slots[0]["is_processing"] == false);
  CHECK(slots[0]["n_ctx"] == 8192);
  std::thread other([&] {
    httplib::Client c = t.client();
    const Json body = {{"prompt", "abc"}, {"ignore_eos", true}, {"stream", true}};
    size_t taken = 0;
    httplib::Request r;
    r.method = "POST";
    r.path = "/v1/completions";
    r.body = body.dump();
    r.content_receiver = [&](const char*, size_t n, uint64_t, uint64_t) { return (taken += n) < 20'000; };
    c.send(r);
  });
  t.wait_generating();
  slots = Json::parse(t.get("/slots").second);
  CHECK(slots[0]["is_processing"] == true);
  CHECK(slots[0]["n_prompt_tokens"] == encode_prompt(t.tokenizer, "abc").size());
  CHECK(slots[0]["n_decoded"].get<int>() > 0);
  CHECK(slots[1]["is_processing"] == false);
  other.join();
  REQUIRE(t.idle());
  const auto [status, e] = t.post("/v1/embeddings", {{"input", "x"}});
  CHECK(status == 400);
  CHECK(e["error"]["message"].get<std::string>().find("embeddings") != std::string::npos);
}

// What vLLM exports under a name, less what docs/machines.md says is not applicable.
TEST_CASE("metrics by vLLM's names and labels, from the first scrape on") {
  TestServer t;
  const std::string name = "model_name=\"tiny\"", engine = "engine=\"0\"," + name;
  const auto has = [](const std::string& text, const std::string& series) {
    CAPTURE(series);
    CHECK(text.find("\n" + series) != std::string::npos);
  };
  const std::string before = t.get("/metrics").second;
  for (const char* gauge :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc",
        "gpu_prefix_cache_hit_rate", "num_preemptions_total", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "gpu_prefix_cache_queries_total", "gpu_prefix_cache_hits_total",
        "prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total"})
    has(before, fmt::format("vllm:{}{{{}}} 0\n", gauge, engine));
  for (const char* more : {"num_requests_waiting_by_reason{0,reason=\"capacity\"} 0",
                           "num_requests_waiting_by_reason{0,reason=\"deferred\"} 0",
                           "engine_sleep_state{0,sleep_state=\"awake\"} 1",
                           "engine_sleep_state{0,sleep_state=\"discard_all\"} 0",
                           "prompt_tokens_by_source_total{0,source=\"local_compute\"} 0",
                           "prompt_tokens_by_source_total{0,source=\"local_cache_hit\"} 0",
                           "prompt_tokens_by_source_total{0,source=\"external_kv_transfer\"} 0",
                           "request_success_total{0,finished_reason=\"stop\"} 0",
                           "request_success_total{0,finished_reason=\"length\"} 0",
                           "request_success_total{0,finished_reason=\"abort\"} 0",
                           "request_success_total{0,finished_reason=\"error\"} 0"}) {
    std::string series = more;
    series.replace(series.find('0'), 1, engine);
    has(before, "vllm:" + series + "\n");
  }
  // The endpoint picker of llm-d reads the time of the last change, and no other label.
  has(before,
      "vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1");
  has(before, "process_resident_memory_bytes ");
  CHECK(before.find("block_size=\"64\"") != std::string::npos);
  CHECK(before.find("max_model_len=\"512\"") != std::string::npos);

  const Json ask = {{"prompt", "x"}, {"max_tokens", 5}, {"ignore_eos", true}, {"n", 2}};
  t.post("/v1/completions", ask);
  const std::string after = t.get("/metrics").second;
  const std::vector<std::pair<const char*, int>> histograms = {{"time_to_first_token_seconds", 2},
                                                               {"inter_token_latency_seconds", 8},
                                                               {"e2e_request_latency_seconds", 2},
                                                               {"request_queue_time_seconds", 2},
                                                               {"request_prefill_time_seconds", 2},
                                                               {"request_decode_time_seconds", 2},
                                                               {"request_inference_time_seconds", 2},
                                                               {"request_time_per_output_token_seconds", 2},
                                                               {"request_prompt_tokens", 2},
                                                               {"request_generation_tokens", 2},
                                                               {"request_prefill_kv_computed_tokens", 2},
                                                               {"request_params_max_tokens", 2},
                                                               {"request_params_n", 1},
                                                               {"request_max_num_generation_tokens", 1}};
  for (const auto& [histogram, count] : histograms) {
    has(before, fmt::format("vllm:{}_count{{{}}} 0\n", histogram, engine));
    has(before, fmt::format("vllm:{}_bucket{{{},le=\"5.0\"}} 0\n", histogram, engine));
    has(after, fmt::format("vllm:{}_count{{{}}} {}\n", histogram, engine, count));
    has(after, fmt::format("vllm:{}_bucket{{{},le=\"+Inf\"}} {}\n", histogram, engine, count));
  }
  has(after, fmt::format("vllm:request_params_n_sum{{{}}} 2\n", engine));
  has(after, fmt::format("vllm:request_generation_tokens_sum{{{}}} 10\n", engine));
  has(after, fmt::format("vllm:request_max_num_generation_tokens_sum{{{}}} 5\n", engine));
  has(after, fmt::format("vllm:request_success_total{{{},finished_reason=\"length\"}} 2\n", engine));
  // Every series of a name stands behind one heading.
  std::set<std::string> headings;
  for (size_t at = after.find("# TYPE "); at != std::string::npos; at = after.find("# TYPE ", at + 1))
    CHECK(headings.insert(after.substr(at, after.find(' ', at + 7) - at)).second);
}

TEST_CASE("calls end with vLLM's reason; metrics without a key where that is allowed") {
  ServeConfig config;
  config.api_keys = {"key"};
  config.metrics_open = true;
  TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 256}, config);
  t.script("@weather({})");
  httplib::Client c = t.client();
  const Json body = {{"messages", user("Hi")},
                     {"tools", Json::array({{{"type", "function"}, {"function", kTools[0]}}})}};
  const auto r =
      c.Post("/v1/chat/completions", {{"Authorization", "Bearer key"}}, body.dump(), "application/json");
  REQUIRE(r);
  CHECK(r->body.find("\"tool_calls\"") != std::string::npos);
  const auto [status, text] = t.get("/metrics");
  CHECK(status == 200);
  CHECK(text.find("finished_reason=\"stop\"} 1\n") != std::string::npos);
  CHECK(text.find("finished_reason=\"tool_calls\"") == std::string::npos);
  CHECK(t.get("/v1/models").first == 401);
}

TEST_CASE("rendered tokens are those that the request reads") {
  TestServer t;
  const auto tokens = [&](const std::string& path, const Json& body) {
    const std::pair<int, Json> got = t.post(path, body);
    const Json& answer = got.second;
    CAPTURE(answer.dump());
    REQUIRE(got.first == 200);
    return (answer.is_array() ? answer[0] : answer)["token_ids"];
  };
  const Json tools = Json::array({{{"type", "function"}, {"function", kTools[0]}}});
  const Json think = {{"enable_thinking", true}}, say = {{"role", "assistant"}, {"content", "Well, I"}};
  Json talk = user("Hi");
  talk.push_back(say);
  for (Json body :
       {Json{{"messages", user("Hi")}}, Json{{"messages", user("Hi")}, {"tools", tools}},
        Json{{"messages", user("Hi")}, {"chat_template_kwargs", think}},
        Json{{"messages", talk}, {"continue_final_message", true}, {"add_generation_prompt", false}},
        Json{{"messages", user("Hi")}, {"truncate_prompt_tokens", 4}}}) {
    CAPTURE(body.dump());
    const Json rendered = tokens("/v1/chat/completions/render", body);
    body["max_tokens"] = 1;
    body["return_token_ids"] = true;
    const Json real = t.post("/v1/chat/completions", body).second;
    CHECK(real["usage"]["prompt_tokens"] == rendered.size());
    CHECK(real["choices"][0]["prompt_token_ids"] == rendered);
  }
  for (const Json& prompt : {Json("Once upon"), Json({5, 6, 7})}) {
    const Json rendered = tokens("/v1/completions/render", {{"model", "tiny"}, {"prompt", prompt}});
    const Json real =
        t.post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 1}, {"return_token_ids", true}}).second;
    CHECK(real["choices"][0]["prompt_token_ids"] == rendered);
  }
  CHECK(t.post("/v1/completions/render", {{"prompt", {"a", "b"}}}).second.size() == 2);
  CHECK(t.post("/v1/completions/render", Json::object()).first == 400);
  CHECK(t.post("/v1/chat/completions/render", {{"messages", user(std::string(5000, 'x'))}}).first == 400);
}

TEST_CASE("carat run --url talks with a server") {
  ServeConfig config;
  config.api_keys = {"key"};
  TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 64}, config);
  const std::string url = fmt::format("http://127.0.0.1:{}/v1/", t.server->port());
  SampleFlags sample;
  sample.max_tokens = 60;
  sample.seed = 7;
  CHECK_THROWS_WITH_AS(RemoteChat({url, "", ""}, sample, false), doctest::Contains("API key"), Error);
  CHECK_THROWS_AS(RemoteChat({"http://127.0.0.1:1", "", ""}, sample, false), Error);
  RemoteChat remote({url, "key", ""}, sample, false);
  CHECK(remote.model() == "tiny");
  std::string content, thinking, tools;
  const auto show = [&](const ChatDelta& d) {
    if (d.kind == ChatDelta::Kind::content) content += d.text;
    if (d.kind == ChatDelta::Kind::thinking) thinking += d.text;
    if (d.kind == ChatDelta::Kind::tool_name) tools += d.text;
    return true;
  };
  t.script("<hm>Größe 你好.@weather({})");
  const RemoteAnswer answer = remote.ask(user("Hi"), show);
  CHECK(answer.content == "Größe 你好.");
  CHECK(content == answer.content);
  CHECK(thinking == "hm");
  CHECK(tools == "weather");
  CHECK(answer.timings["predicted_n"].get<int>() > 5);
  CHECK_THROWS_WITH_AS(remote.ask(Json::array(), show), doctest::Contains("messages"), Error);
  // Stopped by the one who reads: the slot is free again.
  t.script("a long answer that goes on and on", false);
  int pieces = 0;
  remote.ask(user("Hi"), [&](const ChatDelta&) { return ++pieces < 3; });
  CHECK(pieces == 3);
  CHECK(t.idle());
}
