// The template as a tree. Nodes evaluate themselves: statements in jinja/exec.cc, expressions in
// jinja/expr.cc.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace carat::jinja {

class Context;
struct Args;

struct Expr {
  explicit Expr(int at) : line(at) {}
  virtual ~Expr() = default;
  Value eval(Context& c) const;
  void adopt(const Expr* child) {
    if (child) height = std::max(height, child->height + 1);
  }
  int line, height = 1;  // height: of the tree; bounded by the parser, so that walking it is safe

 protected:
  virtual Value run(Context& c) const = 0;
};
using ExprPtr = std::unique_ptr<Expr>;

struct Argument {
  enum class Kind : uint8_t { positional, keyword, star, star_star } kind = Kind::positional;
  std::string name;
  ExprPtr value;
};
using Arguments = std::vector<Argument>;

struct Literal final : Expr {
  Literal(int at, Value v) : Expr(at), value(std::move(v)) {}
  Value run(Context&) const override { return value; }
  Value value;
};
struct Name final : Expr {
  Name(int at, std::string n) : Expr(at), name(std::move(n)) {}
  Value run(Context& c) const override;
  std::string name;
};
struct ListExpr final : Expr {  // [a, b] or (a, b)
  ListExpr(int at, bool is_tuple) : Expr(at), tuple(is_tuple) {}
  Value run(Context& c) const override;
  std::vector<ExprPtr> items;
  bool tuple;
};
struct DictExpr final : Expr {
  using Expr::Expr;
  Value run(Context& c) const override;
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};
struct Attribute final : Expr {  // base.name
  Attribute(int at, ExprPtr b, std::string n) : Expr(at), base(std::move(b)), name(std::move(n)) {
    adopt(base.get());
  }
  Value run(Context& c) const override;
  ExprPtr base;
  std::string name;
};
struct Subscript final : Expr {  // base[index]
  Subscript(int at, ExprPtr b, ExprPtr i) : Expr(at), base(std::move(b)), index(std::move(i)) {
    adopt(base.get());
    adopt(index.get());
  }
  Value run(Context& c) const override;
  ExprPtr base, index;
};
struct Slice final : Expr {  // base[start:stop:step]; each may be null
  using Expr::Expr;
  Value run(Context& c) const override;
  ExprPtr base, start, stop, step;
};
struct Call final : Expr {
  using Expr::Expr;
  Value run(Context& c) const override;
  ExprPtr callee;
  Arguments arguments;
};
struct Filter final : Expr {  // base | name(arguments); base null: the text of a filter block
  using Expr::Expr;
  Value run(Context& c) const override;
  ExprPtr base;
  std::string name;
  Arguments arguments;
};
struct Test final : Expr {  // base is name(arguments)
  using Expr::Expr;
  Value run(Context& c) const override;
  ExprPtr base;
  std::string name;
  Arguments arguments;
};
struct Unary final : Expr {  // '!' is not
  Unary(int at, char o, ExprPtr x) : Expr(at), op(o), operand(std::move(x)) { adopt(operand.get()); }
  Value run(Context& c) const override;
  char op;
  ExprPtr operand;
};
struct Binary final : Expr {  // 'P' is **, 'D' is //
  Binary(int at, char o, ExprPtr l, ExprPtr r) : Expr(at), op(o), left(std::move(l)), right(std::move(r)) {
    adopt(left.get());
    adopt(right.get());
  }
  Value run(Context& c) const override;
  char op;
  ExprPtr left, right;
};
struct Concat final : Expr {  // a ~ b ~ c
  using Expr::Expr;
  Value run(Context& c) const override;
  std::vector<ExprPtr> parts;
};
struct Logic final : Expr {  // a and b and c; a or b or c
  Logic(int at, bool a) : Expr(at), is_and(a) {}
  Value run(Context& c) const override;
  bool is_and;
  std::vector<ExprPtr> parts;
};
struct Compare final : Expr {  // a < b <= c; operators as written, "in" and "not in" among them
  using Expr::Expr;
  Value run(Context& c) const override;
  ExprPtr first;
  std::vector<std::pair<std::string, ExprPtr>> rest;
};
struct Ternary final : Expr {  // yes if condition else no (no may be null)
  using Expr::Expr;
  Value run(Context& c) const override;
  ExprPtr condition, yes, no;
};

enum class Flow : uint8_t { normal, leave, next };  // leave: break; next: continue

struct Stmt {
  explicit Stmt(int at) : line(at) {}
  virtual ~Stmt() = default;
  virtual Flow exec(Context& c) const = 0;
  int line;
};
using Body = std::vector<std::unique_ptr<Stmt>>;

// What is assigned to: names (several: a tuple is taken apart) or one attribute of a namespace.
struct Target {
  std::vector<std::string> names;
  std::string attribute;
  bool tuple = false;
};
struct Parameter {
  std::string name;
  ExprPtr standard;  // default value; may be null
};

struct Text final : Stmt {
  Text(int at, std::string t) : Stmt(at), text(std::move(t)) {}
  Flow exec(Context& c) const override;
  std::string text;
};
struct Print final : Stmt {
  Print(int at, ExprPtr e) : Stmt(at), value(std::move(e)) {}
  Flow exec(Context& c) const override;
  ExprPtr value;
};
struct Do final : Stmt {
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  ExprPtr value;
};
struct If final : Stmt {
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  std::vector<std::pair<ExprPtr, Body>> branches;  // the else branch has no condition
};
struct For final : Stmt {
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  Target target;
  ExprPtr iterable, condition;
  bool recursive = false;
  Body body, otherwise;
};
struct Set final : Stmt {
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  Target target;
  ExprPtr value;  // null: the text of the body, through the filters
  ExprPtr filters;
  Body body;
};
struct Macro final : Stmt {
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};
struct CallBlock final : Stmt {
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  std::unique_ptr<Macro> caller;
  ExprPtr call;  // a Call
};
struct FilterBlock final : Stmt {
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  ExprPtr filters;
  Body body;
};
struct Scoped final : Stmt {  // with, block, generation: a body with its own variables
  using Stmt::Stmt;
  Flow exec(Context& c) const override;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Body body;
};
struct Jump final : Stmt {
  Jump(int at, Flow f) : Stmt(at), flow(f) {}
  Flow exec(Context&) const override { return flow; }
  Flow flow;
};

Body parse(std::string_view source);  // carat::Error naming the line

}  // namespace carat::jinja
