// Which tokens a request may say next: grammars and schemas as the engine sees them. It knows tokens, not
// text.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"

namespace carat {

// One per request, on the engine's thread. Asked before every pick and told of it, so with drafts too it is
// where the path of accepted tokens has led.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Whether the mask is there, so that allowed() returns at once; waits up to `patience` for it. Another
  // thread may compute it, from the first call and from every picked() on: a late mask delays its own request
  // alone.
  virtual bool ready(std::chrono::microseconds /*patience*/) { return true; }
  // A bit per token, bit t % 64 of word t / 64; tokens behind the last word are banned. Never all zero. Valid
  // until the next call. Error if there is no telling: the request fails with it.
  virtual std::span<const uint64_t> allowed() = 0;
  virtual void picked(Token token) = 0;
  // Tokens that follow whatever is picked, as far as that is known; for drafters.
  virtual std::vector<Token> forced(size_t most) = 0;
};

}  // namespace carat
