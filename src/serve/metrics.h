// Counters in Prometheus's text format (exposition formats, version 0.0.4).
#pragma once
#include <array>
#include <cstdint>
#include <map>
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
  void observe(double value);
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
};

class Metrics {
 public:
  explicit Metrics(std::string model);
  void finished(const RequestFacts& facts);
  void http(std::string_view path, int status);
  std::string text(const EngineStats& stats, const EngineConfig& config) const;

 private:
  const std::string labels_;
  const double start_;
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> reasons_;
  std::map<std::pair<std::string, int>, uint64_t> http_;
  Histogram first_token_, per_token_, total_, queue_;
};

}  // namespace carat
