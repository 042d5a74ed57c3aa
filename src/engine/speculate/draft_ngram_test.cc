// The drafters without a network, on rendered chats (their bytes as tokens) and on texts made for one rule.
#include "engine/speculate/draft_ngram.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/file.h"

using namespace carat;

namespace {

std::vector<Token> real_text() {
  const auto j = nlohmann::json::parse(read_file(std::string(CARAT_TEST_DATA) + "/templates/rendered.json"));
  const std::string text = j.dump();
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// A drafter and its session on a text that is already known: what an engine would see.
class Replay {
 public:
  explicit Replay(Drafter& drafter)
      : pool_(KvLimits{.context = 64, .sequences = 1, .step_rows = 64}),
        sequence_(pool_),
        drafter_(drafter),
        session_(drafter.open(sequence_, {})) {}

  Proposal ask(std::span<const Token> history, int32_t depth, int32_t nodes = 0, float p_min = 0) {
    while (history_.tokens().size() < history.size()) history_.add(history[history_.tokens().size()]);
    DraftAsk ask;
    ask.session = session_.get();
    ask.history = &history_;
    ask.anchor = history.back();
    ask.pos = static_cast<int32_t>(history.size()) - 1;
    ask.max_depth = depth;
    ask.max_nodes = std::max(nodes, depth);
    ask.p_min = p_min;
    drafter_.propose({&ask, 1});
    return ask.out;
  }

  // Tokens per round from `from` to the end of the text.
  double tokens_per_round(std::span<const Token> text, size_t from, int32_t depth) {
    double rounds = 0;
    for (size_t at = from; at < text.size(); ++rounds)
      at += 1 + static_cast<size_t>(tokens_right(ask(text.first(at), depth).token, text, at));
    return static_cast<double>(text.size() - from) / rounds;
  }

 private:
  PagePool pool_;
  Sequence sequence_;
  History history_;
  Drafter& drafter_;
  std::unique_ptr<DraftSession> session_;
};

std::vector<Token> repeated(const std::vector<Token>& unit, int times) {
  std::vector<Token> all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), unit.begin(), unit.end());
  return all;
}
std::vector<Token> count_from(Token first, int n) {
  std::vector<Token> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), first);
  return v;
}
std::vector<Token> operator+(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The longest suffix of the text that also ends at an earlier place.
size_t longest_earlier_suffix(std::span<const Token> text) {
  size_t best = 0;
  for (size_t end = 1; end < text.size(); ++end) {
    size_t n = 0;
    while (n < end && text[end - 1 - n] == text[text.size() - 1 - n]) ++n;
    best = std::max(best, n);
  }
  return best;
}

}  // namespace

TEST_CASE("ngram-simple: copies what followed the last occurrence, as a plain search does") {
  const std::vector<Token> text = real_text();
  NgramOptions o;
  o.key = 6;
  o.value = 20;
  const auto drafter = make_ngram_simple(o);
  Replay replay(*drafter);
  int drafts = 0;
  for (size_t n = 40; n < 6000; n += 7) {
    std::vector<Token> expected;
    for (size_t at = n - 6; at-- > 0;) {
      if (!std::equal(text.begin() + static_cast<ptrdiff_t>(at),
                      text.begin() + static_cast<ptrdiff_t>(at) + 6,
                      text.begin() + static_cast<ptrdiff_t>(n) - 6))
        continue;
      const size_t behind = std::min<size_t>(20, n - 6 - at);
      if (behind >= 6)
        expected.assign(text.begin() + static_cast<ptrdiff_t>(at) + 6,
                        text.begin() + static_cast<ptrdiff_t>(at + 6 + std::min<size_t>(behind, 15)));
      break;
    }
    drafts += !expected.empty();
    CHECK(replay.ask(std::span(text).first(n), 15).token == expected);
  }
  CHECK(drafts > 100);
}

TEST_CASE("ngram-map-k: drafts what was right the last time, and no more") {
  NgramOptions o;
  o.key = 3;
  o.value = 8;
  const auto drafter = make_ngram_map(o, false);
  Replay replay(*drafter);
  const std::vector<Token> key{1, 2, 3}, value = count_from(10, 8), other{10, 11, 12, 99, 98, 97, 96, 95};
  std::vector<Token> text = key + value + count_from(100, 20) + key;
  CHECK(replay.ask(text, 15).token == value);
  text = text + other + count_from(200, 20) + key;  // three of the eight came true
  CHECK(replay.ask(text, 15).token == std::vector<Token>{10, 11, 12});
  CHECK(replay.ask(text, 2).token == std::vector<Token>{10, 11});
}

TEST_CASE("ngram-map: a key needs its hits, and value tokens behind it") {
  NgramOptions o;
  o.key = 3;
  o.value = 8;
  o.min_hits = 2;
  for (const bool four : {false, true}) {
    const auto drafter = make_ngram_map(o, four);
    Replay replay(*drafter);
    const std::vector<Token> unit = std::vector<Token>{1, 2, 3} + count_from(10, 8);
    std::vector<Token> text = unit + std::vector<Token>{50, 1, 2, 3};
    CHECK(replay.ask(text, 15).empty());
    text = text + count_from(10, 8) + std::vector<Token>{51, 1, 2, 3};
    CHECK(replay.ask(text, 15).token == count_from(10, 8));
  }
}

TEST_CASE("ngram-map-k4v: one continuation must be twice as frequent as the others together") {
  NgramOptions o;
  o.key = 3;
  o.value = 4;
  const auto drafter = make_ngram_map(o, true);
  const std::vector<Token> key{1, 2, 3}, a = count_from(10, 4), b = count_from(20, 4);
  Token gap = 100;
  const auto with = [&](int n_a, int n_b) {
    std::vector<Token> text;
    for (int i = 0; i < n_a; ++i) text = text + key + a + std::vector<Token>{gap++};
    for (int i = 0; i < n_b; ++i) text = text + key + b + std::vector<Token>{gap++};
    Replay replay(*drafter);
    return replay.ask(text + key, 15).token;
  };
  CHECK(with(1, 0) == a);
  CHECK(with(1, 1).empty());
  CHECK(with(2, 1) == a);
  CHECK(with(3, 2).empty());
  CHECK(with(1, 4) == b);
}

TEST_CASE("ngram-mod: one table for all requests, drafts of at least mod_min tokens") {
  NgramOptions o;
  o.mod_key = 8;
  o.mod_min = 6;
  o.mod_max = 12;
  o.mod_entries = 1 << 16;
  const auto drafter = make_ngram_mod(o);
  const std::vector<Token> song = count_from(1000, 60);
  {
    Replay first(*drafter);
    CHECK(first.ask(song, 15).empty());
  }
  Replay second(*drafter);
  const std::span<const Token> all(song);
  const auto expect = [&](size_t from, size_t n) {
    return std::vector<Token>(song.begin() + static_cast<ptrdiff_t>(from),
                              song.begin() + static_cast<ptrdiff_t>(from + n));
  };
  CHECK(second.ask(all.first(20), 15).token == expect(20, 12));
  CHECK(second.ask(all.first(21), 4).token == expect(21, 4));  // the room is less than mod_min
  CHECK(second.ask(all.first(50), 15).token == expect(50, 10));
  CHECK(second.ask(all.first(56), 15).empty());  // four known tokens are too few
}

TEST_CASE("ngram-mod: five poor drafts in a row clear the table") {
  NgramOptions o;
  o.mod_key = 4;
  o.mod_min = 4;
  o.mod_max = 8;
  o.mod_entries = 1 << 16;
  const auto drafter = make_ngram_mod(o);
  const std::vector<Token> song = count_from(1000, 60);
  {
    Replay first(*drafter);
    first.ask(song, 8);
  }
  Replay second(*drafter);
  std::vector<Token> text = count_from(1, 4);
  int drafts = 0;
  for (int i = 0; i < 8; ++i) {  // part of the song, then something else
    text = text + count_from(1000 + 5 * i, 4);
    drafts += !second.ask(text, 8).empty();
    text = text + std::vector<Token>{5000 + i};
  }
  CHECK(drafts == 5);
}

TEST_CASE("suffix: starts from the longest suffix that came before") {
  std::mt19937 random(7);
  for (const int letters : {2, 3, 20}) {
    NgramOptions o;
    o.suffix_match = 1;
    const auto drafter = make_suffix(o);
    Replay replay(*drafter);
    std::vector<Token> text;
    for (int i = 0; i < 400; ++i) {
      text.push_back(static_cast<Token>(random() % static_cast<unsigned>(letters)));
      const size_t longest = longest_earlier_suffix(text);
      const Proposal p = replay.ask(text, 1);
      CHECK(p.empty() == (longest == 0));
      if (p.empty()) continue;
      // What it proposes did follow that suffix somewhere.
      bool followed = false;
      for (size_t end = longest; end < text.size() && !followed; ++end)
        followed =
            text[end] == p.token[0] && std::equal(text.end() - static_cast<ptrdiff_t>(longest), text.end(),
                                                  text.begin() + static_cast<ptrdiff_t>(end - longest));
      CHECK(followed);
    }
  }
}

TEST_CASE("suffix: the more frequent continuation, then the more recent; confidence from counts") {
  const auto drafter = make_suffix({});
  const auto ask = [&](const std::vector<Token>& text) {
    Replay replay(*drafter);
    return replay.ask(text, 1);
  };
  const std::vector<Token> key{1, 2, 3};
  const auto said = [&](Token t, Token gap) { return key + std::vector<Token>{t, gap}; };
  const Proposal frequent = ask(said(7, 50) + said(7, 51) + said(8, 52) + key);
  const Proposal recent = ask(said(7, 50) + said(8, 51) + key);
  const Proposal sure = ask(said(7, 50) + said(7, 51) + said(7, 52) + key);
  CHECK(frequent.token == std::vector<Token>{7});
  CHECK(recent.token == std::vector<Token>{8});
  CHECK(sure.confidence[0] > frequent.confidence[0]);
  CHECK(frequent.confidence[0] > recent.confidence[0]);
}

TEST_CASE("suffix: trees hold both continuations, parents first, confidence above p_min") {
  const auto drafter = make_suffix({});
  Replay replay(*drafter);
  const std::vector<Token> key{1, 2, 3};
  const std::vector<Token> text = key + count_from(10, 6) + std::vector<Token>{90} + key + count_from(20, 6) +
                                  std::vector<Token>{91} + key + count_from(20, 6) + std::vector<Token>{92} +
                                  key;
  const Proposal tree = replay.ask(text, 4, 8);
  REQUIRE(tree.token.size() == 8);
  CHECK(tree.token[0] == 20);
  CHECK(std::find(tree.token.begin(), tree.token.end(), 10) != tree.token.end());
  for (int32_t i = 0; i < 8; ++i) {
    CHECK(tree.parent_of(i) < i);
    int32_t depth = 0;
    for (int32_t at = i; at >= 0; at = tree.parent_of(at)) ++depth;
    CHECK(depth <= 4);
  }
  for (const float c : replay.ask(text, 4, 8, 0.5F).confidence) CHECK(c >= 0.5F);
}

TEST_CASE("every drafter is right about a text that repeats itself, and a window bounds what is remembered") {
  const std::vector<Token> real = real_text();
  std::vector<Token> text(real.begin() + 500, real.begin() + 900);
  text = repeated(text, 4);
  const std::pair<const char*, double> least[] = {
      {"ngram-simple", 8}, {"ngram-map-k", 8}, {"ngram-map-k4v", 4}, {"ngram-mod", 8}, {"suffix", 8}};
  for (const auto& [name, rate] : least) {
    CAPTURE(std::string(name));
    const auto drafter = make_ngram(name, {});
    REQUIRE(drafter);
    CHECK(drafter->name() == name);
    Replay replay(*drafter);
    CHECK(replay.tokens_per_round(text, 800, 15) > rate);
  }
  NgramOptions o;
  o.suffix_window = 1000;
  const auto drafter = make_suffix(o);
  Replay replay(*drafter);
  CHECK(replay.tokens_per_round(repeated(text, 4), 800, 15) > 8);
}

TEST_CASE("suffix drafts real text well from the text alone") {
  const std::vector<Token> text = real_text();
  const auto drafter = make_suffix({});
  Replay replay(*drafter);
  const double al = replay.tokens_per_round(std::span(text).first(20000), 2000, 8);
  MESSAGE("suffix: ", al, " tokens a round");
  CHECK(al > 2);
}

TEST_CASE("options out of range are refused by name") {
  NgramOptions o;
  o.mod_key = 0;
  CHECK_THROWS_WITH_AS(make_ngram("ngram-mod", o), "ngram-mod's match is 0", Error);
  CHECK(make_ngram("ngram-cache", {}) == nullptr);
}
