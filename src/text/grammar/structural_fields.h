// Reading structural tags (grammar/structural_tag.cc): members of their objects, each of the right type or an
// Error that names it.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "text/grammar/sources.h"

namespace carat::structural {

inline constexpr size_t kMaxItems = 1000;

[[noreturn]] inline void fail(std::string_view what, const std::string& hint = {}) {
  throw Error(fmt::format("structural tag: {}", what), hint);
}

inline const Json& member(const Json& f, const char* name) {
  if (!f.is_object() || !f.contains(name)) fail(fmt::format("'{}' is missing", name));
  return f[name];
}
inline std::string text(const Json& f, const char* name) {
  const Json& j = member(f, name);
  if (!j.is_string()) fail(fmt::format("'{}' is not a string", name));
  return j.get<std::string>();
}
inline const Json& list(const Json& f, const char* name) {
  const Json& j = member(f, name);
  if (!j.is_array() || j.size() > kMaxItems)
    fail(fmt::format("'{}' is no array of at most {}", name, kMaxItems));
  return j;
}
inline std::vector<std::string> texts(const Json& f, const char* name, bool needed) {
  std::vector<std::string> out;
  if (!needed && (!f.contains(name) || f[name].is_null())) return out;
  for (const Json& j : list(f, name)) {
    if (!j.is_string()) fail(fmt::format("'{}' is not made of strings", name));
    out.push_back(j.get<std::string>());
  }
  return out;
}
inline bool flag(const Json& f, const char* name, bool otherwise) {
  if (!f.contains(name) || f[name].is_null()) return otherwise;
  if (!f[name].is_boolean()) fail(fmt::format("'{}' is neither true nor false", name));
  return f[name].get<bool>();
}
inline int64_t count(const Json& f, const char* name, int64_t most) {
  const Json& j = member(f, name);
  if (!j.is_number_integer() || j.get<int64_t>() < -1 || j.get<int64_t>() > most)
    fail(fmt::format("'{}' is no number from 0 to {}", name, most));
  return j.get<int64_t>();
}
inline bool has(const Json& f, const char* name) { return f.contains(name) && !f[name].is_null(); }

}  // namespace carat::structural
