#include "text/grammar/grammar.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

constexpr size_t kMaxNodes = 200'000;

}  // namespace

CharSet normalized(CharSet set) {
  CharSet cut;
  for (const CharRange& r : set) {  // surrogates are no characters
    if (r.low < 0xD800) cut.push_back({r.low, std::min<char32_t>(r.high, 0xD7FF)});
    if (r.high > 0xDFFF)
      cut.push_back({std::max<char32_t>(r.low, 0xE000), std::min<char32_t>(r.high, 0x10FFFF)});
  }
  std::erase_if(cut, [](const CharRange& r) { return r.low > r.high; });
  std::sort(cut.begin(), cut.end(), [](const CharRange& a, const CharRange& b) { return a.low < b.low; });
  CharSet out;
  for (const CharRange& r : cut) {
    if (!out.empty() && r.low <= out.back().high + 1)
      out.back().high = std::max(out.back().high, r.high);
    else
      out.push_back(r);
  }
  return out;
}

CharSet complement(const CharSet& set) {
  CharSet out;
  char32_t next = 0;
  for (const CharRange& r : normalized(set)) {
    if (r.low > next) out.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= 0x10FFFF) out.push_back({next, 0x10FFFF});
  return normalized(std::move(out));
}

CharSet intersection(const CharSet& a, const CharSet& b) {
  CharSet either = complement(a);
  const CharSet other = complement(b);
  either.insert(either.end(), other.begin(), other.end());
  return complement(either);
}

std::string special_bytes(int32_t token) {
  std::string out(1, static_cast<char>(kSpecialByte));
  for (const int shift : {16, 8, 0}) out += static_cast<char>(token >> shift & 0xFF);
  return out;
}

bool is_special(const Tokenizer& tokenizer, int32_t token) {
  static constexpr std::string_view kTags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
  return tokenizer.is_control(token) ||
         (tokenizer.is_mark(token) &&
          std::find(std::begin(kTags), std::end(kTags), tokenizer.piece(token)) != std::end(kTags));
}

GrammarBuilder::Expr GrammarBuilder::add(Node node) {
  if (nodes_.size() >= kMaxNodes)
    throw Error("the grammar is too large", "use fewer or shorter alternatives and repetitions");
  nodes_.push_back(std::move(node));
  return static_cast<Expr>(nodes_.size()) - 1;
}

GrammarBuilder::Expr GrammarBuilder::text(std::string_view bytes) {
  Node n;
  n.text = bytes;
  return add(std::move(n));
}

GrammarBuilder::Expr GrammarBuilder::chars(const CharSet& set) {
  Node n;
  n.kind = Kind::chars;
  n.set = normalized(set);
  return add(std::move(n));
}

GrammarBuilder::Expr GrammarBuilder::special(std::string_view name) {
  const Token token = specials_ ? specials_->find(name) : -1;
  return token >= 0 && is_special(*specials_, token) ? text(special_bytes(token)) : text(name);
}

GrammarBuilder::Expr GrammarBuilder::any_special_but(std::string_view name) {
  std::vector<std::string> all;
  for (Token t = 0; specials_ && t < specials_->size(); ++t)
    if (is_special(*specials_, t) && !specials_->is_end(t) && specials_->piece(t) != name)
      all.push_back(special_bytes(t));
  return literals(std::move(all));
}

GrammarBuilder::Expr GrammarBuilder::seq(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  Node n;
  n.kind = Kind::seq;
  n.parts = std::move(parts);
  return add(std::move(n));
}

GrammarBuilder::Expr GrammarBuilder::alt(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  Node n;
  n.kind = Kind::alt;
  n.parts = std::move(parts);
  return add(std::move(n));
}

GrammarBuilder::Expr GrammarBuilder::literals(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return literal_range(texts, 0);
}

// Texts that agree before `from`.
GrammarBuilder::Expr GrammarBuilder::literal_range(std::span<const std::string> sorted, size_t from) {
  std::vector<Expr> options;
  for (size_t i = 0; i < sorted.size();) {
    if (sorted[i].size() == from) {
      options.push_back(empty());
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end][from] == sorted[i][from]) ++end;
    if (end == i + 1) {
      options.push_back(text(std::string_view(sorted[i]).substr(from)));
    } else {  // the first and the last of a sorted range share what all share
      const std::string &a = sorted[i], &b = sorted[end - 1];
      size_t same = from + 1;
      while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
      options.push_back(seq({text(std::string_view(a).substr(from, same - from)),
                             literal_range(sorted.subspan(i, end - i), same)}));
    }
    i = end;
  }
  return alt(std::move(options));
}

GrammarBuilder::Expr GrammarBuilder::repeat(Expr e, int64_t least, int64_t most) {
  Node n;
  n.kind = Kind::repeat;
  n.parts = {e};
  n.least = least;
  n.most = most;
  return add(std::move(n));
}

GrammarBuilder::Expr GrammarBuilder::any_char_but(std::string_view ascii) {
  CharSet set;
  for (const char c : ascii) set.push_back({static_cast<unsigned char>(c), static_cast<unsigned char>(c)});
  return chars(complement(set));
}

GrammarBuilder::Expr GrammarBuilder::text_until(std::string_view name) {
  const Token token = specials_ ? specials_->find(name) : -1;
  if (token < 0 || !is_special(*specials_, token)) return text_without(name, complement({}));
  return repeat(chars(complement({})), 0, -1);
}

// A state per matched beginning of the forbidden text (Knuth, Morris, Pratt); each is a rule that goes on
// with another one, or ends.
GrammarBuilder::Expr GrammarBuilder::text_without(std::string_view bytes, const CharSet& set) {
  const size_t n = bytes.size();
  std::vector<int32_t> at(n);
  for (size_t i = 0; i < n; ++i) at[i] = rule("text");
  const auto next = [&](size_t matched, char c) {
    std::string seen(bytes.substr(0, matched));
    seen += c;
    while (!std::string_view(bytes).starts_with(seen)) seen.erase(0, 1);
    return seen.size();
  };
  for (size_t i = 0; i < n; ++i) {
    CharSet other = set;
    std::vector<Expr> options = {empty()};
    std::string tried;
    for (const char c : bytes) {
      if (tried.find(c) != std::string::npos) continue;
      tried += c;
      const CharSet one = {{static_cast<unsigned char>(c), static_cast<unsigned char>(c)}};
      other = intersection(other, complement(one));
      const size_t to = next(i, c);
      if (to < n && !intersection(set, one).empty()) options.push_back(seq({chars(one), ref(at[to])}));
    }
    options.push_back(seq({chars(other), ref(at[0])}));
    define(at[i], alt(std::move(options)));
  }
  return ref(at[0]);
}

GrammarBuilder::Expr GrammarBuilder::graph(std::vector<GraphEdge> edges, std::vector<bool> ends) {
  Node n;
  n.kind = Kind::graph;
  n.edges = std::move(edges);
  n.ends = std::move(ends);
  return add(std::move(n));
}

int32_t GrammarBuilder::rule(std::string name) {
  if (rules_.size() >= kMaxNodes) throw Error("the grammar has too many rules");
  rules_.push_back({std::move(name), -1});
  return static_cast<int32_t>(rules_.size()) - 1;
}

void GrammarBuilder::define(int32_t rule, Expr e) { rules_.at(static_cast<size_t>(rule)).expr = e; }

GrammarBuilder::Expr GrammarBuilder::ref(int32_t rule) {
  Node n;
  n.kind = Kind::ref;
  n.rule = rule;
  return add(std::move(n));
}

GrammarBuilder::Expr GrammarBuilder::named(std::string name, Expr e) {
  const int32_t r = rule(std::move(name));
  define(r, e);
  return ref(r);
}

}  // namespace carat
