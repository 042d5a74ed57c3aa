#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "serve/spec_report.h"
#include "state/layout.h"

namespace carat {
namespace {

void head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// Bounds of histograms: vLLM's, so that dashboards made for it find theirs, and finer ones between them.
const std::vector<double> kRequestSeconds = {0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                                             15,   20,  30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                                0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                                20,    40,    80,   160,  640,  2560};
const std::vector<double> kTokenSeconds = {0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03,
                                           0.04,  0.05,   0.075, 0.1,    0.15, 0.2,   0.3,  0.4,   0.5,
                                           0.75,  1,      2.5,   5,      7.5,  10,    20,   40,    80};
const std::vector<double> kTokens = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                     1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

// As vLLM's Python writes numbers.
std::string bound(double v) {
  std::string text = fmt::format("{}", v);
  return text.find_first_not_of("0123456789") == text.npos ? text + ".0" : text;
}

}  // namespace

void Histogram::observe(double value, uint64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(at)] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view help,
                      std::string_view labels) const {
  head(out, name, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound(bounds_[i]), below);
  }
  out += fmt::format("{0}_bucket{{{1},le=\"+Inf\"}} {2}\n{0}_sum{{{1}}} {3}\n{0}_count{{{1}}} {2}\n", name,
                     labels, count_, sum_);
}

Metrics::Metrics(std::string model, int version)
    : labels_(fmt::format("engine=\"0\",model_name=\"{}\"{}", escaped(model),
                          version ? fmt::format(",version=\"{}\"", version) : "")),
      start_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()),
      first_token_(kFirstTokenSeconds),
      per_token_(kTokenSeconds),
      between_tokens_(kTokenSeconds),
      total_(kRequestSeconds),
      queue_(kRequestSeconds),
      prefill_(kRequestSeconds),
      decode_(kRequestSeconds),
      inference_(kRequestSeconds),
      prompt_sizes_(kTokens),
      answer_sizes_(kTokens),
      computed_(kTokens),
      most_tokens_(kTokens),
      most_generated_(kTokens),
      choices_({1, 2, 5, 10, 20}) {
  for (const char* reason : {"stop", "length", "abort", "error"}) reasons_[reason] = 0;
}

std::shared_ptr<LiveRequest> Metrics::begin(std::string id, int64_t prompt_tokens) {
  auto r = std::make_shared<LiveRequest>();
  r->id = std::move(id);
  r->prompt_tokens = prompt_tokens;
  const std::lock_guard lock(mutex_);
  std::erase_if(live_, [](const auto& l) { return l.expired(); });
  live_.push_back(r);
  return r;
}

std::vector<std::shared_ptr<const LiveRequest>> Metrics::live() const {
  std::vector<std::shared_ptr<const LiveRequest>> out;
  const std::lock_guard lock(mutex_);
  for (const auto& l : live_)
    if (auto r = l.lock()) out.push_back(std::move(r));
  return out;
}

void Metrics::tokens(int64_t count, double seconds) {
  if (count <= 0) return;
  const std::lock_guard lock(mutex_);
  between_tokens_.observe(seconds / static_cast<double>(count), static_cast<uint64_t>(count));
}

Metrics::Tally Metrics::tally() const {
  const std::lock_guard lock(mutex_);
  return tally_;
}

void Metrics::forget() {
  const std::lock_guard lock(mutex_);
  tally_ = {};
}

void Metrics::finished(const RequestFacts& f) {
  const std::lock_guard lock(mutex_);
  ++tally_.requests;
  tally_.errors += f.reason == "error";
  if (f.generated_tokens > 1)
    tally_.tokens += static_cast<double>(f.generated_tokens - 1),
        tally_.seconds += f.last_token - f.first_token;
  ++reasons_[f.reason == "tool_calls" ? "stop" : std::string(f.reason)];  // vLLM's engine knows no calls
  queue_.observe(f.queue);
  total_.observe(f.total);
  computed_.observe(static_cast<double>(f.prompt_tokens - f.cached_tokens));
  most_tokens_.observe(static_cast<double>(f.max_tokens));
  if (f.first_token > 0) {
    prefill_.observe(f.first_token - f.queue);
    decode_.observe(f.last_token - f.first_token);
    inference_.observe(f.last_token - f.queue);
  }
  prompt_sizes_.observe(static_cast<double>(f.prompt_tokens));
  answer_sizes_.observe(static_cast<double>(f.generated_tokens));
  if (f.first_token > 0) first_token_.observe(f.first_token);
  if (f.generated_tokens > 1)
    per_token_.observe((f.total - f.first_token) / static_cast<double>(f.generated_tokens - 1));
}

void Metrics::all_finished(int64_t choices, int64_t most_generated) {
  const std::lock_guard lock(mutex_);
  choices_.observe(static_cast<double>(choices));
  most_generated_.observe(static_cast<double>(most_generated));
}

std::string adapter_metrics(double start) {
  std::string out;
  head(out, "vllm:lora_requests_info", "gauge", "Adapters in use, and since when; there are none.");
  return out + fmt::format(
                   "vllm:lora_requests_info{{max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_"
                   "adapters=\"\"}} {:.3f}\n",
                   start);
}

std::string energy_metrics(double joules) {
  std::string out;
  head(out, "carat:energy_joules_total", "counter", "Drawn by the GPUs and processors that tell it.");
  return out + fmt::format("carat:energy_joules_total {:.3f}\n", joules);
}

void HttpCounters::count(std::string_view path, int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[{std::string(path), status}];
}

std::string HttpCounters::text() const {
  std::string out;
  head(out, "carat:http_requests_total", "counter", "Answers by endpoint and status.");
  const std::lock_guard lock(mutex_);
  for (const auto& [key, n] : answers_)
    out += fmt::format("carat:http_requests_total{{handler=\"{}\",status=\"{}\"}} {}\n", escaped(key.first),
                       key.second, n);
  return out;
}

std::string merge_metrics(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> families;  // the HELP and TYPE lines; all samples
  for (const std::string& text : texts) {
    size_t at = 0;
    while (at < text.size()) {
      const size_t samples = text.find('\n', text.find("\n# TYPE ", at) + 1) + 1;
      const size_t next = text.find("\n# HELP ", samples - 1),
                   end = next == std::string::npos ? text.size() : next + 1;
      const std::string heading = text.substr(at, samples - at);
      auto family =
          std::find_if(families.begin(), families.end(), [&](const auto& f) { return f.first == heading; });
      if (family == families.end()) family = families.insert(family, {heading, {}});
      family->second += text.substr(samples, end - samples);
      at = end;
    }
  }
  std::string out;
  for (const auto& [heading, samples] : families) out += heading + samples;
  return out;
}

std::string Metrics::text(const EngineStats& s, const EngineConfig& config) const {
  std::string out;
  write_engine(out, s, config);
  if (!config.drafters.empty()) write_spec_metrics(out, s.spec, !config.spec.synthetic.empty(), labels_);
  const std::lock_guard lock(mutex_);
  head(out, "vllm:request_success_total", "counter", "Ended requests by reason.");
  for (const auto& [reason, n] : reasons_)
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_, reason, n);
  const auto write = [&](const Histogram& h, std::string_view name, std::string_view help) {
    h.write(out, name, help, labels_);
  };
  write(queue_, "vllm:request_queue_time_seconds", "Time spent waiting for a slot.");
  write(prefill_, "vllm:request_prefill_time_seconds", "From leaving the queue to the first token.");
  write(decode_, "vllm:request_decode_time_seconds", "From the first token to the last.");
  write(inference_, "vllm:request_inference_time_seconds", "From leaving the queue to the last token.");
  write(total_, "vllm:e2e_request_latency_seconds", "From submission to the end.");
  write(first_token_, "vllm:time_to_first_token_seconds", "From submission to the first token.");
  write(between_tokens_, "vllm:inter_token_latency_seconds",
        "Time between tokens; of those that came together, its share.");
  write(per_token_, "vllm:request_time_per_output_token_seconds", "Mean time between tokens of a request.");
  write(prompt_sizes_, "vllm:request_prompt_tokens", "Prompt tokens of requests.");
  write(computed_, "vllm:request_prefill_kv_computed_tokens", "Of these, tokens that had to be read.");
  write(answer_sizes_, "vllm:request_generation_tokens", "Generated tokens of requests.");
  write(most_tokens_, "vllm:request_params_max_tokens", "Tokens that requests could have generated.");
  write(choices_, "vllm:request_params_n", "Choices that requests asked for.");
  write(most_generated_, "vllm:request_max_num_generation_tokens",
        "Generated tokens of the longest choice of requests.");
  return out;
}

void Metrics::write_engine(std::string& out, const EngineStats& s, const EngineConfig& config) const {
  const auto value = [&](std::string_view name, std::string_view type, std::string_view help, auto v) {
    head(out, name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, labels_, v);
  };
  const auto by = [&](std::string_view name, std::string_view label, std::string_view what, auto v) {
    out += fmt::format("{}{{{},{}=\"{}\"}} {}\n", name, labels_, label, what, v);
  };
  const double used =
      s.kv_pages_total ? static_cast<double>(s.kv_pages_used) / static_cast<double>(s.kv_pages_total) : 0.0;
  value("vllm:num_requests_running", "gauge", "Requests that are computed now.", s.running);
  value("vllm:num_requests_waiting", "gauge", "Requests that wait for a slot.", s.waiting);
  constexpr std::string_view kReasons = "vllm:num_requests_waiting_by_reason",
                             kSleep = "vllm:engine_sleep_state",
                             kSource = "vllm:prompt_tokens_by_source_total";
  head(out, kReasons, "gauge", "The same by what they wait for.");
  by(kReasons, "reason", "capacity", s.waiting);
  by(kReasons, "reason", "deferred", 0);
  head(out, kSleep, "gauge", "This engine never sleeps.");
  by(kSleep, "sleep_state", "awake", 1);
  by(kSleep, "sleep_state", "weights_offloaded", 0);
  by(kSleep, "sleep_state", "discard_all", 0);
  value("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache's pages in use; 1 is all.", used);
  value("vllm:num_preemptions_total", "counter", "Requests that gave up their KV pages and read again.",
        s.preemptions);
  value("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
        s.prefix.queries);
  value("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found there and not read again.",
        s.prefix.hits);
  // Names of vLLM before 0.10, which production-stack's router still reads.
  value("vllm:gpu_cache_usage_perc", "gauge", "vllm:kv_cache_usage_perc by its old name.", used);
  value("vllm:gpu_prefix_cache_queries_total", "counter", "vllm:prefix_cache_queries_total by its old name.",
        s.prefix.queries);
  value("vllm:gpu_prefix_cache_hits_total", "counter", "vllm:prefix_cache_hits_total by its old name.",
        s.prefix.hits);
  value("vllm:gpu_prefix_cache_hit_rate", "gauge", "Hits by queries, since the start.",
        s.prefix.queries ? static_cast<double>(s.prefix.hits) / static_cast<double>(s.prefix.queries) : 0.0);
  value("carat:prefix_cache_bytes", "gauge", "Memory of the texts it keeps.", s.prefix.bytes);
  head(out, "vllm:cache_config_info", "gauge", "How the KV cache is laid out; the value is always 1.");
  out += fmt::format(
      "vllm:cache_config_info{{{},block_size=\"{}\",num_gpu_blocks=\"{}\",cache_dtype=\"{}\","
      "enable_prefix_caching=\"{}\",max_model_len=\"{}\",max_num_seqs=\"{}\"}} 1\n",
      labels_, KvLimits{}.page_tokens, s.kv_pages_total, info(config.cache_k).name,
      config.prefix_cache_bytes ? "True" : "False", config.context, config.sequences);
  value("vllm:prompt_tokens_total", "counter", "Prompt tokens, read or found.",
        s.prompt_tokens + s.prefix.hits);
  head(out, kSource, "counter", "The same by where they came from.");
  by(kSource, "source", "local_compute", s.prompt_tokens);
  by(kSource, "source", "local_cache_hit", s.prefix.hits);
  by(kSource, "source", "external_kv_transfer", 0);
  value("vllm:prompt_tokens_cached_total", "counter", "Prompt tokens that were found.", s.prefix.hits);
  value("vllm:generation_tokens_total", "counter", "Tokens generated.", s.generated_tokens);
  value("carat:engine_steps_total", "counter", "Steps of the engine.", s.steps);
  value("carat:engine_busy_seconds_total", "counter", "Time spent in steps.", s.busy_seconds);
  if (s.device_seconds > 0)
    value("carat:engine_device_seconds_total", "counter",
          "Of the time in steps, that in which the device was at work: the rest it waited for the host.",
          s.device_seconds);
  value("carat:engine_last_step_timestamp_seconds", "gauge", "When the engine last made progress.",
        fmt::format("{:.3f}", s.last_step_unix));
  value("carat:start_time_seconds", "gauge", "When the server started.", fmt::format("{:.3f}", start_));
}

}  // namespace carat
