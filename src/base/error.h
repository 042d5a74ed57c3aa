// Errors. Three kinds (docs/design.md, "Errors"): the user or a file is wrong -> throw Error; we are wrong ->
// CARAT_CHECK aborts with the place and the values; a device is wrong -> DeviceError.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace carat {

// One sentence of what is wrong, one of what to do about it. Shown to users as they stand.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string hint = {})
      : std::runtime_error(what), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

class DeviceError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& values);

}  // namespace carat

// User input never reaches these. Extra arguments are a fmt format string and its values.
#define CARAT_CHECK(cond, ...)                                                         \
  do {                                                                                 \
    if (!(cond)) [[unlikely]]                                                          \
      ::carat::check_failed(__FILE__, __LINE__, #cond, ::fmt::format("" __VA_ARGS__)); \
  } while (0)
#ifdef NDEBUG
#define CARAT_DCHECK(cond, ...) ((void)0)
#else
#define CARAT_DCHECK(...) CARAT_CHECK(__VA_ARGS__)
#endif
