// The named things of the language: filters, tests, methods of str and dict, global functions.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace carat::jinja {

class Context;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments bound to parameter names, positional ones first. Fail names the function on one too many or
// unknown.
class Bound {
 public:
  Bound(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
        size_t required = 0);
  const Value* operator[](size_t i) const { return slots_[i]; }  // null: not given
  bool flag(size_t i, bool standard) const { return slots_[i] ? truthy(*slots_[i]) : standard; }
  int64_t integer(size_t i, int64_t standard) const;  // None counts as not given
  const std::string& text(size_t i) const;

 private:
  std::string_view function_;
  std::vector<const Value*> slots_;
};

using FilterFn = Value (*)(Context&, const Value& input, const Args&);
using TestFn = bool (*)(Context&, const Value& input, const Args&);
using GlobalFn = Value (*)(Context&, const Args&);
FilterFn find_filter(std::string_view name);  // null if there is none
FilterFn find_list_filter(std::string_view name);
TestFn find_test(std::string_view name);
GlobalFn find_global(std::string_view name);

bool has_method(const Value& self, std::string_view name);
Value call_method(Context& c, const Value& self, std::string_view name, const Args& args);
Value string_method(Context& c, const Value& self, std::string_view name, const Args& args);
bool is_string_method(std::string_view name);

std::string printf_format(Context& c, const std::string& format, const Value& values);
std::string brace_format(Context& c, const std::string& format, const Args& args);

}  // namespace carat::jinja
