// tests/data/parser_cases.json: what the parsers must make of answers in which tags are tokens or only
// spelled, for every cut.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/file.h"
#include "text/chat/chat.h"
#include "text/chat/gemma.h"
#include "text/chat/qwen.h"

using namespace carat;

namespace {

struct Answer {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments as they came
  std::vector<bool> whole;
  bool operator==(const Answer&) const = default;
};

std::unique_ptr<ChatParser> parser_of(const Json& c) {
  const bool gemma = c["family"] == "gemma", thinking = c.value("thinking", false);
  const AnswerReading reading{c.value("tools", Json()), nullptr};
  if (gemma) return make_gemma4_parser("<|turn>model\n", reading);
  return make_qwen_parser(thinking ? "<|im_start|>assistant\n<think>\n" : "<think>\n\n</think>\n\n", reading);
}

// cut: bytes of text a push; finish: as if max_tokens had ended it.
Answer read(const Json& c, size_t cut, bool finish_cut) {
  const auto parser = parser_of(c);
  Answer out;
  const auto take = [&](const std::vector<ChatDelta>& deltas) {
    for (const ChatDelta& d : deltas) {
      const auto i = static_cast<size_t>(d.index);
      switch (d.kind) {
        case ChatDelta::Kind::content: out.content += d.text; break;
        case ChatDelta::Kind::thinking: out.reasoning += d.text; break;
        case ChatDelta::Kind::tool_name:
          REQUIRE(i == out.calls.size());
          out.calls.emplace_back(d.text, "");
          out.whole.push_back(false);
          break;
        case ChatDelta::Kind::tool_arguments: out.calls.at(i).second += d.text; break;
        case ChatDelta::Kind::tool_end: out.whole.at(i) = true; break;
      }
    }
  };
  for (const Json& part : c["answer"]) {
    const std::string& text = part[1].get_ref<const std::string&>();
    if (part[0] == "token") {
      take(parser->push_mark(text));
      continue;
    }
    for (size_t at = 0; at < text.size(); at += cut) take(parser->push(text.substr(at, cut)));
  }
  take(parser->finish(finish_cut));
  return out;
}

std::string trimmed(const std::string& s) {
  const size_t a = s.find_first_not_of(" \t\r\n"), b = s.find_last_not_of(" \t\r\n");
  return a == std::string::npos ? "" : s.substr(a, b - a + 1);
}

// Keys in order, blanks outside strings gone; digits stay what they were.
std::string canonical(const std::string& json) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '"' && (i == 0 || json[i - 1] != '\\')) inside = !inside;
    if (inside || std::string_view(" \n\t\r").find(json[i]) == std::string_view::npos) out += json[i];
  }
  return out;
}

bool fits(const Answer& got, const Json& right, const std::string& source) {
  const Json calls = right.value("calls", Json::array());
  if (trimmed(got.content) != trimmed(right.value("content", "")) ||
      trimmed(got.reasoning) != trimmed(right.value("reasoning", "")) || got.calls.size() != calls.size())
    return false;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Json arguments = Json::parse(got.calls[i].second, nullptr, false);
    if (got.calls[i].first != calls[i][0].get<std::string>() || arguments != calls[i][1] || !got.whole[i])
      return false;
    // Numbers are compared by their digits: those of the file that are long must stand in the answer.
    for (size_t at = 0; (at = source.find_first_of("0123456789", at)) != std::string::npos;) {
      const size_t end = std::min(source.find_first_not_of("0123456789", at), source.size());
      if (end - at > 15 &&
          canonical(got.calls[i].second).find(source.substr(at, end - at)) == std::string::npos)
        return false;
      at = end;
    }
  }
  return true;
}

bool is_finished_json(const std::string& text) { return Json::accept(text); }

}  // namespace

TEST_CASE("tags are tokens: answers of both families, at every cut") {
  const std::string file = read_file(CARAT_TEST_DATA "/parser_cases.json");
  const Json all = Json::parse(file);
  CHECK(all["cases"].size() > 100);
  for (const Json& c : all["cases"]) {
    const std::string name = c["name"];
    CAPTURE(name);
    const Json& right = c["right"];
    const bool cut = right == "cut";
    const Answer whole = read(c, 1 << 20, cut);
    for (size_t n = 1; n < 12; ++n) CHECK(read(c, n, cut) == whole);
    CAPTURE(whole.content);
    CAPTURE(whole.reasoning);
    const std::string arguments = whole.calls.empty() ? "" : whole.calls[0].second;
    CAPTURE(arguments);
    if (right == "no-calls") {
      CHECK(whole.calls.empty());
    } else if (cut) {
      for (size_t i = 0; i < whole.calls.size(); ++i) {
        CHECK_FALSE(whole.whole[i]);
        CHECK_FALSE(is_finished_json(whole.calls[i].second));
      }
    } else {
      const std::string source = c["answer"].dump();
      CHECK(std::any_of(right.begin(), right.end(), [&](const Json& r) { return fits(whole, r, source); }));
    }
  }
}

// Whatever the place at which max_tokens ends a call: no name in part, no arguments that look finished.
TEST_CASE("calls that are cut anywhere never look finished") {
  const Json all = Json::parse(read_file(CARAT_TEST_DATA "/parser_cases.json"));
  for (const Json& c : all["cases"]) {
    if (!c["right"].is_array() || !c["right"][0].contains("calls") || c["right"][0]["calls"].size() != 1)
      continue;
    const std::string name = c["name"];
    CAPTURE(name);
    const Answer whole = read(c, 1 << 20, false);
    if (whole.calls.empty()) continue;
    std::string text;
    for (const Json& part : c["answer"]) text += part[1].get<std::string>();
    for (size_t keep = 1; keep < text.size(); ++keep) {
      Json shorter = c;
      shorter["answer"] = Json::array();
      size_t left = keep;
      for (const Json& part : c["answer"]) {
        const std::string t = part[1];
        if (left == 0 || (part[0] == "token" && left < t.size())) break;
        shorter["answer"].push_back({part[0], t.substr(0, left)});
        left -= std::min(left, t.size());
      }
      const Answer got = read(shorter, 3, true);
      CAPTURE(keep);
      for (size_t i = 0; i < got.calls.size(); ++i) {
        CHECK(got.calls[i].first == whole.calls[i].first);
        if (!got.whole[i]) CHECK_FALSE(is_finished_json(got.calls[i].second));
        CHECK(whole.calls[i].second.starts_with(got.calls[i].second));
      }
      // Nor is what was written of them a text, which would show the tag.
      if (whole.content.empty()) CHECK(trimmed(got.content).empty());
    }
  }
}

TEST_CASE("Gemma's arguments come while they are written") {
  const Json tools = Json::parse(
      R"([{"type":"function","function":{"name":"write","parameters":{"type":"object","properties":{"text":{"type":"string"}}}}}])");
  const auto parser = make_gemma4_parser("", {tools, nullptr});
  parser->push_mark("<|tool_call>");
  CHECK(parser->push("call:write{").at(0).text == "write");
  parser->push("text:");
  parser->push_mark("<|\"|>");
  CHECK(parser->push("first \"line\"\n").at(0).text == "first \\\"line\\\"");
  CHECK(parser->push("second").at(0).text == "\\nsecond");
  CHECK(parser->push(" }}").empty());  // an unclosed string would end here
  CHECK(parser->push(" on").at(0).text == " }} on");
}
