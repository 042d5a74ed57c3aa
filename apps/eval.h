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
  // soft, place: rows of pictures for the tokens that are fed, and where they stand (Stepper::Part), or none.
  Feeder(const Opened& opened, int32_t chunk, const KvFormats& formats, int32_t context,
         std::span<const float* const> soft = {}, std::span<const int32_t> place = {})
      : stepper_(opened.backend, opened.model,
                 KvLimits{.context = context,
                          .sequences = 1,
                          .step_rows = std::max(std::min(chunk, context), longest_block(opened, soft))},
                 formats),
        chunk_(std::min(chunk, context)),
        soft_(soft),
        place_(place) {}

  // f(position, logits), for positions >= from.
  template <class F>
  void feed(std::span<const Token> tokens, int32_t from, F&& f) {
    Sequence sequence(stepper_.pages());
    feed(sequence, tokens, from, f);
  }
  template <class F>
  void feed(Sequence& sequence, std::span<const Token> tokens, int32_t from, F&& f) {
    const auto n = static_cast<int32_t>(tokens.size());
    for (int32_t at = 0, rows; at < n; at += rows) {
      rows = take(at, n);
      const int32_t first = sequence.committed();
      CARAT_CHECK(sequence.append(rows));
      const bool wanted = first + rows > from;
      const Stepper::Part part{&sequence,
                               tokens.subspan(at, rows),
                               wanted ? Stepper::Wanted::all : Stepper::Wanted::none,
                               {},
                               soft_.empty() ? soft_ : soft_.subspan(at, rows),
                               place_.empty() ? place_ : place_.subspan(3 * at, 3 * rows)};
      stepper_.run({&part, 1});
      for (int32_t i = 0; wanted && i < rows; ++i)
        if (first + i >= from) f(first + i, stepper_.logits(i));
      sequence.commit(rows);
    }
  }
  Stepper& stepper() { return stepper_; }

 private:
  static int32_t longest_block(const Opened& opened, std::span<const float* const> soft) {
    int32_t longest = 0, run = 0;
    for (const float* row : soft) longest = std::max(longest, run = row ? run + 1 : 0);
    return opened.model->spec.blocks ? longest : 0;
  }
  // Rows of the step that begins at `at`; a picture that must be whole is not cut.
  int32_t take(int32_t at, int32_t n) const {
    int32_t end = std::min(n, at + chunk_);
    const auto inside = [&](int32_t i) { return i > at && i < n && soft_[i - 1] && soft_[i]; };
    if (soft_.empty() || !stepper_.model().spec.blocks || !inside(end)) return end - at;
    const int32_t far = end;
    while (inside(end)) --end;
    if (end > at) return end - at;
    for (end = far; inside(end);) ++end;
    return end - at;
  }
  Stepper stepper_;
  int32_t chunk_;
  std::span<const float* const> soft_;
  std::span<const int32_t> place_;
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
// --caches, behind add_cache_flags(); `does`: what the command does with them.
void add_caches_flag(CLI::App& app, std::vector<std::string>& caches, const std::string& does);
std::vector<KvFormats> formats_to_try(const std::vector<std::string>& names, const EvalOptions& o,
                                      const Opened& opened, int32_t context);
void add_eval_ppl(CLI::App& eval);
void add_eval_artefacts(CLI::App& eval);
void add_eval_kld(CLI::App& eval);
void add_eval_needle(CLI::App& eval);

}  // namespace carat
