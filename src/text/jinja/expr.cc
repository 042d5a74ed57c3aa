// Expressions: operators, attributes, subscripts, slices, calls.
#include <fmt/format.h>

#include <cmath>

#include "text/jinja/context.h"
#include "text/jinja/text.h"

namespace carat::jinja {
namespace {

[[noreturn]] void bad_operands(std::string_view op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) throw Fail{v->why() ? *v->why() : "a value is undefined"};
  }
  if (op == "+" && a.is_string())
    throw Fail{fmt::format("can only concatenate str (not \"{}\") to str", type_name(b))};
  throw Fail{fmt::format("unsupported operand types for {}: '{}' and '{}'", op, type_name(a), type_name(b))};
}

[[noreturn]] void too_large() { throw Fail{"an integer is too large"}; }

Value repeat(const Value& what, Int times, Budget& budget) {
  const Int n = std::max<Int>(times, 0);
  const size_t size = what.is_string() ? what.str().size() : what.items().size();
  if (n > Int{budget.max_bytes()} || n * Int{size} > Int{budget.max_bytes()}) budget.text(SIZE_MAX);
  const size_t total = size * static_cast<size_t>(n);
  if (what.is_string()) {
    budget.text(total);
    std::string out;
    for (size_t i = 0; size && i < static_cast<size_t>(n); ++i) out += what.str();
    return Value(std::move(out), what.markup());
  }
  budget.step(4 * total);
  std::vector<Value> items;
  for (size_t i = 0; size && i < static_cast<size_t>(n); ++i)
    items.insert(items.end(), what.items().begin(), what.items().end());
  return Value::list(std::move(items), what.is_tuple());
}

Value add(const Value& a, const Value& b, Budget& budget) {
  if (a.is_string() && b.is_string()) {
    budget.text(a.str().size() + b.str().size());
    if (!a.markup() && !b.markup()) return Value(a.str() + b.str());
    return Value(
        (a.markup() ? a.str() : escape_html(a.str())) + (b.markup() ? b.str() : escape_html(b.str())), true);
  }
  if (a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple() && !a.is_generator() && !b.is_generator()) {
    budget.step(4 * (a.items().size() + b.items().size()));
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return Value::list(std::move(items), a.is_tuple());
  }
  bad_operands("+", a, b);
}

Value power(const Value& a, const Value& b, Budget& budget) {
  if (!a.is_integral() || !b.is_integral() || b.integer() < 0) {
    const double r = std::pow(a.real(), b.real());
    if (std::isinf(r) && !std::isinf(a.real())) throw Fail{"the result of ** is out of range"};
    return Value(r);
  }
  Int r = 1, n = b.integer();
  const Int base = a.integer();
  if (base == 0 || base == 1) return Value(n == 0 ? Int{1} : base);
  if (base == -1) return Value(n % 2 ? Int{-1} : Int{1});
  for (; n > 0; --n) {
    budget.step();
    if (__builtin_mul_overflow(r, base, &r)) too_large();
  }
  return Value(r);
}

Value integer_op(char op, Int a, Int b) {
  Int r = 0;
  switch (op) {
    case '+':
      if (__builtin_add_overflow(a, b, &r)) too_large();
      return Value(r);
    case '-':
      if (__builtin_sub_overflow(a, b, &r)) too_large();
      return Value(r);
    case '*':
      if (__builtin_mul_overflow(a, b, &r)) too_large();
      return Value(r);
    default: break;
  }
  if (b == 0) throw Fail{"division by zero"};
  if (b == -1) return op == '%' ? Value(0) : integer_op('-', 0, a);
  const Int rest = a % b;
  const bool down = rest != 0 && (rest < 0) != (b < 0);  // Python rounds the quotient down
  return op == '%' ? Value(rest + (down ? b : 0)) : Value(a / b - (down ? 1 : 0));
}

Value real_op(char op, double a, double b) {
  switch (op) {
    case '+': return Value(a + b);
    case '-': return Value(a - b);
    case '*': return Value(a * b);
    default: break;
  }
  if (b == 0) throw Fail{"division by zero"};
  if (op == '/') return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return op == '%' ? Value(rest) : Value(std::floor((a - rest) / b + 0.5));
}

// Start, stop and step of a slice over n elements, as Python clips them.
struct Range {
  int64_t start, stop, step;
};
Range clip(const Value& start, const Value& stop, const Value& step, size_t size) {
  const auto n = static_cast<int64_t>(size);
  const auto number = [](const Value& v, int64_t standard) -> int64_t {
    if (v.is_none()) return standard;
    if (!v.is_integral()) throw Fail{"slice indices must be integers or None"};
    const Int limit = Int{1} << 62;
    return static_cast<int64_t>(std::clamp<Int>(v.integer(), -limit, limit));
  };
  const int64_t by = number(step, 1);
  if (by == 0) throw Fail{"slice step cannot be zero"};
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
  const auto place = [&](const Value& v, int64_t standard) {
    int64_t at = number(v, standard);
    if (!v.is_none() && at < 0) at += n;
    return std::clamp(at, low, high);
  };
  return {place(start, by > 0 ? low : high), place(stop, by > 0 ? high : low), by};
}

template <class F>
void each_index(const Range& r, F&& f) {
  for (int64_t i = r.start; r.step > 0 ? i < r.stop : i > r.stop;) {
    f(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, r.step, &i)) break;
  }
}

bool holds(const std::string& op, const Value& a, const Value& b, Budget& budget) {
  if (op == "==") return equal(a, b, budget);
  if (op == "!=") return !equal(a, b, budget);
  if (op == "in") return contains(b, a, budget);
  if (op == "not in") return !contains(b, a, budget);
  const int order = compare(a, b, budget);
  return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
}

}  // namespace

Value Name::run(Context& c) const { return c.lookup(name); }

Value ListExpr::run(Context& c) const {
  std::vector<Value> out;
  c.budget.step(4 * items.size());
  for (const ExprPtr& item : items) out.push_back(item->eval(c));
  return Value::list(std::move(out), tuple);
}

Value DictExpr::run(Context& c) const {
  std::vector<std::pair<Value, Value>> out;
  c.budget.step(8 * items.size());
  for (const auto& [key, value] : items) {
    Value k = key->eval(c);
    out.emplace_back(std::move(k), value->eval(c));
  }
  return Value::dict(std::move(out));
}

Value Attribute::run(Context& c) const { return c.attribute(base->eval(c), name); }

Value Subscript::run(Context& c) const {
  const Value b = base->eval(c);
  return c.item(b, index->eval(c));
}

Value Slice::run(Context& c) const {
  const Value b = base->eval(c);
  const auto part = [&](const ExprPtr& e) { return e ? e->eval(c) : Value(None{}); };
  const Value from = part(start), to = part(stop), by = part(step);
  if (b.is_string()) {
    c.budget.step(b.str().size());
    const auto all = chars(b.str());
    std::string out;
    each_index(clip(from, to, by, all.size()), [&](size_t i) { out += all[i]; });
    return Value(std::move(out), b.markup());
  }
  if (!b.is_list() || b.is_generator()) {
    if (b.is_undefined()) throw Fail{b.why() ? *b.why() : "a value is undefined"};
    throw Fail{fmt::format("'{}' object is not subscriptable", type_name(b))};
  }
  std::vector<Value> out;
  c.budget.step(4 * b.items().size());
  each_index(clip(from, to, by, b.items().size()), [&](size_t i) { out.push_back(b.items()[i]); });
  return Value::list(std::move(out), b.is_tuple());
}

Value Unary::run(Context& c) const {
  const Value v = operand->eval(c);
  if (op == '!') return Value(!truthy(v));
  if (!v.is_number()) bad_operands(std::string_view(&op, 1), v, v);
  if (op == '+') return v.is_integral() ? Value(v.integer()) : v;
  return v.is_integral() ? integer_op('-', 0, v.integer()) : Value(-v.real());
}

Value Binary::run(Context& c) const {
  const Value a = left->eval(c), b = right->eval(c);
  c.line = line;
  if (a.is_number() && b.is_number()) {
    if (op == 'P') return power(a, b, c.budget);
    if (op == '/' || !a.is_integral() || !b.is_integral()) return real_op(op, a.real(), b.real());
    return integer_op(op, a.integer(), b.integer());
  }
  if (op == '+') return add(a, b, c.budget);
  const auto repeatable = [](const Value& v) { return v.is_string() || (v.is_list() && !v.is_generator()); };
  if (op == '*' && repeatable(a) && b.is_integral()) return repeat(a, b.integer(), c.budget);
  if (op == '*' && a.is_integral() && repeatable(b)) return repeat(b, a.integer(), c.budget);
  if (op == '%' && a.is_string()) return Value(printf_format(c, a.str(), b), a.markup());
  bad_operands(op == 'P' ? "**" : op == 'D' ? "//" : std::string_view(&op, 1), a, b);
}

Value Concat::run(Context& c) const {
  std::string out;
  for (const ExprPtr& p : parts) {
    const Value v = p->eval(c);
    if (v.is_string())
      out += v.str();
    else
      out += to_str(v, c.budget);
    if (out.size() > c.budget.max_bytes()) c.budget.text(out.size());
  }
  c.budget.text(out.size());
  return Value(std::move(out));
}

Value Logic::run(Context& c) const {
  Value v;
  for (const ExprPtr& p : parts) {
    v = p->eval(c);
    if (truthy(v) != is_and) break;
  }
  return v;
}

Value Compare::run(Context& c) const {
  Value left = first->eval(c);
  for (const auto& [op, operand] : rest) {
    Value right = operand->eval(c);
    c.line = line;
    if (!holds(op, left, right, c.budget)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Ternary::run(Context& c) const {
  if (truthy(condition->eval(c))) return yes->eval(c);
  if (no) return no->eval(c);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Filter::run(Context& c) const {
  const Value input = base ? base->eval(c) : *c.filter_input;
  const Args args = c.evaluate(arguments);
  c.line = line;
  return find_filter(name)(c, input, args);
}

Value Test::run(Context& c) const {
  const Value input = base->eval(c);
  const Args args = c.evaluate(arguments);
  c.line = line;
  return Value(find_test(name)(c, input, args));
}

Value Call::run(Context& c) const {
  if (const auto* a =
          dynamic_cast<const Attribute*>(callee.get())) {  // a method, without making an object of it
    const Value self = a->base->eval(c);
    if (has_method(self, a->name)) {
      const Args args = c.evaluate(arguments);
      c.line = line;
      return call_method(c, self, a->name, args);
    }
    const Value f = c.attribute(self, a->name);
    const Args args = c.evaluate(arguments);
    c.line = line;
    return c.call(f, args);
  }
  const Value f = callee->eval(c);
  const Args args = c.evaluate(arguments);
  c.line = line;
  return c.call(f, args);
}

// ---- what the nodes share

Args Context::evaluate(const Arguments& arguments) {
  Args out;
  for (const Argument& a : arguments) {
    Value v = a.value->eval(*this);
    switch (a.kind) {
      case Argument::Kind::positional: out.positional.push_back(std::move(v)); break;
      case Argument::Kind::keyword: out.named.emplace_back(a.name, std::move(v)); break;
      case Argument::Kind::star:
        for (const Value& item : iterate(v, budget)) out.positional.push_back(item);
        break;
      case Argument::Kind::star_star:
        if (!v.is_dict()) throw Fail{"the argument after ** must be a mapping"};
        budget.step(v.dict().items.size());
        for (const auto& [key, value] : v.dict().items) {
          if (!key.is_string()) throw Fail{"keywords must be strings"};
          out.named.emplace_back(key.str(), value);
        }
    }
  }
  if (out.positional.size() + out.named.size() > 4096) throw Fail{"a call has too many arguments"};
  return out;
}

Value Context::call(const Value& callee, const Args& args) {
  budget.step();
  if (callee.is_undefined()) throw Fail{callee.why() ? *callee.why() : "a value is undefined"};
  if (!callee.is(Value::Kind::object))
    throw Fail{fmt::format("'{}' object is not callable", type_name(callee))};
  Object& object = *callee.object();
  switch (object.kind) {
    case Object::Kind::macro: return call_macro(static_cast<MacroObject&>(object), args);
    case Object::Kind::function: return static_cast<FunctionObject&>(object).call(*this, args);
    case Object::Kind::method: {
      const auto& method = static_cast<MethodObject&>(object);
      return call_method(*this, method.self, method.name, args);
    }
    case Object::Kind::loop: {
      const auto& loop = static_cast<LoopObject&>(object);
      if (!loop.node->recursive) throw Fail{"loop() needs a loop marked 'recursive'"};
      if (args.positional.size() != 1) throw Fail{"loop() takes one argument"};
      return Value(run_loop(*loop.node, args.positional[0], loop.scope, loop.level + 1));
    }
    case Object::Kind::name_space: break;
  }
  throw Fail{fmt::format("'{}' object is not callable", type_name(callee))};
}

Value Context::attribute(const Value& base, const std::string& name) {
  if (base.is_undefined()) throw Fail{base.why() ? *base.why() : "a value is undefined"};
  if (base.is(Value::Kind::object)) {
    if (base.object()->kind == Object::Kind::name_space) {
      const auto& attributes = static_cast<NamespaceObject&>(*base.object()).attributes;
      if (const auto at = attributes.find(name); at != attributes.end()) return at->second;
    } else if (base.object()->kind == Object::Kind::loop) {
      Value v = static_cast<LoopObject&>(*base.object()).attribute(name);
      if (!v.is_undefined() || v.why()) return v;
    } else if (base.object()->kind == Object::Kind::macro && name == "name") {
      return Value(static_cast<MacroObject&>(*base.object()).node.name);
    }
  }
  if (has_method(base, name)) return Value(Obj(std::make_shared<MethodObject>(base, name)));
  if (base.is_dict()) {
    budget.step(base.dict().items.size() / 16);
    if (const Value* v = base.dict().find(Value(name))) return *v;
  }
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(base), name));
}

Value Context::item(const Value& base, const Value& key) {
  if (base.is_undefined()) throw Fail{base.why() ? *base.why() : "a value is undefined"};
  const auto missing = [&] {
    return Value::undefined(fmt::format("'{} object' has no element {}", type_name(base),
                                        key.is_string()     ? repr(key.str())
                                        : key.is_integral() ? int_repr(key.integer())
                                                            : type_name(key)));
  };
  if (base.is_dict()) {
    budget.step(base.dict().items.size() / 16);
    const bool hashable = !key.is_dict() && (!key.is_list() || key.is_tuple()) &&
                          !key.is(Value::Kind::object) && !key.is_undefined();
    if (const Value* v = hashable ? base.dict().find(key) : nullptr) return *v;
  } else if (key.is_integral() && (base.is_string() || (base.is_list() && !base.is_generator()))) {
    budget.text(base.is_string() ? base.str().size() : 0);
    const Int n = base.is_list() ? Int{base.items().size()} : Int{char_count(base.str())};
    const Int at = key.integer() < 0 ? key.integer() + n : key.integer();
    if (at < 0 || at >= n) return missing();
    if (base.is_list()) return base.items()[static_cast<size_t>(at)];
    return Value(chars(base.str())[static_cast<size_t>(at)]);
  }
  if (key.is_string() && !base.is_dict()) return attribute(base, key.str());
  if (key.is_string() && has_method(base, key.str())) return attribute(base, key.str());
  return missing();
}

Value LoopObject::attribute(std::string_view name) const {
  const size_t n = items.size();
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(n - index);
  if (name == "revindex0") return Value(n - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == n);
  if (name == "length") return Value(n);
  if (name == "depth") return Value(level + 1);
  if (name == "depth0") return Value(level);
  if (name == "previtem") return index > 0 ? items[index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return index + 1 < n ? items[index + 1] : Value::undefined("there is no next item");
  return {};
}

}  // namespace carat::jinja
