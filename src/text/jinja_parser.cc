// Statements and expressions by recursive descent; precedences are Jinja's (`~` binds tighter than `+`).
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "text/jinja_ast.h"
#include "text/jinja_filters.h"
#include "text/jinja_lexer.h"
#include "text/jinja_text.h"

namespace carat::jinja {
namespace {

constexpr int kMaxNesting = 100;  // of statements and brackets
constexpr int kMaxHeight = 400;   // of an expression's tree

using Words = std::vector<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Tok> tokens) : t_(std::move(tokens)) {}

  Body run() { return statements({}); }

 private:
  // ---- tokens
  const Tok& now() const { return t_[at_]; }
  const Tok& ahead() const { return t_[std::min(at_ + 1, t_.size() - 1)]; }
  static bool is_op(const Tok& t, std::string_view op) { return t.kind == Tok::Kind::op && t.text == op; }
  static bool is_word(const Tok& t, std::string_view word) {
    return t.kind == Tok::Kind::name && t.text == word;
  }
  bool at_op(std::string_view op) const { return is_op(now(), op); }
  bool at_word(std::string_view word) const { return is_word(now(), word); }
  bool take_op(std::string_view op) { return at_op(op) && ++at_; }
  bool take_word(std::string_view word) { return at_word(word) && ++at_; }
  static std::string describe(const Tok& t) {
    switch (t.kind) {
      case Tok::Kind::data: return "text";
      case Tok::Kind::print_end: return "'}}'";
      case Tok::Kind::block_end: return "'%}'";
      case Tok::Kind::string: return "a string";
      case Tok::Kind::end: return "the end of the template";
      default: return "'" + t.text + "'";
    }
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    fail_at(now().line, fmt::format("expected {}, got {}", wanted, describe(now())));
  }
  void expect_op(std::string_view op) {
    if (!take_op(op)) unexpected(fmt::format("'{}'", op));
  }
  void expect(Tok::Kind kind, std::string_view what) {
    if (now().kind != kind) unexpected(what);
    ++at_;
  }
  std::string expect_name(std::string_view what) {
    if (now().kind != Tok::Kind::name) unexpected(what);
    return t_[at_++].text;
  }
  void block_end() { expect(Tok::Kind::block_end, "'%}'"); }

  struct Nest {
    explicit Nest(Parser& p) : p_(p) {
      if (++p_.nesting_ > kMaxNesting)
        fail_at(p_.now().line, fmt::format("nested deeper than {}", kMaxNesting));
    }
    ~Nest() { --p_.nesting_; }
    Parser& p_;
  };

  template <class T>
  ExprPtr done(std::unique_ptr<T> node) const {
    if (node->height > kMaxHeight) fail_at(node->line, "an expression is too long");
    return node;
  }

  // ---- statements
  // Up to (not including) one of the end words, whose "{%" has been taken; or, without end words, to the end.
  Body statements(const Words& ends) {
    Nest nest(*this);
    Body body;
    const int line = now().line;
    for (;;) {
      switch (now().kind) {
        case Tok::Kind::data:
          body.push_back(std::make_unique<Text>(now().line, now().text));
          ++at_;
          break;
        case Tok::Kind::print_begin: {
          ++at_;
          const int at = now().line;
          body.push_back(std::make_unique<Print>(at, tuple_or_value()));
          expect(Tok::Kind::print_end, "'}}'");
          break;
        }
        case Tok::Kind::block_begin: {
          ++at_;
          for (const std::string_view end : ends) {
            if (at_word(end)) return body;
          }
          statement(body);
          break;
        }
        default:
          if (!ends.empty()) fail_at(line, fmt::format("'{}' is missing", ends.back()));
          return body;
      }
    }
  }
  // A body, its end word and "%}".
  Body body_to(std::string_view end) {
    block_end();
    Body body = statements({end});
    ++at_;
    if (end == "endblock" && now().kind == Tok::Kind::name) ++at_;
    block_end();
    return body;
  }

  void statement(Body& out) {
    const Tok& head = now();
    const int line = head.line;
    const std::string word = expect_name("a statement");
    if (word == "if") return out.push_back(if_statement(line));
    if (word == "for") return out.push_back(for_statement(line));
    if (word == "set") return out.push_back(set_statement(line));
    if (word == "macro") return out.push_back(macro_statement(line));
    if (word == "call") return out.push_back(call_statement(line));
    if (word == "filter") return out.push_back(filter_statement(line));
    if (word == "with") return out.push_back(with_statement(line));
    if (word == "generation" || word == "block") {
      auto node = std::make_unique<Scoped>(line);
      if (word == "block") expect_name("a block name");
      node->body = body_to("end" + word);
      return out.push_back(std::move(node));
    }
    if (word == "do") {
      auto node = std::make_unique<Do>(line);
      node->value = tuple_or_value();
      block_end();
      return out.push_back(std::move(node));
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail_at(line, fmt::format("'{}' outside of a loop", word));
      block_end();
      return out.push_back(std::make_unique<Jump>(line, word == "break" ? Flow::leave : Flow::next));
    }
    if (word.starts_with("end") || word == "else" || word == "elif") {
      fail_at(line, fmt::format("'{}' has nothing to close", word));
    }
    fail_at(line, fmt::format("the statement '{}' is not supported", word));
  }

  std::unique_ptr<Stmt> if_statement(int line) {
    auto node = std::make_unique<If>(line);
    ExprPtr condition = tuple_or_value();
    for (;;) {
      block_end();
      Body body = statements({"elif", "else", "endif"});
      node->branches.emplace_back(std::move(condition), std::move(body));
      if (take_word("elif")) {
        condition = tuple_or_value();
        continue;
      }
      if (take_word("else")) {
        node->branches.emplace_back(nullptr, body_to("endif"));
        return node;
      }
      ++at_;
      block_end();
      return node;
    }
  }

  std::unique_ptr<Stmt> for_statement(int line) {
    auto node = std::make_unique<For>(line);
    node->target = target(false);
    if (!take_word("in")) unexpected("'in'");
    node->iterable = tuple_of(&Parser::either_without_if);
    if (take_word("if")) node->condition = expression();
    node->recursive = take_word("recursive");
    block_end();
    ++loops_;
    node->body = statements({"else", "endfor"});
    --loops_;
    if (take_word("else")) {
      node->otherwise = body_to("endfor");
    } else {
      ++at_;
      block_end();
    }
    return node;
  }

  std::unique_ptr<Stmt> set_statement(int line) {
    auto node = std::make_unique<Set>(line);
    node->target = target(true);
    if (take_op("=")) {
      node->value = tuple_or_value();
      block_end();
    } else {
      if (at_op("|")) node->filters = filters(nullptr);
      node->body = body_to("endset");
    }
    return node;
  }

  void parameters(std::vector<Parameter>& out) {
    expect_op("(");
    while (!take_op(")")) {
      if (!out.empty()) expect_op(",");
      Parameter p;
      p.name = expect_name("a parameter name");
      if (take_op("="))
        p.standard = expression();
      else if (!out.empty() && out.back().standard)
        fail_at(now().line, "a parameter without default follows one with");
      out.push_back(std::move(p));
    }
  }

  // A macro's body; which of its hidden variables it names.
  void macro_body(Macro& macro, std::string_view end) {
    const size_t first = at_;
    const int loops = std::exchange(loops_, 0);
    macro.body = body_to(end);
    loops_ = loops;
    for (size_t i = first; i < at_; ++i) {
      macro.uses_caller |= is_word(t_[i], "caller");
      macro.uses_varargs |= is_word(t_[i], "varargs");
      macro.uses_kwargs |= is_word(t_[i], "kwargs");
    }
  }

  std::unique_ptr<Stmt> macro_statement(int line) {
    auto node = std::make_unique<Macro>(line);
    node->name = expect_name("a macro name");
    parameters(node->parameters);
    macro_body(*node, "endmacro");
    return node;
  }

  std::unique_ptr<Stmt> call_statement(int line) {
    auto node = std::make_unique<CallBlock>(line);
    node->caller = std::make_unique<Macro>(line);
    node->caller->name = "caller";
    if (at_op("(")) parameters(node->caller->parameters);
    node->call = expression();
    if (!dynamic_cast<Call*>(node->call.get())) fail_at(line, "'call' needs a call");
    macro_body(*node->caller, "endcall");
    return node;
  }

  std::unique_ptr<Stmt> filter_statement(int line) {
    auto node = std::make_unique<FilterBlock>(line);
    node->filters = one_filter(nullptr);
    if (at_op("|")) node->filters = filters(std::move(node->filters));
    node->body = body_to("endfilter");
    return node;
  }

  std::unique_ptr<Stmt> with_statement(int line) {
    auto node = std::make_unique<Scoped>(line);
    while (now().kind != Tok::Kind::block_end) {
      if (!node->assignments.empty()) expect_op(",");
      Target name = target(false);
      expect_op("=");
      node->assignments.emplace_back(std::move(name), expression());
    }
    node->body = body_to("endwith");
    return node;
  }

  Target target(bool attribute_allowed) {
    Target out;
    const bool bracket = take_op("(");
    do {
      if (!out.names.empty() && (now().kind != Tok::Kind::name || at_word("in"))) break;  // trailing comma
      const int line = now().line;
      const std::string name = expect_name("a variable name");
      for (const std::string_view word :
           {"true", "false", "none", "True", "False", "None", "not", "and", "or", "in", "is"}) {
        if (name == word) fail_at(line, fmt::format("cannot assign to '{}'", name));
      }
      out.names.push_back(name);
      if (attribute_allowed && out.names.size() == 1 && take_op(".")) {
        out.attribute = expect_name("an attribute");
        return out;
      }
      out.tuple |= at_op(",");
    } while (take_op(","));
    if (bracket) expect_op(")");
    return out;
  }

  // ---- expressions
  using Rule = ExprPtr (Parser::*)();

  ExprPtr tuple_or_value() { return tuple_of(&Parser::expression); }

  bool at_tuple_end() const {
    return now().kind == Tok::Kind::print_end || now().kind == Tok::Kind::block_end || at_op(")") ||
           at_op("=") || at_word("in") || at_word("if") || at_word("recursive") ||
           now().kind == Tok::Kind::end;
  }

  ExprPtr tuple_of(Rule rule) {
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

  ExprPtr expression() {
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
  ExprPtr either_without_if() { return either(); }

  ExprPtr logic(bool is_and, Rule part) {
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
  ExprPtr either() { return logic(false, &Parser::both); }
  ExprPtr both() { return logic(true, &Parser::negation); }

  ExprPtr negation() {
    if (!at_word("not")) return comparison();
    Nest nest(*this);
    const int line = now().line;
    ++at_;
    return done(std::make_unique<Unary>(line, '!', negation()));
  }

  bool take_comparison(std::string& op) {
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

  ExprPtr comparison() {
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

  ExprPtr sum() {
    ExprPtr left = concat();
    while (at_op("+") || at_op("-")) {
      const Tok& op = t_[at_++];
      ExprPtr right = concat();
      left = done(std::make_unique<Binary>(op.line, op.text[0], std::move(left), std::move(right)));
    }
    return left;
  }

  ExprPtr concat() {
    const int line = now().line;
    ExprPtr first = product();
    if (!at_op("~")) return first;
    auto node = std::make_unique<Concat>(line);
    node->parts.push_back(std::move(first));
    while (take_op("~")) node->parts.push_back(product());
    for (const ExprPtr& p : node->parts) node->adopt(p.get());
    return done(std::move(node));
  }

  ExprPtr product() {
    ExprPtr left = power();
    while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
      const Tok& op = t_[at_++];
      ExprPtr right = power();
      left = done(std::make_unique<Binary>(op.line, op.text == "//" ? 'D' : op.text[0], std::move(left),
                                           std::move(right)));
    }
    return left;
  }

  ExprPtr power() {
    ExprPtr left = unary(true);
    while (at_op("**")) {
      const int line = t_[at_++].line;
      ExprPtr right = unary(true);
      left = done(std::make_unique<Binary>(line, 'P', std::move(left), std::move(right)));
    }
    return left;
  }

  ExprPtr unary(bool with_filters) {
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

  ExprPtr primary() {
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

  static Value integer(const Tok& tok) {
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

  ExprPtr bracketed() {
    const int line = t_[at_++].line;
    if (take_op(")")) return std::make_unique<ListExpr>(line, true);
    ExprPtr value = tuple_or_value();
    expect_op(")");
    return value;
  }

  ExprPtr list() {
    auto node = std::make_unique<ListExpr>(t_[at_++].line, false);
    while (!take_op("]")) {
      if (!node->items.empty()) expect_op(",");
      if (take_op("]")) break;
      node->items.push_back(expression());
      node->adopt(node->items.back().get());
    }
    return done(std::move(node));
  }

  ExprPtr dict() {
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

  ExprPtr postfix(ExprPtr base) {
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

  ExprPtr subscript(ExprPtr base, int line) {
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

  Arguments arguments(Expr& owner) {
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

  ExprPtr call(ExprPtr callee) {
    auto node = std::make_unique<Call>(now().line);
    node->adopt(callee.get());
    node->callee = std::move(callee);
    node->arguments = arguments(*node);
    return done(std::move(node));
  }

  std::string dotted_name(std::string_view what) {
    std::string name = expect_name(what);
    while (take_op(".")) name += "." + expect_name(what);
    return name;
  }

  ExprPtr one_filter(ExprPtr base) {
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
  ExprPtr filters(ExprPtr base) {
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

  bool at_test_argument() const {
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

  ExprPtr test(ExprPtr base) {
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

  std::vector<Tok> t_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(lex(source)).run(); }

}  // namespace carat::jinja
