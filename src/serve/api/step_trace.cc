#include "serve/api/step_trace.h"

#include <algorithm>

namespace carat {
namespace {

const SpecShare* share_of(const SpecStats& s, const std::string& drafter) {
  const auto at = std::ranges::find(s.shares, drafter, &SpecShare::drafter);
  return at == s.shares.end() ? nullptr : &*at;
}

}  // namespace

void StepTrace::add(const Event& e, const std::function<std::string(Token)>& text_of) {
  if (e.tokens.empty()) return;
  Json step = {{"tokens", Json::array()}};
  for (const Token t : e.tokens) step["tokens"].push_back(text_of(t));
  if (e.spec) {
    for (const SpecShare& now : e.spec->shares) {
      const SpecShare* old = share_of(before, now.drafter);
      if (now.rounds == (old ? old->rounds : 0)) continue;
      step["drafter"] = now.drafter;
      step["drafted"] = now.drafted - (old ? old->drafted : 0);
      step["accepted"] = now.accepted - (old ? old->accepted : 0);
    }
    before = *e.spec;
    for (const Token t : e.rejected) step["rejected"].push_back(text_of(t));
  }
  fresh.push_back(std::move(step));
}

}  // namespace carat
