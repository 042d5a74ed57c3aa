#include "serve/api/chat_prompt.h"

#include <algorithm>
#include <set>

#include "serve/api/readable.h"

namespace carat {
namespace {

constexpr size_t kWorthKeeping = 1024;  // tokens

// What a chat body becomes: messages whose pictures and sounds are taken out where the model takes them.
struct Conversation {
  ChatInput in;
  std::vector<AskedMedium> media;
  std::vector<PlaceMark> marks;
};

void check_messages(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& m = messages[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!m.is_object()) throw ApiError(400, name + " must be an object", name);
    const Fields fields(m, name + ".");
    if (fields.get_string("role", "").empty()) fields.fail("role", "a string such as \"user\"");
    const Json* content = fields.find("content");
    if (!content || content->is_string()) continue;
    if (!content->is_array()) fields.fail("content", "a string or an array of parts");
    for (const Json& part : *content) {
      if (!part.is_object() || !part.contains("type")) fields.fail("content", "made of parts with a type");
      if (part["type"] == "image" || part["type"] == "audio" || part["type"] == "video")
        continue;  // take_media() has seen it
      if (part["type"] != "text")
        fields.fail("content",
                    "made of text, pictures, sounds and videos: this server takes no other parts yet");
      if (!part.contains("text") || !part["text"].is_string())
        fields.fail("content", "made of parts with a text");
    }
  }
}

// What the request says of thoughts, else what the server was told; nothing: the template decides.
std::optional<bool> asked_to_think(const ApiContext& api, const Fields& f) {
  std::optional<bool> think = api.config.think;
  const std::string effort = f.get_string("reasoning_effort", "");
  static constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (!effort.empty()) {
    if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts))
      f.fail("reasoning_effort",
             "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
    think = effort != "none" && effort != "minimal";
  }
  if (read_thinking_budget(f, api.config.reasoning_budget) == 0) think = false;
  const auto read = [&](const Fields& fields) {
    if (fields.find("enable_thinking")) think = fields.get_bool("enable_thinking", false);
  };
  if (const Json* kwargs = f.find("chat_template_kwargs"); kwargs && kwargs->is_object())
    read(Fields(*kwargs, "chat_template_kwargs."));
  read(f);
  return think;
}

// taken: the messages have places already, and no media of their own.
Conversation conversation_of(const ApiContext& api, const Json& body, const ToolUse& use,
                             bool taken = false) {
  const Fields f(body);
  const Json* given = f.find("messages");
  if (!given || !given->is_array() || given->empty()) f.fail("messages", "a non-empty array");
  Conversation out;
  ChatInput& in = out.in;
  const Senses senses = senses_of(api.model);
  in.messages = tolerant_messages(*given, senses);
  in.tools = use.declared;
  if (!taken) {
    words_for_media(in.messages, api.model);
    out.media = take_media(in.messages, senses);
  }
  out.marks = place_marks(api.model);
  hide_spelled(out.marks, {&in.messages, &in.tools});
  check_messages(in.messages);
  in.bos = api.model.bos;
  in.eos = api.model.eos;
  in.add_generation_prompt = f.get_bool("add_generation_prompt", true);
  in.think = asked_to_think(api, f);
  if (const Json* kwargs = f.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) f.fail("chat_template_kwargs", "an object");
    // What the server itself tells templates is no client's to change.
    for (const char* name : {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "range",
                             "namespace", "dict", "raise_exception", "strftime_now"})
      if (kwargs->contains(name))
        throw ApiError(400, fmt::format("chat_template_kwargs cannot set '{}', which the server sets", name),
                       "chat_template_kwargs");
    in.extra = *kwargs;
    in.extra.erase("enable_thinking");  // in.think
  }
  return out;
}

bool is_system(const Json& m) { return m["role"] == "system" || m["role"] == "developer"; }

// System messages at the beginning as one, later ones as the user's: for templates that refuse others.
Json with_system_first(const Json& messages) {
  Json out = Json::array();
  bool beginning = true;
  for (const Json& m : messages) {
    if (!is_system(m)) {
      beginning = false;
      out.push_back(m);
    } else if (!beginning) {
      out.push_back({{"role", "user"}, {"content", m.value("content", Json(""))}});
    } else if (out.empty()) {
      out.push_back(m);
    } else {
      out[0]["content"] =
          content_text(out[0]["content"]) + "\n\n" + content_text(m.value("content", Json("")));
    }
  }
  return out;
}

bool has_media(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Json& m) {
    return m.contains("content") && m["content"].is_array() &&
           std::any_of(m["content"].begin(), m["content"].end(),
                       [](const Json& part) { return is_picture(part) || is_sound(part) || is_video(part); });
  });
}

bool has_parts(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Json& m) {
    return m.contains("content") && m["content"].is_array() && m["content"].size() > 1;
  });
}

// A template that knows only text prints the list itself.
bool knows_parts(const ChatFormat& format, ChatInput in) {
  const Json part = {{"type", "text"}, {"text", "carat"}};
  in.messages = Json::array({{{"role", "user"}, {"content", Json::array({part, part})}}});
  in.tools = nullptr;
  try {
    const std::string text = format.render(in);
    return text.find("'text'") == text.npos && text.find("\"text\"") == text.npos;
  } catch (const Error&) {
    return false;
  }
}

std::string render(const ApiContext& api, ChatInput in) {
  const ChatFormat& format = *api.model.chat;
  if (has_parts(in.messages) && !has_media(in.messages) && !knows_parts(format, in))
    for (Json& m : in.messages)
      if (m.contains("content") && m["content"].is_array()) m["content"] = content_text(m["content"]);
  std::string why;
  try {
    return format.render(in);
  } catch (const Error& e) {
    why = e.what();
  }
  try {
    const Json moved = with_system_first(in.messages);
    if (moved != in.messages) {
      in.messages = moved;
      return format.render(in);
    }
  } catch (const Error&) {  // then it was not that
  }
  throw ApiError(400, fmt::format("the messages cannot be rendered: {}", why), "messages");
}

// The prompt up to the end of the last message, which the answer goes on.
std::string unfinished(const ApiContext& api, const Fields& f, const ChatInput& in) {
  if (f.get_bool("add_generation_prompt", false))
    f.fail("continue_final_message", "false where add_generation_prompt is true");
  const Json& last = in.messages.back();
  const std::string text = last.contains("content") ? content_text(last["content"]) : "";
  const size_t end = text.find_last_not_of(" \t\r\n") + 1;
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (last["role"] != "assistant" || end == 0 || last.contains("tool_calls"))
    f.fail("continue_final_message", "false where the last message is not a text of the assistant");
  const std::string whole = render(api, in);
  const std::string seen = text.substr(begin, end - begin);  // templates trim
  const size_t at = whole.rfind(seen);
  if (at == whole.npos) f.fail("continue_final_message", "false: the template changes the last message");
  return whole.substr(0, at) + text.substr(begin);
}

// The template wrote a place for each, in the order of the messages.
template <class Media>
void check_places(const std::vector<Medium>& places, const Media& media) {
  if (std::ranges::equal(places, media, {}, {}, &Media::value_type::kind)) return;
  throw ApiError(
      400,
      fmt::format(
          "the messages have {} pictures, sounds and videos, but the chat template wrote {} places for "
          "them, or in another order",
          media.size(), places.size()),
      "messages");
}

}  // namespace

ChatPrompt chat_prompt(const ApiContext& api, const Json& body, const ToolUse& use,
                       std::vector<PromptMedium> media) {
  if (!api.model.chat) throw ApiError(400, "this model has no chat format; use /v1/completions");
  Conversation c = conversation_of(api, body, use, !media.empty());
  const Fields f(body);
  ChatPrompt out;
  out.thinking = c.in.think.value_or(api.model.chat->thinks_by_default());
  const bool goes_on = f.get_bool("continue_final_message", false);
  if (goes_on) c.in.add_generation_prompt = false;
  out.text = goes_on ? unfinished(api, f, c.in) : render(api, c.in);
  static_cast<PlacedText&>(out) = find_places(out.text, c.marks);
  if (media.empty()) {
    check_places(out.places(), c.media);
    media = read_media(api.model, body, std::move(c.media));
  } else {
    check_places(out.places(), media);
  }
  out.media = std::move(media);
  return out;
}

std::vector<int32_t> shared_beginnings(const ApiContext& api, const Json& body, const ToolUse& use,
                                       const std::string& prompt, std::span<const Token> tokens) {
  if (tokens.size() < kWorthKeeping || api.model.engine.config().prefix_cache_bytes == 0) return {};
  const Conversation c = conversation_of(api, body, use);
  const ChatInput& in = c.in;
  size_t systems = 0;
  while (systems < in.messages.size() && is_system(in.messages[systems])) ++systems;
  std::vector<int32_t> out;
  for (const size_t kept : std::set<size_t>{std::min<size_t>(1, systems), systems}) {
    ChatInput other = in;
    other.messages = Json(in.messages.begin(), in.messages.begin() + static_cast<std::ptrdiff_t>(kept));
    other.messages.push_back({{"role", "user"}, {"content", "\x01"}});  // as no question begins
    std::string text;
    try {
      text = find_places(render(api, other), c.marks).text;
    } catch (const ApiError&) {
      return {};
    }
    const size_t bytes = static_cast<size_t>(std::ranges::mismatch(prompt, text).in1 - prompt.begin());
    const std::vector<Token> begins = encode_prompt(api.model.tokenizer, prompt.substr(0, bytes));
    const auto same = static_cast<int32_t>(std::ranges::mismatch(tokens, begins).in1 - tokens.begin());
    if (same >= static_cast<int32_t>(kWorthKeeping) && (out.empty() || out.back() < same))
      out.push_back(same);
  }
  return out;
}

std::string render_chat(const ApiContext& api, const Json& given) {
  const Json body = with_tools_for_functions(given);
  return chat_prompt(api, body, read_tool_use(body)).text;
}

std::vector<Token> chat_tokens(const ApiContext& api, const Json& given) {
  const Json body = with_tools_for_functions(given);
  const ChatPrompt chat = chat_prompt(api, body, read_tool_use(body));
  return encode_placed(api.model, chat, chat.media).tokens;
}

}  // namespace carat
