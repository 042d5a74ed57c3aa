// What a request's tools say of their names and arguments, for parsers of calls.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "text/chat/chat.h"

namespace carat {

class DeclaredTools {
 public:
  // As in the OpenAI API; null: none.
  explicit DeclaredTools(const Json& tools);
  bool any() const { return !tools_.empty(); }
  bool has(std::string_view function) const { return tools_.find(function) != tools_.end(); }
  bool has(std::string_view function, std::string_view parameter) const;

  // Kinds of values that a schema may allow, as bits.
  enum Type : uint8_t {
    null = 1,
    boolean = 2,
    integer = 4,
    number = 8,
    string = 16,
    array = 32,
    object = 64
  };
  static constexpr uint8_t kAny = 127;
  // Of a parameter: kAny if nothing is said of it.
  uint8_t types(std::string_view function, std::string_view parameter) const;

 private:
  std::map<std::string, Json, std::less<>> tools_;  // name -> schema of its arguments
};

// The kind of a JSON text's value; nothing if it is no JSON.
std::optional<uint8_t> json_type(std::string_view text);
// A value in Python's spelling as JSON: 'text', True, None, (1, 2), {'a': 1}. JSON passes as it stands, digit
// by digit. Nothing if it is neither.
std::optional<std::string> json_of_literal(std::string_view text);
// Whether JSON may have this number.
bool is_json_number(std::string_view text);
// As a JSON string, quotes included.
std::string json_string(std::string_view text);

}  // namespace carat
