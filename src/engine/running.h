// A request that has a sequence: the engine's own, private to its loop.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "state/sequence.h"

namespace carat {

struct Running {
  Running(uint64_t number, Request r)
      : id(number), request(std::move(r)), read_until(static_cast<int32_t>(request.prompt.size())) {
    history.add_prompt(request.prompt);
  }
  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t left_to_read() const { return read_until - sequence->committed(); }
  bool reads() const { return left_to_read() > 0; }
  // It lost its sequence: what was generated is read like a prompt, and nothing of it is told again.
  bool reads_again() const { return generated > 0 && reads(); }
  // Tokens to be read, from the next one on.
  std::span<const Token> next_tokens(int32_t rows) const {
    return history.tokens().subspan(static_cast<size_t>(sequence->committed()), static_cast<size_t>(rows));
  }
  std::span<const Token> committed_tokens() const {
    return history.tokens().first(static_cast<size_t>(sequence->committed()));
  }
  // Of its next n rows those that end in no picture that is read whole, and the fewest that it can read.
  int32_t whole_rows(int32_t n) const {
    const int32_t at = sequence->committed();
    const SoftRows* s = soft_at(request.soft, at + n);
    return s && s->whole && s->begin < at + n ? std::max(0, s->begin - at) : n;
  }
  int32_t least_rows() const {
    const SoftRows* s = reads() ? soft_at(request.soft, sequence->committed()) : nullptr;
    return s && s->whole ? s->end() - sequence->committed() : 1;
  }
  // Tokens that may follow the one picked last, which is not run yet.
  int32_t tokens_left() const {
    return request.max_tokens < 0 ? INT32_MAX : std::max(0, request.max_tokens - generated);
  }
  SpecStats spec_stats() const {
    SpecStats all = spec_before;
    if (spec) all.add(spec->stats());
    return all;
  }
  // Gives back what it holds of the device; it can begin again. A row whose pick is owed is run again then.
  void let_go() {
    spec_before = spec_stats();
    spec.reset();
    sequence.reset();
    opened = deaf = false;
    marks.clear();
    prompt_logprobs.clear();
    owed.reset();
    read_until = static_cast<int32_t>(history.tokens().size()) - (generated > 0 ? 1 : 0);
  }

  uint64_t id;
  Request request;
  int32_t read_until;  // positions to be read before it generates
  std::optional<Sequence> sequence;
  History history;
  std::unique_ptr<SpecSession> spec;  // behind the sequence it reads; null: nobody drafts for it
  SpecStats spec_before;              // of sessions that are gone
  bool greeted = false, opened = false, deaf = false;  // deaf: its drafter failed
  int32_t prompt_done = 0, generated = 0;
  int32_t slot = -1;           // where its text is left when it ends
  int32_t cached = 0;          // prompt tokens that another request has read
  std::vector<int32_t> marks;  // ascending: where its steps end while it reads, to be kept (prefix_cache.h)
  bool prompt_kept = false;
  Token next = -1;  // picked, not yet run
  struct Owed {
    std::vector<float> logits;
    int32_t pos;
  };
  std::optional<Owed> owed;  // all is run, but its mask was late: picked before one of the next steps
  std::vector<Logprobs> prompt_logprobs;
  Event event;  // of this step
  bool tell = false;
};

// The request's last event, for a failure; what the event holds already stays.
void fail(Event& event, const std::exception& e);

}  // namespace carat
