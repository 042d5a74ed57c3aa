#include "text/grammar/matcher.h"

#include <algorithm>

namespace carat {
namespace {

using Config = GrammarAutomaton::Config;

constexpr int kWideBytes = 48;  // bytes a state takes from which on it is worth remembering
// Units of work (automaton.h) of one mask, and of a request's whole answer beyond what its tokens may need:
// each so many, and two walks over the vocabulary, as every character of a bounded repetition is a state of
// its own.
constexpr uint64_t kMaskUnits = 1'500'000, kAnswerUnits = 6'000'000, kTokenUnits = 20'000;
constexpr size_t kManyStates = 500, kMaxLocals = 256, kKeptMasks = 8, kMaxMatched = 100'000;

void set_bit(std::vector<uint64_t>& words, Token t) {
  words[static_cast<size_t>(t) / 64] |= uint64_t{1} << (static_cast<size_t>(t) % 64);
}

// Tries every token below a trie node, the node's own bytes being behind. Allowed tokens get their bit; nodes
// at which a local configuration escapes are told to `left`.
class Walk {
 public:
  Walk(GrammarAutomaton& automaton, const TokenTrie& trie)
      : automaton_(automaton), trie_(trie), at_(trie.deepest() + 1) {}

  template <class Left>
  void run(uint32_t from, Config config, std::vector<uint64_t>& words, const Left& left) {
    const std::span<const TokenTrie::Node> nodes = trie_.nodes();
    const auto& class_of = automaton_.grammar().class_of;
    at_[nodes[from].depth] = config;
    for (uint32_t i = from + 1; i < nodes[from].skip;) {
      const TokenTrie::Node& n = nodes[i];
      if ((++steps_ & 15) == 0) automaton_.spend(8);
      const Config c = automaton_.step(at_[static_cast<size_t>(n.depth) - 1], class_of[n.byte]);
      if (c == GrammarAutomaton::kDead) {
        i = n.skip;
        continue;
      }
      at_[n.depth] = c;
      const bool within = automaton_.ended(c) || !automaton_.entries(c).empty();
      if (within) allow(n, words);
      if (automaton_.escaped(c)) left(i);
      i = within ? i + 1 : n.skip;
    }
  }
  void allow(const TokenTrie::Node& n, std::vector<uint64_t>& words) const {
    for (Token t = n.token; t >= 0; t = trie_.next_same(t)) set_bit(words, t);
  }

 private:
  GrammarAutomaton& automaton_;
  const TokenTrie& trie_;
  std::vector<Config> at_;  // by depth
  uint32_t steps_ = 0;
};

constexpr auto kNowhereLeft = [](uint32_t) {};

}  // namespace

TokenGrammar::TokenGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)), trie_(std::move(trie)) {}

bool TokenGrammar::wide(int32_t state) const {
  int bytes = 0;
  for (const Grammar::Edge& e : grammar_->edges_of(state)) bytes += e.high - e.low + 1;
  return bytes >= kWideBytes;
}

// States that go on in the same way for as many bytes as the longest token has: a text that may have a
// thousand characters more, and one that may have nine hundred. Worth it where states are many.
uint64_t TokenGrammar::alike(int32_t state) const {
  const Grammar& g = *grammar_;
  const size_t n = g.states.size();
  if (n < kManyStates) return static_cast<uint64_t>(state);
  if (!alike_.empty()) return alike_[static_cast<size_t>(state)];
  const auto mix = [](uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 29) * 0x94D049BB133111EBu;
    return x ^ x >> 32;
  };
  std::vector<uint64_t> now(n), next(n);
  for (size_t s = 0; s < n; ++s) now[s] = g.states[s].accept ? 1 : 2;
  const auto of = [&](int32_t s) { return now[static_cast<size_t>(s)]; };
  for (size_t round = trie_->deepest() + 1; round > 0; --round) {
    for (size_t s = 0; s < n; ++s) {
      uint64_t sum = g.states[s].accept ? 1 : 2;
      for (const Grammar::Edge& e : g.edges_of(static_cast<int32_t>(s)))
        sum += mix(of(e.to), uint64_t{e.low} << 8 | e.high);
      for (const Grammar::Call& c : g.calls_of(static_cast<int32_t>(s)))
        sum += mix(mix(of(g.rule_start[static_cast<size_t>(c.rule)]), 3), c.back < 0 ? 5 : of(c.back));
      next[s] = mix(sum, 7);
    }
    now.swap(next);
  }
  alike_ = std::move(now);
  return alike_[static_cast<size_t>(state)];
}

std::shared_ptr<const TokenGrammar::Local> TokenGrammar::local(int32_t state, uint64_t& units) const {
  const std::lock_guard lock(mutex_);
  const uint64_t key = alike(state);
  if (const auto it = locals_.find(key); it != locals_.end()) return it->second;
  if (!automaton_ || automaton_->size() > kMaxMatched)
    automaton_ = std::make_unique<GrammarAutomaton>(grammar_);
  const auto made = std::make_shared<Local>();
  made->allowed.resize((static_cast<size_t>(trie_->vocabulary()) + 63) / 64);
  const uint64_t before = automaton_->spent();
  automaton_->limit_to(before + kMaskUnits);
  try {
    Walk(*automaton_, *trie_).run(0, automaton_->local(state), made->allowed, [&](uint32_t node) {
      made->left.push_back(node);
    });
  } catch (...) {
    automaton_.reset();
    throw;
  }
  units += automaton_->spent() - before;
  if (locals_.size() >= kMaxLocals) locals_.clear();
  locals_.emplace(key, made);
  return made;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar)
    : grammar_(std::move(grammar)), automaton_(grammar_->grammar()), start_(automaton_.start()) {}

GrammarMatcher::State GrammarMatcher::advance(State s, Token token) {
  const bool end = trie().is_end(token);
  if (s == kEnded || s == kNowhere) return s == kEnded && end ? kEnded : kNowhere;
  if (end) {
    const std::span<const uint64_t> words = allowed(s);
    const auto t = static_cast<size_t>(token);
    return words[t / 64] >> (t % 64) & 1 ? kEnded : kNowhere;
  }
  const std::string_view bytes = trie().bytes(token);
  begin_work();
  return bytes.empty() ? kNowhere : automaton_.step_bytes(s, bytes);
}

std::span<const uint64_t> GrammarMatcher::allowed(State s) {
  for (const Kept& k : kept_)
    if (k.state == s) return k.words;
  if (kept_.size() < kKeptMasks) kept_.push_back({});
  Kept& k = kept_[next_kept_++ % kept_.size()];
  k.state = kNowhere - 2;  // nobody's, should filling it fail
  answer_units_ += kTokenUnits + trie().nodes().size();
  begin_work();
  fill(s, k.words);
  k.state = s;
  return k.words;
}

// What comes now may cost so much, and not more than is left of the whole answer's budget.
void GrammarMatcher::begin_work() {
  automaton_.limit_to(std::min(automaton_.spent() + kMaskUnits, kAnswerUnits + answer_units_));
}

void GrammarMatcher::fill(State s, std::vector<uint64_t>& words) {
  words.assign((static_cast<size_t>(trie().vocabulary()) + 63) / 64, 0);
  if (s != kEnded && s != kNowhere) {
    Walk walk(automaton_, trie());
    std::vector<GrammarAutomaton::Entry> narrow, wide;
    for (const auto& e : automaton_.entries(s)) (grammar_->wide(e.state) ? wide : narrow).push_back(e);
    for (const auto& e : wide) {
      uint64_t units = 0;
      const auto local = grammar_->local(e.state, units);
      automaton_.spend(units + words.size() / 64 + 1);
      for (size_t i = 0; i < words.size(); ++i) words[i] |= local->allowed[i];
      if (local->left.empty()) continue;
      const Config after = automaton_.returned(e.stack);
      if (after == GrammarAutomaton::kDead) continue;
      for (const uint32_t node : local->left) {
        walk.allow(trie().nodes()[node], words);
        walk.run(node, after, words, kNowhereLeft);
      }
    }
    if (!narrow.empty()) walk.run(0, wide.empty() ? s : automaton_.only(narrow), words, kNowhereLeft);
  }
  const bool stuck = std::all_of(words.begin(), words.end(), [](uint64_t w) { return w == 0; });
  if (stuck || may_end(s))
    for (const Token t : trie().ends()) set_bit(words, t);
}

std::string GrammarMatcher::forced_text(State s, size_t most) {
  std::string out;
  while (s > kNowhere && out.size() < most && !automaton_.ended(s)) {
    int byte = -1;
    for (const auto& e : automaton_.entries(s))
      for (const Grammar::Edge& edge : automaton_.grammar().edges_of(e.state)) {
        if (edge.low != edge.high || (byte >= 0 && byte != edge.low)) return out;
        byte = edge.low;
      }
    if (byte < 0) break;
    out += static_cast<char>(byte);
    s = automaton_.step(s, automaton_.grammar().class_of[static_cast<size_t>(byte)]);
  }
  return out;
}

std::vector<Token> GrammarMatcher::forced_tokens(State s, size_t most) {
  begin_work();
  const std::string text = forced_text(s, most * 8);
  const std::span<const TokenTrie::Node> nodes = trie().nodes();
  std::vector<Token> out;
  for (size_t at = 0; at < text.size() && out.size() < most;) {
    Token best = -1;
    size_t used = 0, here = at;
    for (uint32_t node = 0, child = 1; here < text.size();) {
      while (child < nodes[node].skip && nodes[child].byte != static_cast<uint8_t>(text[here]))
        child = nodes[child].skip;
      if (child >= nodes[node].skip) break;
      node = child++;
      ++here;
      if (nodes[node].token >= 0) {
        best = nodes[node].token;
        used = here - at;
      }
    }
    if (best < 0) break;
    out.push_back(best);
    at += used;
  }
  return out;
}

}  // namespace carat
