// Counters in Prometheus's text format (exposition formats, version 0.0.4). What vLLM has too goes by vLLM's
// name (docs.vllm.ai, "Production metrics"), so that dashboards, autoscalers and gateways made for it work;
// the rest is carat:.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace carat {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value, uint64_t times = 1);
  void write(std::string& out, std::string_view name, std::string_view help, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
  uint64_t count_ = 0;
};

// What one finished request (one choice of it) was like.
struct RequestFacts {
  std::string_view reason;  // "stop", "length", "tool_calls", "abort", "error"
  int64_t prompt_tokens = 0, generated_tokens = 0;
  double queue = 0, first_token = 0, total = 0;  // seconds since it was submitted; first_token 0: none came
  double last_token = 0;                         // likewise
  int64_t cached_tokens = 0;                     // of the prompt's
  int64_t max_tokens = 0;                        // that it could have generated
};

// One request (one choice of it) under way, as /slots shows it.
struct LiveRequest {
  std::string id;
  int64_t prompt_tokens = 0;
  std::atomic<int64_t> generated_tokens{0};
  std::atomic<int32_t> slot{-1};
  std::atomic<bool> running{false};  // else it waits
};

// Answers by endpoint and status.
class HttpCounters {
 public:
  void count(std::string_view path, int status);
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> answers_;
};

// Texts of several models as one: what has the same name stands together, as the format demands.
std::string merge_metrics(const std::vector<std::string>& texts);
// Of the process; start: seconds since 1970.
std::string process_metrics(double start);
// vLLM's account of adapters, of which there are none. One line a server, as it does not name the model.
std::string adapter_metrics(double start);
std::string energy_metrics(double joules);

class Metrics {
 public:
  struct Tally {  // of requests that have ended
    uint64_t requests = 0, errors = 0;
    double tokens = 0, seconds = 0;  // behind each one's first token
  };

  // version: another label, if it is not 0.
  explicit Metrics(std::string model, int version = 0);
  Tally tally() const;
  void forget();  // the tally begins anew
  // In the list of live() as long as somebody else keeps it.
  std::shared_ptr<LiveRequest> begin(std::string id, int64_t prompt_tokens);
  std::vector<std::shared_ptr<const LiveRequest>> live() const;
  void finished(const RequestFacts& facts);
  std::function<double()> joules;  // as in ServeConfig
  // All choices of one request have ended: how many there were, and the most tokens that one generated.
  void all_finished(int64_t choices, int64_t most_generated);
  // Tokens that came together, and what time has passed since the ones before.
  void tokens(int64_t count, double seconds);
  std::string text(const EngineStats& stats, const EngineConfig& config) const;

 private:
  void write_engine(std::string& out, const EngineStats& stats, const EngineConfig& config) const;

  const std::string labels_;
  const double start_;
  mutable std::mutex mutex_;
  Tally tally_;
  std::map<std::string, uint64_t, std::less<>> reasons_;
  mutable std::vector<std::weak_ptr<LiveRequest>> live_;
  Histogram first_token_, per_token_, between_tokens_, total_, queue_, prefill_, decode_, inference_;
  Histogram prompt_sizes_, answer_sizes_, computed_, most_tokens_, most_generated_, choices_;
};

}  // namespace carat
