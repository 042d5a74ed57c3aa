// Reading request bodies: every wrong field is one error that names it.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "serve/http/http.h"
#include "text/chat/chat.h"

namespace carat {

// Becomes OpenAI's error object.
class ApiError : public Error {
 public:
  ApiError(int status, const std::string& what, std::string param = {}, std::string code = {})
      : Error(what), status_(status), param_(std::move(param)), code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

HttpResponse json_response(const Json& body, int status = 200);
HttpResponse error_response(int status, std::string_view message, std::string_view param = {},
                            std::string_view code = {});
HttpResponse error_response(const std::exception& e);
Json error_object(int status, std::string_view message, std::string_view param, std::string_view code);
// Text that may not be UTF-8 comes out as U+FFFD.
std::string dump_json(const Json& j);

// The body as an object. ApiError 400 if it is not JSON, not an object, or nested absurdly deep.
Json parse_body(std::string_view body);

// Fields of an object; null counts as absent. ApiError 400 naming the field if the type or range is wrong.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}
  const Json* find(const char* name) const;  // nullptr if absent or null
  bool get_bool(const char* name, bool otherwise) const;
  int64_t get_int(const char* name, int64_t otherwise, int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max()) const;
  double get_number(const char* name, double otherwise, double low, double high) const;
  std::string get_string(const char* name, std::string_view otherwise) const;
  [[noreturn]] void fail(const char* name, std::string_view must) const;

 private:
  const Json& object_;
  std::string prefix_;
};

// An array of token ids.
std::vector<int32_t> read_tokens(const Json& array, const char* name);
bool is_token_array(const Json& j);

}  // namespace carat
