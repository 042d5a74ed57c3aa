// What a gate asks of an answer, and what is wrong with it.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

struct GateAnswer {
  std::string content, thinking, finish;
  nlohmann::ordered_json tool_calls = nlohmann::ordered_json::array();  // as OpenAI's message has them
};

// Each says what is wrong, or nothing.
std::optional<std::string> bad_utf8(std::string_view text);
// Replacement characters, and UTF-8 that was read as Latin-1 or Windows-1252 on the way ("ä½ å¥½", "â€™").
std::optional<std::string> mojibake(std::string_view text);
// The same stretch over and over at the end: at least five times and 40 bytes.
std::optional<std::string> loops(std::string_view text);
// A model's own marks in text that people read: <mask>, <unused12>, <end_of_turn>, <|im_end|>, ...
std::optional<std::string> leaked_token(std::string_view text);

// A check of a suite (docs/gates.md): "utf8", {"contains": "x"}, {"lines": {"line": "x", "times": 6}}, ...
// Error for an unknown one.
std::optional<std::string> failed_check(const nlohmann::ordered_json& check, const GateAnswer& answer);
// Those that every answer has to pass, whatever a suite says.
std::vector<std::string> always_failed(const GateAnswer& answer);

}  // namespace carat
