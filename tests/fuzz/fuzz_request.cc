// Bodies of requests: OpenAI's chat, completions and Responses, Anthropic's messages. Whatever stands there,
// the answer is a 400 that says so, or a request.
#include "serve/api/anthropic.h"
#include "serve/api/placed.h"
#include "serve/api/readable.h"
#include "serve/api/responses.h"

using namespace carat;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ServeConfig config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto attempt = [](auto&& f) {
    try {
      f();
    } catch (const Error&) {
    } catch (const Json::exception&) {  // error_response() makes them 400 too
    }
  };
  const auto read = [&](const Json& body) {
    attempt([&] { read_options(body, config, {}); });
    attempt([&] { read_tool_use(body); });
    if (!body.contains("messages") || !body["messages"].is_array()) return;
    Json messages = tolerant_messages(body["messages"], {true, true});
    attempt([&] { take_media(messages, {true, true}); });
    std::vector<PlaceMark> marks = {
        {Medium::picture, "<|image|>"}, {Medium::video, "<|video|>"}, {Medium::sound, "<|audio|>"}};
    hide_spelled(marks, {&messages});
    const std::string text = messages.dump(-1, ' ', false, Json::error_handler_t::replace);
    find_places(text + "<|audio|>", marks);
  };
  attempt([&] {
    const Json body = parse_body(text);
    read(body);
    attempt([&] { read(chat_of_messages(body)); });
    attempt([&] { read(chat_of_responses(body)); });
    dump_json(body);
  });
  return 0;
}
