#include "text/grammar/automaton.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

constexpr int32_t kEnd = -1, kUnknown = -2;  // returns of the bottom, and of a stack nobody knows
constexpr int32_t kMaxStack = 1000;          // rules within rules; deeper calls are not entered
constexpr size_t kMaxStacks = 2'000'000, kMaxConfigs = 2'000'000, kMaxTableEntries = 4'000'000;

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
  return h * 0xBF58476D1CE4E5B9u;
}

uint64_t hash_of(std::span<const GrammarAutomaton::Entry> entries, uint64_t h) {
  for (const auto& e : entries)
    h = mix(h, uint64_t{static_cast<uint32_t>(e.state)} << 32 | static_cast<uint32_t>(e.stack));
  return h;
}

bool same(std::span<const GrammarAutomaton::Entry> a, std::span<const GrammarAutomaton::Entry> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.state == y.state && x.stack == y.stack; });
}

[[noreturn]] void too_much() {
  throw Error("the grammar needs too much memory for this answer", "make it less ambiguous");
}

}  // namespace

void GrammarAutomaton::over_budget() const {
  throw Error("the grammar takes too long: too much is possible at once",
              "make it less ambiguous: nested or adjacent repetitions of what overlaps cost most");
}

void GrammarAutomaton::check_memory() const {
  constexpr size_t kOfIndex = 56;  // an entry of a hash table
  const size_t bytes = (entries_.size() + frames_.size()) * sizeof(Entry) + shapes_.size() * sizeof(Shape) +
                       stacks_.size() * sizeof(Frames) +
                       (table_of_.size() + tables_.size()) * sizeof(int32_t) +
                       (shape_index_.size() + stack_index_.size() + merged_.size()) * kOfIndex;
  if (bytes > kMaxBytes) too_much();
}

GrammarAutomaton::GrammarAutomaton(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), current_(grammar_->states.size(), -1) {
  const Entry end{kEnd, 0}, unknown{kUnknown, 0};
  bottom_ = intern_stack({&end, 1});
  unknown_ = intern_stack({&unknown, 1});
  const Config dead = close();
  CARAT_CHECK(dead == kDead);
}

GrammarAutomaton::Config GrammarAutomaton::start() {
  add(grammar_->start(), bottom_);
  return close();
}

GrammarAutomaton::Config GrammarAutomaton::local(int32_t state) {
  const Entry e{state, unknown_};
  return only({&e, 1});
}

// These entries and what they can take themselves: their calls have been followed when they were made.
GrammarAutomaton::Config GrammarAutomaton::only(std::span<const Entry> entries) {
  for (const Entry& e : entries) {
    current_[static_cast<size_t>(e.state)] = e.stack;
    touched_.push_back(e.state);
  }
  return close();
}

GrammarAutomaton::Config GrammarAutomaton::returned(Stack stack) {
  const std::vector<Entry> tops(frames(stack).begin(), frames(stack).end());
  for (const Entry& e : tops) {
    if (e.state == kEnd)
      ended_ = true;
    else if (e.state == kUnknown)
      escaped_ = true;
    else
      add(e.state, e.stack);
  }
  return close();
}

GrammarAutomaton::Config GrammarAutomaton::step_bytes(Config c, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size() && c != kDead; ++i)
    c = step(c, grammar_->class_of[static_cast<uint8_t>(bytes[i])]);
  return c;
}

GrammarAutomaton::Config GrammarAutomaton::compute(Config c, uint8_t byte_class) {
  const uint8_t byte = grammar_->class_byte[byte_class];
  const Shape shape = shapes_[static_cast<size_t>(c)];
  for (size_t i = 0; i < shape.count; ++i) {
    const Entry e = entries_[shape.first + i];
    for (const Grammar::Edge& edge : grammar_->edges_of(e.state))
      if (edge.low <= byte && byte <= edge.high) add(edge.to, e.stack);
  }
  const Config next = close();
  const size_t classes = grammar_->class_byte.size();
  if (table_of_[static_cast<size_t>(c)] < 0) {
    if (tables_.size() > kMaxTableEntries) {
      tables_.clear();
      std::fill(table_of_.begin(), table_of_.end(), -1);
    }
    table_of_[static_cast<size_t>(c)] = static_cast<int32_t>(tables_.size());
    tables_.resize(tables_.size() + classes, -1);
  }
  tables_[static_cast<size_t>(table_of_[static_cast<size_t>(c)]) + byte_class] = next;
  return next;
}

void GrammarAutomaton::add(int32_t state, Stack stack) {
  spend(1);
  Stack& now = current_[static_cast<size_t>(state)];
  const Stack merged = now < 0 ? stack : merge(now, stack);
  if (now < 0) touched_.push_back(state);
  if (merged == now) return;
  now = merged;
  todo_.push_back(state);
}

// Follows calls and returns until nothing new comes, and gives the result its number.
GrammarAutomaton::Config GrammarAutomaton::close() {
  while (!todo_.empty()) {
    const int32_t s = todo_.back();
    todo_.pop_back();
    const Stack stack = current_[static_cast<size_t>(s)];
    if (grammar_->states[static_cast<size_t>(s)].accept) {
      for (size_t i = 0; i < stacks_[static_cast<size_t>(stack)].count; ++i) {
        const Entry e = frames_[stacks_[static_cast<size_t>(stack)].first + i];
        if (e.state == kEnd)
          ended_ = true;
        else if (e.state == kUnknown)
          escaped_ = true;
        else
          add(e.state, e.stack);
      }
    }
    for (const Grammar::Call& c : grammar_->calls_of(s)) {
      if (c.back >= 0 && stacks_[static_cast<size_t>(stack)].depth >= kMaxStack) continue;
      add(grammar_->rule_start[static_cast<size_t>(c.rule)], c.back < 0 ? stack : push(c.back, stack));
    }
  }
  std::vector<Entry> made;
  std::sort(touched_.begin(), touched_.end());
  for (const int32_t s : touched_) {
    const Grammar::State& st = grammar_->states[static_cast<size_t>(s)];
    if (st.edge != st.edge_end) made.push_back({s, current_[static_cast<size_t>(s)]});
    current_[static_cast<size_t>(s)] = -1;
  }
  touched_.clear();
  const bool ended = std::exchange(ended_, false), escaped = std::exchange(escaped_, false);
  const uint64_t hash = hash_of(made, (ended ? 2u : 0u) + (escaped ? 1u : 0u));
  const auto [from, to] = shape_index_.equal_range(hash);
  for (auto it = from; it != to; ++it) {
    const Shape& s = shapes_[static_cast<size_t>(it->second)];
    if (s.ended == ended && s.escaped == escaped && same(entries(it->second), made)) return it->second;
  }
  if (shapes_.size() >= kMaxConfigs) too_much();
  spend(made.size());
  check_memory();
  const auto id = static_cast<Config>(shapes_.size());
  shapes_.push_back({entries_.size(), made.size(), ended, escaped});
  entries_.insert(entries_.end(), made.begin(), made.end());
  table_of_.push_back(-1);
  shape_index_.emplace(hash, id);
  return id;
}

GrammarAutomaton::Stack GrammarAutomaton::intern_stack(std::span<const Entry> made) {
  const uint64_t hash = hash_of(made, 7);
  const auto [from, to] = stack_index_.equal_range(hash);
  for (auto it = from; it != to; ++it)
    if (same(frames(it->second), made)) return it->second;
  if (stacks_.size() >= kMaxStacks) too_much();
  if (stacks_.size() % 1024 == 0) check_memory();
  int32_t depth = 0;
  for (const Entry& e : made)
    if (e.state >= 0) depth = std::max(depth, stacks_[static_cast<size_t>(e.stack)].depth + 1);
  const auto id = static_cast<Stack>(stacks_.size());
  stacks_.push_back({frames_.size(), made.size(), depth});
  frames_.insert(frames_.end(), made.begin(), made.end());
  stack_index_.emplace(hash, id);
  return id;
}

GrammarAutomaton::Stack GrammarAutomaton::push(int32_t back, Stack below) {
  const Entry e{back, below};
  return intern_stack({&e, 1});
}

// Both at once; what returns to the same state is merged below as well. As deep as the stacks, at most.
GrammarAutomaton::Stack GrammarAutomaton::merge(Stack a, Stack b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  const uint64_t key = uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
  if (const auto it = merged_.find(key); it != merged_.end()) return it->second;
  const std::vector<Entry> left(frames(a).begin(), frames(a).end()),
      right(frames(b).begin(), frames(b).end());
  std::vector<Entry> both;
  for (size_t i = 0, k = 0; i < left.size() || k < right.size();) {
    if (k == right.size() || (i < left.size() && left[i].state < right[k].state)) {
      both.push_back(left[i++]);
    } else if (i == left.size() || right[k].state < left[i].state) {
      both.push_back(right[k++]);
    } else {
      both.push_back({left[i].state, merge(left[i].stack, right[k].stack)});
      ++i;
      ++k;
    }
  }
  spend(both.size());
  const Stack merged = intern_stack(both);
  merged_.emplace(key, merged);
  if (merged_.size() > kMaxStacks) too_much();
  return merged;
}

}  // namespace carat
