// carat load URL: how a server bears many streams at once. What it says has the names and meanings of
// `vllm bench serve`, so that figures of two servers stand side by side.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <numeric>

#include "apps/cli_measure.h"
#include "apps/llama_flags.h"
#include "apps/load_client.h"
#include "apps/measurement.h"
#include "apps/progress.h"
#include "apps/server_address.h"

namespace carat {
namespace {

struct LoadFlags {
  LoadOptions load;
  std::vector<int32_t> streams{1, 8, 32};
  int32_t requests = 0;  // 0: four a stream
  bool warm = true;
  std::vector<std::string> goodput;
  MeasureFlags measure;
};

void read_goodput(LoadFlags& f) {
  for (const std::string& text : f.goodput) {
    const size_t colon = text.find(':');
    double* limit = text.starts_with("ttft:")   ? &f.load.good_ttft
                    : text.starts_with("tpot:") ? &f.load.good_tpot
                    : text.starts_with("e2el:") ? &f.load.good_e2el
                                                : nullptr;
    char* end = nullptr;
    const double value = colon == std::string::npos ? 0 : std::strtod(text.c_str() + colon + 1, &end);
    if (!limit || !end || *end || !(value > 0))
      throw UsageError(fmt::format("--goodput: '{}' is no limit", text),
                       "ttft:500, tpot:50 or e2el:8000, in milliseconds");
    *limit = value;
  }
}

double mean(const std::vector<double>& v) {
  return v.empty() ? 0 : std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}
double deviation(const std::vector<double>& v) {
  const double m = mean(v);
  double sum = 0;
  for (const double x : v) sum += (x - m) * (x - m);
  return v.empty() ? 0 : std::sqrt(sum / static_cast<double>(v.size()));
}

bool is_good(const LoadOptions& o, const LoadSample& s) {
  const auto keeps = [](double limit, double value) { return limit <= 0 || value <= limit; };
  return keeps(o.good_ttft, s.ttft) && keeps(o.good_tpot, s.tpot()) && keeps(o.good_e2el, s.e2el);
}

Record figures_of(const LoadOptions& o, const LoadResult& r) {
  std::vector<double> ttft, tpot, itl, e2el;
  int64_t input = 0, output = 0, done = 0, good = 0;
  std::string error;
  for (const LoadSample& s : r.samples) {
    if (!s.error.empty()) {
      error = s.error;
      continue;
    }
    ++done, input += s.prompt, output += s.output, good += is_good(o, s);
    ttft.push_back(s.ttft), e2el.push_back(s.e2el);
    if (s.output > 1) tpot.push_back(s.tpot());
    itl.insert(itl.end(), s.itl.begin(), s.itl.end());
  }
  Record f{{"duration", r.seconds},
           {"completed", done},
           {"failed", static_cast<int64_t>(r.samples.size()) - done},
           {"total_input_tokens", input},
           {"total_output_tokens", output},
           {"request_throughput", static_cast<double>(done) / r.seconds},
           {"output_throughput", static_cast<double>(output) / r.seconds},
           {"total_token_throughput", static_cast<double>(input + output) / r.seconds}};
  if (o.good_ttft > 0 || o.good_tpot > 0 || o.good_e2el > 0)
    f["request_goodput"] = static_cast<double>(good) / r.seconds;
  const auto put = [&](const char* name, const std::vector<double>& v) {
    f[fmt::format("mean_{}_ms", name)] = mean(v);
    f[fmt::format("median_{}_ms", name)] = quantile(v, 0.5);
    f[fmt::format("std_{}_ms", name)] = deviation(v);
    for (const int p : {95, 99}) f[fmt::format("p{}_{}_ms", p, name)] = quantile(v, p / 100.0);
  };
  put("ttft", ttft), put("tpot", tpot), put("itl", itl), put("e2el", e2el);
  if (!error.empty()) f["error"] = error;
  return f;
}

void print_row(int32_t streams, const Record& f) {
  const auto at = [&](const char* name) { return f.at(name).get<double>(); };
  fmt::print(
      "| {:>7} | {:>8} | {:>7.0f} | {:>7.2f} | {:>8.1f} / {:>8.1f} | {:>6.2f} | {:>6.2f} / {:>6.2f} / "
      "{:>7.2f} |",
      streams, f.at("completed").get<int64_t>(), at("output_throughput"), at("request_throughput"),
      at("median_ttft_ms"), at("p99_ttft_ms"), at("median_tpot_ms"), at("median_itl_ms"), at("p95_itl_ms"),
      at("p99_itl_ms"));
  if (f.contains("request_goodput")) fmt::print(" {:.2f} good req/s", at("request_goodput"));
  if (f.contains("error"))
    fmt::print(" {} failed: {}", f.at("failed").get<int64_t>(), f.at("error").get<std::string>());
  fmt::print("\n");
  std::fflush(stdout);
}

// The first steps of a kind load code and record graphs.
void warm_up(LoadOptions o, int32_t streams) {
  o.requests = o.streams = streams;
  o.output = std::min(o.output, 8);
  o.seed += 77777;
  run_load(o, [](int32_t) {});
}

void load(LoadFlags& f) {
  read_goodput(f);
  for (const int32_t n : f.streams)
    if (n < 1 || n > 4096) throw UsageError(fmt::format("--streams: {} at once", n), "choose 1 to 4096");
  LoadOptions& o = f.load;
  const std::string served = served_model(server_address(o.url), o.key);
  if (o.model.empty()) o.model = served;
  Measurement measurement(f.measure, "load");
  if (measurement.prints_table()) {
    fmt::print("{} at {}: {} tokens in{}, {} out\n\n", o.model, o.url, o.input,
               o.shared ? fmt::format(" behind {} that all share", o.shared) : "", o.output);
    fmt::print(
        "| streams | requests | tok/s   | req/s   | first token ms, p99 | ms/tok | between events, p95, p99 "
        "|\n");
    fmt::print(
        "| ------: | -------: | ------: | ------: | ------------------: | -----: | -----------------------: "
        "|\n");
  }
  for (const int32_t streams : f.streams) {
    if (f.warm) warm_up(o, streams);
    o.streams = streams;
    o.requests = f.requests > 0 ? f.requests : 4 * streams;
    o.seed += 1000;
    ProgressBar bar(fmt::format("{} streams", streams), "requests");
    const LoadResult result = run_load(o, [&](int32_t done) { bar.update(done, o.requests); });
    Record record = measurement.begin(fmt::format("{} streams", streams));
    record["model"]["name"] = o.model;
    record["settings"]["streams"] = streams;
    record["settings"]["input"] = o.input, record["settings"]["output"] = o.output;
    record["settings"]["shared"] = o.shared, record["settings"]["rate"] = o.rate;
    record["figures"] = figures_of(o, result);
    if (measurement.prints_table()) print_row(streams, record["figures"]);
    measurement.add(std::move(record));
  }
  measurement.finish();
}

}  // namespace

void add_load(CLI::App& app) {
  auto* cmd =
      app.add_subcommand("load", "Measure a running server under many streams: throughput and latency");
  auto f = std::make_shared<LoadFlags>();
  cmd->add_option("url", f->load.url, "The server, http://HOST:PORT")->required();
  cmd->add_option("-s,--streams,--max-concurrency", f->streams,
                  "Requests at once; each number is a run: 1,8,32,64")
      ->delimiter(',')
      ->capture_default_str();
  cmd->add_option("-n,--num-prompts", f->requests, "Requests in each run; 0: four for each stream")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  cmd->add_option("--request-rate", f->load.rate,
                  "Requests a second, at random times; 0: each stream sends its next request after an answer")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  cmd->add_option("--input-len,--random-input-len", f->load.input, "Tokens of a prompt")
      ->check(CLI::Range(1, 4194304))
      ->capture_default_str();
  cmd->add_option("--output-len,--random-output-len", f->load.output, "Tokens of an answer")
      ->check(CLI::Range(1, 4194304))
      ->capture_default_str();
  cmd->add_option("--prefix-len,--random-prefix-len", f->load.shared,
                  "Tokens in front of every prompt that all of them share")
      ->check(CLI::Range(0, 4194304))
      ->capture_default_str();
  cmd->add_option("--goodput", f->goodput,
                  "Limits of a good request in milliseconds: ttft:500,tpot:50,e2el:8000")
      ->delimiter(',');
  cmd->add_option("--model", f->load.model, "Model to request (default: the first that the server lists)");
  cmd->add_option("--api-key", f->load.key, "The server's key");
  cmd->add_option("--vocab", f->load.vocab, "Prompts are random token ids from 256 to below this")
      ->check(CLI::Range(257, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--seed", f->load.seed, "Seed of prompts and arrival times")->capture_default_str();
  cmd->add_flag_callback(
      "--no-warmup", [f] { f->warm = false; }, "Skip the warm-up requests before each run");
  add_measure_flags(*cmd, f->measure);
  cmd->callback([f] { load(*f); });
}

}  // namespace carat
