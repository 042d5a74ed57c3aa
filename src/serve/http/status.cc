#include "serve/http/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace carat {
namespace {

const char* reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
  }
}

}  // namespace

bool has_body(int status) { return status >= 200 && status != 204 && status != 304; }

std::string head_text(const HttpResponse& r, const HeadForm& form) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", r.status, reason(r.status));
  const auto add = [&](std::string_view name, std::string_view value) {
    out += name;
    out += ": ";
    // What a handler says must not become a header of its own.
    std::transform(value.begin(), value.end(), std::back_inserter(out),
                   [](char c) { return static_cast<unsigned char>(c) < 0x20 ? ' ' : c; });
    out += "\r\n";
  };
  for (const auto& [name, value] : r.headers) add(name, value);
  if (has_body(r.status)) add("Content-Type", r.type);
  if (form.stream)
    add("Cache-Control", "no-cache");
  else if (has_body(r.status))
    add("Content-Length", fmt::format("{}", r.body.size()));
  if (form.stream && !form.version_1_0) add("Transfer-Encoding", "chunked");
  if (!form.keep) {
    add("Connection", "close");
  } else {
    if (form.version_1_0) add("Connection", "keep-alive");
    add("Keep-Alive", fmt::format("timeout={}", std::max(1, static_cast<int>(form.idle_seconds))));
  }
  return out += "\r\n";
}

}  // namespace carat
