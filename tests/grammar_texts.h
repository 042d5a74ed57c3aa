// What tests of grammars have in common: grammars of a few lines, whether a text belongs to one, random texts
// of one.
#pragma once
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/grammar/automaton.h"
#include "text/grammar/sources.h"
#include "text/tokenizer/tokenizer.h"

namespace carat::test {

using Automaton = GrammarAutomaton;

// A vocabulary of all bytes, "a", "b", "ab", and these control tokens.
inline TokenizerData small_vocabulary(const std::vector<std::string>& controls) {
  TokenizerData d;
  d.model = d.pre = "gemma4";
  d.tokens = {"<pad>", "<eos>", "<bos>", "<unk>"};
  d.tokens.insert(d.tokens.end(), controls.begin(), controls.end());
  d.types.assign(d.tokens.size(), TokenType::control);
  d.types[3] = TokenType::unknown;
  for (int byte = 0; byte < 256; ++byte) {
    d.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    d.types.push_back(TokenType::byte);
  }
  for (const char* piece : {"a", "b", "ab"}) {
    d.tokens.push_back(piece);
    d.types.push_back(TokenType::normal);
  }
  d.merges = {"a b"};
  d.unk = 3;
  d.eos = 1;
  d.end_of_generation = {1};
  return d;
}

inline std::shared_ptr<const Grammar> of_schema(const Json& schema,
                                                SchemaDialect dialect = SchemaDialect::json) {
  GrammarBuilder b;
  return b.build(schema_grammar(b, schema, dialect));
}
inline std::shared_ptr<const Grammar> of_schema(const char* text) { return of_schema(Json::parse(text)); }
inline bool accepts(const std::shared_ptr<const Grammar>& g, std::string_view text) {
  Automaton a(g);
  return a.ended(a.step_bytes(a.start(), text));
}

inline std::string error_of(const auto& make) {
  try {
    make();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
inline bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A text of the grammar, byte by byte at random; after `soft` bytes the shortest way out is looked for by
// chance.
inline std::string random_text(const std::shared_ptr<const Grammar>& g, std::mt19937& random,
                               const std::string& marks = "\"]}", size_t soft = 200) {
  Automaton a(g);
  std::string out;
  for (Automaton::Config c = a.start(); out.size() < 20'000;) {
    if (a.ended(c) && (a.entries(c).empty() || out.size() > soft || random() % 3 == 0)) return out;
    std::vector<std::pair<uint8_t, uint8_t>> edges;
    for (const auto& e : a.entries(c))
      for (const auto& edge : g->edges_of(e.state)) edges.emplace_back(edge.low, edge.high);
    REQUIRE_FALSE(edges.empty());
    std::string closers;  // what closes texts, lists and objects, when it is long enough
    for (const auto& [low, high] : edges)
      for (const char m : marks) {
        const auto close = static_cast<uint8_t>(m);
        if (low <= close && close <= high) closers += m;
      }
    uint8_t byte = 0;
    if (out.size() > soft && !closers.empty()) {
      byte = static_cast<uint8_t>(closers[random() % closers.size()]);
    } else {
      const auto [low, high] = edges[random() % edges.size()];
      byte = static_cast<uint8_t>(low + random() % (high - low + 1u));
    }
    out += static_cast<char>(byte);
    c = a.step(c, g->class_of[byte]);
    REQUIRE(c != Automaton::kDead);
  }
  FAIL("no end");
  return out;
}

}  // namespace carat::test
