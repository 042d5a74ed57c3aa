// Grammars over bytes: what a constrained answer may be. A grammar is rules, each an automaton whose edges
// take bytes or call a rule; all of it is immutable once built. Characters are UTF-8 exactly, so a token that
// ends inside a character is neither refused nor trusted. A control token of the vocabulary (Gemma's
// <|tool_call>) is a terminal of its own: the byte 0xFF, which no text contains, and three bytes of its id.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

class Tokenizer;

// Sorted, disjoint, inclusive ranges of code points.
struct CharRange {
  char32_t low, high;
};
using CharSet = std::vector<CharRange>;
CharSet normalized(CharSet set);  // sorted, merged, without surrogates
CharSet complement(const CharSet& set);
CharSet intersection(const CharSet& a, const CharSet& b);

// How a control token stands in a grammar's alphabet.
constexpr unsigned char kSpecialByte = 0xFF;
std::string special_bytes(int32_t token);
// Control tokens, and tags of chat formats that files type as ordinary words (<tool_call>).
bool is_special(const Tokenizer& tokenizer, int32_t token);

class Grammar {
 public:
  struct Edge {
    uint8_t low, high;
    int32_t to;
  };
  struct Call {
    int32_t rule, back;  // back: the state after the rule; -1 if nothing but the end follows
  };
  struct State {
    uint32_t edge = 0, edge_end = 0, call = 0, call_end = 0;
    bool accept = false;
  };
  int32_t start() const { return rule_start[static_cast<size_t>(root)]; }
  std::span<const Edge> edges_of(int32_t s) const {
    const State& st = states[static_cast<size_t>(s)];
    return std::span(edges).subspan(st.edge, st.edge_end - st.edge);
  }
  std::span<const Call> calls_of(int32_t s) const {
    const State& st = states[static_cast<size_t>(s)];
    return std::span(calls).subspan(st.call, st.call_end - st.call);
  }

  std::vector<State> states;
  std::vector<Edge> edges;
  std::vector<Call> calls;
  std::vector<int32_t> rule_start;
  int32_t root = 0;
  // Bytes that no edge tells apart share a class.
  std::array<uint8_t, 256> class_of{};
  std::vector<uint8_t> class_byte;  // one byte of each class
};

// Expressions, then a Grammar. Ids are of this builder alone.
class GrammarBuilder {
 public:
  using Expr = int32_t;
  // specials: where the names of control tokens are looked up; without, they are text.
  explicit GrammarBuilder(const Tokenizer* specials = nullptr) : specials_(specials) {}

  Expr empty() { return text({}); }
  Expr nothing() { return alt({}); }  // no text at all
  Expr text(std::string_view bytes);
  Expr chars(const CharSet& set);            // one character of the set
  Expr special(std::string_view name);       // a control token; the text if the vocabulary has none
  Expr any_special_but(std::string_view a);  // one control token that is not this one and ends nothing
  Expr seq(std::vector<Expr> parts);
  Expr alt(std::vector<Expr> parts);
  Expr literals(std::vector<std::string> texts);     // one of them, shared beginnings once
  Expr repeat(Expr e, int64_t least, int64_t most);  // most -1: no limit
  Expr optional(Expr e) { return repeat(e, 0, 1); }
  Expr any_char_but(std::string_view ascii);  // these characters excepted
  // Any text before this control token; one that must be spelled is not in it.
  Expr text_until(std::string_view name);
  Expr text_without(std::string_view bytes,
                    const CharSet& set);  // characters of the set, never these in a row

  // An automaton that begins in state 0; edges say what each of them takes, `ends` where it may end.
  struct GraphEdge {
    int32_t from, to;
    Expr takes;
  };
  Expr graph(std::vector<GraphEdge> edges, std::vector<bool> ends);

  int32_t rule(std::string name);  // declared; to be defined before build()
  void define(int32_t rule, Expr e);
  bool defined(int32_t rule) const { return rules_[static_cast<size_t>(rule)].expr >= 0; }
  Expr ref(int32_t rule);
  Expr named(std::string name, Expr e);  // a rule of its own: written once, called where it is used

  // Error if a rule is left-recursive or undefined, the whole too large, or no text satisfies it.
  std::shared_ptr<const Grammar> build(Expr root);

  const Tokenizer* specials() const { return specials_; }

 private:
  friend class GrammarCompiler;
  enum class Kind : uint8_t { text, chars, seq, alt, repeat, ref, graph };
  struct Node {
    Kind kind = Kind::text;
    std::string text;
    CharSet set;
    std::vector<Expr> parts;
    std::vector<GraphEdge> edges;
    std::vector<bool> ends;
    int64_t least = 0, most = 0;
    int32_t rule = -1;
  };
  struct Rule {
    std::string name;
    Expr expr = -1;
  };
  Expr add(Node node);
  Expr literal_range(std::span<const std::string> sorted, size_t from);

  const Tokenizer* specials_;
  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
};

}  // namespace carat
