// ngram-simple, ngram-map-k and ngram-map-k4v: exact keys, found by a rolling hash and then compared.
#include "engine/speculate/draft_ngram.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"

namespace carat {
namespace {

constexpr uint64_t kFactor = 6364136223846793005u;

// Hashes of any stretch of a growing text in constant time.
class Rolling {
 public:
  void add(Token t) {
    prefix_.push_back(prefix_.back() * kFactor + static_cast<uint64_t>(t) + 1);
    power_.push_back(power_.back() * kFactor);
  }
  size_t size() const { return prefix_.size() - 1; }
  uint64_t hash(size_t from, size_t n) const { return prefix_[from + n] - prefix_[from] * power_[n]; }

 private:
  std::vector<uint64_t> prefix_{0}, power_{1};
};

void copy(std::span<const Token> history, size_t from, size_t n, Proposal& out) {
  out.token.assign(history.begin() + static_cast<ptrdiff_t>(from),
                   history.begin() + static_cast<ptrdiff_t>(from + n));
}

bool same(std::span<const Token> history, size_t a, size_t b, size_t n) {
  return std::equal(history.begin() + static_cast<ptrdiff_t>(a),
                    history.begin() + static_cast<ptrdiff_t>(a + n),
                    history.begin() + static_cast<ptrdiff_t>(b));
}

// All these learn from the history they are shown when asked.
class Session : public DraftSession {
 public:
  void committed(const CommittedRows&) override {}
  virtual void propose(std::span<const Token> history, int32_t depth, Proposal& out) = 0;
};

class SimpleSession : public Session {
 public:
  explicit SimpleSession(const NgramOptions& o)
      : key_(static_cast<size_t>(o.key)), value_(static_cast<size_t>(o.value)) {}

  void propose(std::span<const Token> history, int32_t depth, Proposal& out) override {
    while (text_.size() < history.size()) text_.add(history[text_.size()]);
    // Keys before the present one, each at its last place.
    for (; indexed_ + key_ < history.size(); ++indexed_) last_[text_.hash(indexed_, key_)] = indexed_;
    if (history.size() <= key_) return;
    const size_t now = history.size() - key_;
    const auto found = last_.find(text_.hash(now, key_));
    if (found == last_.end() || !same(history, found->second, now, key_)) return;
    const size_t behind = std::min(value_, now - found->second);
    if (behind >= key_)
      copy(history, found->second + key_, std::min(behind, static_cast<size_t>(depth)), out);
  }

 private:
  const size_t key_, value_;
  Rolling text_;
  size_t indexed_ = 0;
  std::unordered_map<uint64_t, size_t> last_;
};

class MapSession : public Session {
 public:
  MapSession(const NgramOptions& o, bool four)
      : key_(static_cast<size_t>(o.key)),
        value_(static_cast<size_t>(o.value)),
        min_hits_(o.min_hits),
        four_(four) {}

  void propose(std::span<const Token> history, int32_t depth, Proposal& out) override {
    while (text_.size() < history.size()) text_.add(history[text_.size()]);
    learn(history);
    for (; indexed_ + key_ + value_ < history.size(); ++indexed_) index(history, indexed_);
    if (history.size() <= key_) return;
    const size_t now = history.size() - key_;
    const auto found = keys_.find(text_.hash(now, key_));
    if (found == keys_.end() || !same(history, found->second.at, now, key_)) return;
    const int32_t v = best(found->second);
    if (v < 0 || found->second.hits < min_hits_) return;
    const Value& value = found->second.values[static_cast<size_t>(v)];
    const auto n = static_cast<size_t>(std::min({static_cast<int32_t>(value_), depth, value.cap}));
    copy(history, value.at, n, out);
    if (n > 0) used_ = {found->first, v, history.size(), out.token};
  }

 private:
  struct Value {
    size_t at = 0;  // where it stands in the text; 0: an empty slot, since a key stands before it
    uint64_t hash = 0;
    int32_t count = 0, cap = 0;
  };
  struct Key {
    size_t at = 0;
    int32_t hits = 0;
    std::array<Value, 4> values;
  };
  struct Used {
    uint64_t key = 0;
    int32_t value = -1;
    size_t at = 0;
    std::vector<Token> draft;
  };

  // What came true of the last draft caps the next one of that value. A draft that the text has confirmed as
  // far as it goes says nothing yet.
  void learn(std::span<const Token> history) {
    if (used_.value < 0) return;
    const auto right = static_cast<size_t>(tokens_right(used_.draft, history, used_.at));
    if (used_.at + right < history.size())
      keys_[used_.key].values[static_cast<size_t>(used_.value)].cap = static_cast<int32_t>(right);
    used_.value = -1;
  }

  void index(std::span<const Token> history, size_t at) {
    Key& key = keys_[text_.hash(at, key_)];
    if (key.hits > 0 && !same(history, key.at, at, key_))
      return;  // another key has this hash: the first stays
    key.at = at;
    ++key.hits;
    const uint64_t hash = text_.hash(at + key_, value_);
    for (Value& v : key.values) {
      if (v.at == 0 || !four_) v = {at + key_, hash, 0, v.at == 0 ? static_cast<int32_t>(value_) : v.cap};
      if (v.hash != hash) continue;
      v.at = at + key_;
      ++v.count;
      return;
    }
  }

  int32_t best(const Key& key) const {
    if (!four_) return 0;
    int32_t all = 0, most = 0;
    for (size_t i = 0; i < key.values.size(); ++i) {
      all += key.values[i].count;
      if (key.values[i].count > key.values[static_cast<size_t>(most)].count) most = static_cast<int32_t>(i);
    }
    const int32_t count = key.values[static_cast<size_t>(most)].count;
    return count >= 2 * (all - count) ? most : -1;
  }

  const size_t key_, value_;
  const int32_t min_hits_;
  const bool four_;
  Rolling text_;
  size_t indexed_ = 0;
  std::unordered_map<uint64_t, Key> keys_;
  Used used_;
};

class NgramDrafter : public Drafter {
 public:
  using Make = std::unique_ptr<Session> (*)(const NgramOptions&);
  NgramDrafter(std::string_view name, const NgramOptions& o, Make make)
      : name_(name), options_(o), make_(make) {
    check_ngram_options(o);
  }
  std::string_view name() const override { return name_; }
  int32_t max_depth() const override { return options_.value; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    return make_(options_);
  }
  void propose(std::span<DraftAsk> asks) override {
    for (DraftAsk& ask : asks) {
      ask.out = {};
      static_cast<Session*>(ask.session)->propose(ask.history->tokens(), ask.max_depth, ask.out);
    }
  }

 private:
  const std::string_view name_;
  const NgramOptions options_;
  const Make make_;
};

}  // namespace

int32_t tokens_right(std::span<const Token> draft, std::span<const Token> history, size_t at) {
  size_t n = 0;
  while (n < draft.size() && at + n < history.size() && draft[n] == history[at + n]) ++n;
  return static_cast<int32_t>(n);
}

void check_ngram_options(const NgramOptions& o) {
  const auto range = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
      throw Error(fmt::format("{} is {}", name, value), fmt::format("use {} to {}", least, most));
  };
  range("the n-gram's size n", o.key, 1, 1024);
  range("the n-gram's size m", o.value, 1, 1024);
  range("the n-gram's least hits", o.min_hits, 1, 1 << 20);
  range("ngram-mod's match", o.mod_key, 1, 1024);
  range("ngram-mod's shortest draft", o.mod_min, 0, 1024);
  range("ngram-mod's longest draft", o.mod_max, 1, 1024);
  range("ngram-mod's table", o.mod_entries, 1024, 1 << 28);
  range("the suffix drafter's window", o.suffix_window, 64, 1 << 24);
  range("the suffix drafter's match", o.suffix_match, 1, 1024);
}

std::unique_ptr<Drafter> make_ngram_simple(const NgramOptions& o) {
  return std::make_unique<NgramDrafter>(
      "ngram-simple", o,
      [](const NgramOptions& p) -> std::unique_ptr<Session> { return std::make_unique<SimpleSession>(p); });
}

std::unique_ptr<Drafter> make_ngram_map(const NgramOptions& o, bool four_values) {
  if (four_values)
    return std::make_unique<NgramDrafter>("ngram-map-k4v", o,
                                          [](const NgramOptions& p) -> std::unique_ptr<Session> {
                                            return std::make_unique<MapSession>(p, true);
                                          });
  return std::make_unique<NgramDrafter>("ngram-map-k", o,
                                        [](const NgramOptions& p) -> std::unique_ptr<Session> {
                                          return std::make_unique<MapSession>(p, false);
                                        });
}

std::unique_ptr<Drafter> make_ngram(std::string_view name, const NgramOptions& o) {
  if (name == "ngram-simple") return make_ngram_simple(o);
  if (name == "ngram-map-k") return make_ngram_map(o, false);
  if (name == "ngram-map-k4v") return make_ngram_map(o, true);
  if (name == "ngram-mod") return make_ngram_mod(o);
  if (name == "suffix") return make_suffix(o);
  return nullptr;
}

}  // namespace carat
