// Values of the template language: Python's data model as far as templates can see it. Everything but
// namespaces is immutable (as in the sandbox that Hugging Face renders with), so values form no cycles and
// may be shared freely.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace carat::jinja {

// What went wrong, without the place: the evaluator adds the line and makes it a carat::Error.
struct Fail {
  std::string what;
};

// What a render may still spend. Every loop over user data, also inside filters and comparisons, steps it.
class Budget {
 public:
  Budget(size_t steps, size_t bytes) : steps_(steps), max_bytes_(bytes) {}
  void step(size_t n = 1) {
    if (n > steps_) throw Fail{"the template runs for too long (step limit)"};
    steps_ -= n;
  }
  // A text of this size is made or searched.
  void text(size_t bytes) {
    if (bytes > max_bytes_) throw Fail{"the template makes too long a text (size limit)"};
    step(1 + bytes / 32);
  }
  size_t max_bytes() const { return max_bytes_; }

 private:
  size_t steps_, max_bytes_;
};

constexpr int kMaxValueDepth = 200;  // lists in dicts in lists ...

using Int = __int128;  // holds every integer that JSON gives us; overflow fails
struct StrData {
  std::string s;        // UTF-8; lengths and indices seen by templates count characters
  bool markup = false;  // made by |safe or |escape: `+` escapes what is added to it
};
struct ListData;
struct DictData;
struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"; null: plain
};
struct None {};
using Str = std::shared_ptr<const StrData>;
using List = std::shared_ptr<const ListData>;
using Dict = std::shared_ptr<const DictData>;

// Namespaces, macros, loops, functions and bound methods.
class Object {
 public:
  enum class Kind : uint8_t { name_space, macro, loop, function, method };
  explicit Object(Kind k) : kind(k) {}
  virtual ~Object() = default;
  const Kind kind;
};
using Obj = std::shared_ptr<Object>;

class Value {
 public:
  enum class Kind : uint8_t { undefined, none, boolean, integer, real, string, list, dict, object };
  Value() = default;  // undefined
  Value(None) : v_(None{}) {}
  explicit Value(Undefined u) : v_(std::move(u)) {}
  Value(bool b) : v_(b) {}
  Value(Int i) : v_(i) {}
  Value(int i) : v_(Int{i}) {}
  Value(size_t i) : v_(static_cast<Int>(i)) {}
  Value(double d) : v_(d) {}
  Value(std::string s, bool markup = false)
      : v_(std::make_shared<const StrData>(StrData{std::move(s), markup})) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(List l) : v_(std::move(l)) {}
  Value(Dict d) : v_(std::move(d)) {}
  Value(Obj o) : v_(std::move(o)) {}

  static Value undefined(std::string why);
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value generator(std::vector<Value> items);
  static Value dict(std::vector<std::pair<Value, Value>> items);  // later keys replace earlier ones

  Kind kind() const { return static_cast<Kind>(v_.index()); }
  bool is(Kind k) const { return kind() == k; }
  bool is_undefined() const { return is(Kind::undefined); }
  bool is_none() const { return is(Kind::none); }
  bool is_string() const { return is(Kind::string); }
  bool is_list() const { return is(Kind::list); }
  bool is_dict() const { return is(Kind::dict); }
  bool is_number() const { return is(Kind::integer) || is(Kind::real) || is(Kind::boolean); }
  bool is_integral() const { return is(Kind::integer) || is(Kind::boolean); }

  bool boolean() const { return std::get<bool>(v_); }
  Int integer() const { return is(Kind::boolean) ? Int{boolean()} : std::get<Int>(v_); }
  double real() const { return is(Kind::real) ? std::get<double>(v_) : static_cast<double>(integer()); }
  const std::string& str() const { return std::get<Str>(v_)->s; }
  bool markup() const { return is_string() && std::get<Str>(v_)->markup; }
  const std::vector<Value>& items() const;
  bool is_tuple() const;
  bool is_generator() const;  // lists made lazily in Python: true even if empty, without length or index
  const DictData& dict() const { return *std::get<Dict>(v_); }
  const Obj& object() const { return std::get<Obj>(v_); }
  const std::string* why() const { return std::get<Undefined>(v_).why.get(); }
  int depth() const;  // of nesting; 0 for scalars

 private:
  std::variant<Undefined, None, bool, Int, double, Str, List, Dict, Obj> v_;
};

struct ListData {
  std::vector<Value> items;
  bool tuple = false, generator = false;
  int depth = 1;
};

// Insertion-ordered. Keys are scalars; 1, 1.0 and true are one key, as in Python.
struct DictData {
  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string, size_t> index;  // built when it pays
  int depth = 1;
  const Value* find(const Value& key) const;  // null if absent; Fail if the key cannot be one
};

// A binary value is an integer of any size by its digits.
Value from_json(const nlohmann::ordered_json& json, int depth = 0);

bool truthy(const Value& v);
bool equal(const Value& a, const Value& b, Budget& budget);
int compare(const Value& a, const Value& b, Budget& budget);  // Fail if Python would not order them
std::string type_name(const Value& v);                        // Python's, for messages
std::string to_str(const Value& v, Budget& budget);           // str(v); '' for undefined
void append_repr(std::string& out, const Value& v, Budget& budget);
std::string float_repr(double d);
std::string int_repr(Int i);
// What a for loop runs over: list items, dict keys, characters. Fail if it is not iterable.
std::vector<Value> iterate(const Value& v, Budget& budget);
size_t length(const Value& v, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);

struct JsonStyle {
  int indent = -1;  // < 0: one line
  bool ensure_ascii = false, sort_keys = false;
  std::string item_separator,
      key_separator = ": ";  // an empty item separator: Python's default for the indent
};
std::string to_json(const Value& v, const JsonStyle& style, Budget& budget);

}  // namespace carat::jinja
