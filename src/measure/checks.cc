#include "measure/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <regex>

#include "base/error.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;
using Fault = std::optional<std::string>;

std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 60)) out += c == '\n' ? ' ' : c;
  return text.size() > 60 ? out + "..." : out;
}

std::string trimmed(std::string_view text) {
  const auto from = text.find_first_not_of(" \t\r\n"), to = text.find_last_not_of(" \t\r\n");
  return from == std::string_view::npos ? "" : std::string(text.substr(from, to - from + 1));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (const std::string line = trimmed(text.substr(at, end - at)); !line.empty()) all.push_back(line);
    at = end + 1;
  }
  return all;
}

std::vector<std::string> strings(const Json& j) {
  if (j.is_string()) return {j.get<std::string>()};
  return j.get<std::vector<std::string>>();
}

// JSON, also within a fence of Markdown.
Json json_in(const std::string& text) {
  std::string inner = trimmed(text);
  if (inner.starts_with("```")) {
    const size_t from = inner.find('\n'), to = inner.rfind("```");
    if (from != std::string::npos && to > from) inner = inner.substr(from, to - from);
  }
  return Json::parse(inner, nullptr, false);
}

Fault json_fault(const Json& keys, const GateAnswer& a) {
  const Json j = json_in(a.content);
  if (j.is_discarded()) return fmt::format("no JSON: {}", shown(a.content));
  if (keys.is_array())
    for (const std::string& key : strings(keys))
      if (!j.is_object() || !j.contains(key)) return fmt::format("the JSON has no '{}'", key);
  return {};
}

Fault tool_fault(const Json& wanted, const GateAnswer& a) {
  if (a.tool_calls.empty()) return fmt::format("no tool was called: {}", shown(a.content));
  const Json function = a.tool_calls[0].value("function", Json::object());
  const std::string name = function.value("name", ""), arguments = function.value("arguments", "");
  if (wanted.contains("name") && name != wanted["name"].get<std::string>())
    return fmt::format("the tool '{}' was called, not '{}'", name, wanted["name"].get<std::string>());
  const Json given = Json::parse(arguments, nullptr, false);
  if (!given.is_object()) return fmt::format("arguments are no JSON object: {}", shown(arguments));
  const Json asked = wanted.value("arguments", Json::object());
  for (const auto& [key, value] : asked.items())
    if (!given.contains(key) || given[key] != value)
      return fmt::format("argument '{}' is {}, not {}", key, given.value(key, Json()).dump(), value.dump());
  return {};
}

Fault lines_fault(const Json& wanted, const GateAnswer& a) {
  const std::vector<std::string> lines = lines_of(a.content);
  const auto line = wanted.at("line").get<std::string>();
  const auto times = wanted.at("times").get<size_t>();
  const auto right = static_cast<size_t>(std::count(lines.begin(), lines.end(), line));
  if (right == times && lines.size() == times) return {};
  return fmt::format("{} of {} lines are the line, {} were asked for", right, lines.size(), times);
}

Fault contains_fault(const Json& v, const GateAnswer& a) {
  for (const std::string& s : strings(v))
    if (a.content.find(s) == std::string::npos)
      return fmt::format("'{}' is missing in: {}", s, shown(a.content));
  return {};
}

Fault named(const std::string& name, const Json& v, const GateAnswer& a) {
  if (name == "contains") return contains_fault(v, a);
  if (name == "any_of") {
    for (const std::string& s : strings(v))
      if (a.content.find(s) != std::string::npos) return {};
    return fmt::format("none of {} in: {}", v.dump(), shown(a.content));
  }
  if (name == "not_contains") {
    for (const std::string& s : strings(v))
      if (a.content.find(s) != std::string::npos) return fmt::format("'{}' is in the answer", s);
    return {};
  }
  if (name == "equals")
    return trimmed(a.content) == v.get<std::string>() ? Fault()
                                                      : fmt::format("not {}: {}", v.dump(), shown(a.content));
  if (name == "regex")
    return std::regex_search(a.content, std::regex(v.get<std::string>()))
               ? Fault()
               : fmt::format("no match of {} in: {}", v.dump(), shown(a.content));
  if (name == "lines") return lines_fault(v, a);
  if (name == "json") return json_fault(v, a);
  if (name == "tool_call") return tool_fault(v, a);
  if (name == "finish")
    return a.finish == v.get<std::string>() ? Fault() : fmt::format("it ended by '{}'", a.finish);
  if (name == "min_chars")
    return a.content.size() >= v.get<size_t>() ? Fault() : fmt::format("{} bytes", a.content.size());
  if (name == "thinking")
    return a.thinking.empty() == v.get<bool>() ? Fault(v.get<bool>() ? "it did not think" : "it thought")
                                               : Fault();
  throw Error(fmt::format("unknown check '{}'", name), "docs/gates.md lists them");
}

}  // namespace

Fault bad_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    bool right = n > 0 && i + n <= text.size();
    for (size_t k = 1; right && k < n; ++k) right = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
    if (!right) return fmt::format("byte {} is no UTF-8", i);
    i += n;
  }
  return {};
}

Fault mojibake(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  if (const size_t at = text.find(kReplacement); at != std::string_view::npos)
    return fmt::format("a replacement character at byte {}", at);
  // A leading byte of UTF-8 that became a character of Latin-1 (U+00C2 .. U+00F4), then one that was a
  // continuation: U+0080 .. U+00BF, or what Windows-1252 has in its place.
  size_t pairs = 0, first = 0;
  for (size_t i = 0; i + 3 < text.size(); ++i) {
    const auto b = [&](size_t k) { return static_cast<unsigned char>(text[i + k]); };
    if (b(0) != 0xc3 || b(1) < 0x82 || b(1) > 0xb4) continue;
    const bool latin = b(2) == 0xc2 && b(3) >= 0x80 && b(3) <= 0xbf;
    const bool windows = (b(2) == 0xe2 && (b(3) == 0x80 || b(3) == 0x82 || b(3) == 0x84)) ||
                         (b(2) == 0xc5 && (b(3) == 0x92 || b(3) == 0x93 || b(3) == 0xa0 || b(3) == 0xa1)) ||
                         (b(2) == 0xcb && (b(3) == 0x86 || b(3) == 0x9c));
    if (latin || windows) first = pairs++ ? first : i;
  }
  if (pairs >= 2 || (pairs == 1 && text.find("\xc3\xa2\xe2\x82\xac") != std::string_view::npos))
    return fmt::format("UTF-8 read as Latin-1 at byte {}: {}", first, shown(text.substr(first)));
  return {};
}

Fault loops(std::string_view text) {
  const std::string t = trimmed(text);
  for (size_t n = 1; n * 5 <= t.size() && n <= 400; ++n) {
    size_t times = 1;
    while ((times + 1) * n <= t.size() && t.compare(t.size() - (times + 1) * n, n, t, t.size() - n, n) == 0)
      ++times;
    if (times >= 5 && times * n >= 40)
      return fmt::format("it ends with '{}' {} times", shown(trimmed(t.substr(t.size() - n))), times);
  }
  return {};
}

Fault leaked_token(std::string_view text) {
  static constexpr std::array<std::string_view, 14> kMarks = {
      "<mask>",  "<unused", "<bos>", "<eos>",         "<pad>",     "<start_of_turn>", "<end_of_turn>",
      "<turn|>", "<|turn>", "<|im_", "<|endoftext|>", "<|channel", "<channel|>",      "<|tool"};
  for (const std::string_view mark : kMarks)
    if (text.find(mark) != std::string_view::npos)
      return fmt::format("the mark '{}' stands in the answer", mark);
  return {};
}

Fault failed_check(const Json& check, const GateAnswer& a) {
  if (check.is_object()) {
    for (const auto& [name, value] : check.items())
      if (Fault f = named(name, value, a)) return f;
    return {};
  }
  if (check == "json") return json_fault({}, a);
  if (check == "no_loop") return loops(a.content);
  throw Error(fmt::format("unknown check {}", check.dump()), "docs/gates.md lists them");
}

std::vector<std::string> always_failed(const GateAnswer& a) {
  std::vector<std::string> all;
  if (trimmed(a.content).empty() && a.tool_calls.empty()) all.emplace_back("the answer is empty");
  for (const auto& check : {bad_utf8, mojibake, leaked_token})
    for (const std::string* text : {&a.content, &a.thinking})
      if (Fault f = check(*text)) all.push_back(*f);
  return all;
}

}  // namespace carat
