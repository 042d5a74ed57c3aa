// Statements, scopes, loops and macros.
#include <fmt/format.h>

#include "text/jinja/context.h"

namespace carat::jinja {
namespace {

constexpr int kMaxNodeNesting = 2000;  // frames of a few hundred bytes each

Obj unowned(Object* object) { return Obj(Obj{}, object); }

void capture_scopes(Scope* scope) {
  for (; scope && !scope->captured; scope = scope->parent) scope->captured = true;
}

// Sets c.out and restores it.
struct Redirect {
  Redirect(std::string*& slot, std::string* to) : slot_(slot), before_(std::exchange(slot, to)) {}
  ~Redirect() { slot_ = before_; }
  std::string*& slot_;
  std::string* before_;
};

struct Counted {
  Counted(int& n, int max, const char* what) : n_(n) {
    if (n_ >= max) throw Fail{fmt::format("{} nest deeper than {}", what, max)};
    ++n_;
  }
  ~Counted() { --n_; }
  int& n_;
};

}  // namespace

Value Expr::eval(Context& c) const {
  c.budget.step();
  Counted counted(c.nesting, kMaxNodeNesting, "evaluations");
  c.line = line;
  return run(c);
}

// ---- scopes and variables

const Value* Scope::find(std::string_view name, Budget& budget) const {
  budget.step(variables.size() / 16);
  for (const auto& [key, value] : variables) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Context::Inner::~Inner() {
  c_.scope = before_;
  if (own_->captured) c_.kept_.push_back(std::move(own_));
}

void Context::Inner::reset() {
  if (!own_->captured) return own_->variables.clear();
  auto fresh = std::make_unique<Scope>(own_->parent);
  c_.scope = fresh.get();
  c_.kept_.push_back(std::exchange(own_, std::move(fresh)));
}

Context::Context(const nlohmann::ordered_json& variables, const JinjaLimits& l, const std::tm* time)
    : budget(l.steps, l.output_bytes), limits(l), now(time), scope(&root_), json_(variables) {}

Value Context::lookup(const std::string& name) {
  for (const Scope* s = scope; s; s = s->parent) {
    if (const Value* v = s->find(name, budget)) return *v;
  }
  if (const auto at = globals_.find(name); at != globals_.end()) return at->second;
  if (json_.is_object()) {
    if (const auto at = json_.find(name); at != json_.end())
      return globals_.emplace(name, from_json(*at)).first->second;
  }
  if (const GlobalFn f = find_global(name)) {
    return globals_.emplace(name, Obj(std::make_shared<FunctionObject>(name, f))).first->second;
  }
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

void Context::assign(const Target& target, const Value& value) {
  budget.step(1 + scope->variables.size() / 16);
  if (!target.attribute.empty()) {
    const Value base = lookup(target.names[0]);
    if (!base.is(Value::Kind::object) || base.object()->kind != Object::Kind::name_space) {
      throw Fail{
          fmt::format("cannot assign to an attribute of '{}': it is not a namespace", target.names[0])};
    }
    static_cast<NamespaceObject&>(*base.object()).attributes[target.attribute] = value;
  } else if (!target.tuple) {
    scope->set(target.names[0], value);
  } else {
    const std::vector<Value> items = iterate(value, budget);
    if (items.size() != target.names.size()) {
      throw Fail{fmt::format("cannot unpack {} values into {} names", items.size(), target.names.size())};
    }
    for (size_t i = 0; i < target.names.size(); ++i) scope->set(target.names[i], items[i]);
  }
}

Value Context::make_namespace(std::unordered_map<std::string, Value> attributes) {
  budget.step(8 + 8 * attributes.size());
  auto object = std::make_unique<NamespaceObject>();
  object->attributes = std::move(attributes);
  objects_.push_back(std::move(object));
  return Value(unowned(objects_.back().get()));
}

Value Context::make_macro(const Macro& node) {
  budget.step(8);
  capture_scopes(scope);
  objects_.push_back(std::make_unique<MacroObject>(node, scope));
  return Value(unowned(objects_.back().get()));
}

// ---- output

std::string Context::render(const Body& body) {
  std::string out;
  Redirect redirect(out_, &out);
  exec(body);
  return out;
}

void Context::write(std::string_view text) {
  budget.text(out_->size() + text.size() > limits.output_bytes ? out_->size() + text.size() : text.size());
  *out_ += text;
}

Flow Context::exec(const Body& body) {
  Counted counted(nesting, kMaxNodeNesting, "statements");
  for (const auto& statement : body) {
    budget.step();
    line = statement->line;
    const Flow flow = statement->exec(*this);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

std::string Context::capture(const Body& body) {
  std::string out;
  Redirect redirect(out_, &out);
  Inner inner(*this, scope);
  exec(body);
  return out;
}

// ---- statements

Flow Text::exec(Context& c) const { return c.write(text), Flow::normal; }

Flow Print::exec(Context& c) const {
  const Value v = value->eval(c);
  if (v.is_string())
    c.write(v.str());
  else
    c.write(to_str(v, c.budget));
  return Flow::normal;
}

Flow Do::exec(Context& c) const { return value->eval(c), Flow::normal; }

Flow If::exec(Context& c) const {
  for (const auto& [condition, body] : branches) {
    if (!condition || truthy(condition->eval(c))) return c.exec(body);
  }
  return Flow::normal;
}

Flow For::exec(Context& c) const { return c.loop(*this, iterable->eval(c), 0); }

Flow Context::loop(const For& node, const Value& iterable, int level) {
  std::vector<Value> items = iterate(iterable, budget);
  if (node.condition) {
    std::vector<Value> chosen;
    Inner inner(*this, scope);
    for (const Value& item : items) {
      inner.reset();
      assign(node.target, item);
      if (truthy(node.condition->eval(*this))) chosen.push_back(item);
    }
    items = std::move(chosen);
  }
  if (items.empty()) {
    Inner inner(*this, scope);
    return exec(node.otherwise);
  }
  static const std::string kLoop = "loop";
  const auto state = std::make_shared<LoopObject>();
  state->items = std::move(items);
  state->node = &node;
  state->scope = scope;
  state->level = level;
  if (node.recursive) capture_scopes(scope);
  Flow flow = Flow::normal;
  {
    Inner inner(*this, scope);
    for (; state->index < state->items.size(); ++state->index) {
      budget.step();
      inner.reset();
      scope->set(kLoop, Value(Obj(state)));
      assign(node.target, state->items[state->index]);
      flow = exec(node.body);
      if (flow == Flow::leave) break;
    }
  }
  state->running = false;
  state->changed.clear();
  return Flow::normal;
}

std::string Context::run_loop(const For& node, const Value& iterable, Scope* around, int level) {
  Counted counted(depth, limits.depth, "recursive loops");
  std::string out;
  Redirect redirect(out_, &out);
  Inner inner(*this, around);
  loop(node, iterable, level);
  return out;
}

Flow Set::exec(Context& c) const {
  if (value) {
    c.assign(target, value->eval(c));
    return Flow::normal;
  }
  Value text(c.capture(body));
  if (filters) {
    const Value* const outer = std::exchange(c.filter_input, &text);
    Value filtered = filters->eval(c);
    c.filter_input = outer;
    text = std::move(filtered);
  }
  c.assign(target, text);
  return Flow::normal;
}

Flow FilterBlock::exec(Context& c) const {
  const Value text(c.capture(body));
  const Value* const outer = std::exchange(c.filter_input, &text);
  const Value filtered = filters->eval(c);
  c.filter_input = outer;
  c.write(to_str(filtered, c.budget));
  return Flow::normal;
}

Flow Macro::exec(Context& c) const {
  c.scope->set(name, c.make_macro(*this));
  return Flow::normal;
}

Flow CallBlock::exec(Context& c) const {
  const Call& node = static_cast<const Call&>(*call);
  const Value callee = node.callee->eval(c);
  if (!callee.is(Value::Kind::object) || callee.object()->kind != Object::Kind::macro) {
    throw Fail{"'call' needs a macro"};
  }
  const Args args = c.evaluate(node.arguments);
  const Value caller_macro = c.make_macro(*caller);
  c.write(
      to_str(c.call_macro(static_cast<const MacroObject&>(*callee.object()), args, &caller_macro), c.budget));
  return Flow::normal;
}

Flow Scoped::exec(Context& c) const {
  std::vector<Value> values;  // all evaluated outside
  for (const auto& [target, value] : assignments) values.push_back(value->eval(c));
  Context::Inner inner(c, c.scope);
  for (size_t i = 0; i < values.size(); ++i) c.assign(assignments[i].first, values[i]);
  return c.exec(body);
}

// ---- macros

Value Context::call_macro(const MacroObject& macro, const Args& args, const Value* caller) {
  Counted counted(depth, limits.depth, "macro calls");
  const Macro& node = macro.node;
  const auto& parameters = node.parameters;
  std::string out;
  Redirect redirect(out_, &out);
  Inner inner(*this, macro.closure);
  Scope& own = *scope;
  std::vector<bool> used(args.named.size(), false);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    size_t named = 0;
    while (named < args.named.size() && args.named[named].first != p.name) ++named;
    if (named < args.named.size()) used[named] = true;
    if (i < args.positional.size()) {
      if (named < args.named.size())
        throw Fail{fmt::format("macro '{}' got two values for '{}'", node.name, p.name)};
      own.set(p.name, args.positional[i]);
    } else if (named < args.named.size()) {
      own.set(p.name, args.named[named].second);
    } else if (p.standard) {
      own.set(p.name, p.standard->eval(*this));
    } else {
      own.set(p.name, Value::undefined(fmt::format("parameter '{}' was not provided", p.name)));
    }
  }
  static const std::string kCaller = "caller", kVarargs = "varargs", kKwargs = "kwargs";
  if (node.uses_varargs) {
    std::vector<Value> more;
    for (size_t i = parameters.size(); i < args.positional.size(); ++i) more.push_back(args.positional[i]);
    own.set(kVarargs, Value::list(std::move(more), true));
  } else if (args.positional.size() > parameters.size()) {
    throw Fail{fmt::format("macro '{}' takes not more than {} argument(s)", node.name, parameters.size())};
  }
  std::vector<std::pair<Value, Value>> more;
  for (size_t i = 0; i < args.named.size(); ++i) {
    if (used[i]) continue;
    if (args.named[i].first == kCaller && node.uses_caller && !caller)
      own.set(kCaller, args.named[i].second);
    else if (!node.uses_kwargs)
      throw Fail{fmt::format("macro '{}' takes no argument '{}'", node.name, args.named[i].first)};
    else
      more.emplace_back(Value(args.named[i].first), args.named[i].second);
  }
  if (node.uses_kwargs) own.set(kKwargs, Value::dict(std::move(more)));
  if (caller && !node.uses_caller) throw Fail{fmt::format("macro '{}' does not use 'caller'", node.name)};
  if (caller) own.set(kCaller, *caller);
  exec(node.body);
  return Value(std::move(out));
}

}  // namespace carat::jinja
