// A request that has a sequence: the engine's own, private to its loop.
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "state/sequence.h"

namespace carat {

struct Running {
  Running(uint64_t number, Request r, PagePool& pool) : id(number), request(std::move(r)), sequence(pool) {
    history.add_prompt(request.prompt);
  }
  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  bool reads() const { return prompt_done < prompt_size(); }
  std::span<const Token> committed_tokens() const {
    return history.tokens().first(static_cast<size_t>(sequence.committed()));
  }
  bool reads_last(int32_t rows) const { return prompt_done + rows == prompt_size(); }
  // Tokens that may follow the one picked last, which is not run yet.
  int32_t tokens_left() const {
    return request.max_tokens < 0 ? INT32_MAX : std::max(0, request.max_tokens - generated);
  }

  uint64_t id;
  Request request;
  Sequence sequence;
  History history;
  std::unique_ptr<SpecSession> spec;  // behind the sequence it reads; null: nobody drafts for it
  bool greeted = false, opened = false, deaf = false;  // deaf: its drafter failed
  int32_t prompt_done = 0, generated = 0;
  int32_t cached = 0;          // prompt tokens that another request has read
  std::vector<int32_t> marks;  // ascending: where its steps end while it reads, to be kept (prefix_cache.h)
  bool prompt_kept = false;
  Token next = -1;  // picked, not yet run
  std::vector<Logprobs> prompt_logprobs;
  Event event;  // of this step
  bool tell = false;
};

// The request's last event, for a failure; what the event holds already stays.
void fail(Event& event, const std::exception& e);

}  // namespace carat
