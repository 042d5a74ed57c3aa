// What the speculator's parts share: its own state and that of a request. Private to spec_choice.cc, which
// decides, spec_outcome.cc, which sees what came of it, and speculator.cc, which asks drafters and keeps the
// books.
#pragma once
#include <deque>

#include "engine/speculate/depth.h"
#include "engine/speculate/speculator.h"

namespace carat {

constexpr int32_t kFirstDepth = 3;  // of a drafter whose cost nobody knows

// A proposal of which the text has not yet said everything.
struct Open {
  Proposal draft;
  size_t next;  // history place of the tokens below `node`
  int32_t node = -1, depth = 0;
};

// One drafter's side of one request.
struct Guest {
  Guest(std::unique_ptr<DraftSession> s, const Acceptance* general)
      : session(std::move(s)), acceptance(general) {}
  std::unique_ptr<DraftSession> session;
  Acceptance acceptance;
  std::deque<Open> open;
};

// What all requests have taught about one drafter.
struct Known {
  std::shared_ptr<Drafter> drafter;
  DraftCost cost;
  Acceptance acceptance;
  std::vector<size_t> taps;  // its taps' places among all
  uint64_t asked = 0;        // round in which it was last
  double saved = 0;          // time, in plain steps of one row, that may be lost by asking it
  bool rests = false;        // it has been told that nobody will ask soon
  void rest(bool now) { drafter->rest(rests = now); }
};

// Whom to ask how far, before anything is known of what will be said.
struct Plan {
  std::vector<int32_t> depth;  // by turn
  double gain = -1e9;          // tokens, over not asking
};

// Tokens per unit of time (StepCost's level) that steps of so many sequences bring.
struct Rate {
  double tokens = 0, time = 0;
};

struct SpecSession::Impl {
  std::vector<Guest> guests;  // in the drafters' order
  const std::vector<Known>* known = nullptr;
  size_t all_taps = 0;
  SampleParams sample;
  SpecStats stats;
};

struct Speculator::Impl {
  explicit Impl(const SpecConfig& c) : config(c), cost(std::min(c.max_rows, StepCost::kRows)) {}
  SpecConfig config;
  std::vector<Known> known;
  std::vector<int32_t> taps;
  bool hidden = false;
  StepCost cost;
  std::vector<Rate> rates;  // by sequences
  SpecStats totals;
  uint64_t round = 0;
  double draft_seconds = 0;  // of this round
  double expected = 0;       // tokens of this round that drafts should bring
  bool looking = false;      // this round is plain to see what that costs
  double saved = 0;          // as Known::saved, for that

  bool synthetic() const { return !config.synthetic.empty(); }
  double time() const;
  double rate(int32_t sequences) const;
  bool look_at_plain(int32_t sequences);
  int32_t room(const Turn& t, int32_t sequences) const;
  void ask(size_t drafter, std::span<Turn> turns, std::span<const int32_t> depth, std::vector<Proposal>& out);
  void take_first(std::span<Turn> turns);
  void choose(std::span<Turn> turns);
  void offer(size_t drafter, std::span<Turn> turns, std::vector<Proposal>& asked, std::vector<double>& value);
  Plan plan(size_t drafter, std::span<const Turn> turns, std::span<const double> value) const;
  bool hopeless(size_t drafter, int32_t sequences, int32_t most) const;
  bool rehearse(size_t drafter, int32_t depth);
  bool worth_asking(size_t drafter, std::span<const Turn> turns, const Plan& plan);
  void cut(std::span<Turn> turns);
  void drop_short(std::span<Turn> turns) const;
  void resolve(SpecSession::Impl& session, std::span<const Token> history);
  void count(const Turn& t, const StepFacts& facts, SpecStats& stats) const;
};

}  // namespace carat
