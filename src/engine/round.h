// One step of all running requests: prompt chunks are read, drafts are made and verified, tokens are picked
// (docs/design.md, "A round"). Tokens come from `pick` alone; a draft decides how many rows a step runs.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>

#include "engine/running.h"
#include "engine/scheduler.h"
#include "engine/speculate/speculator.h"
#include "model/stepper.h"

namespace carat {

class Rounds {
 public:
  // speculator: null if there are no drafters.
  Rounds(Stepper& stepper, Speculator* speculator, const EngineConfig& config)
      : stepper_(stepper), spec_(speculator), config_(config) {}

  // Before the first request: shows the speculator what steps cost if it chooses by cost, and takes a step of
  // one row where first runs are slow.
  void profile();
  // Between requests: another speculator, which is shown costs when it comes for the first time.
  void use(Speculator* speculator);
  // One step in two halves: chosen, drafted and under way; done, and each request's event says what came of
  // it. False: there is nothing to run, as all wait for masks. Throws what the device throws.
  bool begin(std::span<const std::unique_ptr<Running>> running, EngineStats& stats);
  void end(EngineStats& stats);

 private:
  // A request's part of the step.
  struct Seat {
    Running* request = nullptr;
    int32_t rows = 0;
    int32_t first_row = 0, first_out = 0;  // of the step's
    int32_t turn = -1;                     // it generates, with a drafter: index into turns_
    std::vector<Token> tokens;             // where it generates: the anchor and the draft
    std::vector<int32_t> parents;          // of a tree
    std::vector<const float*> soft;        // where it reads pictures (Stepper::Part)
    std::vector<int32_t> place;            // behind pictures, too, where positions have axes
  };

  void seat(std::span<const std::unique_ptr<Running>> running);
  int32_t most_rows(const Running& r) const;
  void keep_whole(std::span<const std::unique_ptr<Running>> running, std::vector<int32_t>& rows) const;
  void share_pages(std::span<const std::unique_ptr<Running>> running, std::vector<int32_t>& rows);
  void open(Running& r);
  void draft();
  void admit(Seat& seat, int32_t& spare);
  void stand(Seat& seat, Stepper::Part& part) const;
  void run();
  void finish(Seat& seat, EngineStats& stats);
  void read(Seat& seat, EngineStats& stats);
  void walk(Seat& seat, EngineStats& stats);
  void take_prompt_logprobs(const Seat& seat);
  bool settle(std::span<const std::unique_ptr<Running>> running, EngineStats& stats);
  bool late(TokenMask* mask) const;
  Token take_pick(Seat& seat, int32_t row, int32_t depth, EngineStats& stats);
  // logits: what log probabilities and Mirostat look at; empty where neither is asked for.
  void took(Running& r, Token token, std::span<const float> logits, std::span<const uint64_t> allowed,
            int32_t pos, EngineStats& stats);
  void tell_drafters(const Seat& seat, int32_t pos, std::span<const int32_t> rows);

  Stepper& stepper_;
  Speculator* spec_;
  const EngineConfig& config_;
  std::vector<Seat> seats_;
  std::vector<Turn> turns_;
  // When this step began, was drafted and started, and when the last one ended; seconds of its picks.
  double began_ = 0, drafted_ = 0, started_ = 0, ended_ = 0, sample_seconds_ = 0;
  std::chrono::steady_clock::time_point patience_ends_;  // with masks that are late, of this step
  StepCost cost_;
  PageCount spare_pages_;  // beyond those the step has been promised
  bool broken_ = false;    // a drafter failed
  // As many requests generate as a step may verify rows: drafters are neither asked nor given hidden states.
  bool crowded_ = false;
};

}  // namespace carat
