#include "apps/remote.h"

#include <fmt/format.h>
#include <httplib.h>
#include <CLI/CLI.hpp>

#include "base/error.h"

namespace carat {
namespace {

constexpr size_t kMaxEvent = size_t{16} << 20;

std::string text_in(const Json& j, const char* name) {
  const auto it = j.find(name);
  return it != j.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// Server-sent events of a chat answer.
class ServerEvents {
 public:
  ServerEvents(RemoteAnswer& answer, const std::function<bool(const ChatDelta&)>& on_delta)
      : answer_(answer), on_delta_(on_delta) {}

  bool push(std::string_view piece) {
    held_ += piece;
    if (held_.size() > kMaxEvent) throw Error("the server sends an event without end");
    for (size_t end; (end = held_.find("\n\n")) != std::string::npos; held_.erase(0, end + 2)) {
      const std::string_view line = std::string_view(held_).substr(0, end);
      if (line.starts_with("data: ") && !take(line.substr(6))) return false;
    }
    return true;
  }

 private:
  bool take(std::string_view data) {
    if (data == "[DONE]") return true;
    const Json j = Json::parse(data, nullptr, false);
    if (!j.is_object()) return true;
    if (j.contains("error")) throw Error(refusal_of(500, std::string(data)));
    if (j.contains("timings")) answer_.timings = j["timings"];
    if (!j.contains("choices") || !j["choices"].is_array() || j["choices"].empty()) return true;
    const Json delta = j["choices"][0].value("delta", Json::object());
    const std::string content = text_in(delta, "content");
    answer_.content += content;
    if (!show(ChatDelta::Kind::thinking, text_in(delta, "reasoning_content"), 0)) return false;
    if (!show(ChatDelta::Kind::content, content, 0)) return false;
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      const Json function = call.value("function", Json::object());
      if (!show(ChatDelta::Kind::tool_name, text_in(function, "name"), 0)) return false;
      if (!show(ChatDelta::Kind::tool_arguments, text_in(function, "arguments"), 0)) return false;
    }
    return true;
  }
  bool show(ChatDelta::Kind kind, const std::string& text, int index) {
    return text.empty() || on_delta_({kind, text, index});
  }

  RemoteAnswer& answer_;
  const std::function<bool(const ChatDelta&)>& on_delta_;
  std::string held_;
};

}  // namespace

RemoteChat::RemoteChat(RemoteOptions options, const SampleFlags& sample, std::optional<bool> think)
    : options_(std::move(options)), address_(server_address(options_.url)) {
  const std::string served = served_model(address_, options_.key);
  if (options_.model.empty()) options_.model = served;
  request_ = {{"model", options_.model}, {"stream", true}};
  const auto given = [](const CLI::Option* o) { return o && o->count() > 0; };
  if (given(sample.temp)) request_["temperature"] = sample.params.temperature;
  if (given(sample.top_k)) request_["top_k"] = sample.params.top_k;
  if (given(sample.top_p)) request_["top_p"] = sample.params.top_p;
  if (given(sample.min_p)) request_["min_p"] = sample.params.min_p;
  if (sample.max_tokens >= 0) request_["max_tokens"] = sample.max_tokens;
  if (sample.seed >= 0) request_["seed"] = sample.seed;
  if (think) request_["enable_thinking"] = *think;
}

RemoteAnswer RemoteChat::ask(const Json& messages, const std::function<bool(const ChatDelta&)>& on_delta) {
  Json body = request_;
  body["messages"] = messages;
  RemoteAnswer answer;
  ServerEvents events(answer, on_delta);
  int status = 0;
  std::string refusal;
  std::exception_ptr failed;
  bool stopped = false;
  httplib::Request request;
  request.method = "POST";
  request.path = address_.base + "/v1/chat/completions";
  request.headers = {{"Content-Type", "application/json"}};
  request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  request.response_handler = [&](const httplib::Response& r) {
    status = r.status;
    return true;
  };
  request.content_receiver = [&](const char* data, size_t n, uint64_t, uint64_t) {
    if (status != 200) {
      refusal.append(data, std::min(n, kMaxEvent - std::min(kMaxEvent, refusal.size())));
      return true;
    }
    try {
      stopped = !events.push({data, n});
    } catch (...) {
      failed = std::current_exception();
    }
    return !stopped && !failed;
  };
  httplib::Client client = client_of(address_, options_.key);
  const auto r = client.send(request);
  if (failed) std::rethrow_exception(failed);
  if (stopped) return answer;
  if (!r) throw Error(fmt::format("{} does not answer: {}", address_.host, httplib::to_string(r.error())));
  if (status != 200) throw Error(refusal_of(status, refusal));
  return answer;
}

}  // namespace carat
