// Expressions to automata: Thompson's construction per rule, then states without empty edges, then away with
// whatever cannot end.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/unicode.h"

namespace carat {

constexpr size_t kMaxStates = 400'000, kMaxEdges = 4'000'000, kMaxVisits = 20'000'000;

class GrammarCompiler {
 public:
  explicit GrammarCompiler(const GrammarBuilder& b) : b_(b) {}
  std::shared_ptr<const Grammar> run(GrammarBuilder::Expr root);

 private:
  using Expr = GrammarBuilder::Expr;
  using Kind = GrammarBuilder::Kind;
  struct Raw {  // a state with empty edges
    std::vector<Grammar::Edge> edges;
    std::vector<Grammar::Call> calls;
    std::vector<int32_t> empty;
  };

  [[noreturn]] static void too_large() {
    throw Error("the grammar is too large", "use fewer or shorter alternatives and repetitions");
  }
  int32_t state() {
    if (raw_.size() >= kMaxStates) too_large();
    raw_.emplace_back();
    return static_cast<int32_t>(raw_.size()) - 1;
  }
  Raw& at(int32_t s) { return raw_[static_cast<size_t>(s)]; }
  void emit(Expr e, int32_t from, int32_t to, int depth);
  void emit_chars(const CharSet& set, int32_t from, int32_t to);
  void emit_utf8(char32_t low, char32_t high, int32_t from, int32_t to);
  void emit_repeat(const GrammarBuilder::Node& n, int32_t from, int32_t to, int depth);
  int32_t settled(int32_t raw);
  void settle(int32_t raw);
  void find_live();
  void check_left_recursion() const;
  void finish();

  const GrammarBuilder& b_;
  std::vector<Raw> raw_;
  std::vector<int32_t> rule_final_;
  std::unordered_map<int32_t, int32_t> number_;  // raw state -> state of the grammar
  std::vector<int32_t> todo_;
  std::vector<uint32_t> seen_;
  uint32_t stamp_ = 0;
  size_t visits_ = 0;
  std::vector<bool> final_;  // of raw states
  std::vector<bool> live_, nullable_;
  std::shared_ptr<Grammar> g_ = std::make_shared<Grammar>();
};

void GrammarCompiler::emit(Expr e, int32_t from, int32_t to, int depth) {
  if (depth > 1000) throw Error("the grammar is nested too deeply");
  const GrammarBuilder::Node& n = b_.nodes_[static_cast<size_t>(e)];
  switch (n.kind) {
    case Kind::text: {
      int32_t at_state = from;
      for (size_t i = 0; i < n.text.size(); ++i) {
        const int32_t next = i + 1 == n.text.size() ? to : state();
        const auto byte = static_cast<uint8_t>(n.text[i]);
        at(at_state).edges.push_back({byte, byte, next});
        at_state = next;
      }
      if (n.text.empty()) at(from).empty.push_back(to);
      break;
    }
    case Kind::chars: emit_chars(n.set, from, to); break;
    case Kind::seq: {
      int32_t at_state = from;
      for (size_t i = 0; i < n.parts.size(); ++i) {
        const int32_t next = i + 1 == n.parts.size() ? to : state();
        emit(n.parts[i], at_state, next, depth + 1);
        at_state = next;
      }
      if (n.parts.empty()) at(from).empty.push_back(to);
      break;
    }
    case Kind::alt:
      for (const Expr part : n.parts) emit(part, from, to, depth + 1);
      break;
    case Kind::repeat: emit_repeat(n, from, to, depth); break;
    case Kind::ref: at(from).calls.push_back({n.rule, to}); break;
    case Kind::graph: {
      std::vector<int32_t> states;
      for (size_t i = 0; i < n.ends.size(); ++i) {
        states.push_back(state());
        if (n.ends[i]) at(states[i]).empty.push_back(to);
      }
      at(from).empty.push_back(states.at(0));
      for (const GrammarBuilder::GraphEdge& edge : n.edges)
        emit(edge.takes, states[static_cast<size_t>(edge.from)], states[static_cast<size_t>(edge.to)],
             depth + 1);
      break;
    }
  }
}

void GrammarCompiler::emit_repeat(const GrammarBuilder::Node& n, int32_t from, int32_t to, int depth) {
  int32_t here = from;
  const auto once = [&] {
    const int32_t next = state();
    emit(n.parts[0], here, next, depth + 1);
    here = next;
  };
  for (int64_t i = 0; i < n.least; ++i) once();
  if (n.most < 0) {
    const int32_t loop = state();
    at(here).empty.push_back(loop);
    emit(n.parts[0], loop, loop, depth + 1);
    here = loop;
  }
  for (int64_t i = n.least; i < n.most; ++i) {
    at(here).empty.push_back(to);
    once();
  }
  at(here).empty.push_back(to);
}

void GrammarCompiler::emit_chars(const CharSet& set, int32_t from, int32_t to) {
  static constexpr char32_t kLast[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};  // of each length
  for (CharRange r : set)
    for (const char32_t last : kLast)
      if (r.low <= last && r.low <= r.high) {
        emit_utf8(r.low, std::min(r.high, last), from, to);
        r.low = std::min(r.high, last) + 1;
      }
}

// Of one length. Split until every byte ranges independently of those before it.
void GrammarCompiler::emit_utf8(char32_t low, char32_t high, int32_t from, int32_t to) {
  for (int bits = 6; bits <= 18 && high > 0x7F; bits += 6) {
    const char32_t mask = (char32_t{1} << bits) - 1;
    if ((low & ~mask) == (high & ~mask)) break;
    if ((low & mask) != 0) {
      emit_utf8(low, low | mask, from, to);
      return emit_utf8((low | mask) + 1, high, from, to);
    }
    if ((high & mask) != mask) {
      emit_utf8(low, (high & ~mask) - 1, from, to);
      return emit_utf8(high & ~mask, high, from, to);
    }
  }
  std::string a, b;
  append_utf8(a, low);
  append_utf8(b, high);
  for (size_t i = 0; i < a.size(); ++i) {
    const int32_t next = i + 1 == a.size() ? to : state();
    at(from).edges.push_back({static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i]), next});
    from = next;
  }
}

int32_t GrammarCompiler::settled(int32_t raw) {
  const auto [it, fresh] = number_.try_emplace(raw, static_cast<int32_t>(number_.size()));
  if (fresh) todo_.push_back(raw);
  return it->second;
}

// Everything reachable over empty edges becomes this state's own.
void GrammarCompiler::settle(int32_t raw) {
  Grammar& g = *g_;
  Grammar::State st;
  st.edge = static_cast<uint32_t>(g.edges.size());
  st.call = static_cast<uint32_t>(g.calls.size());
  std::vector<int32_t> stack = {raw};
  ++stamp_;
  seen_[static_cast<size_t>(raw)] = stamp_;
  while (!stack.empty()) {
    const int32_t s = stack.back();
    stack.pop_back();
    if (++visits_ > kMaxVisits) too_large();
    st.accept = st.accept || final_[static_cast<size_t>(s)];
    for (const Grammar::Edge& e : at(s).edges) g.edges.push_back({e.low, e.high, settled(e.to)});
    for (const Grammar::Call& c : at(s).calls) g.calls.push_back({c.rule, settled(c.back)});
    for (const int32_t next : at(s).empty)
      if (std::exchange(seen_[static_cast<size_t>(next)], stamp_) != stamp_) stack.push_back(next);
  }
  if (g.edges.size() + g.calls.size() > kMaxEdges) too_large();
  st.edge_end = static_cast<uint32_t>(g.edges.size());
  st.call_end = static_cast<uint32_t>(g.calls.size());
  g.states[static_cast<size_t>(number_.at(raw))] = st;
}

// Which states can still end: backwards from those that accept.
void GrammarCompiler::find_live() {
  const Grammar& g = *g_;
  const size_t n = g.states.size();
  std::vector<std::vector<int32_t>> before(n);  // states to look at again
  for (size_t s = 0; s < n; ++s) {
    for (const auto& e : g.edges_of(static_cast<int32_t>(s)))
      before[static_cast<size_t>(e.to)].push_back(static_cast<int32_t>(s));
    for (const auto& c : g.calls_of(static_cast<int32_t>(s))) {
      before[static_cast<size_t>(c.back)].push_back(static_cast<int32_t>(s));
      before[static_cast<size_t>(g.rule_start[static_cast<size_t>(c.rule)])].push_back(
          static_cast<int32_t>(s));
    }
  }
  live_.assign(n, false);
  const auto lives = [&](int32_t s) { return bool(live_[static_cast<size_t>(s)]); };
  std::vector<int32_t> todo;
  const auto mark = [&](int32_t s) {
    if (lives(s)) return;
    live_[static_cast<size_t>(s)] = true;
    todo.push_back(s);
  };
  for (size_t s = 0; s < n; ++s)
    if (g.states[s].accept) mark(static_cast<int32_t>(s));
  while (!todo.empty()) {
    const int32_t s = todo.back();
    todo.pop_back();
    for (const int32_t p : before[static_cast<size_t>(s)]) {
      if (lives(p)) continue;
      for (const auto& e : g.edges_of(p))
        if (lives(e.to)) mark(p);
      for (const auto& c : g.calls_of(p))
        if (lives(c.back) && lives(g.rule_start[static_cast<size_t>(c.rule)])) mark(p);
    }
  }
}

// A rule that may call itself before it has taken a byte would never be done expanding.
void GrammarCompiler::check_left_recursion() const {
  const Grammar& g = *g_;
  const size_t rules = g.rule_start.size();
  std::vector<bool> nullable(rules, false);
  // States reachable from the rule's start without a byte; `visit` is told of every call among them.
  const auto walk = [&](size_t rule, const auto& visit) {
    std::vector<int32_t> stack = {g.rule_start[rule]};
    std::unordered_set<int32_t> all = {stack[0]};
    bool ends = false;
    while (!stack.empty()) {
      const int32_t s = stack.back();
      stack.pop_back();
      ends = ends || g.states[static_cast<size_t>(s)].accept;
      for (const auto& c : g.calls_of(s)) {
        visit(static_cast<size_t>(c.rule));
        if (nullable[static_cast<size_t>(c.rule)] && all.insert(c.back).second) stack.push_back(c.back);
      }
    }
    return ends;
  };
  std::vector<std::vector<size_t>> first(rules), callers(rules);
  std::vector<size_t> again;
  for (size_t r = 0; r < rules; ++r) again.push_back(r);
  while (!again.empty()) {  // every rule becomes nullable at most once and then wakes its callers
    const size_t r = again.back();
    again.pop_back();
    first[r].clear();
    const bool ends = walk(r, [&](size_t called) {
      first[r].push_back(called);
      if (callers[called].empty() || callers[called].back() != r) callers[called].push_back(r);
    });
    if (ends && !nullable[r]) {
      nullable[r] = true;
      again.insert(again.end(), callers[r].begin(), callers[r].end());
    }
  }
  std::vector<uint8_t> mark(rules, 0);  // 1: on the path, 2: done
  for (size_t r = 0; r < rules; ++r) {
    std::vector<std::pair<size_t, size_t>> path;
    if (mark[r] == 0) path.emplace_back(r, 0);
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      mark[rule] = 1;
      if (next == first[rule].size()) {
        mark[rule] = 2;
        path.pop_back();
        continue;
      }
      const size_t called = first[rule][next++];
      if (mark[called] == 1)
        throw Error(fmt::format("the grammar's rule '{}' is left-recursive", b_.rules_[called].name),
                    "let it take a character before it calls itself");
      if (mark[called] == 0) path.emplace_back(called, 0);
    }
  }
}

// Edges into dead ends go, states that only end are not returned to, and bytes get their classes.
void GrammarCompiler::finish() {
  Grammar& g = *g_;
  std::vector<Grammar::Edge> edges;
  std::vector<Grammar::Call> calls;
  std::array<bool, 257> cut{};
  cut[0] = true;
  for (Grammar::State& st : g.states) {
    Grammar::State out = st;
    out.edge = static_cast<uint32_t>(edges.size());
    out.call = static_cast<uint32_t>(calls.size());
    for (uint32_t i = st.edge; i < st.edge_end; ++i) {
      const Grammar::Edge& e = g.edges[i];
      if (!live_[static_cast<size_t>(e.to)]) continue;
      edges.push_back(e);
      cut[e.low] = cut[static_cast<size_t>(e.high) + 1] = true;
    }
    for (uint32_t i = st.call; i < st.call_end; ++i) {
      const Grammar::Call& c = g.calls[i];
      if (!live_[static_cast<size_t>(c.back)] ||
          !live_[static_cast<size_t>(g.rule_start[static_cast<size_t>(c.rule)])])
        continue;
      calls.push_back(c);
    }
    out.edge_end = static_cast<uint32_t>(edges.size());
    out.call_end = static_cast<uint32_t>(calls.size());
    st = out;
  }
  g.edges = std::move(edges);
  g.calls = std::move(calls);
  for (Grammar::Call& c : g.calls) {
    const Grammar::State& back = g.states[static_cast<size_t>(c.back)];
    if (back.accept && back.edge == back.edge_end && back.call == back.call_end) c.back = -1;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (cut[static_cast<size_t>(byte)]) g.class_byte.push_back(static_cast<uint8_t>(byte));
    g.class_of[static_cast<size_t>(byte)] = static_cast<uint8_t>(g.class_byte.size() - 1);
  }
}

std::shared_ptr<const Grammar> GrammarCompiler::run(Expr root) {
  const size_t rules = b_.rules_.size();
  std::vector<int32_t> start;
  for (size_t r = 0; r <= rules; ++r) {
    const Expr e = r < rules ? b_.rules_[r].expr : root;
    if (e < 0) throw Error(fmt::format("the grammar's rule '{}' is not defined", b_.rules_[r].name));
    const int32_t from = state(), to = state();
    start.push_back(from);
    rule_final_.push_back(to);
    emit(e, from, to, 0);
  }
  final_.assign(raw_.size(), false);
  for (const int32_t f : rule_final_) final_[static_cast<size_t>(f)] = true;
  seen_.assign(raw_.size(), 0);
  for (const int32_t s : start) g_->rule_start.push_back(settled(s));
  g_->root = static_cast<int32_t>(rules);
  while (!todo_.empty()) {
    const int32_t raw = todo_.back();
    todo_.pop_back();
    g_->states.resize(std::max(g_->states.size(), number_.size()));
    settle(raw);
  }
  g_->states.resize(number_.size());
  find_live();
  if (!live_[static_cast<size_t>(g_->start())])
    throw Error("no text at all satisfies the grammar", "look for contradictions in the schema or grammar");
  check_left_recursion();
  finish();
  return g_;
}

std::shared_ptr<const Grammar> GrammarBuilder::build(Expr root) { return GrammarCompiler(*this).run(root); }

}  // namespace carat
