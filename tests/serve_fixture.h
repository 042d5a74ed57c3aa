// A whole server on a free loopback port: tiny model, real sockets, and a way to make the model say a given
// text.
#pragma once
#include <httplib.h>
#include <cstdint>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/server.h"
#include "tests/hooked_backend.h"
#include "tests/tiny_model.h"
#include "text/grammar/sources.h"
#include "tools/vocab.h"

namespace carat::test {

// Turns as plain text. '<' ... '>' is thinking, '@name(arguments)' a tool call.
class PlainChat : public ChatFormat {
 public:
  bool think = false;  // where nothing says so
  std::string_view name() const override { return "plain"; }
  std::string render(const ChatInput& in) const override {
    std::string out = in.bos;
    if (!in.tools.is_null()) out += "tools " + in.tools.dump() + "\n";
    for (const Json& m : in.messages) {
      if (m["role"] == "impossible") throw Error("no such role");
      out += m["role"].get<std::string>() + ": " +
             (m["content"].is_string() ? m["content"].get<std::string>() : "") + "\n";
    }
    if (in.add_generation_prompt) out += in.think.value_or(think) ? "model <" : "model:";
    return out;
  }
  std::unique_ptr<ChatParser> parser(std::string_view prompt, const AnswerReading&) const override {
    auto parser = std::make_unique<Parser>();
    parser->opened = prompt.ends_with('<');
    if (parser->opened) parser->kind = ChatDelta::Kind::thinking;
    return parser;
  }
  std::optional<GrammarBuilder::Expr> answer(GrammarBuilder& b, const AnswerForm& form,
                                             std::string_view) const override {
    if (form.tools.is_null()) return form.content;
    std::vector<GrammarBuilder::Expr> calls;
    for (const Json& t : form.tools)
      calls.push_back(
          b.seq({b.text(fmt::format("@{}(", t["function"]["name"].get<std::string>())),
                 schema_grammar(b, t["function"]["parameters"], SchemaDialect::json), b.text(")")}));
    const GrammarBuilder::Expr called = b.repeat(b.alt(std::move(calls)), 1, form.parallel ? -1 : 1);
    if (form.must_call) return called;
    return b.alt({form.content ? *form.content : b.repeat(b.any_char_but("@"), 0, -1), called});
  }
  std::optional<ThoughtMarks> thought(std::string_view prompt) const override {
    return ThoughtMarks{.open = "<", .close = ">", .opened = prompt.ends_with('<')};
  }
  bool thinks_by_default() const override { return think; }
  bool wants_special() const override { return false; }

 private:
  struct Parser : ChatParser {
    using Kind = ChatDelta::Kind;
    Kind kind = Kind::content;
    bool opened = false;  // by the prompt: an answer may open it again
    int index = -1;
    std::string tool;
    Utf8Stream utf8;  // tokens may be single bytes
    std::vector<ChatDelta> push(std::string_view bytes) override {
      std::vector<ChatDelta> out;
      for (const char c : utf8.push(bytes)) {
        const bool calls = kind == Kind::tool_name || kind == Kind::tool_arguments;
        if (std::exchange(opened, false) && c == '<') continue;
        if (c == '<' && kind == Kind::content) {
          kind = Kind::thinking;
        } else if ((c == '>' && kind == Kind::thinking) || (c == ')' && kind == Kind::tool_arguments)) {
          if (c == ')') out.push_back({Kind::tool_end, {}, index});
          kind = Kind::content;
        } else if (c == '@' && !calls) {
          kind = Kind::tool_name;
          ++index;
        } else if (c == '(' && kind == Kind::tool_name) {
          kind = Kind::tool_arguments;
          out.push_back({Kind::tool_name, std::exchange(tool, {}), index});
        } else if (kind == Kind::tool_name) {
          tool += c;
        } else if (!out.empty() && out.back().kind == kind) {
          out.back().text += c;
        } else {
          out.push_back({kind, std::string(1, c), std::max(index, 0)});
        }
      }
      return out;
    }
    std::vector<ChatDelta> finish(bool) override { return {}; }
  };
};

// The events of a text/event-stream body. Comments come with time: where the machine is slow.
inline std::vector<std::string> sse_events(const std::string& body) {
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end != std::string::npos && body[at] == ':') {
      at = end + 2;
      continue;
    }
    CARAT_CHECK(end != std::string::npos && body.compare(at, 6, "data: ") == 0, "{}", body.substr(at, 80));
    out.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return out;
}

// The last tokens, which merges make, become control tokens of these names, but for those that there are.
inline TokenizerData with_marks(TokenizerData d, std::vector<std::string> marks) {
  std::erase_if(marks,
                [&](const std::string& mark) { return std::ranges::find(d.tokens, mark) != d.tokens.end(); });
  d.merges.resize(d.merges.size() - marks.size());
  for (size_t i = 0; i < marks.size(); ++i) {
    const size_t at = d.tokens.size() - marks.size() + i;
    d.tokens[at] = marks[i];
    d.types[at] = TokenType::control;
  }
  return d;
}

class TestServer {
 public:
  explicit TestServer(EngineConfig engine_config = {.context = 512, .sequences = 4, .prefill_chunk = 64},
                      ServeConfig config = {}, const std::vector<std::string>& marks = {},
                      std::unique_ptr<ChatFormat> own = nullptr,
                      std::shared_ptr<Backend> inner = make_ref_backend())
      : backend(std::make_shared<HookedBackend>(std::move(inner))),
        model(std::make_shared<Model>(load_model(open_source(tiny_model()), *backend))),
        tokenizer(with_marks(tokenizer_from_source(*model->source), marks)),
        format(std::move(own)),
        engine(backend, model, engine_config) {
    config.http.port = 0;
    config.names = {"tiny", "alias"};
    config.build = "test";
    backend->after_step = [this](const Tensor& logits) { say(logits); };
    const ServedModel served{
        engine, tokenizer, format ? format.get() : &chat, tokenizer.piece(tokenizer.data().bos),
        "</s>", "template"};
    server = std::make_unique<ApiServer>(served, config);
    thread = std::thread([this] { server->run(); });
  }
  ~TestServer() {
    server->set_grace(0);
    server->stop();
    thread.join();
  }

  // The next request (alone, its prompt within one step) is answered with this text and the end token.
  void script(const std::string& text, bool end = true) {
    std::vector<Token> tokens = tokenizer.encode(text, false);
    if (end) tokens.push_back(tokenizer.data().end_of_generation.at(0));
    script(std::move(tokens));
  }
  void script(std::vector<Token> tokens) {
    idle();  // a request that ended early may have a step left, which would say the first of these
    const std::lock_guard lock(script_mutex);
    lines = std::move(tokens);
    line = 0;
  }

  httplib::Client client() const {
    httplib::Client c("127.0.0.1", server->port());
    c.set_read_timeout(600);
    return c;
  }
  std::pair<int, std::string> post_text(const std::string& path, const std::string& body) const {
    httplib::Client c = client();
    const auto r = c.Post(path, body, "application/json");
    CARAT_CHECK(r, "no answer from {}", path);
    return {r->status, r->body};
  }
  std::pair<int, Json> post(const std::string& path, const Json& body) const {
    const auto [status, text] = post_text(path, body.dump());
    return {status, Json::parse(text)};
  }
  std::pair<int, std::string> get(const std::string& path, const httplib::Headers& headers = {}) const {
    httplib::Client c = client();
    const auto r = c.Get(path, headers);
    CARAT_CHECK(r, "no answer from {}", path);
    return {r->status, r->body};
  }
  // Until the engine has generated something.
  void wait_generating() const {
    while (engine.stats().generated_tokens < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Until nothing runs or waits; false after so many seconds.
  bool idle(int seconds = 5) const {
    for (int i = 0; i < 100 * seconds; ++i) {
      const EngineStats s = engine.stats();
      if (s.running == 0 && s.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::shared_ptr<HookedBackend> backend;
  std::shared_ptr<const Model> model;
  Tokenizer tokenizer;
  PlainChat chat;
  std::unique_ptr<ChatFormat> format;  // in its place

 private:
  // What the engine's thread reads outlives the engine.
  std::mutex script_mutex;
  std::vector<Token> lines;
  size_t line = 0;

 public:
  Engine engine;
  std::unique_ptr<ApiServer> server;
  std::thread thread;

 private:
  void say(const Tensor& logits) {
    const std::lock_guard lock(script_mutex);
    if (line >= lines.size()) return;
    for (int32_t i = 0; i < logits.cols; ++i) logits.row<float>(0)[i] = 0;
    logits.row<float>(0)[lines[line++]] = 100;
  }
};

inline Json user(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

}  // namespace carat::test
