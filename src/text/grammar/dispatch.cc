#include "text/grammar/dispatch.h"

#include <deque>
#include <map>
#include <set>

#include "base/error.h"
#include "text/tokenizer/unicode.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr size_t kMaxWatcherStates = 20'000;

// Which patterns have just been said, and how much of them.
class Watcher {
 public:
  static constexpr int kNone = -1, kNever = -2;

  void add(std::string_view pattern, int branch) {
    if (pattern.empty()) throw Error("a text to watch for is empty");
    size_t at = 0;
    while (!pattern.empty()) {
      const Utf8Step step = utf8_step(pattern);
      pattern.remove_prefix(step.bytes);
      alphabet_.insert(step.value);
      const auto [it, fresh] = nodes_[at].next.try_emplace(step.value, nodes_.size());
      at = it->second;
      if (fresh) nodes_.emplace_back();
      if (nodes_.size() > kMaxWatcherStates) throw Error("the texts to watch for are too long");
    }
    if (nodes_[at].said == kNone || branch == kNever) nodes_[at].said = branch;
  }

  // After all patterns: where a text goes on that is none of this node's.
  void close() {
    std::deque<size_t> todo = {0};
    while (!todo.empty()) {
      const size_t at = todo.front();
      todo.pop_front();
      for (const auto& [c, to] : nodes_[at].next) {
        nodes_[to].back = at == 0 ? 0 : step(nodes_[at].back, c);
        const int ending = nodes_[nodes_[to].back].said;
        if (nodes_[to].said == kNone || ending == kNever) nodes_[to].said = ending;
        todo.push_back(to);
      }
    }
  }

  size_t step(size_t at, char32_t c) const {
    for (;; at = nodes_[at].back) {
      const auto it = nodes_[at].next.find(c);
      if (it != nodes_[at].next.end()) return it->second;
      if (at == 0) return 0;
    }
  }
  int said(size_t at) const { return nodes_[at].said; }
  size_t size() const { return nodes_.size(); }
  const std::set<char32_t>& alphabet() const { return alphabet_; }

 private:
  struct Node {
    std::map<char32_t, size_t> next = {};
    size_t back = 0;
    int said = kNone;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::set<char32_t> alphabet_;
};

class FreeTextBuilder {
 public:
  FreeTextBuilder(GrammarBuilder& b, const FreeText& text) : b_(b), text_(text) {
    for (size_t i = 0; i < text.branches.size(); ++i)
      if (!text.branches[i].pattern.empty() || text.branches[i].token < 0)
        watcher_.add(text.branches[i].pattern, static_cast<int>(i));
    for (const std::string& n : text.never) watcher_.add(n, Watcher::kNever);
    watcher_.close();
    counts_ = text.most < 0 ? 1 : static_cast<size_t>(text.most) + 1;
    if (text.most > static_cast<int64_t>(kMaxWatcherStates) || watcher_.size() * counts_ > kMaxWatcherStates)
      throw Error("a text of limited length with texts that it must not hold is too long");
  }

  Expr run() {
    for (size_t count = 0; count < counts_; ++count)
      for (size_t at = 0; at < watcher_.size(); ++at) edges_from(at, count);
    std::vector<bool> ends(watcher_.size() * counts_ + 1, true);
    return b_.graph(std::move(edges_), std::move(ends));
  }

 private:
  int32_t state(size_t at, size_t count) const { return static_cast<int32_t>(count * watcher_.size() + at); }
  // Behind a branch.
  int32_t behind() const { return text_.loop ? 0 : state(0, counts_); }

  void edges_from(size_t at, size_t count) {
    if (watcher_.said(at) != Watcher::kNone) return;  // no text comes here
    const bool last = text_.most >= 0 && count + 1 == counts_;
    const size_t next_count = text_.most < 0 ? 0 : count + 1;
    std::map<size_t, CharSet> by_target;
    CharSet known;
    for (const char32_t c : watcher_.alphabet()) {
      known.push_back({c, c});
      const size_t to = watcher_.step(at, c);
      const int said = watcher_.said(to);
      if (said == Watcher::kNone) by_target[to].push_back({c, c});
      if (said >= 0) {
        const Expr after = text_.branches[static_cast<size_t>(said)].after;
        edges_.push_back({state(at, count), behind(), b_.seq({b_.chars({{c, c}}), after})});
      }
    }
    for (const CharRange& r : complement(normalized(std::move(known)))) by_target[0].push_back(r);
    if (!last)
      for (auto& [to, set] : by_target)
        edges_.push_back({state(at, count), state(to, next_count), b_.chars(normalized(std::move(set)))});
    for (const DispatchBranch& branch : text_.branches)
      if (branch.token >= 0) edges_.push_back({state(at, count), behind(), branch.token});
    if (text_.other >= 0 && !last) edges_.push_back({state(at, count), state(0, next_count), text_.other});
  }

  GrammarBuilder& b_;
  const FreeText& text_;
  Watcher watcher_;
  size_t counts_ = 1;
  std::vector<GrammarBuilder::GraphEdge> edges_;
};

}  // namespace

Expr free_text_grammar(GrammarBuilder& b, const FreeText& text) {
  return b.named("free text", FreeTextBuilder(b, text).run());
}

}  // namespace carat
