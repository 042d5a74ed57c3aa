// The state of one render.
#pragma once
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/filters.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value.h"

namespace carat::jinja {

// Variables of one block. A macro may outlive the block that defined it; then the scope is kept to the end of
// the render.
struct Scope {
  explicit Scope(Scope* outer) : parent(outer) {}
  const Value* find(std::string_view name, Budget& budget) const;
  void set(const std::string& name, Value value);  // name: of a tree node, which outlives the scope
  Scope* parent;
  bool captured = false;
  std::vector<std::pair<std::string_view, Value>> variables;
};

struct NamespaceObject final : Object {
  NamespaceObject() : Object(Kind::name_space) {}
  std::unordered_map<std::string, Value> attributes;
};
struct MacroObject final : Object {
  MacroObject(const Macro& n, Scope* s) : Object(Kind::macro), node(n), closure(s) {}
  const Macro& node;
  Scope* closure;
};
struct FunctionObject final : Object {
  FunctionObject(std::string n, GlobalFn f) : Object(Kind::function), name(std::move(n)), call(f) {}
  std::string name;
  GlobalFn call;
};
struct MethodObject final : Object {
  MethodObject(Value s, std::string n) : Object(Kind::method), self(std::move(s)), name(std::move(n)) {}
  Value self;
  std::string name;
};
struct LoopObject final : Object {
  LoopObject() : Object(Kind::loop) {}
  Value attribute(std::string_view name) const;
  std::vector<Value> items;
  size_t index = 0;
  int level = 0;
  const For* node = nullptr;
  Scope* scope = nullptr;      // around the loop
  std::vector<Value> changed;  // last arguments of loop.changed()
  bool called_changed = false, running = true;
};

class Context {
 public:
  Context(const nlohmann::ordered_json& variables, const JinjaLimits& limits, const std::tm* now);

  std::string render(const Body& body);

  void write(std::string_view text);
  Flow exec(const Body& body);
  std::string capture(const Body& body);  // its output, in a scope of its own

  Value lookup(const std::string& name);
  void assign(const Target& target, const Value& value);
  Value attribute(const Value& base, const std::string& name);  // base.name
  Value item(const Value& base, const Value& key);              // base[key]
  Args evaluate(const Arguments& arguments);
  Value call(const Value& callee, const Args& args);
  Value call_macro(const MacroObject& macro, const Args& args, const Value* caller = nullptr);
  std::string run_loop(const For& node, const Value& iterable, Scope* scope, int level);
  Flow loop(const For& node, const Value& iterable, int level);

  // Objects that templates can tie into cycles live as long as the render.
  Value make_namespace(std::unordered_map<std::string, Value> attributes);
  Value make_macro(const Macro& node);

  class Inner {  // a scope for the time of a C++ block
   public:
    Inner(Context& c, Scope* parent) : c_(c), own_(std::make_unique<Scope>(parent)), before_(c.scope) {
      c_.scope = own_.get();
    }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;
    ~Inner();
    void reset();  // forgets the variables, for the next turn of a loop

   private:
    Context& c_;
    std::unique_ptr<Scope> own_;
    Scope* before_;
  };

  Budget budget;
  const JinjaLimits limits;
  const std::tm* now;
  Scope* scope = nullptr;
  int line = 0;                         // being evaluated, for messages
  int nesting = 0;                      // of node evaluations: bounds the machine stack
  int depth = 0;                        // of macro calls and recursive loops
  const Value* filter_input = nullptr;  // of a filter block

 private:
  friend class Inner;
  const nlohmann::ordered_json& json_;
  std::unordered_map<std::string, Value> globals_;  // variables converted so far, and functions
  Scope root_{nullptr};
  std::string* out_ = nullptr;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Scope>> kept_;
};

}  // namespace carat::jinja
