#include "text/jinja/expr_parser.h"

#include <charconv>
#include <cstdlib>

#include "text/jinja/filters.h"
#include "text/jinja/text.h"

namespace carat::jinja {

ExprPtr ExpressionParser::tuple_or_value() { return tuple_of(&ExpressionParser::expression); }

bool ExpressionParser::at_tuple_end() const {
  return now().kind == Tok::Kind::print_end || now().kind == Tok::Kind::block_end || at_op(")") ||
         at_op("=") || at_word("in") || at_word("if") || at_word("recursive") || now().kind == Tok::Kind::end;
}

ExprPtr ExpressionParser::tuple_of(Rule rule) {
  const int line = now().line;
  ExprPtr first = (this->*rule)();
  if (!at_op(",")) return first;
  auto node = std::make_unique<ListExpr>(line, true);
  node->adopt(first.get());
  node->items.push_back(std::move(first));
  while (take_op(",")) {
    if (at_tuple_end()) break;
    node->items.push_back((this->*rule)());
    node->adopt(node->items.back().get());
  }
  return done(std::move(node));
}

ExprPtr ExpressionParser::expression() {
  Nest nest(*this);
  ExprPtr value = either();
  while (at_word("if")) {
    auto node = std::make_unique<Ternary>(now().line);
    ++at_;
    node->yes = std::move(value);
    node->condition = either();
    if (take_word("else")) node->no = expression();
    for (const Expr* child : {node->yes.get(), node->condition.get(), node->no.get()}) node->adopt(child);
    value = done(std::move(node));
  }
  return value;
}

ExprPtr ExpressionParser::either_without_if() { return either(); }

ExprPtr ExpressionParser::logic(bool is_and, Rule part) {
  const int line = now().line;
  ExprPtr first = (this->*part)();
  const std::string_view word = is_and ? "and" : "or";
  if (!at_word(word)) return first;
  auto node = std::make_unique<Logic>(line, is_and);
  node->parts.push_back(std::move(first));
  while (take_word(word)) node->parts.push_back((this->*part)());
  for (const ExprPtr& p : node->parts) node->adopt(p.get());
  return done(std::move(node));
}

ExprPtr ExpressionParser::either() { return logic(false, &ExpressionParser::both); }

ExprPtr ExpressionParser::both() { return logic(true, &ExpressionParser::negation); }

ExprPtr ExpressionParser::negation() {
  if (!at_word("not")) return comparison();
  Nest nest(*this);
  const int line = now().line;
  ++at_;
  return done(std::make_unique<Unary>(line, '!', negation()));
}

bool ExpressionParser::take_comparison(std::string& op) {
  for (const std::string_view symbol : {"==", "!=", "<", "<=", ">", ">="}) {
    if (at_op(symbol)) {
      op = symbol;
      ++at_;
      return true;
    }
  }
  if (take_word("in")) return op = "in", true;
  if (at_word("not") && is_word(ahead(), "in")) {
    at_ += 2;
    return op = "not in", true;
  }
  return false;
}

ExprPtr ExpressionParser::comparison() {
  const int line = now().line;
  ExprPtr first = sum();
  std::string op;
  if (!take_comparison(op)) return first;
  auto node = std::make_unique<Compare>(line);
  node->adopt(first.get());
  node->first = std::move(first);
  do {
    node->rest.emplace_back(op, sum());
    node->adopt(node->rest.back().second.get());
  } while (take_comparison(op));
  return done(std::move(node));
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concat();
  while (at_op("+") || at_op("-")) {
    const Tok& op = t_[at_++];
    ExprPtr right = concat();
    left = done(std::make_unique<Binary>(op.line, op.text[0], std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr ExpressionParser::concat() {
  const int line = now().line;
  ExprPtr first = product();
  if (!at_op("~")) return first;
  auto node = std::make_unique<Concat>(line);
  node->parts.push_back(std::move(first));
  while (take_op("~")) node->parts.push_back(product());
  for (const ExprPtr& p : node->parts) node->adopt(p.get());
  return done(std::move(node));
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const Tok& op = t_[at_++];
    ExprPtr right = power();
    left = done(std::make_unique<Binary>(op.line, op.text == "//" ? 'D' : op.text[0], std::move(left),
                                         std::move(right)));
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary(true);
  while (at_op("**")) {
    const int line = t_[at_++].line;
    ExprPtr right = unary(true);
    left = done(std::make_unique<Binary>(line, 'P', std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const int line = now().line;
  ExprPtr value;
  if (at_op("-") || at_op("+")) {
    Nest nest(*this);
    const char op = t_[at_++].text[0];
    value = done(std::make_unique<Unary>(line, op, unary(false)));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::primary() {
  Nest nest(*this);
  const Tok& tok = now();
  const int line = tok.line;
  switch (tok.kind) {
    case Tok::Kind::name: {
      const std::string name = tok.text;
      ++at_;
      if (name == "true" || name == "True") return std::make_unique<Literal>(line, true);
      if (name == "false" || name == "False") return std::make_unique<Literal>(line, false);
      if (name == "none" || name == "None") return std::make_unique<Literal>(line, None{});
      return std::make_unique<Name>(line, name);
    }
    case Tok::Kind::string: {
      std::string text;
      while (now().kind == Tok::Kind::string) text += t_[at_++].text;  // "a" "b" is one string
      return std::make_unique<Literal>(line, Value(std::move(text)));
    }
    case Tok::Kind::integer: ++at_; return std::make_unique<Literal>(line, integer(tok));
    case Tok::Kind::real:
      ++at_;
      return std::make_unique<Literal>(line, std::strtod(tok.text.c_str(), nullptr));
    case Tok::Kind::op:
      if (tok.text == "(") return bracketed();
      if (tok.text == "[") return list();
      if (tok.text == "{") return dict();
      [[fallthrough]];
    default: unexpected("an expression");
  }
}

Value ExpressionParser::integer(const Tok& tok) {
  std::string_view digits = tok.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && digits[1] > '9') {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    fail_at(tok.line, fmt::format("the number '{}' is too large or malformed", tok.text));
  }
  return Value(static_cast<Int>(value));
}

ExprPtr ExpressionParser::bracketed() {
  const int line = t_[at_++].line;
  if (take_op(")")) return std::make_unique<ListExpr>(line, true);
  ExprPtr value = tuple_or_value();
  expect_op(")");
  return value;
}

ExprPtr ExpressionParser::list() {
  auto node = std::make_unique<ListExpr>(t_[at_++].line, false);
  while (!take_op("]")) {
    if (!node->items.empty()) expect_op(",");
    if (take_op("]")) break;
    node->items.push_back(expression());
    node->adopt(node->items.back().get());
  }
  return done(std::move(node));
}

ExprPtr ExpressionParser::dict() {
  auto node = std::make_unique<DictExpr>(t_[at_++].line);
  while (!take_op("}")) {
    if (!node->items.empty()) expect_op(",");
    if (take_op("}")) break;
    ExprPtr key = expression();
    expect_op(":");
    ExprPtr value = expression();
    node->adopt(key.get());
    node->adopt(value.get());
    node->items.emplace_back(std::move(key), std::move(value));
  }
  return done(std::move(node));
}

ExprPtr ExpressionParser::postfix(ExprPtr base) {
  for (;;) {
    const int line = now().line;
    if (take_op(".")) {
      if (now().kind == Tok::Kind::integer) {
        ExprPtr index = std::make_unique<Literal>(line, integer(t_[at_++]));
        base = done(std::make_unique<Subscript>(line, std::move(base), std::move(index)));
      } else {
        base = done(std::make_unique<Attribute>(line, std::move(base), expect_name("an attribute")));
      }
    } else if (take_op("[")) {
      base = subscript(std::move(base), line);
    } else if (at_op("(")) {
      base = call(std::move(base));
    } else {
      return base;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr base, int line) {
  ExprPtr start;
  if (!at_op(":")) start = tuple_or_value();
  if (!at_op(":")) {
    expect_op("]");
    return done(std::make_unique<Subscript>(line, std::move(base), std::move(start)));
  }
  auto node = std::make_unique<Slice>(line);
  node->base = std::move(base);
  node->start = std::move(start);
  expect_op(":");
  if (!at_op(":") && !at_op("]")) node->stop = expression();
  if (take_op(":") && !at_op("]")) node->step = expression();
  expect_op("]");
  for (const Expr* child : {node->base.get(), node->start.get(), node->stop.get(), node->step.get()})
    node->adopt(child);
  return done(std::move(node));
}

Arguments ExpressionParser::arguments(Expr& owner) {
  Arguments out;
  expect_op("(");
  while (!take_op(")")) {
    if (!out.empty()) expect_op(",");
    if (take_op(")")) break;
    Argument a;
    if (take_op("*")) {
      a.kind = Argument::Kind::star;
    } else if (take_op("**")) {
      a.kind = Argument::Kind::star_star;
    } else if (now().kind == Tok::Kind::name && is_op(ahead(), "=")) {
      a.kind = Argument::Kind::keyword;
      a.name = now().text;
      at_ += 2;
    } else if (!out.empty() && out.back().kind != Argument::Kind::positional) {
      fail_at(now().line, "a positional argument follows a named one");
    }
    a.value = expression();
    owner.adopt(a.value.get());
    out.push_back(std::move(a));
  }
  return out;
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  auto node = std::make_unique<Call>(now().line);
  node->adopt(callee.get());
  node->callee = std::move(callee);
  node->arguments = arguments(*node);
  return done(std::move(node));
}

std::string ExpressionParser::dotted_name(std::string_view what) {
  std::string name = expect_name(what);
  while (take_op(".")) name.append(".").append(expect_name(what));
  return name;
}

ExprPtr ExpressionParser::one_filter(ExprPtr base) {
  auto node = std::make_unique<Filter>(now().line);
  node->adopt(base.get());
  node->base = std::move(base);
  node->name = dotted_name("a filter name");
  if (!find_filter(node->name))
    fail_at(node->line, fmt::format("the filter '{}' is not supported", node->name));
  if (at_op("(")) node->arguments = arguments(*node);
  return done(std::move(node));
}

// Filters, tests and calls of their results.
ExprPtr ExpressionParser::filters(ExprPtr base) {
  for (;;) {
    if (take_op("|"))
      base = one_filter(std::move(base));
    else if (base && at_word("is"))
      base = test(std::move(base));
    else if (base && at_op("("))
      base = call(std::move(base));
    else
      return base;
  }
}

bool ExpressionParser::at_test_argument() const {
  switch (now().kind) {
    case Tok::Kind::name:
      for (const std::string_view word : {"else", "or", "and", "is", "if", "in", "not", "recursive"}) {
        if (at_word(word)) return false;
      }
      return true;
    case Tok::Kind::string:
    case Tok::Kind::integer:
    case Tok::Kind::real: return true;
    default: return at_op("[") || at_op("{");
  }
}

ExprPtr ExpressionParser::test(ExprPtr base) {
  const int line = t_[at_++].line;
  const bool negated = take_word("not");
  auto node = std::make_unique<Test>(line);
  node->adopt(base.get());
  node->base = std::move(base);
  node->name = dotted_name("a test name");
  if (!find_test(node->name)) fail_at(line, fmt::format("the test '{}' is not supported", node->name));
  if (at_op("(")) {
    node->arguments = arguments(*node);
  } else if (at_test_argument()) {
    Argument a;
    a.value = postfix(primary());
    node->adopt(a.value.get());
    node->arguments.push_back(std::move(a));
  }
  if (at_word("is")) fail_at(line, "tests cannot be chained with 'is'");
  ExprPtr value = done(std::move(node));
  return negated ? done(std::make_unique<Unary>(line, '!', std::move(value))) : std::move(value);
}

}  // namespace carat::jinja
