// A golden model that sees or hears behind a server: every token has a name, and a chat's contents are the
// prompt, so that a request can spell what the reference was given.
#pragma once
#include <map>
#include <set>
#include <utility>

#include "serve/api/placed.h"
#include "tests/goldens.h"
#include "tests/serve_fixture.h"

namespace carat::test {

// Every token has a name, but for some that are not `used`: those are letters. marks: names of others.
inline TokenizerData named_tokens(const std::set<Token>& used, const std::map<Token, std::string>& marks) {
  TokenizerData d;
  d.model = "gpt2", d.pre = "qwen35";
  d.bos = 2, d.eos = 1, d.unk = 3;
  d.end_of_generation = {};  // the reference's text goes on behind it
  d.tokens.resize(512);
  d.types.assign(512, TokenType::user_defined);
  std::string letters = "<|>abcdefghijklmnopqrstuvwxyz:[]0123456789.";
  for (Token t = 0; t < 512; ++t) {
    d.tokens[static_cast<size_t>(t)] = fmt::format("<t{}>", t);
    if (t < 8 || used.count(t) || letters.empty() || marks.count(t)) continue;
    d.tokens[static_cast<size_t>(t)] = letters.substr(0, 1);
    d.types[static_cast<size_t>(t)] = TokenType::normal;
    letters.erase(0, 1);
  }
  CARAT_CHECK(letters.empty(), "'{}' are missing", letters);
  d.tokens[5] = "\u0120", d.types[5] = TokenType::normal;  // a space
  for (const auto& [token, name] : marks) {
    d.tokens[static_cast<size_t>(token)] = name;
    d.types[static_cast<size_t>(token)] = TokenType::control;
  }
  d.tokens[4] = "ab", d.types[4] = TokenType::normal, d.merges = {"a b"};
  return d;
}

// Contents as they stand, one behind the other.
class BareChat : public ChatFormat {
 public:
  explicit BareChat(std::string of_picture, std::string of_sound = "<|audio|>",
                    std::string of_video = "<|video|>")
      : picture_(std::move(of_picture)), sound_(std::move(of_sound)), video_(std::move(of_video)) {}
  std::string_view name() const override { return "bare"; }
  std::string render(const ChatInput& given) const override {
    std::string out;
    for (const Json& m : normalize_chat(given, false).messages) {
      if (m["content"].is_string()) out += m["content"].get<std::string>();
      if (m["content"].is_array())
        for (const Json& part : m["content"])
          out += part["type"] == "text"    ? part["text"].get<std::string>()
                 : part["type"] == "audio" ? sound_
                 : part["type"] == "video" ? video_
                                           : picture_;
    }
    return out;
  }
  std::unique_ptr<ChatParser> parser(std::string_view, const AnswerReading&) const override {
    struct Plain : ChatParser {
      std::vector<ChatDelta> push(std::string_view text) override {
        return {{ChatDelta::Kind::content, std::string(text), 0}};
      }
      std::vector<ChatDelta> finish(bool) override { return {}; }
    };
    return std::make_unique<Plain>();
  }
  bool wants_special() const override { return true; }

 private:
  const std::string picture_, sound_, video_;
};

// Text that becomes these tokens.
inline std::string text_of(std::span<const Token> tokens) {
  std::string out;
  for (const Token t : tokens) out += fmt::format("<t{}>", t);
  return out;
}

class SceneServer {
 public:
  SceneServer(const std::string& golden, const TokenizerData& tokens, const std::string& picture,
              const EngineConfig& config)
      : main(make_cpu_backend(2, "")),
        model(std::make_shared<Model>(load_golden(golden_dir(golden), *main))),
        tokenizer(tokens),
        chat(picture, "<|audio|>",
             picture == "<|image_pad|>" ? "<|vision_start|><|video_pad|><|vision_end|>" : "<|video|>"),
        engine(main, model, config),
        // A backend of its own, as the program has it.
        backend(make_cpu_backend(1, "")),
        towers(open_towers(golden_dir(golden))) {}
  ~SceneServer() {
    if (!server) return;
    server->set_grace(0);
    server->stop();
    thread.join();
  }
  // With the eyes and ears that there are now.
  void start() {
    ServeConfig config;
    config.http.port = 0;
    config.names = {"scene"};
    ServedModel served{engine, tokenizer, &chat, "", "", ""};
    served.eyes = eyes.get(), served.ears = ears.get();
    server = std::make_unique<ApiServer>(served, config);
    thread = std::thread([this] { server->run(); });
  }
  httplib::Client client() const {
    httplib::Client c("127.0.0.1", server->port());
    c.set_read_timeout(600);
    return c;
  }
  std::pair<int, Json> post(const std::string& path, const Json& body) const {
    const auto r = client().Post(path, body.dump(), "application/json");
    CARAT_CHECK(r, "no answer from {}", path);
    return {r->status, Json::parse(r->body)};
  }

  std::shared_ptr<Backend> main;
  std::shared_ptr<const Model> model;
  Tokenizer tokenizer;
  BareChat chat;
  Engine engine;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const WeightSource> towers;
  std::unique_ptr<Eyes> eyes;
  std::unique_ptr<Ears> ears;
  std::unique_ptr<ApiServer> server;
  std::thread thread;
};

}  // namespace carat::test
