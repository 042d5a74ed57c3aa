#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "serve/spec_report.h"

namespace carat {
namespace {

void head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += fmt::format("# HELP carat:{0} {2}\n# TYPE carat:{0} {1}\n", name, type, help);
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

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(at)];
  ++count_;
  sum_ += value;
}

void Histogram::write(std::string& out, std::string_view name, std::string_view help,
                      std::string_view labels) const {
  head(out, name, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    out += fmt::format("carat:{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
  }
  out += fmt::format(
      "carat:{0}_bucket{{{1},le=\"+Inf\"}} {2}\ncarat:{0}_sum{{{1}}} {3}\ncarat:{0}_count{{{1}}} {2}\n", name,
      labels, count_, sum_);
}

Metrics::Metrics(std::string model)
    : labels_(fmt::format("model_name=\"{}\"", escaped(model))),
      start_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()),
      first_token_({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160}),
      per_token_({0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5}),
      total_({0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}),
      queue_({0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120}) {}

void Metrics::finished(const RequestFacts& f) {
  const std::lock_guard lock(mutex_);
  ++reasons_[std::string(f.reason)];
  queue_.observe(f.queue);
  total_.observe(f.total);
  if (f.first_token > 0) first_token_.observe(f.first_token);
  if (f.generated_tokens > 1)
    per_token_.observe((f.total - f.first_token) / static_cast<double>(f.generated_tokens - 1));
}

void Metrics::http(std::string_view path, int status) {
  const std::lock_guard lock(mutex_);
  ++http_[{std::string(path), status}];
}

std::string Metrics::text(const EngineStats& s, const EngineConfig& config) const {
  std::string out;
  const auto value = [&](std::string_view name, std::string_view type, std::string_view help, auto v) {
    head(out, name, type, help);
    out += fmt::format("carat:{}{{{}}} {}\n", name, labels_, v);
  };
  value("num_requests_running", "gauge", "Requests that are computed now.", s.running);
  value("num_requests_waiting", "gauge", "Requests that wait for a slot.", s.waiting);
  value(
      "kv_cache_usage_perc", "gauge", "Share of the KV cache's pages in use; 1 is all.",
      s.kv_pages_total ? static_cast<double>(s.kv_pages_used) / static_cast<double>(s.kv_pages_total) : 0.0);
  value("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
        s.prefix.queries);
  value("prefix_cache_hits_total", "counter", "Prompt tokens found there and not read again.", s.prefix.hits);
  value("prefix_cache_bytes", "gauge", "Memory of the texts it keeps.", s.prefix.bytes);
  value("prompt_tokens_total", "counter", "Prompt tokens processed.", s.prompt_tokens);
  value("generation_tokens_total", "counter", "Tokens generated.", s.generated_tokens);
  value("engine_steps_total", "counter", "Steps of the engine.", s.steps);
  value("engine_busy_seconds_total", "counter", "Time spent in steps.", s.busy_seconds);
  value("engine_last_step_timestamp_seconds", "gauge", "When the engine last made progress.",
        fmt::format("{:.3f}", s.last_step_unix));
  value("start_time_seconds", "gauge", "When the server started.", fmt::format("{:.3f}", start_));
  if (!config.drafters.empty()) write_spec_metrics(out, s.spec, !config.spec.synthetic.empty(), labels_);
  const std::lock_guard lock(mutex_);
  head(out, "request_success_total", "counter", "Ended requests by reason.");
  for (const auto& [reason, n] : reasons_)
    out += fmt::format("carat:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_, reason, n);
  head(out, "http_requests_total", "counter", "Answers by endpoint and status.");
  for (const auto& [key, n] : http_)
    out += fmt::format("carat:http_requests_total{{{},handler=\"{}\",status=\"{}\"}} {}\n", labels_,
                       escaped(key.first), key.second, n);
  queue_.write(out, "request_queue_time_seconds", "Time spent waiting for a slot.", labels_);
  first_token_.write(out, "time_to_first_token_seconds", "From submission to the first token.", labels_);
  per_token_.write(out, "time_per_output_token_seconds", "Mean time between tokens of a request.", labels_);
  total_.write(out, "e2e_request_latency_seconds", "From submission to the last token.", labels_);
  return out;
}

}  // namespace carat
