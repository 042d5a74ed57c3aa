// A drafter for SpecConfig::synthetic when no other is loaded: costs nothing, knows nothing.
#include <algorithm>

#include "base/rng.h"
#include "engine/speculate/speculator.h"

namespace carat {
namespace {

class SyntheticDrafter : public Drafter {
 public:
  std::string_view name() const override { return "synthetic"; }
  int32_t max_depth() const override { return kMaxDraft; }
  void attach(const DraftTarget& target) override { vocab_ = target.model->spec.vocab; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    return std::make_unique<NoMemory>();
  }
  void propose(std::span<DraftAsk> asks) override {
    for (DraftAsk& ask : asks) {
      ask.out = {};
      for (int32_t i = 0; i < ask.max_depth; ++i) {
        const double u = uniform_noise(1, static_cast<uint64_t>(ask.pos) + static_cast<uint64_t>(i), 0);
        // Control tokens stand at the vocabulary's ends.
        ask.out.token.push_back(static_cast<Token>((0.25 + 0.5 * u) * vocab_));
      }
    }
  }

 private:
  int32_t vocab_ = 1;
};

}  // namespace

std::unique_ptr<Drafter> make_synthetic_drafter() { return std::make_unique<SyntheticDrafter>(); }

Token synthetic_pick(const SpecConfig& config, uint64_t seed, int64_t pos, int32_t depth, Token drafted,
                     Token picked, int32_t vocab) {
  const auto at = static_cast<size_t>(depth - 1);
  const Token other = picked == drafted ? (picked + 1) % vocab : picked;
  if (at >= config.synthetic.size()) return other;
  const double above = at == 0 ? 1 : config.synthetic[at - 1];
  const double p = above > 0 ? config.synthetic[at] / above : 0;
  // Another stream than the sampler's, whose tokens are never negative.
  return uniform_noise(seed, static_cast<uint64_t>(pos), ~uint32_t{0}) < p ? drafted : other;
}

}  // namespace carat
