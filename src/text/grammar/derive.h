// Regular languages with intersection and complement, as derivatives (Brzozowski, "Derivatives of regular
// expressions", 1964): patterns that look ahead, several patterns at once, a pattern with a length. What
// RegexTree says becomes an automaton whose states are what is still to come.
#pragma once
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "text/grammar/sources.h"

namespace carat {

// A regular expression as it is written.
struct RegexTree {
  enum class Kind : uint8_t { set, seq, alt, repeat, begin, end, look } kind = Kind::seq;
  CharSet set = {};
  std::vector<RegexTree> parts = {};
  int64_t least = 0, most = 0;  // of a repetition; most -1: no limit
  bool negative = false;        // of a look ahead
  // No anchor and no look ahead in it.
  bool pure() const;
};
RegexTree parse_regex(std::string_view pattern);

// Characters of a Unicode property as \p{...} names it; Error if there is none of that name.
CharSet unicode_property(std::string_view name);

class Derivatives {
 public:
  using Lang = int32_t;
  Derivatives();

  Lang nothing() const { return 0; }
  Lang empty() const { return 1; }
  Lang all() const { return all_; }
  Lang set(const CharSet& chars);
  Lang seq(Lang a, Lang b);
  Lang alt(std::vector<Lang> parts);
  Lang both(std::vector<Lang> parts);
  Lang without(Lang a);
  Lang repeat(Lang a, int64_t least, int64_t most);
  // The texts that a pattern matches, or holds a match of if `search`.
  Lang pattern(const RegexTree& tree, bool search);
  // An automaton of it. Where it has too many states, the texts that lead furthest are left out: what
  // remains is still in the language.
  GrammarBuilder::Expr grammar(GrammarBuilder& b, Lang of, Spelling spelling);

 private:
  enum class Kind : uint8_t { nothing, empty, set, seq, alt, both, without, repeat };
  enum class Start : uint8_t { yes, no, maybe };  // whether a place is the text's beginning
  struct Node {
    Kind kind = Kind::nothing;
    bool nullable = false;
    int32_t set = -1;
    std::vector<Lang> parts = {};
    int64_t least = 0, most = 0;
    auto key() const { return std::tie(kind, set, parts, least, most); }
    bool operator<(const Node& o) const { return key() < o.key(); }
  };
  struct Part {  // characters that no set of a language tells apart
    CharSet chars;
    char32_t one;
  };

  Lang add(Node n);
  Lang plain(const RegexTree& tree);
  Lang before(const RegexTree& tree, Lang rest, Start start);
  Lang sequence_before(const RegexTree& tree, Lang rest, Start start);
  Lang derivative(Lang of, char32_t c);
  void leading(Lang of, std::vector<int32_t>& sets);
  const std::vector<Part>& partition(Lang of);
  bool nullable(Lang l) const { return nodes_[static_cast<size_t>(l)].nullable; }
  const Node& at(Lang l) const { return nodes_[static_cast<size_t>(l)]; }

  std::vector<Node> nodes_;
  std::map<Node, Lang> index_;
  std::vector<CharSet> sets_;
  std::map<std::vector<std::pair<char32_t, char32_t>>, int32_t> set_index_;
  std::unordered_map<uint64_t, Lang> derived_;
  std::map<std::vector<int32_t>, std::vector<Part>> partitions_;
  Lang all_ = -1;
  int32_t depth_ = 0;
};

}  // namespace carat
