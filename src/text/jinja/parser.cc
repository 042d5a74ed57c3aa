// Statements by recursive descent; expressions: jinja/expr_parser.h.
#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/expr_parser.h"
#include "text/jinja/filters.h"
#include "text/jinja/lexer.h"

namespace carat::jinja {
namespace {

using Words = std::vector<std::string_view>;

class Parser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() { return statements({}); }

 private:
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

  int loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(lex(source)).run(); }

}  // namespace carat::jinja
