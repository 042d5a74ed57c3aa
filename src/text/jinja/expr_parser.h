// Expressions by recursive descent; precedences are Jinja's (`~` binds tighter than `+`). Statements:
// jinja/parser.cc.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace carat::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Tok> tokens) : t_(std::move(tokens)) {}

 protected:
  using Rule = ExprPtr (ExpressionParser::*)();
  static constexpr int kMaxHeight = 400;   // of an expression's tree
  static constexpr int kMaxNesting = 100;  // of statements and brackets

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
      default: return fmt::format("'{}'", t.text);
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
    explicit Nest(ExpressionParser& p) : p_(p) {
      if (++p_.nesting_ > kMaxNesting)
        fail_at(p_.now().line, fmt::format("nested deeper than {}", kMaxNesting));
    }
    ~Nest() { --p_.nesting_; }
    ExpressionParser& p_;
  };

  template <class T>
  ExprPtr done(std::unique_ptr<T> node) const {
    if (node->height > kMaxHeight) fail_at(node->line, "an expression is too long");
    return node;
  }

  // ---- expressions
  ExprPtr tuple_or_value();
  bool at_tuple_end() const;
  ExprPtr tuple_of(Rule rule);
  ExprPtr expression();
  ExprPtr either_without_if();
  ExprPtr logic(bool is_and, Rule part);
  ExprPtr either();
  ExprPtr both();
  ExprPtr negation();
  bool take_comparison(std::string& op);
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  static Value integer(const Tok& tok);
  ExprPtr bracketed();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr base);
  ExprPtr subscript(ExprPtr base, int line);
  Arguments arguments(Expr& owner);
  ExprPtr call(ExprPtr callee);
  std::string dotted_name(std::string_view what);
  ExprPtr one_filter(ExprPtr base);
  ExprPtr filters(ExprPtr base);
  bool at_test_argument() const;
  ExprPtr test(ExprPtr base);

  std::vector<Tok> t_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace carat::jinja
