// Generated text through the parsers of both families: however it is cut, the same comes of it, text is not
// lost, calls are numbered in order and have a name. First byte: family, thinking, declared tools; then text,
// in which the bytes 0x01 and 0x02 stand for tags that are tokens.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/chat/chat.h"
#include "text/chat/gemma.h"
#include "text/chat/qwen.h"

using namespace carat;

namespace {

constexpr std::array<std::string_view, 8> kGemmaTags = {"<|channel>",       "<channel|>", "<|tool_call>",
                                                        "<tool_call|>",     "<|\"|>",     "<|tool_response>",
                                                        "<tool_response|>", "<|turn>"};
constexpr std::array<std::string_view, 4> kQwenTags = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

const Json& tools() {
  static const Json t =
      Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
    "properties":{"a":{"type":"string"},"n":{"type":"integer"},"o":{"type":"object"},"l":{"type":"array"},
    "b":{"type":["boolean","null"]},"x":{"anyOf":[{"type":"number"},{"type":"string"}]}}}}},
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{}}}}])");
  return t;
}

struct Part {
  bool mark;
  std::string text;
};

struct Call {
  std::string name, arguments;
  bool whole = false;
  bool operator==(const Call&) const = default;
};
struct Answer {
  std::string content, thinking;
  std::vector<Call> calls;
  bool operator==(const Answer&) const = default;
};

Answer read(uint8_t how, const std::vector<Part>& parts, size_t cut) {
  const AnswerReading reading{how & 4 ? tools() : Json(), nullptr};
  const auto parser = how & 1 ? make_qwen_parser(how & 2 ? "<|im_start|>assistant\n<think>\n"
                                                         : "<|im_start|>assistant\n<think>\n\n</think>\n\n",
                                                 reading)
                              : make_gemma4_parser("<|turn>model\n", reading);
  Answer out;
  const auto take = [&](const std::vector<ChatDelta>& deltas) {
    for (const ChatDelta& d : deltas) {
      const auto i = static_cast<size_t>(d.index);
      if (d.kind == ChatDelta::Kind::content) {
        out.content += d.text;
      } else if (d.kind == ChatDelta::Kind::thinking) {
        out.thinking += d.text;
      } else if (d.kind == ChatDelta::Kind::tool_name) {
        if (i != out.calls.size() || d.text.empty()) std::abort();
        out.calls.push_back({d.text, {}, false});
      } else {
        if (i + 1 != out.calls.size() || out.calls[i].whole) std::abort();
        if (d.kind == ChatDelta::Kind::tool_end)
          out.calls[i].whole = true;
        else
          out.calls[i].arguments += d.text;
      }
    }
  };
  for (const Part& p : parts) {
    if (p.mark) {
      take(parser->push_mark(p.text));
      continue;
    }
    for (size_t at = 0; at < p.text.size(); at += cut)
      take(parser->push(std::string_view(p.text).substr(at, cut)));
  }
  take(parser->finish(how & 8));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 8192) return 0;
  const uint8_t how = data[0];
  const std::span<const std::string_view> tags =
      how & 1 ? std::span<const std::string_view>(kQwenTags) : std::span<const std::string_view>(kGemmaTags);
  std::vector<Part> parts{{false, ""}};
  for (size_t i = 1; i < size; ++i) {
    if (data[i] <= 2 && i + 1 < size) {
      parts.push_back({true, std::string(tags[data[++i] % tags.size()])});
      parts.push_back({false, ""});
    } else {
      parts.back().text += static_cast<char>(data[i]);
    }
  }
  try {
    const Answer whole = read(how, parts, size);
    for (const Call& c : whole.calls)
      if (c.whole && !Json::accept(c.arguments)) std::abort();
    for (const size_t cut : {size_t{1}, size_t{2}, size_t{3}, size_t{7}})
      if (!(read(how, parts, cut) == whole)) std::abort();
  } catch (const Error&) {}
  return 0;
}
