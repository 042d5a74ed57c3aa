#include "serve/api/form.h"

#include <algorithm>

#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

constexpr size_t kMostParts = 64, kMostHead = 8 << 10, kMostField = 64 << 10, kMostName = 200,
                 kMostBoundary = 70;
constexpr std::string_view kType = "multipart/form-data", kSpaces = " \t";

[[noreturn]] void bad(const std::string& what) {
  throw ApiError(400, "the form " + what, {}, "invalid_form");
}

bool same_word(std::string_view a, std::string_view b) {
  const auto low = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, low, low);
}

std::string_view trimmed(std::string_view s) {
  const size_t begin = std::min(s.find_first_not_of(kSpaces), s.size());
  return s.substr(begin, s.find_last_not_of(kSpaces) + 1 - begin);
}

// "form-data; name="file"; filename="a.wav"": what stands before the first ';', and the parameters.
class Header {
 public:
  explicit Header(std::string_view text) : rest_(text) {
    const size_t end = std::min(text.find(';'), text.size());
    value_ = trimmed(text.substr(0, end));
    rest_.remove_prefix(end);
  }
  std::string_view value() const { return value_; }
  std::optional<std::string> parameter(std::string_view name) const {
    std::string_view rest = rest_;
    while (!rest.empty()) {
      rest.remove_prefix(1);  // ';'
      const size_t equals = std::min(rest.find_first_of("=;"), rest.size());
      const std::string_view found = trimmed(rest.substr(0, equals));
      rest.remove_prefix(equals);
      std::string value;
      if (rest.starts_with('=')) value = take_value(rest);
      if (same_word(found, name)) return value;
      rest.remove_prefix(std::min(rest.find(';'), rest.size()));
    }
    return {};
  }

 private:
  // rest: "=value...", which is taken from its front. Browsers write %22 for quotes, others \".
  static std::string take_value(std::string_view& rest) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpaces, 1), rest.size()));
    if (!rest.starts_with('"')) {
      const size_t end = std::min(rest.find(';'), rest.size());
      const std::string out(trimmed(rest.substr(0, end)));
      rest.remove_prefix(end);
      return out;
    }
    std::string out;
    size_t i = 1;
    for (; i < rest.size() && rest[i] != '"'; ++i) {
      if (rest[i] == '\\' && i + 1 < rest.size() && (rest[i + 1] == '"' || rest[i + 1] == '\\')) ++i;
      out += rest[i];
    }
    rest.remove_prefix(std::min(i + 1, rest.size()));
    return out;
  }
  std::string_view value_, rest_;
};

// head: lines, each ended by CRLF.
FormPart part_of(std::string_view head) {
  FormPart out;
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), line.size() + 2));
    const size_t colon = line.find(':');
    if (colon == line.npos) bad("has a part whose head has a line without a colon");
    const std::string_view name = trimmed(line.substr(0, colon));
    if (same_word(name, "content-transfer-encoding") &&
        !same_word(trimmed(line.substr(colon + 1)), "binary") &&
        !same_word(trimmed(line.substr(colon + 1)), "8bit") &&
        !same_word(trimmed(line.substr(colon + 1)), "7bit"))
      bad("has a part with an encoding of its own: send its bytes as they are");
    if (!same_word(name, "content-disposition")) continue;
    const Header header(line.substr(colon + 1));
    if (!same_word(header.value(), "form-data")) continue;
    out.name = header.parameter("name").value_or("");
    const std::optional<std::string> filename = header.parameter("filename");
    out.file = filename.has_value() || header.parameter("filename*").has_value();
    out.filename = filename.value_or("");
  }
  if (out.name.empty()) bad("has a part without a name");
  if (out.name.size() > kMostName)
    bad(fmt::format("has a name of {} bytes, and {} are allowed", out.name.size(), kMostName));
  return out;
}

Json value_of(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (!text.empty() && text.size() < 32 && text.find_first_not_of("0123456789+-.eE") == text.npos) {
    Json j = Json::parse(text, nullptr, false);
    if (j.is_number()) return j;
  }
  return std::string(text);
}

}  // namespace

bool is_form(std::string_view content_type) { return same_word(Header(content_type).value(), kType); }

std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body) {
  const Header type(content_type);
  if (!same_word(type.value(), kType))
    throw ApiError(400, fmt::format("the body must be {}, with the sound as `file`", kType), {},
                   "invalid_form");
  const std::string boundary = type.parameter("boundary").value_or("");
  if (boundary.empty() || boundary.size() > kMostBoundary)
    bad(fmt::format("has no boundary of 1 to {} bytes in its Content-Type", kMostBoundary));
  const std::string first = "--" + boundary, next = "\r\n" + first;
  // Bytes in front of the first boundary are ignored (RFC 2046, 5.1.1).
  size_t at = body.starts_with(first) ? first.size() : body.find(next);
  if (at == body.npos) bad("has no part: its boundary does not occur");
  if (!body.starts_with(first)) at += next.size();
  std::vector<FormPart> out;
  for (;;) {
    if (body.substr(at, 2) == "--") return out;
    at = std::min(body.find_first_not_of(kSpaces, at), body.size());
    if (body.substr(at, 2) != "\r\n") bad("has a boundary that no line ends");
    if (out.size() == kMostParts) bad(fmt::format("has more than the {} parts that are allowed", kMostParts));
    at += 2;
    const size_t head = body.substr(at, kMostHead).find("\r\n\r\n");
    if (head == body.npos) bad(fmt::format("has a part whose head does not end within {} bytes", kMostHead));
    FormPart part = part_of(body.substr(at, head + 2));
    at += head + 4;
    // A part may be empty: then the line that ends its head is the boundary's.
    const size_t end = body.find(next, at - 2);
    if (end == body.npos) bad(fmt::format("ends in the middle of the part '{}'", part.name));
    part.body = body.substr(at, end < at ? 0 : end - at);
    out.push_back(std::move(part));
    at = end + next.size();
  }
}

Json body_of_form(const std::vector<FormPart>& form, std::initializer_list<std::string_view> texts) {
  Json out = Json::object();
  for (const FormPart& p : form) {
    if (p.file) continue;
    if (p.body.size() > kMostField)
      throw ApiError(
          400, fmt::format("{} has {} bytes, and {} are allowed", p.name, p.body.size(), kMostField), p.name);
    std::string name = p.name;
    const bool list = name.ends_with("[]");
    if (list) name.resize(name.size() - 2);
    if (out.contains(name) && !(list && out[name].is_array()))
      throw ApiError(400, fmt::format("{} comes twice", name), name);
    Utf8Stream utf8;
    if (utf8.push(std::string(p.body)) + utf8.finish() != p.body)
      throw ApiError(400, fmt::format("{} is not UTF-8", name), name);
    const bool text = std::ranges::find(texts, name) != texts.end();
    Json value = text ? Json(std::string(p.body)) : value_of(p.body);
    if (list)
      out[name].push_back(std::move(value));
    else
      out[name] = std::move(value);
  }
  return out;
}

}  // namespace carat
