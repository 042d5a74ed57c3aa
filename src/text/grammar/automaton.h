// A grammar at work: the set of everything it may be doing after some bytes, as one number. A configuration
// is grammar states with the stacks of rules to return to; stacks that share a top are merged, so a
// configuration is never larger than the grammar, however ambiguous. Equal configurations have equal numbers,
// transitions are remembered: a deterministic automaton, built where text goes (Lang 1974; Tomita's shared
// stacks).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"

namespace carat {

class GrammarAutomaton {
 public:
  using Config = int32_t;
  using Stack = int32_t;
  static constexpr Config kDead = 0;  // nothing goes on, and nothing has ended
  struct Entry {
    int32_t state;
    Stack stack;
  };

  explicit GrammarAutomaton(std::shared_ptr<const Grammar> grammar);
  Config start();
  Config local(int32_t state);  // in this state, nothing known of what is around
  Config only(std::span<const Entry> entries);
  Config returned(Stack stack);  // after the rule on top of this stack has ended
  Config step(Config c, uint8_t byte_class) {
    const int32_t known = tables_.empty() || table_of_[static_cast<size_t>(c)] < 0
                              ? -1
                              : tables_[static_cast<size_t>(table_of_[static_cast<size_t>(c)]) + byte_class];
    return known >= 0 ? known : compute(c, byte_class);
  }
  Config step_bytes(Config c, std::string_view bytes);
  // Entries that can take a byte, by state.
  std::span<const Entry> entries(Config c) const {
    const Shape& s = shapes_[static_cast<size_t>(c)];
    return std::span(entries_).subspan(s.first, s.count);
  }
  bool ended(Config c) const { return shapes_[static_cast<size_t>(c)].ended; }      // all is said
  bool escaped(Config c) const { return shapes_[static_cast<size_t>(c)].escaped; }  // left what local() knows
  const Grammar& grammar() const { return *grammar_; }
  size_t size() const { return shapes_.size(); }

  // Work so far, in units of about 20 ns: the same on every machine, so that a request which is too much is
  // too much everywhere. Where more than limit_to() is spent, or the automaton outgrows kMaxBytes, what is
  // asked for throws Error; afterwards the automaton is of no use.
  uint64_t spent() const { return spent_; }
  void spend(uint64_t units) {
    spent_ += units;
    if (spent_ > limit_) over_budget();
  }
  void limit_to(uint64_t units) { limit_ = units; }
  static constexpr size_t kMaxBytes = size_t{256} << 20;

 private:
  struct Shape {
    size_t first = 0, count = 0;
    bool ended = false, escaped = false;
  };
  struct Frames {  // a stack: where to return to, and to which stack then
    size_t first = 0, count = 0;
    int32_t depth = 0;
  };

  [[noreturn]] void over_budget() const;
  void check_memory() const;
  Config compute(Config c, uint8_t byte_class);
  void add(int32_t state, Stack stack);
  Config close();
  Stack intern_stack(std::span<const Entry> frames);
  Stack push(int32_t back, Stack below);
  Stack merge(Stack a, Stack b);
  std::span<const Entry> frames(Stack s) const {
    const Frames& f = stacks_[static_cast<size_t>(s)];
    return std::span(frames_).subspan(f.first, f.count);
  }

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Entry> entries_, frames_;
  std::vector<Shape> shapes_;
  std::vector<Frames> stacks_;
  std::unordered_multimap<uint64_t, Config> shape_index_;
  std::unordered_multimap<uint64_t, Stack> stack_index_;
  std::unordered_map<uint64_t, Stack> merged_;
  std::vector<int32_t> table_of_, tables_;  // transitions, in tables of class_byte.size()
  // Of the configuration being made.
  std::vector<Stack> current_;  // [states] -1: not in it
  std::vector<int32_t> touched_, todo_;
  bool ended_ = false, escaped_ = false;
  Stack bottom_ = 0, unknown_ = 0;
  uint64_t spent_ = 0, limit_ = ~uint64_t{0};
};

}  // namespace carat
