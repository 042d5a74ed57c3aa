#include "engine/speculate/spec_rejection.h"

#include <algorithm>

#include "base/rng.h"

namespace carat {
namespace {

// Streams of noise that no token has.
constexpr uint32_t kAccept = ~uint32_t{1}, kDraw = ~uint32_t{2};

}  // namespace

Token accept_or_draw(std::span<const float> law, std::span<const float> guess, Token drafted, double accept,
                     double draw) {
  const auto at = static_cast<size_t>(drafted);
  const auto guessed = [&](size_t t) {
    if (guess.empty()) return t == at ? 1.0 : 0.0;
    return t < guess.size() ? double{guess[t]} : 0.0;  // it may know fewer tokens
  };
  if (accept * guessed(at) < law[at]) return drafted;
  const auto rest = [&](size_t t) { return std::max(0.0, double{law[t]} - guessed(t)); };
  double sum = 0;
  for (size_t t = 0; t < law.size(); ++t) sum += rest(t);
  double left = draw * sum;
  Token last = drafted;  // nothing is left if both laws are the same
  for (size_t t = 0; t < law.size() && left >= 0; ++t) {
    if (rest(t) <= 0) continue;
    last = static_cast<Token>(t);
    left -= rest(t);
  }
  return last;
}

Token reject_or_keep(std::span<const float> logits, const SampleParams& params, const History& history,
                     int64_t pos, const Proposal& draft, int32_t row) {
  const auto at = static_cast<size_t>(row);
  if (!draft.parent.empty() || at >= draft.token.size()) return -1;
  const std::vector<float> law = distribution(logits, params, history, pos);
  std::span<const float> guess;
  if (!draft.law.empty()) guess = draft.law[at];
  const auto place = static_cast<uint64_t>(pos);
  return accept_or_draw(law, guess, draft.token[at], uniform_noise(params.seed, place, kAccept),
                        uniform_noise(params.seed, place, kDraw));
}

}  // namespace carat
