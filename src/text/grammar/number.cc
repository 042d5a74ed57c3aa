// Numbers within bounds, digit by digit: as long as the digits so far are those of a bound, the next one is
// bounded by it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "text/grammar/schema.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int64_t kMost = 999'999'999'999'999'999;  // 18 digits: of fractions and of multiples
constexpr int64_t kMostInteger = std::numeric_limits<int64_t>::max();
constexpr int kFraction = 16;  // digits behind the point
constexpr int64_t kListed = 4096, kMostDivisor = 500;
constexpr int kDigits = 18;

Expr digits(GrammarBuilder& b, int64_t least, int64_t most) {
  return b.repeat(digit_grammar(b, '0', '9'), least, most);
}

// Texts of one length from low to high.
Expr same_length(GrammarBuilder& b, std::string_view low, std::string_view high) {
  const auto n = static_cast<int64_t>(low.size());
  if (n == 0) return b.empty();
  if (low.find_first_not_of('0') == low.npos && high.find_first_not_of('9') == high.npos)
    return digits(b, n, n);
  if (low[0] == high[0])
    return b.seq({b.text(low.substr(0, 1)), same_length(b, low.substr(1), high.substr(1))});
  const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
  std::vector<Expr> options;
  options.push_back(b.seq({b.text(low.substr(0, 1)), same_length(b, low.substr(1), nines)}));
  if (high[0] - low[0] > 1)
    options.push_back(b.seq({digit_grammar(b, static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)),
                             digits(b, n - 1, n - 1)}));
  options.push_back(b.seq({b.text(high.substr(0, 1)), same_length(b, zeros, high.substr(1))}));
  return b.alt(std::move(options));
}

// 0 <= low <= high.
Expr natural(GrammarBuilder& b, uint64_t low, uint64_t high) {
  std::vector<Expr> options;
  for (uint64_t from = low; from <= high;) {
    const std::string a = std::to_string(from), nines(a.size(), '9');
    const uint64_t to = std::min<uint64_t>(high, std::stoull(nines));
    options.push_back(same_length(b, a, std::to_string(to)));
    from = to + 1;
  }
  return b.alt(std::move(options));
}

// low and high as integers that satisfy the bounds; false if there is none.
bool integer_bounds(const NumberBounds& bounds, int64_t most, int64_t& low, int64_t& high) {
  const auto wide = static_cast<long double>(kMostInteger);
  const auto clamp = [wide](long double v) { return static_cast<int64_t>(std::clamp(v, -wide, wide)); };
  low = -most;
  high = most;
  if (bounds.low) {
    long double v = std::ceil(*bounds.low);
    if (bounds.low_open && v == *bounds.low) v += 1;
    low = std::max(low, clamp(v));
  }
  if (bounds.high) {
    long double v = std::floor(*bounds.high);
    if (bounds.high_open && v == *bounds.high) v -= 1;
    high = std::min(high, clamp(v));
  }
  return low <= high;
}

// A bound that is not negative as decimal digits: before and behind the point, the latter without last zeros.
struct Decimal {
  std::string whole, fraction;
};
Decimal decimal(double v) {
  std::string text = fmt::format("{:.17f}", v);
  for (int precision = 0; precision < 17; ++precision) {
    std::string shorter = fmt::format("{:.{}f}", v, precision);
    if (std::stod(shorter) == v) {
      text = std::move(shorter);
      break;
    }
  }
  const size_t point = std::min(text.find('.'), text.size());
  Decimal d{text.substr(0, point), point < text.size() ? text.substr(point + 1) : ""};
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  return d;
}

// The digits behind the point, as rules by how many are written and which bounds they still follow.
class Fraction {
 public:
  Fraction(GrammarBuilder& b, std::string low, std::string high, bool low_open, bool high_open)
      : b_(b), low_(std::move(low)), high_(std::move(high)), low_open_(low_open), high_open_(high_open) {
    const size_t n = std::max(low_.size(), high_.size());
    low_.resize(n, '0');
    high_.resize(n, '0');
  }
  // Nothing, or a point and at least one digit.
  Expr run(bool tight_low, bool tight_high) {
    std::vector<Expr> options;
    if (may_stop(0, tight_low, tight_high)) options.push_back(b_.empty());
    options.push_back(b_.seq({b_.text("."), digit(0, tight_low, tight_high)}));
    return b_.alt(std::move(options));
  }

 private:
  bool may_stop(size_t at, bool tight_low, bool tight_high) const {
    const auto zeros = [at](const std::string& s) {
      return s.find_first_not_of('0', at) == std::string::npos;
    };
    if (tight_low && (!zeros(low_) || low_open_)) return false;
    return !(tight_high && zeros(high_) && high_open_);
  }
  Expr rest(size_t at, bool tight_low, bool tight_high) {
    if (!tight_low && !tight_high) return digits(b_, 0, kFraction);
    const auto [it, fresh] = rules_.try_emplace({at, tight_low, tight_high}, -1);
    if (!fresh) return b_.ref(it->second);
    const int32_t rule = it->second = b_.rule("fraction");
    std::vector<Expr> options = {digit(at, tight_low, tight_high)};
    if (may_stop(at, tight_low, tight_high)) options.push_back(b_.empty());
    b_.define(rule, b_.alt(std::move(options)));
    return b_.ref(rule);
  }
  Expr digit(size_t at, bool tight_low, bool tight_high) {
    const char low = tight_low && at < low_.size() ? low_[at] : '0';
    const char high = !tight_high ? '9' : at < high_.size() ? high_[at] : '0';
    const size_t next = std::min(at + 1, low_.size());
    std::vector<Expr> options;
    for (char d = low; d <= high; ++d)
      options.push_back(
          b_.seq({b_.text(std::string(1, d)), rest(next, tight_low && d == low, tight_high && d == high)}));
    return b_.alt(std::move(options));
  }

  GrammarBuilder& b_;
  std::string low_, high_;
  bool low_open_, high_open_;
  std::map<std::tuple<size_t, bool, bool>, int32_t> rules_;
};

// From low to high, none of them negative.
Expr positive(GrammarBuilder& b, double low, bool low_open, double high, bool high_open) {
  const Decimal l = decimal(low), h = decimal(high);
  const int64_t from = std::stoll(l.whole), to = std::stoll(h.whole);
  Fraction fraction(b, l.fraction, h.fraction, low_open, high_open);
  if (from == to) return b.seq({b.text(l.whole), fraction.run(true, true)});
  std::vector<Expr> options = {b.seq({b.text(l.whole), fraction.run(true, false)}),
                               b.seq({b.text(h.whole), fraction.run(false, true)})};
  if (to - from > 1)
    options.push_back(b.seq({natural(b, static_cast<uint64_t>(from + 1), static_cast<uint64_t>(to - 1)),
                             b.optional(b.seq({b.text("."), digits(b, 1, kFraction)}))}));
  return b.alt(std::move(options));
}

}  // namespace

Expr digit_grammar(GrammarBuilder& b, char low, char high) {
  return b.chars({{static_cast<unsigned char>(low), static_cast<unsigned char>(high)}});
}

Expr integer_grammar(GrammarBuilder& b, const NumberBounds& bounds) {
  int64_t low = 0, high = 0;
  if (!bounds.low && !bounds.high)
    return b.seq({b.optional(b.text("-")),
                  b.alt({b.text("0"), b.seq({digit_grammar(b, '1', '9'), digits(b, 0, 18)})})});
  if (!integer_bounds(bounds, kMostInteger, low, high)) return b.nothing();
  std::vector<Expr> options;
  if (high >= 0)
    options.push_back(
        natural(b, static_cast<uint64_t>(std::max<int64_t>(low, 0)), static_cast<uint64_t>(high)));
  if (low < 0)
    options.push_back(b.seq({b.text("-"), natural(b, static_cast<uint64_t>(high >= 0 ? 1 : -high),
                                                  static_cast<uint64_t>(-low))}));
  return b.alt(std::move(options));
}

Expr number_grammar(GrammarBuilder& b, const NumberBounds& bounds) {
  if (!bounds.low && !bounds.high) {
    const auto digit = [&](char low, char high) { return digit_grammar(b, low, high); };
    const Expr exponent =
        b.alt({digits(b, 1, 2), b.seq({digit('1', '2'), digit('0', '8'), digit('0', '9')})});
    return b.seq({b.optional(b.text("-")), natural(b, 0, kMost),
                  b.optional(b.seq({b.text("."), digits(b, 1, kFraction)})),
                  b.optional(b.seq({b.chars({{'E', 'E'}, {'e', 'e'}}),
                                    b.optional(b.chars({{'+', '+'}, {'-', '-'}})), exponent}))});
  }
  constexpr double kHuge = 1e17;
  const double low = std::max<double>(static_cast<double>(bounds.low.value_or(-kHuge)), -kHuge),
               high = std::min<double>(static_cast<double>(bounds.high.value_or(kHuge)), kHuge);
  const bool low_open = bounds.low && bounds.low_open, high_open = bounds.high && bounds.high_open;
  if (low > high || (low == high && (low_open || high_open))) return b.nothing();
  std::vector<Expr> options;
  if (high >= 0) options.push_back(positive(b, std::max(low, 0.0), low_open && low >= 0, high, high_open));
  if (low < 0)
    options.push_back(
        b.seq({b.text("-"), positive(b, std::max(-high, 0.0), high_open && high <= 0, -low, low_open)}));
  return b.alt(std::move(options));
}

Expr multiple_grammar(GrammarBuilder& b, int64_t of, const NumberBounds& bounds) {
  int64_t low = 0, high = 0;
  if (!integer_bounds(bounds, kMost, low, high)) return b.nothing();
  const int64_t first = low / of + (low % of > 0), last = high / of - (high % of < 0);
  if (last - first < kListed) {
    std::vector<std::string> all;
    for (int64_t i = first; i <= last; ++i) all.push_back(std::to_string(i * of));
    return b.literals(std::move(all));
  }
  const bool negative = low == -kMost, positive = high == kMost;
  if ((!negative && low != 0 && low != 1) || (!positive && high != 0 && high != -1) || of > kMostDivisor)
    throw Error("multipleOf with these bounds is not supported",
                "use fewer multiples, or no bounds but a sign");
  // after[n][r]: n digits may follow those written, which are r modulo `of`.
  std::vector<Expr> digit;
  for (char d = '0'; d <= '9'; ++d) digit.push_back(b.text(std::string(1, d)));
  std::vector<Expr> after(static_cast<size_t>(of), b.nothing()), before;
  after[0] = b.empty();
  for (int n = 1; n < kDigits; ++n) {
    before.clear();
    for (int64_t r = 0; r < of; ++r) {
      std::vector<Expr> options;
      if (r == 0) options.push_back(b.empty());
      for (int64_t d = 0; d <= 9; ++d)
        options.push_back(
            b.seq({digit[static_cast<size_t>(d)], after[static_cast<size_t>((r * 10 + d) % of)]}));
      before.push_back(b.named("multiple", b.alt(std::move(options))));
    }
    after = before;
  }
  std::vector<Expr> from;
  for (int64_t d = 1; d <= 9; ++d)
    from.push_back(b.seq({digit[static_cast<size_t>(d)], after[static_cast<size_t>(d % of)]}));
  const Expr above = b.alt(std::move(from));
  std::vector<Expr> options;
  if (low <= 0 && high >= 0) options.push_back(b.text("0"));
  if (positive) options.push_back(above);
  if (negative) options.push_back(b.seq({b.text("-"), above}));
  return b.alt(std::move(options));
}

}  // namespace carat
