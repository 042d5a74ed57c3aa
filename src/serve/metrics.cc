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
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
  }
  out += fmt::format("{0}_bucket{{{1},le=\"+Inf\"}} {2}\n{0}_sum{{{1}}} {3}\n{0}_count{{{1}}} {2}\n", name,
                     labels, count_, sum_);
}

Metrics::Metrics(std::string model)
    : labels_(fmt::format("model_name=\"{}\"", escaped(model))),
      start_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()),
      first_token_({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160}),
      per_token_(
          {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5}),
      between_tokens_({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1,
                       2.5, 5, 10}),
      total_({0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}),
      queue_({0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120}),
      prompt_sizes_({1, 10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000}),
      answer_sizes_({1, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000}) {}

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

void Metrics::finished(const RequestFacts& f) {
  const std::lock_guard lock(mutex_);
  ++reasons_[std::string(f.reason)];
  queue_.observe(f.queue);
  total_.observe(f.total);
  prompt_sizes_.observe(static_cast<double>(f.prompt_tokens));
  answer_sizes_.observe(static_cast<double>(f.generated_tokens));
  if (f.first_token > 0) first_token_.observe(f.first_token);
  if (f.generated_tokens > 1)
    per_token_.observe((f.total - f.first_token) / static_cast<double>(f.generated_tokens - 1));
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
  const auto value = [&](std::string_view name, std::string_view type, std::string_view help, auto v) {
    head(out, name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, labels_, v);
  };
  value("vllm:num_requests_running", "gauge", "Requests that are computed now.", s.running);
  value("vllm:num_requests_waiting", "gauge", "Requests that wait for a slot.", s.waiting);
  value(
      "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache's pages in use; 1 is all.",
      s.kv_pages_total ? static_cast<double>(s.kv_pages_used) / static_cast<double>(s.kv_pages_total) : 0.0);
  value("vllm:num_preemptions_total", "counter", "Requests that gave up their KV pages and read again.",
        s.preemptions);
  value("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
        s.prefix.queries);
  value("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found there and not read again.",
        s.prefix.hits);
  value("carat:prefix_cache_bytes", "gauge", "Memory of the texts it keeps.", s.prefix.bytes);
  head(out, "vllm:cache_config_info", "gauge", "How the KV cache is laid out; the value is always 1.");
  out += fmt::format(
      "vllm:cache_config_info{{{},block_size=\"{}\",num_gpu_blocks=\"{}\",cache_dtype=\"{}\",max_model_len="
      "\"{}\",max_num_seqs=\"{}\"}} 1\n",
      labels_, KvLimits{}.page_tokens, s.kv_pages_total, info(config.cache_k).name, config.context,
      config.sequences);
  value("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", s.prompt_tokens);
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
  if (!config.drafters.empty()) write_spec_metrics(out, s.spec, !config.spec.synthetic.empty(), labels_);
  const std::lock_guard lock(mutex_);
  head(out, "vllm:request_success_total", "counter", "Ended requests by reason.");
  for (const auto& [reason, n] : reasons_)
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_, reason, n);
  queue_.write(out, "vllm:request_queue_time_seconds", "Time spent waiting for a slot.", labels_);
  first_token_.write(out, "vllm:time_to_first_token_seconds", "From submission to the first token.", labels_);
  between_tokens_.write(out, "vllm:inter_token_latency_seconds",
                        "Time between tokens; of those that came together, its share.", labels_);
  prompt_sizes_.write(out, "vllm:request_prompt_tokens", "Prompt tokens of requests.", labels_);
  answer_sizes_.write(out, "vllm:request_generation_tokens", "Generated tokens of requests.", labels_);
  per_token_.write(out, "vllm:request_time_per_output_token_seconds",
                   "Mean time between tokens of a request.", labels_);
  total_.write(out, "vllm:e2e_request_latency_seconds", "From submission to the last token.", labels_);
  return out;
}

}  // namespace carat
