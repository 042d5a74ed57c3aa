#include "text/grammar/derive.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace carat {
namespace {

constexpr size_t kMaxLangs = 200'000, kMaxDerivedStates = 6'000, kMaxDerived = 500'000;
constexpr int64_t kMaxUnrolled = 32;

[[noreturn]] void too_large() {
  throw Error("a pattern with what it looks ahead for, with a length or with another pattern is too large",
              "say it in one simpler pattern");
}
[[noreturn]] void cannot(const char* what) {
  throw Error(fmt::format("a regular expression that {} is not supported", what));
}

constexpr int32_t kMaxDeep = 3000;
// Recursion that follows the pattern: its length is the client's.
struct Deep {
  explicit Deep(int32_t& d) : depth(d) {
    if (depth >= kMaxDeep) too_large();
    ++depth;
  }
  ~Deep() { --depth; }
  Deep(const Deep&) = delete;
  int32_t& depth;
};

bool holds(const CharSet& set, char32_t c) {
  const auto it =
      std::upper_bound(set.begin(), set.end(), c, [](char32_t x, const CharRange& r) { return x < r.low; });
  return it != set.begin() && c <= std::prev(it)->high;
}

}  // namespace

bool RegexTree::pure() const {
  if (kind == Kind::begin || kind == Kind::end || kind == Kind::look) return false;
  return std::all_of(parts.begin(), parts.end(), [](const RegexTree& p) { return p.pure(); });
}

Derivatives::Derivatives() {
  add({.kind = Kind::nothing});
  add({.kind = Kind::empty, .nullable = true});
  all_ =
      add({.kind = Kind::repeat, .nullable = true, .parts = {set(complement({}))}, .least = 0, .most = -1});
}

Derivatives::Lang Derivatives::add(Node n) {
  if (const auto it = index_.find(n); it != index_.end()) return it->second;
  if (nodes_.size() >= kMaxLangs) too_large();
  const auto id = static_cast<Lang>(nodes_.size());
  index_.emplace(n, id);
  nodes_.push_back(std::move(n));
  return id;
}

Derivatives::Lang Derivatives::set(const CharSet& chars) {
  if (chars.empty()) return nothing();
  std::vector<std::pair<char32_t, char32_t>> key;
  for (const CharRange& r : chars) key.emplace_back(r.low, r.high);
  const auto [it, fresh] = set_index_.try_emplace(std::move(key), static_cast<int32_t>(sets_.size()));
  if (fresh) sets_.push_back(chars);
  return add({.kind = Kind::set, .set = it->second});
}

// To the right, so that equal languages look equal.
Derivatives::Lang Derivatives::seq(Lang a, Lang b) {
  if (a == nothing() || b == nothing()) return nothing();
  if (a == empty()) return b;
  if (b == empty()) return a;
  if (at(a).kind == Kind::seq) {
    const Deep deep(depth_);
    const Lang first = at(a).parts[0], rest = at(a).parts[1];
    return seq(first, seq(rest, b));
  }
  return add({.kind = Kind::seq, .nullable = nullable(a) && nullable(b), .parts = {a, b}});
}

Derivatives::Lang Derivatives::alt(std::vector<Lang> parts) {
  std::set<Lang> out;
  for (const Lang p : parts) {
    if (at(p).kind == Kind::alt)
      out.insert(at(p).parts.begin(), at(p).parts.end());
    else if (p != nothing())
      out.insert(p);
  }
  if (out.contains(all_)) return all_;
  if (out.empty()) return nothing();
  if (out.size() == 1) return *out.begin();
  const bool null = std::any_of(out.begin(), out.end(), [&](Lang l) { return nullable(l); });
  return add({.kind = Kind::alt, .nullable = null, .parts = {out.begin(), out.end()}});
}

Derivatives::Lang Derivatives::both(std::vector<Lang> parts) {
  std::set<Lang> out;
  for (const Lang p : parts) {
    if (p == nothing()) return nothing();
    if (at(p).kind == Kind::both)
      out.insert(at(p).parts.begin(), at(p).parts.end());
    else if (p != all_)
      out.insert(p);
  }
  if (out.empty()) return all_;
  if (out.size() == 1) return *out.begin();
  const bool null = std::all_of(out.begin(), out.end(), [&](Lang l) { return nullable(l); });
  if (out.contains(empty())) return null ? empty() : nothing();
  return add({.kind = Kind::both, .nullable = null, .parts = {out.begin(), out.end()}});
}

Derivatives::Lang Derivatives::without(Lang a) {
  if (at(a).kind == Kind::without) return at(a).parts[0];
  if (a == nothing()) return all_;
  if (a == all_) return nothing();
  return add({.kind = Kind::without, .nullable = !nullable(a), .parts = {a}});
}

Derivatives::Lang Derivatives::repeat(Lang a, int64_t least, int64_t most) {
  if (most >= 0 && most < least) return nothing();
  if (most == 0 || a == empty()) return empty();
  if (a == nothing()) return least == 0 ? empty() : nothing();
  if (least == 1 && most == 1) return a;
  if (nullable(a)) least = 0;
  return add({.kind = Kind::repeat, .nullable = least == 0, .parts = {a}, .least = least, .most = most});
}

// ---- patterns

Derivatives::Lang Derivatives::plain(const RegexTree& t) {
  switch (t.kind) {
    case RegexTree::Kind::set: return set(t.set);
    case RegexTree::Kind::repeat: return repeat(plain(t.parts[0]), t.least, t.most);
    case RegexTree::Kind::alt: {
      std::vector<Lang> parts;
      for (const RegexTree& p : t.parts) parts.push_back(plain(p));
      return alt(std::move(parts));
    }
    default: break;
  }
  Lang rest = empty();
  for (auto p = t.parts.rbegin(); p != t.parts.rend(); ++p) rest = seq(plain(*p), rest);
  return rest;
}

// The texts that begin with the tree and go on with `rest`: what is looked ahead for is in the rest.
Derivatives::Lang Derivatives::before(const RegexTree& t, Lang rest, Start start) {
  if (t.pure()) return seq(plain(t), rest);
  switch (t.kind) {
    case RegexTree::Kind::begin:
      if (start == Start::maybe) cannot("has a ^ that may or may not stand at the beginning");
      return start == Start::yes ? rest : nothing();
    case RegexTree::Kind::end: return nullable(rest) ? empty() : nothing();
    case RegexTree::Kind::look: {
      const Lang ahead = before(t.parts[0], all_, start);
      return both({t.negative ? without(ahead) : ahead, rest});
    }
    case RegexTree::Kind::alt: {
      std::vector<Lang> parts;
      for (const RegexTree& p : t.parts) parts.push_back(before(p, rest, start));
      return alt(std::move(parts));
    }
    case RegexTree::Kind::repeat: {
      if (t.most < 0 || t.most > kMaxUnrolled) cannot("repeats what looks ahead");
      Lang all = rest;
      for (int64_t i = t.most; i > 0; --i) {
        const Lang once = before(t.parts[0], all, i == 1 ? start : Start::maybe);
        all = i > t.least ? alt({rest, once}) : once;
      }
      return all;
    }
    default: return sequence_before(t, rest, start);
  }
}

Derivatives::Lang Derivatives::sequence_before(const RegexTree& t, Lang rest, Start start) {
  std::vector<Start> starts;
  for (const RegexTree& p : t.parts) {
    starts.push_back(start);
    if (p.kind == RegexTree::Kind::begin || p.kind == RegexTree::Kind::end || p.kind == RegexTree::Kind::look)
      continue;
    const bool takes = p.pure() && !nullable(plain(p));
    if (start != Start::no) start = takes ? Start::no : Start::maybe;
  }
  for (size_t i = t.parts.size(); i-- > 0;) rest = before(t.parts[i], rest, starts[i]);
  return rest;
}

Derivatives::Lang Derivatives::pattern(const RegexTree& tree, bool search) {
  if (!search) return before(tree, empty(), Start::yes);
  const Lang later = seq(set(complement({})), seq(all_, before(tree, all_, Start::no)));
  return alt({before(tree, all_, Start::yes), later});
}

// ---- the automaton

Derivatives::Lang Derivatives::derivative(Lang of, char32_t c) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(of)} << 32 | c;
  if (const auto it = derived_.find(key); it != derived_.end()) return it->second;
  if (derived_.size() > kMaxDerived) too_large();
  const Deep deep(depth_);
  const Node n = at(of);  // a copy: nodes move
  Lang out = nothing();
  std::vector<Lang> parts;
  switch (n.kind) {
    case Kind::nothing:
    case Kind::empty: break;
    case Kind::set: out = holds(sets_[static_cast<size_t>(n.set)], c) ? empty() : nothing(); break;
    case Kind::seq:
      parts.push_back(seq(derivative(n.parts[0], c), n.parts[1]));
      if (nullable(n.parts[0])) parts.push_back(derivative(n.parts[1], c));
      out = alt(std::move(parts));
      break;
    case Kind::alt:
    case Kind::both:
      for (const Lang p : n.parts) parts.push_back(derivative(p, c));
      out = n.kind == Kind::alt ? alt(std::move(parts)) : both(std::move(parts));
      break;
    case Kind::without: out = without(derivative(n.parts[0], c)); break;
    case Kind::repeat:
      out = seq(derivative(n.parts[0], c),
                repeat(n.parts[0], std::max<int64_t>(n.least - 1, 0), n.most < 0 ? -1 : n.most - 1));
      break;
  }
  derived_.emplace(key, out);
  return out;
}

void Derivatives::leading(Lang of, std::vector<int32_t>& sets) {
  const Deep deep(depth_);
  const Node& n = at(of);
  if (n.kind == Kind::set) sets.push_back(n.set);
  if (n.kind == Kind::seq) {
    leading(n.parts[0], sets);
    if (nullable(n.parts[0])) leading(n.parts[1], sets);
    return;
  }
  for (const Lang p : n.parts) leading(p, sets);
}

const std::vector<Derivatives::Part>& Derivatives::partition(Lang of) {
  std::vector<int32_t> which;
  leading(of, which);
  std::sort(which.begin(), which.end());
  which.erase(std::unique(which.begin(), which.end()), which.end());
  const auto [it, fresh] = partitions_.try_emplace(which);
  if (!fresh) return it->second;
  const CharSet every = complement({});
  std::set<char32_t> cuts;
  for (const CharRange& r : every) cuts.insert({r.low, r.high + 1});
  for (const int32_t s : which)
    for (const CharRange& r : sets_[static_cast<size_t>(s)]) cuts.insert({r.low, r.high + 1});
  std::map<std::vector<bool>, Part> parts;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    if (!holds(every, *cut)) continue;
    std::vector<bool> in;
    for (const int32_t s : which) in.push_back(holds(sets_[static_cast<size_t>(s)], *cut));
    Part& p = parts.try_emplace(std::move(in), Part{{}, *cut}).first->second;
    p.chars.push_back({*cut, *std::next(cut) - 1});
  }
  for (auto& [unused, p] : parts) it->second.push_back({normalized(std::move(p.chars)), p.one});
  return it->second;
}

GrammarBuilder::Expr Derivatives::grammar(GrammarBuilder& b, Lang of, Spelling spelling) {
  std::vector<Lang> order = {of};
  std::unordered_map<Lang, int32_t> number = {{of, 0}};
  std::vector<GrammarBuilder::GraphEdge> edges;
  for (size_t i = 0; i < order.size(); ++i) {
    std::map<Lang, CharSet> next;
    const std::vector<Part> parts = partition(order[i]);
    for (const Part& p : parts) {
      const Lang to = derivative(order[i], p.one);
      if (to == nothing()) continue;
      CharSet& chars = next[to];
      chars.insert(chars.end(), p.chars.begin(), p.chars.end());
    }
    for (auto& [to, chars] : next) {
      if (!number.contains(to) && order.size() >= kMaxDerivedStates) continue;
      const auto [it, fresh] = number.try_emplace(to, static_cast<int32_t>(order.size()));
      if (fresh) order.push_back(to);
      edges.push_back(
          {static_cast<int32_t>(i), it->second, spelled(b, normalized(std::move(chars)), spelling)});
    }
  }
  std::vector<bool> ends;
  for (const Lang l : order) ends.push_back(nullable(l));
  return b.graph(std::move(edges), std::move(ends));
}

GrammarBuilder::Expr text_grammar(GrammarBuilder& b, const std::vector<TextPattern>& patterns, int64_t least,
                                  int64_t most, Spelling spelling, std::string_view never) {
  Derivatives d;
  std::vector<Derivatives::Lang> all;
  for (const TextPattern& p : patterns) all.push_back(d.pattern(parse_regex(p.pattern), p.search));
  if (least > 0 || most >= 0) all.push_back(d.repeat(d.set(complement({})), least, most));
  if (!never.empty()) {
    Derivatives::Lang literal = d.empty();
    for (auto c = never.rbegin(); c != never.rend(); ++c) {
      const auto code = static_cast<char32_t>(static_cast<unsigned char>(*c));
      literal = d.seq(d.set({{code, code}}), literal);
    }
    all.push_back(d.without(d.seq(d.all(), d.seq(literal, d.all()))));
  }
  return d.grammar(b, d.both(std::move(all)), spelling);
}

}  // namespace carat
