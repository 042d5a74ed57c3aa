#include "serve/api/stream.h"

#include <doctest/doctest.h>

#include <random>

#include "engine/speculate/draft_ngram.h"
#include "serve/api/json.h"
#include "serve/api/step_trace.h"
#include "serve/metrics.h"
#include "serve/spec_report.h"

using namespace carat;

namespace {

std::pair<std::string, bool> through(const std::vector<std::string>& stops,
                                     const std::vector<std::string>& pieces) {
  StopFilter f(stops);
  std::string out;
  for (const std::string& p : pieces) out += f.push(p);
  out += f.finish();
  return {out, f.stopped()};
}
using Out = std::pair<std::string, bool>;

}  // namespace

TEST_CASE("nothing of a stop string leaks, however the text is cut") {
  CHECK(through({"END"}, {"abc EN", "D def"}) == Out{"abc ", true});
  CHECK(through({"END"}, {"E", "N", "D"}) == Out{"", true});
  CHECK(through({"END"}, {"abc EN", "d def"}) == Out{"abc ENd def", false});
  CHECK(through({"END"}, {"abc EN"}) == Out{"abc EN", false});
  CHECK(through({"aab"}, {"aaab"}) == Out{"a", true});
  CHECK(through({"\n\n", "\nUser:"}, {"hi\n", "User", ": x"}) == Out{"hi", true});
  CHECK(through({"abc", "b"}, {"xabc"}) == Out{"xa", true});  // "b" is complete first
  CHECK(through({"b", "ab"}, {"xab"}) == Out{"x", true});     // both end here: the longer
  CHECK(through({""}, {"text"}) == Out{"text", false});
  CHECK(through({"停"}, {"請停止"}) == Out{"請", true});
  StopFilter f({"END"});
  CHECK(f.push("abc EN") == "abc ");
  CHECK(f.push("x") == "ENx");
}

TEST_CASE("every cut of a text gives the same result") {
  const std::string text = "one two three\n\nUser: four five STOP six";
  const std::vector<std::string> stops = {"STOP", "ve ST", "\n\nUsex", "three\n\nuser", "fouR"};
  const Out whole = through(stops, {text});
  CHECK(whole == Out{"one two three\n\nUser: four fi", true});
  std::mt19937 rng(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + rng() % 7;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    CHECK(through(stops, pieces) == whole);
  }
}

TEST_CASE("fields of a request are read or named") {
  const Json j =
      parse_body(R"({"a": 1, "f": 2.0, "s": "x", "b": true, "n": null, "big": 18446744073709551615})");
  const Fields f(j);
  CHECK(f.get_int("a", 0) == 1);
  CHECK(f.get_int("f", 0) == 2);
  CHECK(f.get_int("n", 7) == 7);
  CHECK(f.get_int("absent", 8) == 8);
  CHECK(f.get_string("s", "") == "x");
  CHECK(f.get_bool("b", false));
  const auto names = [](const auto& call, const std::string& param) {
    try {
      call();
      FAIL("accepted");
    } catch (const ApiError& e) {
      CHECK(e.status() == 400);
      CHECK(e.param() == param);
    }
  };
  names([&] { f.get_int("s", 0); }, "s");
  names([&] { f.get_int("big", 0); }, "big");
  names([&] { f.get_int("a", 0, 2, 3); }, "a");
  names([&] { f.get_bool("a", false); }, "a");
  names([&] { f.get_number("b", 0, 0, 1); }, "b");
  names([&] { f.get_string("a", ""); }, "a");
  for (const char* bad : {"", "[", "{", "[1]", "3", "{\"a\":1}x", "{\"a\":\"\xff\"}", "{a:1}"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_body(bad), ApiError);
  }
  const std::string deep = "{\"a\":" + std::string(200000, '[') + std::string(200000, ']') + "}";
  CHECK_THROWS_WITH_AS(parse_body(deep), doctest::Contains("nested"), ApiError);
}

TEST_CASE("metrics are Prometheus text") {
  Metrics m("a \"name\"");
  m.finished({"stop", 10, 5, 0.1, 0.3, 1.1});
  m.finished({"abort", 10, 0, 0.1, 0, 0.2});
  EngineStats s;
  s.running = 2;
  s.kv_pages_total = 8;
  s.kv_pages_used = 2;
  const std::string text = m.text(s, {});
  const auto has = [&](const std::string& line) { return text.find(line + "\n") != std::string::npos; };
  const std::string model = "engine=\"0\",model_name=\"a \\\"name\\\"\"";
  CHECK(has("vllm:num_requests_running{" + model + "} 2"));
  CHECK(has("vllm:kv_cache_usage_perc{" + model + "} 0.25"));
  CHECK(has("vllm:request_success_total{" + model + ",finished_reason=\"stop\"} 1"));
  CHECK(has("vllm:time_to_first_token_seconds_bucket{" + model + ",le=\"0.25\"} 0"));
  CHECK(has("vllm:time_to_first_token_seconds_bucket{" + model + ",le=\"0.5\"} 1"));
  CHECK(has("vllm:time_to_first_token_seconds_count{" + model + "} 1"));
  CHECK(has("vllm:e2e_request_latency_seconds_count{" + model + "} 2"));
  CHECK(has("vllm:request_time_per_output_token_seconds_sum{" + model + "} 0.2"));
}

TEST_CASE("metrics of several models stand together by name") {
  HttpCounters http;
  http.count("/v1/models", 200);
  http.count("/v1/models", 200);
  const std::string text = merge_metrics({Metrics("a").text({}, {}), Metrics("b").text({}, {}), http.text()});
  const auto count = [&](std::string_view what) {
    int n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  CHECK(count("# HELP vllm:num_requests_running ") == 1);
  CHECK(count("# TYPE vllm:e2e_request_latency_seconds histogram\n") == 1);
  CHECK(text.find("vllm:num_requests_running{engine=\"0\",model_name=\"a\"} "
                  "0\nvllm:num_requests_running{engine=\"0\",model_name=\"b\"} 0\n") != std::string::npos);
  CHECK(count("carat:http_requests_total{handler=\"/v1/models\",status=\"200\"} 2\n") == 1);
}

TEST_CASE("a stream's steps tell each draft's drafter, and what of it was accepted and rejected") {
  StepTrace trace;
  const auto text_of = [](Token t) { return std::string(1, static_cast<char>('a' + t)); };
  Event e;
  e.tokens = {0};
  trace.add(e, text_of);
  SpecStats s;
  s.shares.push_back({.drafter = "suffix", .rounds = 1, .drafted = 4, .accepted = 2});
  e.spec = std::make_shared<SpecStats>(s);
  e.tokens = {1, 2, 3};
  e.rejected = {4, 5};
  trace.add(e, text_of);
  CHECK(
      trace.fresh.dump() ==
      R"([{"tokens":["a"]},{"tokens":["b","c","d"],"drafter":"suffix","drafted":4,"accepted":2,"rejected":["e","f"]}])");
}

TEST_CASE("speculation's counters have vLLM's names, and both ways to read acceptance") {
  SpecStats s;
  s.rounds = 100;
  s.plain = 20;
  s.drafted = 250;
  s.accepted = 110;
  s.drafted_at[0] = 100, s.drafted_at[1] = 100, s.drafted_at[2] = 50;
  s.tried_at[0] = 100, s.tried_at[1] = 60, s.tried_at[2] = 20;
  s.accepted_at[0] = 60, s.accepted_at[1] = 40, s.accepted_at[2] = 10;
  s.shares = {{"mtp", 90, 240, 100}, {"grammar", 10, 10, 10}};
  const auto j = spec_json(s, true);
  CHECK(j["drafters"]["grammar"] == nlohmann::json{{"drafts", 10}, {"drafted", 10}, {"accepted", 10}});
  CHECK(j["accepted_per_pos"] == nlohmann::json{0.6, 0.4, 0.1});
  CHECK(j["accepted_per_pos_given_previous"] == nlohmann::json{0.6, 0.6667, 0.5});
  CHECK(j["accepted_length"] == 1.9167);
  CHECK(j["mean_acceptance_length"] == 2.1);  // vLLM's: steps without a draft do not count
  CHECK(j["synthetic"] == true);
  CHECK(!spec_json(s, false).contains("synthetic"));

  Metrics m("demo");
  EngineStats stats;
  stats.spec = s;
  EngineConfig config;
  CHECK(m.text(stats, config).find("spec_") == std::string::npos);
  config.drafters.emplace_back(make_suffix({}));
  const std::string text = m.text(stats, config);
  const auto has = [&](const std::string& line) { return text.find(line + "\n") != std::string::npos; };
  CHECK(has("vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"demo\"} 100"));
  CHECK(has("vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"demo\"} 250"));
  CHECK(has("vllm:spec_decode_num_accepted_tokens_total{engine=\"0\",model_name=\"demo\"} 110"));
  CHECK(
      has("vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"demo\",position="
          "\"1\"} 40"));
  CHECK(text.find("position=\"3\"") == std::string::npos);
  CHECK(has("carat:spec_accepted_tokens_total{engine=\"0\",model_name=\"demo\",drafter=\"grammar\"} 10"));
  CHECK(has("carat:spec_synthetic{engine=\"0\",model_name=\"demo\"} 0"));
}
