// Any bytes as a chat template, rendered with one conversation: an Error or a text, within the limits given.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "text/jinja/jinja.h"

namespace {

const nlohmann::ordered_json& conversation() {
  static const auto json = nlohmann::ordered_json::parse(R"({
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": [{"type": "text", "text": "a\u3000\ud83d\udc4b"}, {"type": "image"}]},
      {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true, {"k": "v"}]}}}]},
      {"role": "tool", "tool_call_id": "1", "name": "f", "content": "{\"a\": 1}"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
      "type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}, "required": ["x"]}}}],
    "enable_thinking": true, "add_generation_prompt": true, "bos_token": "<bos>", "eos_token": "<eos>"})");
  return json;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  carat::JinjaLimits limits;
  limits.steps = 50'000;
  limits.output_bytes = 1 << 20;
  try {
    const carat::JinjaTemplate tpl(std::string_view(reinterpret_cast<const char*>(data), size));
    const std::string text = tpl.render(conversation(), limits);
    if (text.size() > limits.output_bytes) std::abort();
  } catch (const carat::Error&) {}
  return 0;
}
