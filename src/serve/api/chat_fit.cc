#include "serve/api/chat_fit.h"

#include <algorithm>

#include "serve/api/chat_prompt.h"

namespace carat {
namespace {

std::string role_of(const Json& message) { return message.value("role", ""); }

// System messages at the beginning, and all from `from` on.
Json latest(const Json& messages, size_t head, size_t from) {
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i)
    if (i < head || i >= from) out.push_back(messages[i]);
  return out;
}

}  // namespace

Json without_oldest_turns(const ApiContext& api, Json body, const ToolUse& use, int32_t max_tokens) {
  const int32_t context = api.model.engine.config().context;
  const int32_t room = max_tokens > 0 && max_tokens < context ? context - max_tokens : context - 1;
  const auto fits = [&](const Json& messages) {
    Json shorter = body;
    shorter["messages"] = messages;
    const ChatPrompt chat = chat_prompt(api, shorter, use);
    return encode_placed(api.model, chat, chat.media).tokens.size() <= static_cast<size_t>(room);
  };
  const Json messages = body.value("messages", Json());
  if (fits(messages)) return body;  // and they are messages
  size_t head = 0;
  while (head < messages.size() &&
         (role_of(messages[head]) == "system" || role_of(messages[head]) == "developer"))
    ++head;
  std::vector<size_t> turns;
  for (size_t i = head + 1; i < messages.size(); ++i)
    if (role_of(messages[i]) == "user") turns.push_back(i);
  // Fewer turns are fewer tokens.
  const auto first = std::partition_point(turns.begin(), turns.end(),
                                          [&](size_t from) { return !fits(latest(messages, head, from)); });
  if (first != turns.end()) body["messages"] = latest(messages, head, *first);
  return body;
}

}  // namespace carat
