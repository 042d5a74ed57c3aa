// Requests to a running server from many clients at once, timed: carat load. Names and meanings are those of
// `vllm bench serve`.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace carat {

struct LoadOptions {
  std::string url, key, model;  // url: http://HOST:PORT, with or without /v1
  int32_t input = 512, output = 128;
  int32_t shared = 0;    // tokens at the beginning, beside `input`, that all prompts have in common
  int32_t vocab = 1024;  // prompts are random token ids from 256 to below it
  int32_t streams = 8;   // at most so many at once
  int32_t requests = 32;
  double rate = 0;  // arrivals a second, at random; 0: as soon as a stream is free
  uint64_t seed = 0;
  // Milliseconds that a good request stays under; 0: no limit.
  double good_ttft = 0, good_tpot = 0, good_e2el = 0;
};

// Of one request, in milliseconds.
struct LoadSample {
  int32_t prompt = 0, output = 0;  // tokens, as the server counts them
  double ttft = 0, e2el = 0;       // from sending to the first token, and to the last
  std::vector<double> itl;         // between events that bring text
  std::string error;               // empty: it was answered
  double tpot() const { return output > 1 ? (e2el - ttft) / (output - 1) : 0; }
};

struct LoadResult {
  double seconds = 0;  // from the first request to the end of the last
  std::vector<LoadSample> samples;
};

// At least one request. Error if no request was answered. tick(done): now and then.
LoadResult run_load(const LoadOptions& options, const std::function<void(int32_t)>& tick);

}  // namespace carat
