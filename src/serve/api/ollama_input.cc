// What an Ollama body asks for, as a chat body.
#include <algorithm>
#include <deque>

#include "media/data_url.h"
#include "media/sound.h"
#include "serve/api/ollama.h"
#include "serve/api/readable.h"
#include "serve/api/refusals.h"

namespace carat {
namespace {

[[noreturn]] void unusable(const std::string& field, const std::string& why) {
  throw ApiError(400, fmt::format("{}: {}", field, why), field);
}

// Options that a request may set. The others of that API (num_ctx, num_gpu, num_thread, ...) are the
// server's, told at its start; they change no token.
void add_options(Json& out, const Fields& f) {
  const Json* given = f.find("options");
  if (!given) return;
  if (!given->is_object()) f.fail("options", "an object");
  for (const char* name :
       {"temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "repeat_penalty",
        "repeat_last_n", "presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta"})
    if (given->contains(name)) out[name] = (*given)[name];
  const Fields options(*given, "options.");
  // -1 and -2: until the answer ends or the context is full.
  if (options.find("num_predict"))
    out["max_tokens"] = std::max<int64_t>(-1, options.get_int("num_predict", -1, -2, 1 << 30));
  if (options.get_number("tfs_z", 1, 0, 1e9) != 1) options.fail("tfs_z", "1: there is no such sampler here");
  if (!options.get_bool("penalize_newline", true))
    options.fail("penalize_newline", "true: penalties count line breaks like other tokens");
}

void add_thinking(Json& out, const Fields& f) {
  const Json* think = f.find("think");
  if (!think) return;
  if (think->is_boolean()) {
    out["enable_thinking"] = *think;
    return;
  }
  static const Json kEfforts = {"low", "medium", "high"};
  if (std::find(kEfforts.begin(), kEfforts.end(), *think) == kEfforts.end())
    f.fail("think", "true, false, \"low\", \"medium\" or \"high\"");
  out["reasoning_effort"] = *think;
}

void add_format(Json& out, const Fields& f) {
  const Json* format = f.find("format");
  if (!format || *format == "") return;
  if (*format == "json") {
    out["response_format"] = {{"type", "json_object"}};
  } else if (format->is_object()) {
    out["response_format"] = {{"type", "json_schema"},
                              {"json_schema", {{"name", "answer"}, {"schema", *format}}}};
  } else {
    f.fail("format", "\"json\" or a JSON schema");
  }
}

// Sounds come among the images, there and here: the content tells them apart.
bool begins_as_sound(std::string_view file) {
  if (file.starts_with("data:")) file.remove_prefix(std::min(file.size(), file.find(',') + 1));
  try {
    return is_sound_file(decode_base64(file.substr(0, 32)));
  } catch (const Error&) {  // the reader of the whole request tells what is wrong
    return false;
  }
}

// The text, behind the images if there are any.
Json content_of(const Json& at, const std::string& text, const std::string& field) {
  MixedContent out;
  if (at.contains("images") && at["images"].is_array())
    for (const Json& image : at["images"]) {
      if (!image.is_string()) unusable(field, "must be an array of base64 texts");
      const bool sound = begins_as_sound(image.get_ref<const std::string&>());
      out.add_part({{"type", sound ? "audio" : "image"}, {"data", image}});
    }
  out.add(text);
  return out.take();
}

// What requests of both kinds have.
Json common(const Fields& f) {
  refuse_what_is_not_done(f);
  refuse_special_tokens(f);
  Json out = {{"stream", f.get_bool("stream", true)}};
  out["model"] = f.get_string("model", f.get_string("name", ""));
  for (const char* name : {"logprobs", "top_logprobs", "cache_salt", "image_tokens"})
    if (const Json* j = f.find(name)) out[name] = *j;
  if (f.get_bool("truncate", false)) out["truncation"] = "auto";
  add_options(out, f);
  add_thinking(out, f);
  add_format(out, f);
  return out;
}

// Calls that wait for their results. Clients name the function, say the call's id, or neither: then results
// come in the order of the calls.
class OpenCalls {
 public:
  Json declare(const Json& calls, const std::string& at) {
    if (!calls.is_array()) unusable(at, "must be an array");
    Json out = Json::array();
    open_.clear();
    for (const Json& call : calls) {
      const Json* function = call.is_object() ? Fields(call).find("function") : nullptr;
      if (!function || !function->is_object()) unusable(at, "must be made of objects with a function");
      const std::string name = Fields(*function, at + ".function.").get_string("name", "");
      std::string id = call.value("id", Json()).is_string() ? call["id"].get<std::string>() : "";
      if (id.empty()) id = fmt::format("call_{}", ++count_);
      open_.push_back({id, name});
      out.push_back({{"id", id}, {"type", "function"}, {"function", *function}});
    }
    return out;
  }
  std::string answered(const Fields& m, const std::string& at) {
    const std::string id = m.get_string("tool_call_id", ""),
                      name = m.get_string("tool_name", m.get_string("name", ""));
    auto call = std::find_if(open_.begin(), open_.end(), [&](const Call& c) { return c.id == id; });
    if (call == open_.end() && !name.empty())
      call = std::find_if(open_.begin(), open_.end(), [&](const Call& c) { return c.name == name; });
    if (call == open_.end()) call = open_.begin();
    if (call == open_.end()) unusable(at, "there is no call that this result could be of");
    const std::string found = call->id;
    open_.erase(call);
    return found;
  }

 private:
  struct Call {
    std::string id, name;
  };
  std::deque<Call> open_;
  int count_ = 0;
};

Json message_of(const Json& given, const std::string& at, OpenCalls& calls) {
  if (!given.is_object()) unusable(at, "must be an object");
  const Fields m(given, at + ".");
  const std::string role = m.get_string("role", "");
  if (role.empty()) m.fail("role", "\"system\", \"user\", \"assistant\" or \"tool\"");
  Json out = {{"role", role}, {"content", content_of(given, m.get_string("content", ""), at + ".images")}};
  if (const std::string thought = m.get_string("thinking", ""); !thought.empty())
    out["reasoning_content"] = thought;
  if (const Json* made = m.find("tool_calls"); made && !made->empty())
    out["tool_calls"] = calls.declare(*made, at + ".tool_calls");
  if (role == "tool") out["tool_call_id"] = calls.answered(m, at);
  return out;
}

}  // namespace

OllamaAsked chat_of_ollama(const Json& body) {
  const Fields f(body);
  const Json* messages = f.find("messages");
  if (!messages || !messages->is_array()) f.fail("messages", "an array");
  OllamaAsked asked{common(f), false, {}};
  if (const Json* tools = f.find("tools")) asked.body["tools"] = *tools;
  OpenCalls calls;
  Json& out = asked.body["messages"] = Json::array();
  for (size_t i = 0; i < messages->size(); ++i)
    out.push_back(message_of((*messages)[i], fmt::format("messages[{}]", i), calls));
  return asked;
}

OllamaAsked generate_of_ollama(const Json& body) {
  const Fields f(body);
  OllamaAsked asked{common(f), f.get_bool("raw", false), {}};
  if (asked.raw && body.contains("images") && body["images"].is_array() && !body["images"].empty())
    unusable("images", "a raw prompt has no place for them; leave out \"raw\"");
  const std::string prompt = f.get_string("prompt", ""), system = f.get_string("system", "");
  if (!f.get_string("template", "").empty())
    unusable(
        "template",
        "prompts are rendered by the model's own template; send \"raw\": true with the whole prompt instead");
  if (!f.get_string("suffix", "").empty())
    unusable("suffix", "text between two others is written by POST /infill, where the model knows how");
  if (const Json* context = f.find("context")) asked.context = read_tokens(*context, "context");
  if (asked.raw) {
    if (!system.empty() || !asked.context.empty())
      unusable("raw", "a prompt as it stands has no system text and no context");
    asked.body["prompt"] = prompt;
    if (asked.body.contains("truncation")) asked.body["truncate_prompt_tokens"] = -1;
    return asked;
  }
  Json& messages = asked.body["messages"] = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", content_of(body, prompt, "images")}});
  return asked;
}

bool only_loads(const Json& body) {
  const auto empty = [&](const char* name) {
    return !body.contains(name) || body[name].is_null() || body[name].empty() || body[name] == "";
  };
  return empty("prompt") && empty("messages") && empty("suffix") && empty("images");
}

bool lets_go(const Json& body) {
  const Json* keep = Fields(body).find("keep_alive");
  if (!keep) return false;
  if (keep->is_number()) return keep->get<double>() == 0;
  if (!keep->is_string()) Fields(body).fail("keep_alive", "seconds, or a duration such as \"5m\"");
  const std::string& text = keep->get_ref<const std::string&>();
  return !text.empty() && text.find_first_of("123456789") == std::string::npos;
}

}  // namespace carat
