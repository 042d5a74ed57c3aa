// Texts that are not read twice: what ended requests leave in pages, and checkpoints of the rest, from which
// requests with the same beginning start (docs/design.md, "Prefix reuse"). The engine's own; one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "model/stepper.h"
#include "state/prefix_tree.h"

namespace carat {

struct PrefixStats {
  uint64_t queries = 0, hits = 0;  // prompt tokens asked for and found
  int64_t bytes = 0, pages = 0, checkpoints = 0;
};

class PrefixCache {
 public:
  PrefixCache(std::shared_ptr<Backend> backend, Stepper& stepper, int64_t budget);
  ~PrefixCache();

  // What an empty sequence need not read of the prompt; at least its last token is left. shared: where other
  // texts will probably part from it. marks: positions, ascending, where the sequence should be kept while it
  // reads.
  int32_t begin(Sequence& sequence, std::span<const Token> prompt, std::span<const int32_t> shared,
                std::vector<int32_t>& marks);
  // tokens: those of all committed positions.
  void keep(const Sequence& sequence, std::span<const Token> tokens);
  // Whether it is time to keep the sequence, so that one can start at `position` later: rings forget.
  bool leaves(const Sequence& sequence, int32_t position) const;
  // Positions that a sequence with these tokens could start from.
  int32_t known(std::span<const Token> tokens) { return tree_.match(tokens).start; }
  // Puts all of the tokens into an empty sequence; false if not all of them are here.
  bool rebuild(Sequence& sequence, std::span<const Token> tokens);
  bool erase(std::span<const Token> tokens) { return tree_.erase(tokens); }
  PrefixStats stats() const;
  // Of the device, beside the pages.
  int64_t memory_bytes() const { return memory_ ? memory_->bytes() : 0; }
  // As PrefixTree has them.
  bool changed() const { return tree_.changed(); }
  PrefixChanges changes() { return tree_.changes(); }
  void tell_anew() { tree_.tell_anew(); }

 private:
  bool start(Sequence& sequence, const PrefixTree::Match& match);
  Checkpoint checkpoint(const Sequence& sequence);

  const std::shared_ptr<Backend> backend_;
  Stepper& stepper_;
  const int64_t budget_;
  const bool checkpoints_;
  std::unique_ptr<CheckpointMemory> memory_;  // null: the host's
  PrefixTree tree_;
  int32_t interval_ = 0;  // of marks in long prompts
  uint64_t queries_ = 0, hits_ = 0;
};

// Memory for it if nobody says: a part of what is free beside the plan.
int64_t default_prefix_bytes(const DeviceInfo& device, int64_t planned);
// Pages beyond those of the sequences' own contexts.
int32_t prefix_pages(int64_t budget, const KvPlan& plan, const KvLimits& limits);

}  // namespace carat
