// What lossless_test and its long form share: drafters that know the answer, lie or err, and runs of an
// engine with and without them.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace carat::test {

struct Outcome {
  std::vector<Token> tokens;
  std::vector<Logprobs> logprobs, prompt_logprobs;
  Finish finish = Finish::none;
  std::string error;
  std::shared_ptr<const SpecStats> spec;
  bool operator==(const Outcome& o) const;  // all but spec
};

// Submits all at once and waits for all.
std::vector<Outcome> run_all(Engine& engine, const std::vector<Request>& requests,
                             const std::function<void(size_t, uint64_t id)>& submitted = {});

// What a stream will say, and how a drafter twists it.
enum class Guess : uint8_t {
  oracle,     // the stream itself
  corrupted,  // the stream, with wrong tokens at random places
  random,     // tokens at random
  tree,       // the stream as one branch among wrong ones, at random places among them
  listener,   // nothing
};
struct Oracle {
  std::vector<std::vector<Token>> streams;  // prompt and output of plain decoding
  uint32_t vocab = 0;
};

// What reached a drafter of a committed position: bits of its hidden row and taps. The same for every way of
// decoding.
class HeardRows {
 public:
  // False if the position was heard before with other bits.
  bool same(std::span<const Token> prefix, uint64_t bits);
  size_t size() const { return rows_.size(); }

 private:
  std::map<std::vector<Token>, uint64_t> rows_;
};

// Follows what it is told, checks that every call keeps the contract of engine/speculate/drafter.h, and
// proposes as `guess` says. taps, hidden: what it asks for and hands to `heard`.
struct GuessOptions {
  Guess guess = Guess::oracle;
  std::vector<int32_t> taps = {};
  bool hidden = false;
  HeardRows* heard = nullptr;
  std::atomic<int>* broken = nullptr;  // contract violations are counted here
};
std::shared_ptr<Drafter> make_guesser(std::shared_ptr<const Oracle> oracle, GuessOptions options);

struct NamedDrafters {
  std::string name;
  std::vector<std::shared_ptr<Drafter>> drafters;
  SpecConfig config;
};
// Guessers of every kind, and every drafter that needs no weights. Add a line for a new one.
std::vector<NamedDrafters> all_drafters(const std::shared_ptr<const Oracle>& oracle,
                                        std::atomic<int>* broken);

// The ways to sample that must survive speculation.
struct NamedParams {
  std::string name;
  SampleParams params;
};
std::vector<NamedParams> all_params(bool every_sampler = true);

struct LosslessCount {
  int64_t runs = 0, tokens = 0, accepted = 0, different = 0;  // accepted: tokens that came as drafts
  int64_t steps = 0,
          turns = 0;  // of engines with more than one place; turns: requests that took part in them
};

// Every drafter, way to sample and batch size against plain decoding, over prompts that end by max_tokens;
// the first ones come again where the last batch would not be full. The first difference, or nothing.
struct LosslessPlan {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
  std::vector<std::vector<Token>> prompts;
  int32_t max_tokens = 0;
  std::vector<int32_t> batches{1, 3};
  DType cache_k = DType::f16, cache_v = DType::f16;
  // Before an engine is judged, some of its requests are cancelled half-way.
  bool cancels = false;
  // These in place of all_drafters(), made anew for every way to sample.
  std::function<std::vector<NamedDrafters>()> drafters = {};
  LosslessCount* count = nullptr;  // adds to it
  bool every_sampler = true;       // llama.cpp's, too
};
std::string check_lossless(const LosslessPlan& plan);

}  // namespace carat::test
