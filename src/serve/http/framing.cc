#include "serve/http/framing.h"

#include <algorithm>
#include <charconv>

namespace carat {
namespace {

bool equal_nocase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    const auto low = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return low(x) == low(y);
  });
}

// A second one would let two readers choose differently.
constexpr std::string_view kOnce[] = {"host",      "content-length", "transfer-encoding", "authorization",
                                      "x-api-key", "origin",         "content-type",      "content-encoding",
                                      "expect",    "x-request-id"};

std::optional<HttpFault> bad(int status, std::string message) {
  return HttpFault{status, std::move(message)};
}

std::optional<HttpFault> check_length(std::string_view value, Framing& framing) {
  uint64_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  const bool digits = !value.empty() && value.front() >= '0' && value.front() <= '9';
  if (!digits || end != value.data() + value.size() || error != std::errc() || value.size() > 18)
    return bad(error == std::errc::result_out_of_range || value.size() > 18 ? 413 : 400,
               "Content-Length is no number that this server takes");
  framing.length = n;
  return {};
}

}  // namespace

HeadScanner::State HeadScanner::fail(int status, const char* message) {
  fault_ = {status, message};
  return State::wrong;
}

HeadScanner::State HeadScanner::scan(std::string_view all) {
  for (; at_ < all.size(); ++at_) {
    const auto c = static_cast<unsigned char>(all[at_]);
    if (at_ >= kMaxHead) return fail(431, "the headers are larger than 256 KiB");
    if (c == '\r') {
      if (at_ + 1 == all.size()) return State::more;
      if (all[at_ + 1] != '\n') return fail(400, "a carriage return stands within a line of the head");
      const bool empty = at_ == line_;
      at_ += 1;
      if (empty) {
        ++at_;
        return State::whole;
      }
      line_ = at_ + 1;
      if (++fields_ > kMaxFields + 1) return fail(431, "there are more than 1000 headers");
      continue;
    }
    const bool first = fields_ == 0;
    if (c == '\n') return fail(400, "a line of the head ends without a carriage return");
    if ((c < 0x20 && c != '\t') || c == 0x7f || (first && (c >= 0x80 || c == '\t')))
      return fail(400, "the head holds a character that it must not hold");
    if (at_ == line_ && !first && (c == ' ' || c == '\t'))
      return fail(400, "a header is continued on a second line, which RFC 9112 forbids");
    if (at_ - line_ >= kMaxLine)
      return first ? fail(414, "the request line is longer than 16 KiB")
                   : fail(431, "a header is longer than 16 KiB");
  }
  return State::more;
}

std::optional<HttpFault> check_fields(const HttpFields& fields, bool version_1_0, Framing& framing) {
  for (const std::string_view name : kOnce)
    if (std::count_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == name; }) > 1)
      return bad(400, std::string(name) + " is given more than once");
  bool host = false;
  for (const auto& [name, value] : fields) {
    if (name == "host") host = true;
    if (name == "content-length")
      if (auto fault = check_length(value, framing)) return fault;
    if (name == "transfer-encoding") {
      if (version_1_0) return bad(400, "HTTP/1.0 knows no Transfer-Encoding");
      if (!equal_nocase(value, "chunked"))
        return bad(501, "the only Transfer-Encoding that this server reads is chunked");
      framing.chunked = true;
    }
    if (name == "content-encoding" && !value.empty() && !equal_nocase(value, "identity"))
      return bad(415, "the body is compressed, which this server does not read: send it as it is");
    if (name == "expect") {
      if (!equal_nocase(value, "100-continue")) return bad(417, "the only Expect is 100-continue");
      framing.wants_continue = !version_1_0;
    }
  }
  if (framing.chunked && framing.length)
    return bad(400, "Content-Length and Transfer-Encoding exclude each other");
  if (!host && !version_1_0) return bad(400, "the Host header is missing");
  return {};
}

std::optional<std::string> percent_decoded(std::string_view text, bool plus) {
  std::string out;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus) {
      out += ' ';
    } else if (text[i] == '%') {
      if (i + 2 >= text.size()) return {};
      const int high = digit(text[i + 1]), low = digit(text[i + 2]);
      if (high < 0 || low < 0) return {};
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::optional<Target> parse_target(std::string_view target, std::string_view method) {
  Target out;
  if (target == "*" && method == "OPTIONS") {
    out.path = "*";
    return out;
  }
  if (!target.starts_with('/')) {
    const bool tls = target.starts_with("https://");
    if (!tls && !target.starts_with("http://")) return {};
    target.remove_prefix(tls ? 8 : 7);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    out.host = target.substr(0, end);
    target.remove_prefix(end);
    if (out.host.empty()) return {};
  }
  if (target.find('#') != std::string_view::npos) return {};
  const size_t question = std::min(target.find('?'), target.size());
  const auto path = percent_decoded(target.substr(0, question), false);
  if (!path) return {};
  out.path = path->empty() ? "/" : *path;
  if (question < target.size()) out.query = target.substr(question + 1);
  return out;
}

}  // namespace carat
