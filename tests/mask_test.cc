// Masks over a vocabulary of the published size: exactly the tokens that keep the text within the grammar,
// and what that costs.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <random>

#include "base/error.h"
#include "text/grammar/matcher.h"
#include "text/grammar/sources.h"
#include "tools/forge_vocab.h"

using namespace carat;

namespace {

struct Vocabulary {
  explicit Vocabulary(int32_t size)
      : tokenizer(forge_vocabulary(size)), trie(std::make_shared<TokenTrie>(tokenizer)) {}
  template <class Make>
  GrammarMatcher matcher(const Make& make) const {
    GrammarBuilder b(&tokenizer);
    return GrammarMatcher(std::make_shared<TokenGrammar>(b.build(make(b)), trie));
  }
  GrammarMatcher schema(const char* text, SchemaDialect dialect = SchemaDialect::json) const {
    const Json json = Json::parse(text);
    return matcher([&](GrammarBuilder& b) { return schema_grammar(b, json, dialect); });
  }
  Tokenizer tokenizer;
  std::shared_ptr<const TokenTrie> trie;
};
const Vocabulary& full() {
  static const Vocabulary v(262144);
  return v;
}

bool has(std::span<const uint64_t> mask, Token t) {
  return mask[static_cast<size_t>(t) / 64] >> (static_cast<size_t>(t) % 64) & 1;
}

// Every token of the mask is one that advance() takes, and no other.
void check_exact(GrammarMatcher& m, GrammarMatcher::State s, const Vocabulary& v) {
  const std::span<const uint64_t> now = m.allowed(s);
  const std::vector<uint64_t> mask(now.begin(), now.end());
  int wrong = 0;
  for (Token t = 0; t < v.tokenizer.size(); ++t)
    wrong += has(mask, t) != (m.advance(s, t) != GrammarMatcher::kNowhere);
  REQUIRE(wrong == 0);
}

// A random answer, checked at every state; rarely an end where another way is left.
std::string walk(GrammarMatcher& m, const Vocabulary& v, std::mt19937& random, int checks) {
  std::string text;
  GrammarMatcher::State s = m.start();
  for (int i = 0; i < 60; ++i) {
    if (checks-- > 0) check_exact(m, s, v);
    std::vector<Token> open;
    const std::span<const uint64_t> mask = m.allowed(s);
    for (Token t = 0; t < v.tokenizer.size(); ++t)
      if (has(mask, t)) open.push_back(t);
    REQUIRE_FALSE(open.empty());
    Token t = open[random() % open.size()];
    // Long tokens say more about masks than single bytes do.
    for (int k = 0; k < 4; ++k)
      if (const Token other = open[random() % open.size()];
          v.trie->bytes(other).size() > v.trie->bytes(t).size())
        t = other;
    if (v.tokenizer.is_end(t)) return text;
    s = m.advance(s, t);
    REQUIRE(s != GrammarMatcher::kNowhere);
    text += v.tokenizer.piece(t);
  }
  return text;
}

const char* const kOrder =
    R"({"type":"object","properties":{"name":{"type":"string"},"count":{"type":"integer","minimum":1},
  "tags":{"type":"array","items":{"type":"string"}},"size":{"enum":["small","smaller","large"]},"note":{"type":["string","null"]},
  "nested":{"type":"object","properties":{"x":{"type":"number"},"ok":{"type":"boolean"}},"required":["x"]}},
  "required":["name","count"],"additionalProperties":false})";

}  // namespace

TEST_CASE("a mask holds exactly the tokens that advance() takes") {
  std::mt19937 random(17);
  const Vocabulary small(2000);
  GrammarMatcher any = small.schema("{}"), order = small.schema(kOrder),
                 call = small.schema(kOrder, SchemaDialect::gemma_call),
                 texts = small.schema(
                     R"({"anyOf":[{"type":"string","maxLength":5},{"type":"string","pattern":"^a.*\"$"},
                                      {"type":"object","properties":{"a":{}},"additionalProperties":{"type":"string"}}]})"),
                 gbnf = small.matcher([](GrammarBuilder&b) {
                   return gbnf_grammar(
                       b, "root ::= (word [ \\n] | \"<\" root \">\")* [^a-z]+ \nword ::= [a-zà-ÿ你-龥]+");
                 });
  for (GrammarMatcher* m : {&any, &order, &call, &texts, &gbnf})
    for (int i = 0; i < 12; ++i) walk(*m, small, random, 40);
  GrammarMatcher large = full().schema(kOrder);
  walk(large, full(), random, 6);
}

TEST_CASE("tokens that end inside a character, and those that end an answer") {
  const Vocabulary& v = full();
  GrammarMatcher m =
      v.matcher([](GrammarBuilder& b) { return regex_grammar(b, "[你好]x", Spelling::plain, false); });
  const auto byte = [&](int value) { return v.tokenizer.find(fmt::format("<0x{:02X}>", value)); };
  GrammarMatcher::State s = m.start();
  for (const int b : {0xE4, 0xBD, 0xA0}) {
    REQUIRE(has(m.allowed(s), byte(b)));
    REQUIRE_FALSE(has(m.allowed(s), byte(0x41)));
    s = m.advance(s, byte(b));
  }
  CHECK_FALSE(m.may_end(s));
  const Token end = v.tokenizer.data().end_of_generation.at(0);
  CHECK(m.advance(s, end) == GrammarMatcher::kNowhere);
  s = m.advance(s, v.tokenizer.find("x"));
  CHECK(m.may_end(s));
  int open = 0;
  for (Token t = 0; t < v.tokenizer.size(); ++t) open += has(m.allowed(s), t);
  CHECK(open == static_cast<int>(v.tokenizer.data().end_of_generation.size()));
  CHECK(has(m.allowed(m.advance(s, end)), end));
  CHECK(m.advance(m.start(), v.tokenizer.find("x")) == GrammarMatcher::kNowhere);
  CHECK(m.advance(m.start(), v.tokenizer.find("<|turn>")) == GrammarMatcher::kNowhere);
  CHECK(m.advance(m.start(), 1 << 20) == GrammarMatcher::kNowhere);
}

TEST_CASE("states may be kept and gone back to; what is forced is known") {
  const Vocabulary& v = full();
  GrammarMatcher m = v.schema(kOrder);
  CHECK(m.forced_text(m.start()) == "{");
  const auto after = [&](std::string_view text) {
    GrammarMatcher::State s = m.start();
    for (const Token t : v.tokenizer.encode(text, false)) s = m.advance(s, t);
    REQUIRE(s != GrammarMatcher::kNowhere);
    return s;
  };
  const GrammarMatcher::State key = after("{\"n");
  CHECK(m.forced_text(key) == "ame\":");
  std::string forced;
  for (const Token t : m.forced_tokens(key)) forced += v.tokenizer.piece(t);
  CHECK(forced == "ame\":");
  const std::vector<uint64_t> before(m.allowed(key).begin(), m.allowed(key).end());
  after(R"({"name":"a \"quoted\" text","count":12,"tags":["a","b"],"size":"large"})");
  CHECK(std::equal(before.begin(), before.end(), m.allowed(key).begin()));
  CHECK(after("{\"n") == key);
  CHECK(m.forced_text(after(R"({"name":"")")) == ",");
  CHECK(m.forced_text(after(R"({"name":"","count":1)")).empty());
  GrammarMatcher call = v.matcher([](GrammarBuilder& b) {
    return b.seq({b.special("<|tool_call>"), b.text("call:")});
  });
  CHECK(call.forced_tokens(call.start()).at(0) == v.tokenizer.find("<|tool_call>"));
}

// The budget is of work, not of time: the same on every machine, however busy it is.
TEST_CASE("a grammar that is too much ends with an error, at the same token each time") {
  const Vocabulary& v = full();
  const auto steps = [&](const char* pattern) -> int {
    GrammarMatcher m =
        v.matcher([&](GrammarBuilder& b) { return regex_grammar(b, pattern, Spelling::plain, false); });
    GrammarMatcher::State s = m.start();
    const Token a = v.tokenizer.find("a");
    REQUIRE(a >= 0);
    for (int i = 0; i < 200; ++i) {
      try {
        if (!has(m.allowed(s), a)) return 1000;
        s = m.advance(s, a);
      } catch (const Error& e) {
        CHECK(std::string_view(e.what()).find("too") != std::string_view::npos);
        CHECK_FALSE(e.hint().empty());
        return i;
      }
    }
    return 200;
  };
  const int first = steps("([a-z ]{1,40}|[a-m ]{1,60}){1,40}");
  CHECK(first < 200);
  CHECK(steps("([a-z ]{1,40}|[a-m ]{1,60}){1,40}") == first);
  CHECK(steps("[a-z ]{1,400}") == 200);  // of which there is one way through
}

TEST_CASE("what a mask costs") {
  using Clock = std::chrono::steady_clock;
  const auto us = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
  const Vocabulary& v = full();
  auto began = Clock::now();
  const TokenTrie trie(v.tokenizer);
  MESSAGE(fmt::format("trie of {} tokens: {} nodes, {:.0f} ms", trie.vocabulary(), trie.nodes().size(),
                      us(Clock::now() - began) / 1e3));
  const std::string text =
      R"({"name": "The quick brown fox \"jumps\" over the lazy dog, again and again", "count": 12, )"
      R"("tags": ["red", "green", "something longer"], "size": "large", "note": null, )"
      R"("nested": {"x": 1.25, "ok": true}})";
  const std::vector<Token> tokens = v.tokenizer.encode(text, false);
  for (const char* schema : {kOrder, "{}"}) {
    began = Clock::now();
    GrammarMatcher m = v.schema(schema);
    const double build = us(Clock::now() - began);
    double first_total = 0;
    for (int round = 0; round < 2; ++round) {
      std::vector<double> cost;
      GrammarMatcher::State s = m.start();
      for (const Token t : tokens) {
        began = Clock::now();
        const bool ok = has(m.allowed(s), t);
        s = m.advance(s, t);
        cost.push_back(us(Clock::now() - began));
        REQUIRE(ok);
      }
      CHECK(m.may_end(s));
      double total = 0;
      for (const double c : cost) total += c;
      std::sort(cost.begin(), cost.end());
      const double median = cost[cost.size() / 2];
      MESSAGE(fmt::format(
          "{} round {}: grammar {:.0f} us, {} tokens, median {:.0f} us, p90 {:.0f} us, max {:.0f} us",
          schema == kOrder ? "order" : "any JSON", round, build, cost.size(), median,
          cost[cost.size() * 9 / 10], cost.back()));
      CHECK(median < 5000);  // far above what is expected, for machines under load
      if (round == 0) first_total = total;
    }
    CHECK(first_total > 0);
  }
}
