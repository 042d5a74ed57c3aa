// What carat tune measures with: runs of carat bench and eval whose records are kept, and the last round, in
// which the settings that lead are measured against each other in turns.
#pragma once
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "measure/record.h"

namespace carat {

struct TuneOptions {
  std::string model, draft_model, device = "auto", prompts = "share/prompts.json", text, state = "tune",
                                  ini = "carat.ini";
  std::vector<int32_t> contexts{4096};
  std::vector<std::string> kinds{"code", "fiction", "dialogue"}, caches{"f16", "q8_0", "tq4", "tq3"},
      drafters;
  std::vector<int32_t> depths{1, 2, 4, 8};
  double minutes = 10, max_kld = 0.02;
  int32_t tokens = 48, repeats = 3;
};

using TuneArgs = std::vector<std::string>;

// Runs carat and keeps what it printed under a name of its arguments.
class TuneRunner {
 public:
  explicit TuneRunner(const TuneOptions& options);
  bool out_of_time() const { return std::chrono::steady_clock::now() > until_; }
  int measured() const { return measured_; }
  int reused() const { return reused_; }
  // Records of a run, the same one again in each round; none if the time is over or the run failed.
  std::vector<Record> run(TuneArgs args, int round = 0);

 private:
  const TuneOptions& o_;
  std::string hash_;
  std::chrono::steady_clock::time_point until_;
  int measured_ = 0, reused_ = 0;
};

// NaN if there is no such number.
double value_at(const Record& r, const char* pointer);
// "bench -m ... --cache-type-k ...": what all its runs of a model have.
TuneArgs bench_args(const TuneOptions& o, const std::string& cache, int threads);
bool is_network(const std::string& drafters);  // has one that is a file

// What serves: of one kind of text at one context.
struct Setting {
  int threads = 0;
  std::string cache, drafters, depth = "0";  // drafters: "" for none; depth: "4", "auto"
  std::string text() const;
  auto operator<=>(const Setting&) const = default;
};
struct Tried {
  std::vector<double> tok_s;  // of every round
  double joules = NAN, al = NAN;
  double median() const { return quantile(tok_s, 0.5); }
};
using Finals = std::map<Setting, Tried>;

constexpr int kFirstRounds = 2, kMostRounds = 24;

// Settings of one engine, which take turns in one process.
struct Finalists {
  int threads = 0;
  std::string cache;
  std::vector<std::string> drafters;
  std::vector<int32_t> depths;  // fixed ones
  double estimate = 0;          // tok/s of its best
};
// All of them behind so much text, there and back again: A B C C B A. Those that the time is over for are
// left out.
Finals measure_finals(TuneRunner& runner, const TuneOptions& o, int32_t context, const std::string& kind,
                      const std::vector<Finalists>& groups);
// One more round of the few settings that lead in `finals`: of dozens of noisy medians the highest is high by
// luck as well. Their rounds go to `again`, which is what to choose from. round: a number of its own.
void measure_leaders(TuneRunner& runner, const TuneOptions& o, int32_t context, const std::string& kind,
                     const Finals& finals, int round, Finals& again);
// Whether the fastest is at most 1.5 % slower than any other beyond what noise explains (two standard errors
// of rounds in pairs).
bool told_apart(const Finals& again);
// The fastest; of those that are as fast within the noise the simplest: no drafter before one, one that needs
// no file before a file's, the cache that is named first, fewer threads.
Finals::const_iterator choose_final(const Finals& finals, const TuneOptions& o);

}  // namespace carat
