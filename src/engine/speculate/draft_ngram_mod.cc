// ngram-mod: a table from the hash of the last n tokens to the next, shared by all requests.
#include <algorithm>

#include "engine/speculate/draft_ngram.h"

namespace carat {
namespace {

constexpr uint64_t kRollingFactor = 6364136223846793005u;
constexpr size_t kLearnAtOnce = 32;  // new tokens wait until so many can be learnt at once
constexpr double kFull = 0.25;       // a table that full is cleared for a new request
constexpr double kPoor = 0.25;       // a draft of which less came true is a poor one
constexpr int32_t kPatience = 5;

class Table {
 public:
  Table(int32_t entries, size_t key) : next_(static_cast<size_t>(entries), -1), key_(key) {
    for (size_t i = 0; i < key; ++i) drop_ *= kRollingFactor;
  }
  size_t key() const { return key_; }
  double occupancy() const { return static_cast<double>(used_) / static_cast<double>(next_.size()); }
  void clear() {
    std::fill(next_.begin(), next_.end(), -1);
    used_ = 0;
  }
  uint64_t hash(std::span<const Token> tokens) const {
    uint64_t h = 0;
    for (const Token t : tokens) h = h * kRollingFactor + static_cast<uint64_t>(t);
    return h;
  }
  // The hash of the key one token further on.
  uint64_t roll(uint64_t h, Token out, Token in) const {
    return h * kRollingFactor + static_cast<uint64_t>(in) - static_cast<uint64_t>(out) * drop_;
  }
  Token at(uint64_t h) const { return next_[h % next_.size()]; }
  void put(uint64_t h, Token t) {
    Token& slot = next_[h % next_.size()];
    used_ += slot < 0;
    slot = t;
  }

 private:
  std::vector<Token> next_;
  const size_t key_;
  uint64_t drop_ = 1;
  size_t used_ = 0;
};

struct ModSession : DraftSession {
  void committed(const CommittedRows&) override {}
  size_t learnt = 0;  // tokens whose n-grams are in the table
  std::vector<Token> draft;
  size_t draft_at = 0;
};

class ModDrafter : public Drafter {
 public:
  explicit ModDrafter(const NgramOptions& o)
      : options_(o), table_(o.mod_entries, static_cast<size_t>(o.mod_key)) {}
  std::string_view name() const override { return "ngram-mod"; }
  int32_t max_depth() const override { return options_.mod_max; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    if (table_.occupancy() > kFull) table_.clear();
    return std::make_unique<ModSession>();
  }
  void propose(std::span<DraftAsk> asks) override {
    for (DraftAsk& ask : asks) {
      auto& session = *static_cast<ModSession*>(ask.session);
      const std::span<const Token> history = ask.history->tokens();
      ask.out = {};
      judge(session, history);
      learn(session, history);
      draft(history, std::min(ask.max_depth, options_.mod_max), ask.out);
      session.draft = ask.out.token;
      session.draft_at = history.size();
    }
  }

 private:
  // Drafts that keep failing say that the table is full of something else.
  void judge(ModSession& s, std::span<const Token> history) {
    const auto right = static_cast<size_t>(tokens_right(s.draft, history, s.draft_at));
    if (s.draft.empty() || (right < s.draft.size() && s.draft_at + right == history.size())) return;
    const double share = static_cast<double>(right) / static_cast<double>(s.draft.size());
    poor_ = share < kPoor ? poor_ + 1 : 0;
    if (poor_ < kPatience) return;
    table_.clear();
    poor_ = 0;
  }

  void learn(ModSession& s, std::span<const Token> history) {
    const size_t key = table_.key();
    if (history.size() < key + 1 || (s.learnt > 0 && history.size() - s.learnt < kLearnAtOnce)) return;
    size_t end = std::max(s.learnt, key);  // the token that a key foretells
    uint64_t h = table_.hash(history.subspan(end - key, key));
    for (;;) {
      table_.put(h, history[end]);
      if (end + 1 == history.size()) break;
      h = table_.roll(h, history[end - key], history[end]);
      ++end;
    }
    s.learnt = history.size();
  }

  void draft(std::span<const Token> history, int32_t depth, Proposal& out) const {
    const size_t key = table_.key();
    if (history.size() < key) return;
    const size_t least = static_cast<size_t>(std::min(options_.mod_min, depth));
    std::vector<Token> window(history.end() - static_cast<ptrdiff_t>(key), history.end());
    uint64_t h = table_.hash(window);
    while (window.size() - key < static_cast<size_t>(depth)) {
      const Token t = table_.at(h);
      if (t < 0) break;
      h = table_.roll(h, window[window.size() - key], t);
      window.push_back(t);
    }
    if (window.size() - key < least) return;
    out.token.assign(window.begin() + static_cast<ptrdiff_t>(key), window.end());
  }

  const NgramOptions options_;
  Table table_;
  int32_t poor_ = 0;
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_mod(const NgramOptions& o) {
  check_ngram_options(o);
  return std::make_unique<ModDrafter>(o);
}

}  // namespace carat
