// What the eval commands share: windows of tokens, and a sequence that is fed with them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/measurement.h"
#include "apps/open.h"
#include "base/error.h"
#include "model/stepper.h"

namespace carat {

inline EngineConfig f32_caches() {
  EngineConfig c;
  c.cache_k = c.cache_v = DType::f32;
  return c;
}

struct EvalOptions {
  OpenOptions open;
  std::string tokens, text;
  int32_t window = 512, chunk = 64, windows = -1, ubatch = 8192;
  EngineConfig cache = f32_caches();  // its formats
  MeasureFlags measure;
  int32_t rows() const { return std::min(chunk, ubatch); }  // of a step
  bool score_all = false, no_bos = false;
  bool chat = false;  // windows of a text stand in a chat turn, where the model has a chat format
};

// A sequence of its own: feeds tokens from position 0 and hands over logits.
class Feeder {
 public:
  Feeder(const Opened& opened, int32_t chunk, const KvFormats& formats, int32_t context)
      : stepper_(opened.backend, opened.model,
                 KvLimits{.context = context, .sequences = 1, .step_rows = std::min(chunk, context)},
                 formats) {}

  // f(position, logits), for positions >= from.
  template <class F>
  void feed(std::span<const Token> tokens, int32_t from, F&& f) {
    Sequence sequence(stepper_.pages());
    feed(sequence, tokens, from, f);
  }
  template <class F>
  void feed(Sequence& sequence, std::span<const Token> tokens, int32_t from, F&& f) {
    const auto n = static_cast<int32_t>(tokens.size()), chunk = stepper_.limits().step_rows;
    for (int32_t at = 0; at < n; at += chunk) {
      const int32_t rows = std::min(chunk, n - at), first = sequence.committed();
      CARAT_CHECK(sequence.append(rows));
      const bool wanted = first + rows > from;
      const Stepper::Part part{&sequence, tokens.subspan(at, rows),
                               wanted ? Stepper::Wanted::all : Stepper::Wanted::none};
      stepper_.run({&part, 1});
      for (int32_t i = 0; wanted && i < rows; ++i)
        if (first + i >= from) f(first + i, stepper_.logits(i));
      sequence.commit(rows);
    }
  }
  Stepper& stepper() { return stepper_; }

 private:
  Stepper stepper_;
};

std::vector<Token> read_tokens(const std::string& path);
int32_t check_length(const Opened& opened, size_t n);  // n, or Error if the model's context is shorter
std::vector<std::vector<Token>> windows_of(const EvalOptions& o, const Opened& opened);
// "K", "K/V" or "K/V/sliding K/sliding V"; behind it "+single": one copy of K = V, "+5=f16/f16": of layer 5,
// "+sinks=4", "+recent=128": KvFormats::protect.
KvFormats cache_formats(const std::string& name);
double log_sum_exp(std::span<const float> z);

void add_eval_common(CLI::App& app, EvalOptions& o);   // -m ..., caches, -b, -ub
void add_eval_windows(CLI::App& app, EvalOptions& o);  // -f, --tokens, -c, --chunks
// Formats to go through: those of names (--caches), or of the cache flags.
std::vector<KvFormats> formats_to_try(const std::vector<std::string>& names, const EvalOptions& o,
                                      const Opened& opened, int32_t context);
void add_eval_ppl(CLI::App& eval);
void add_eval_artefacts(CLI::App& eval);
void add_eval_kld(CLI::App& eval);
void add_eval_needle(CLI::App& eval);

}  // namespace carat
