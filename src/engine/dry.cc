#include "engine/dry.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace carat {
namespace {

// Tokens at the end of the text behind the last breaker: no repeat that counts is longer.
size_t unbroken(std::span<const Token> text, const DryBreakers* breakers) {
  if (!breakers) return text.size();
  for (size_t n = 0; n < text.size(); ++n) {
    const std::span<const Token> before = text.first(text.size() - n);
    if (breakers->breaks(before.back())) return n;
    for (const std::vector<Token>& s : breakers->sequences)
      if (s.size() <= before.size() &&
          std::equal(s.begin(), s.end(), before.end() - static_cast<long>(s.size())))
        return n;
  }
  return text.size();
}

// common[k]: how many tokens before the last k are the same as at the text's end, counted backwards (the
// Z-function of the reversed text).
void common_ends(std::span<const Token> text, std::vector<int32_t>& common) {
  const auto n = static_cast<int32_t>(text.size());
  const auto back = [&](int32_t i) { return text[static_cast<size_t>(n - 1 - i)]; };
  common.assign(text.size(), 0);
  int32_t left = 0, right = 0;  // the stretch that reaches furthest
  for (int32_t k = 1; k < n; ++k) {
    int32_t z = k < right ? std::min(right - k, common[static_cast<size_t>(k - left)]) : 0;
    while (k + z < n && back(z) == back(k + z)) ++z;
    common[static_cast<size_t>(k)] = z;
    if (k + z > right) left = k, right = k + z;
  }
}

}  // namespace

void penalize_repeats(std::span<float> logits, const SampleParams& p, const History& history) {
  std::span<const Token> text = history.tokens();
  if (p.dry_penalty_last_n >= 0 && text.size() > static_cast<size_t>(p.dry_penalty_last_n))
    text = text.last(static_cast<size_t>(p.dry_penalty_last_n));
  const auto most = static_cast<int32_t>(unbroken(text, p.dry_breakers.get()));
  if (most < p.dry_allowed_length) return;
  thread_local std::vector<int32_t> common;
  common_ends(text, common);
  std::unordered_map<Token, int32_t> longest;  // repeat that each token would go on with
  for (size_t k = 1; k < text.size(); ++k) {
    const int32_t length = std::min(common[k], most);
    if (length < p.dry_allowed_length) continue;
    int32_t& known = longest[text[text.size() - k]];
    known = std::max(known, length);
  }
  constexpr double kMost = 1e30;  // floats end a little above
  for (const auto& [token, length] : longest) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    if (p.dry_breakers && p.dry_breakers->breaks(token)) continue;
    const double loss = p.dry_multiplier * std::pow(double{p.dry_base}, length - p.dry_allowed_length);
    logits[static_cast<size_t>(token)] -= static_cast<float>(std::min(loss, kMost));
  }
}

}  // namespace carat
