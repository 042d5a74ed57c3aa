// The suffix automaton of what was read and written. A state is a set of contexts that end at the same
// places; edges carry how often and when last their token followed. The suffix link of the state of the whole
// text is the longest suffix that occurred before: where drafting starts.
#include <algorithm>
#include <queue>

#include "base/error.h"
#include "engine/speculate/draft_ngram.h"

namespace carat {
namespace {

// Contexts whose counts a new token updates, longest first: the chain of suffixes of "aaaa..." is as long as
// the text, and what matters are the long ones.
constexpr int kCounted = 16;
// Continuations of one context that are looked at: short contexts have thousands.
constexpr int kEdges = 256;

class Automaton {
 public:
  struct Edge {
    Token token;
    int32_t from, to, next;  // next edge of the same state
    int32_t count, recent;   // how often it was taken, and at which place last
  };

  Automaton() { clear(); }
  void clear() {
    states_.assign(1, {0, -1, -1});
    edges_.clear();
    slots_.assign(64, -1);
    last_ = 0;
    size_ = 0;
  }
  int32_t size() const { return size_; }

  void add(Token t) {
    const int32_t now = size_++, before = last_;
    const int32_t fresh = new_state(states_[before].length + 1);
    int32_t p = before;
    while (p >= 0 && find(p, t) < 0) {
      new_edge(p, t, fresh, 1, now);
      p = states_[p].link;
    }
    states_[fresh].link = p < 0 ? 0 : split(p, t);
    last_ = fresh;
    count(before, t, now);
  }

  // The longest context that came before, and its length.
  int32_t longest() const { return states_[last_].link; }
  int32_t length(int32_t state) const { return states_[state].length; }
  // The newest first, at most `most` of them.
  template <class F>
  void each_edge(int32_t state, int most, F&& f) const {
    for (int32_t e = states_[state].edges; e >= 0 && most > 0; e = edges_[e].next, --most) f(edges_[e]);
  }

 private:
  struct State {
    int32_t length, link, edges;
  };

  int32_t new_state(int32_t length) {
    states_.push_back({length, -1, -1});
    return static_cast<int32_t>(states_.size()) - 1;
  }

  // The state of p's contexts followed by t, made its own if others share it.
  int32_t split(int32_t p, Token t) {
    const int32_t q = edges_[find(p, t)].to;
    if (states_[q].length == states_[p].length + 1) return q;
    const int32_t clone = new_state(states_[p].length + 1);
    states_[clone].link = states_[q].link;
    for (int32_t e = states_[q].edges; e >= 0; e = edges_[e].next) {
      const Edge copied = edges_[e];
      new_edge(clone, copied.token, copied.to, copied.count, copied.recent);
    }
    states_[q].link = clone;
    for (int32_t at = p; at >= 0; at = states_[at].link) {
      const int32_t e = find(at, t);
      if (e < 0 || edges_[e].to != q) break;
      edges_[e].to = clone;
    }
    return clone;
  }

  void count(int32_t before, Token t, int32_t now) {
    int32_t p = states_[before].link;
    for (int i = 0; p >= 0 && i < kCounted; p = states_[p].link, ++i) {
      const int32_t at = find(p, t);
      CARAT_CHECK(at >= 0, "a suffix of the text has no edge for what follows the text");
      Edge& e = edges_[at];
      if (e.recent != now) ++e.count, e.recent = now;
    }
  }

  static size_t mix(int32_t from, Token t) {
    uint64_t h = static_cast<uint64_t>(static_cast<uint32_t>(from)) << 32 | static_cast<uint32_t>(t);
    h *= 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(h ^ (h >> 29));
  }
  int32_t find(int32_t from, Token t) const {
    const size_t mask = slots_.size() - 1;
    for (size_t i = mix(from, t) & mask; slots_[i] >= 0; i = (i + 1) & mask)
      if (edges_[slots_[i]].from == from && edges_[slots_[i]].token == t) return slots_[i];
    return -1;
  }
  void put(int32_t edge) {
    const size_t mask = slots_.size() - 1;
    size_t i = mix(edges_[edge].from, edges_[edge].token) & mask;
    while (slots_[i] >= 0) i = (i + 1) & mask;
    slots_[i] = edge;
  }
  void new_edge(int32_t from, Token t, int32_t to, int32_t count, int32_t recent) {
    const auto edge = static_cast<int32_t>(edges_.size());
    edges_.push_back({t, from, to, states_[from].edges, count, recent});
    states_[from].edges = edge;
    if (edges_.size() * 2 > slots_.size()) {
      slots_.assign(slots_.size() * 2, -1);
      for (int32_t e = 0; e < edge; ++e) put(e);
    }
    put(edge);
  }

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> slots_;  // edges by (state, token), open addressing
  int32_t last_ = 0, size_ = 0;
};

struct Choice {
  Token token;
  int32_t state, count, recent;
  float confidence;
};

struct SuffixSession : DraftSession {
  void committed(const CommittedRows&) override {}
  Automaton text;
  size_t learnt = 0;
};

class SuffixDrafter : public Drafter {
 public:
  explicit SuffixDrafter(const NgramOptions& o)
      : window_(static_cast<size_t>(o.suffix_window)), least_(o.suffix_match) {}
  std::string_view name() const override { return "suffix"; }
  int32_t max_depth() const override { return 64; }
  bool makes_trees() const override { return true; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    return std::make_unique<SuffixSession>();
  }
  void propose(std::span<DraftAsk> asks) override {
    for (DraftAsk& ask : asks) {
      auto& session = *static_cast<SuffixSession*>(ask.session);
      learn(session, ask.history->tokens());
      ask.out = {};
      grow(session.text, ask);
    }
  }

 private:
  // Twice the window at most: then it starts anew from the last window.
  void learn(SuffixSession& s, std::span<const Token> history) const {
    if (history.size() - s.learnt > window_) {
      s.text.clear();
      s.learnt = history.size() - window_;
    }
    for (; s.learnt < history.size(); ++s.learnt) {
      if (static_cast<size_t>(s.text.size()) >= 2 * window_) {
        s.text.clear();
        s.learnt -= window_;
      }
      s.text.add(history[s.learnt]);
    }
  }

  // Best first: the most probable open continuation is taken until there are nodes enough.
  void grow(const Automaton& text, DraftAsk& ask) const {
    const int32_t start = text.longest();
    if (start < 0 || text.length(start) < least_) return;
    const bool tree = ask.max_nodes > ask.max_depth;
    struct Open {
      double probability;
      int32_t order, parent, depth, matched;
      Choice choice;
      bool operator<(const Open& o) const {
        return probability != o.probability ? probability < o.probability : order > o.order;
      }
    };
    std::priority_queue<Open> open;
    int32_t order = 0;
    const auto expand = [&](int32_t state, int32_t matched, int32_t parent, int32_t depth,
                            double probability) {
      for (const Choice& c : continuations(text, state, matched, tree ? 3 : 1))
        if (c.confidence >= ask.p_min)
          open.push({probability * c.confidence, order++, parent, depth, matched + 1, c});
    };
    expand(start, text.length(start), -1, 1, 1);
    while (!open.empty() && static_cast<int32_t>(ask.out.token.size()) < ask.max_nodes) {
      const Open best = open.top();
      open.pop();
      const auto node = static_cast<int32_t>(ask.out.token.size());
      ask.out.token.push_back(best.choice.token);
      ask.out.confidence.push_back(best.choice.confidence);
      if (tree) ask.out.parent.push_back(best.parent);
      if (best.depth < ask.max_depth)
        expand(best.choice.state, best.matched, node, best.depth + 1, best.probability);
    }
  }

  // The n best tokens behind a context of which `matched` tokens are known to fit.
  static std::vector<Choice> continuations(const Automaton& text, int32_t state, int32_t matched, size_t n) {
    std::vector<Choice> all;
    int32_t total = 0;
    text.each_edge(state, kEdges, [&](const Automaton::Edge& e) {
      all.push_back({e.token, e.to, e.count, e.recent, 0});
      total += e.count;
    });
    const auto better = [](const Choice& a, const Choice& b) {
      return a.count != b.count ? a.count > b.count : a.recent > b.recent;
    };
    n = std::min(n, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(n), all.end(), better);
    all.resize(n);
    // A context seen once says less than one seen often, a short one less than a long one.
    const double trust = static_cast<double>(matched) / (matched + 1.5);
    for (Choice& c : all) c.confidence = static_cast<float>(trust * (c.count - 0.2) / total);
    return all;
  }

  const size_t window_;
  const int32_t least_;
};

}  // namespace

std::unique_ptr<Drafter> make_suffix(const NgramOptions& o) {
  check_ngram_options(o);
  return std::make_unique<SuffixDrafter>(o);
}

}  // namespace carat
