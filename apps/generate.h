// One request, waited for: what commands with one user need of the engine.
#pragma once
#include <atomic>
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace carat {

struct Generated {
  std::vector<Token> tokens;
  Finish finish = Finish::none;
  size_t prompt_tokens = 0;
  double prompt_seconds = 0, seconds = 0;  // until the first token; after it
  std::shared_ptr<const SpecStats> spec;   // if drafters are loaded
};

// Submits, calls on_event in the calling thread, returns when the request ended. Throws Error if it failed.
// Setting *stop cancels it.
Generated generate(Engine& engine, Request request, const std::function<void(const Event&)>& on_event,
                   const std::atomic<bool>* stop = nullptr);

// While one lives, SIGINT sets a flag instead of ending the program; a second SIGINT ends it.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  const std::atomic<bool>* flag() const;
  void clear();
};

}  // namespace carat
