// Speculation as the engine's loop sees it: all loaded drafters, which of them drafts, and how far. A round:
// draft() fills the turns; the loop verifies what stands in them, commits, emits, and calls verified(). What
// is drafted never changes what is emitted, only how fast.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/speculate/drafter.h"

namespace carat {

constexpr int32_t kMaxDraft = 64;  // tokens on a path

struct SpecConfig {
  bool adaptive = true;    // choose drafter and depth by cost and acceptance; else draft_max, first non-empty
  int32_t draft_max = 15;  // tokens on a path
  int32_t draft_min = 0;   // shorter drafts are dropped
  int32_t tree_nodes = 0;  // > draft_max: trees of so many nodes from drafters that can
  int32_t max_rows = 16;   // of verification in a step, anchors included; more sequences: no drafts
  float p_min = 0;         // a path ends before a token less probable to the drafter
  DraftRule rule = DraftRule::keyed;
  // Accept by rejection sampling (Leviathan et al., arXiv 2211.17192) instead of by equality with `pick`: the
  // same law, other tokens than without a drafter. For comparison of acceptance only.
  bool rejection = false;
  // Positions i = 1.. are accepted with these probabilities (of all rounds, not given the ones before),
  // whatever the model says: for measuring speed on weights that mean nothing.
  std::vector<float> synthetic;
  std::function<double()> clock;  // seconds; null: the real one
};

// One drafter's part in it.
struct SpecShare {
  std::string drafter;  // its name
  uint64_t rounds = 0, drafted = 0, accepted = 0;
};

// What speculation did for one request, or for all of them.
struct SpecStats {
  uint64_t rounds = 0;  // verified drafts; rounds without a draft are not counted
  uint64_t plain = 0;   // steps without one
  uint64_t drafted = 0, accepted = 0;
  std::array<uint64_t, kMaxDraft> drafted_at{}, accepted_at{};  // by place on the path, from 0
  std::array<uint64_t, kMaxDraft> tried_at{};  // drafts that hold the place, all before it accepted
  double draft_seconds = 0, verify_seconds = 0, sample_seconds = 0;
  std::vector<SpecShare> shares;  // of the drafters that had a draft verified
  void add(const SpecStats& other);
  // Mean tokens per step of the target: 1 is plain decoding.
  double accepted_length() const;
};

class SpecSession;  // one request's

// One sequence's turn in a round.
struct Turn {
  SpecSession* session = nullptr;
  const History* history = nullptr;  // its last token is the anchor
  int32_t pos = 0;                   // the anchor's position
  int32_t room = 0;                  // tokens that may be drafted at the most: context and max_tokens
  std::vector<Token> forced;         // what its grammar leaves no choice about
  Proposal draft;                    // to be verified; empty: decode plainly
  int32_t drafter = -1;              // whose it is
  int32_t emitted = 0;               // set by the loop: tokens that the round added to the history
};

// One step of the target, for the cost model.
struct StepFacts {
  int32_t rows = 0;     // of all sequences
  bool prompt = false;  // some of them read a prompt: says nothing about decoding
  double verify_seconds = 0, sample_seconds = 0;
  double host_seconds = 0;  // beside these and drafting, since the step before
};

class Speculator {
 public:
  Speculator(std::vector<std::shared_ptr<Drafter>> drafters, const SpecConfig& config);
  ~Speculator();
  const SpecConfig& config() const;
  std::span<const int32_t> taps() const;  // of all drafters, ascending
  bool wants_hidden() const;
  bool wants_forced() const;               // somebody drafts what grammars force
  std::string names() const;               // "mtp,suffix"
  void attach(const DraftTarget& target);  // once, before the first session
  int64_t memory_bytes() const;

  // For a request whose sequence in the target is `target`, which outlives the session.
  std::unique_ptr<SpecSession> open(const Sequence& target, const SampleParams& params);
  // A step of so many rows took so long, when the engine tried it before the first request: saves the
  // controller from trying it itself. profile_rows() are worth trying, fewest first.
  void measured(int32_t rows, double seconds);
  bool any_measured() const;
  std::vector<int32_t> profile_rows(int32_t sequences) const;
  void rehearse();  // after that: lets the drafters that can show what a draft costs
  void resume();    // its drafters may have served another speculator since

  void draft(std::span<Turn> turns);
  // The same turns after the step; histories hold what was emitted.
  void verified(std::span<const Turn> turns, const StepFacts& facts);
  SpecStats totals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class SpecSession {
 public:
  struct Impl;
  explicit SpecSession(std::unique_ptr<Impl> impl);
  ~SpecSession();
  // After every commit. rows.taps are Speculator::taps() per row.
  void committed(const CommittedRows& rows);
  const SpecStats& stats() const;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Proposes tokens without meaning, for synthetic acceptance where no drafter is loaded.
std::unique_ptr<Drafter> make_synthetic_drafter();

// Proposes what a request's grammar leaves no choice about ("grammar").
std::unique_ptr<Drafter> make_grammar_drafter();

// What verification sees in place of `picked`, the target's own token, under SpecConfig::synthetic: the
// draft's token at depth `depth` (1: behind the anchor) or one that differs from it. A function of (seed,
// pos).
Token synthetic_pick(const SpecConfig& config, uint64_t seed, int64_t pos, int32_t depth, Token drafted,
                     Token picked, int32_t vocab);

}  // namespace carat
