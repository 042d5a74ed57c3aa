#include "serve/api/json.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "engine/engine.h"
#include "serve/api/json_reader.h"

namespace carat {
namespace {

constexpr int kMaxDepth = 128;

// Brackets outside strings; templates and dump() recurse over what is nested.
int nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        inside = false;
    } else if (c == '"') {
      inside = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

const char* status_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  if (status == 404) return "not_found_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Json or_null(std::string_view s) { return s.empty() ? Json() : Json(std::string(s)); }

}  // namespace

std::string dump_json(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

HttpResponse json_response(const Json& body, int status) {
  HttpResponse r;
  r.status = status;
  r.body = dump_json(body);
  return r;
}

// An error does not repeat all of what was sent.
std::string shortened(std::string_view message) {
  constexpr size_t kMost = 1000;
  if (message.size() <= kMost) return std::string(message);
  size_t end = kMost;
  while (end > 0 && (message[end] & 0xC0) == 0x80) --end;
  return std::string(message.substr(0, end)) + "...";
}

Json error_object(int status, std::string_view message, std::string_view param, std::string_view code) {
  return {{"error",
           {{"message", shortened(message)},
            {"type", status_type(status)},
            {"param", or_null(param)},
            {"code", or_null(code)}}}};
}

HttpResponse error_response(int status, std::string_view message, std::string_view param,
                            std::string_view code) {
  HttpResponse r = json_response(error_object(status, message, param, code), status);
  if (status == 401) r.headers.emplace("WWW-Authenticate", "Bearer");
  if (status == 503 || status == 429) r.headers.emplace("Retry-After", "1");
  return r;
}

HttpResponse error_response(const std::exception& e) {
  std::string message = e.what();
  if (const auto* error = dynamic_cast<const Error*>(&e); error && !error->hint().empty())
    message += " (" + error->hint() + ")";
  if (const auto* api = dynamic_cast<const ApiError*>(&e))
    return error_response(api->status(), message, api->param(), api->code());
  if (dynamic_cast<const QueueFull*>(&e)) return error_response(429, message, {}, "queue_full");
  if (dynamic_cast<const Unavailable*>(&e)) return error_response(503, message, {}, "unavailable");
  if (dynamic_cast<const DeviceError*>(&e)) return error_response(503, message, {}, "device_error");
  if (dynamic_cast<const Error*>(&e)) return error_response(400, message);
  if (dynamic_cast<const Json::exception*>(&e))
    return error_response(400, fmt::format("a field of the body has a wrong type: {}", message));
  if (dynamic_cast<const std::bad_alloc*>(&e))
    return error_response(503, "there is no memory for this request now", {}, "out_of_memory");
  return error_response(500, message);
}

Json parse_body(std::string_view body) {
  if (nesting(body) > kMaxDepth)
    throw ApiError(400, fmt::format("the body is nested deeper than {} levels", kMaxDepth));
  Json j;
  try {
    j = read_json(body);
  } catch (const Json::exception& e) {
    const std::string_view what = e.what();
    throw ApiError(400, fmt::format("the body is not valid JSON: {}",
                                    what.substr(std::min(what.size(), what.find("] ") + 2))));
  }
  if (!j.is_object()) throw ApiError(400, "the body must be a JSON object");
  return j;
}

const Json* Fields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::fail(const char* name, std::string_view must) const {
  throw ApiError(400, fmt::format("{}{} must be {}", prefix_, name, must), prefix_ + name);
}

bool Fields::get_bool(const char* name, bool otherwise) const {
  const Json* j = find(name);
  if (!j) return otherwise;
  if (!j->is_boolean()) fail(name, "true or false");
  return j->get<bool>();
}

int64_t Fields::get_int(const char* name, int64_t otherwise, int64_t low, int64_t high) const {
  const Json* j = find(name);
  if (!j) return otherwise;
  int64_t v = 0;
  if (j->is_number_unsigned() &&
      j->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fail(name, "a smaller number");
  if (j->is_number_integer()) {
    v = j->get<int64_t>();
  } else {
    const double d = j->is_number() ? j->get<double>() : 0.5;  // some clients send 16.0
    if (d != std::floor(d) || std::abs(d) > 9e15) fail(name, "an integer");
    v = static_cast<int64_t>(d);
  }
  if (v < low || v > high) fail(name, fmt::format("between {} and {}", low, high));
  return v;
}

double Fields::get_number(const char* name, double otherwise, double low, double high) const {
  const Json* j = find(name);
  if (!j) return otherwise;
  if (!j->is_number()) fail(name, "a number");
  const double v = j->get<double>();
  if (!(v >= low && v <= high)) fail(name, fmt::format("between {} and {}", low, high));
  return v;
}

std::string Fields::get_string(const char* name, std::string_view otherwise) const {
  const Json* j = find(name);
  if (!j) return std::string(otherwise);
  if (!j->is_string()) fail(name, "a string");
  return j->get<std::string>();
}

bool is_token_array(const Json& j) {
  return j.is_array() && std::all_of(j.begin(), j.end(), [](const Json& t) { return t.is_number_integer(); });
}

std::vector<int32_t> read_tokens(const Json& array, const char* name) {
  if (!is_token_array(array))
    throw ApiError(400, fmt::format("{} must be an array of token ids", name), name);
  std::vector<int32_t> out;
  out.reserve(array.size());
  for (const Json& t : array) {
    const bool fits = !t.is_number_unsigned() || t.get<uint64_t>() <= uint64_t{0x7fffffff};
    const int64_t v = fits ? t.get<int64_t>() : -1;
    if (v < 0 || v > 0x7fffffff)
      throw ApiError(400, fmt::format("{} holds an impossible token id", name), name);
    out.push_back(static_cast<int32_t>(v));
  }
  return out;
}

}  // namespace carat
