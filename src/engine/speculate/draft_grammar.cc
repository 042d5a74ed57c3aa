// What a grammar leaves no choice about, as a draft. The text is certain, its tokens are nearly so: the model
// may cut the same text elsewhere, most likely where the forced part ends and a longer token reaches beyond.
#include <algorithm>

#include "engine/speculate/speculator.h"

namespace carat {
namespace {

constexpr float kInside = 1, kLast = 0.9F;  // classes of confidence; what they are worth is learnt

class GrammarDrafter : public Drafter {
 public:
  std::string_view name() const override { return "grammar"; }
  int32_t max_depth() const override { return kMaxDraft; }
  bool wants_forced() const override { return true; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    return std::make_unique<NoMemory>();
  }
  void propose(std::span<DraftAsk> asks) override {
    for (DraftAsk& ask : asks) {
      ask.out = {};
      const size_t n = std::min(ask.forced.size(), static_cast<size_t>(std::max(0, ask.max_depth)));
      ask.out.token.assign(ask.forced.begin(), ask.forced.begin() + static_cast<std::ptrdiff_t>(n));
      ask.out.confidence.assign(n, kInside);
      if (n > 0 && n == ask.forced.size()) ask.out.confidence.back() = kLast;
    }
  }
};

}  // namespace

std::unique_ptr<Drafter> make_grammar_drafter() { return std::make_unique<GrammarDrafter>(); }

}  // namespace carat
