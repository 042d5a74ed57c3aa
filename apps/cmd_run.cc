// carat run: chat in the terminal, one answer with -p or from a pipe, plain continuation with --raw.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <utility>

#include "apps/chat_printer.h"
#include "apps/cli.h"
#include "apps/eyes.h"
#include "apps/generate.h"
#include "apps/line_reader.h"
#include "apps/open.h"
#include "apps/progress.h"
#include "apps/prompt_file.h"
#include "apps/remote.h"
#include "apps/spec_flags.h"
#include "base/error.h"
#include "base/file.h"
#include "media/data_url.h"
#include "serve/api/placed.h"
#include "serve/api/wishes.h"
#include "state/snapshot.h"

namespace carat {
namespace {

struct RunOptions {
  OpenOptions open;
  EngineConfig engine;
  SampleFlags sample;
  SpecFlags spec;
  RemoteOptions remote;
  EyesFlags eyes;
  PromptFileFlags files;
  std::string prompt, file, system;
  std::optional<bool> think;
  bool raw = false, timings = false, special = false;
};

// For servers that believe it.
std::string media_type(const std::string& bytes) {
  static constexpr std::pair<std::string_view, const char*> kTypes[] = {
      {"\x89PNG", "image/png"}, {"\xff\xd8", "image/jpeg"}, {"GIF8", "image/gif"}, {"RIFF", "image/webp"}};
  for (const auto& [begin, type] : kTypes)
    if (bytes.starts_with(begin)) return type;
  return "application/octet-stream";
}

const char* sound_format(const std::string& bytes) {
  static constexpr std::pair<std::string_view, const char*> kFormats[] = {
      {"RIFF", "wav"}, {"fLaC", "flac"}, {"OggS", "ogg"}};
  for (const auto& [begin, format] : kFormats)
    if (bytes.starts_with(begin)) return format;
  return "mp3";
}

// Someone to talk with: the model here, or a server's.
class Talker {
 public:
  virtual ~Talker() = default;
  virtual void chat(const std::string& user) = 0;
  // A picture for the next message. Error if it cannot be read.
  void show(const std::string& path) {
    const std::string bytes = read_file(path, kMostFileBytes);
    const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
    media_.push_back(
        {{"type", "image_url"},
         {"image_url",
          {{"url", "data:" + media_type(bytes) + ";base64," + encode_base64({first, bytes.size()})}}}});
  }
  // A sound, likewise.
  void play(const std::string& path) {
    const std::string bytes = read_file(path, kMostFileBytes);
    const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
    media_.push_back(
        {{"type", "input_audio"},
         {"input_audio", {{"data", encode_base64({first, bytes.size()})}, {"format", sound_format(bytes)}}}});
  }
  void clear() {
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }
  void undo() {  // after a failed turn: the question leaves the history again
    if (!messages_.empty() && messages_.back()["role"] == "user") messages_.erase(messages_.size() - 1);
  }

 protected:
  explicit Talker(std::string system) : system_(std::move(system)) { clear(); }
  void add_user(const std::string& text) {
    Json content = text;
    if (!media_.empty()) {
      content = std::exchange(media_, Json::array());
      content.push_back({{"type", "text"}, {"text", text}});
    }
    messages_.push_back({{"role", "user"}, {"content", std::move(content)}});
  }
  Json messages_ = Json::array();

 private:
  const std::string system_;
  Json media_ = Json::array();
};

class LocalTalker : public Talker {
 public:
  explicit LocalTalker(const RunOptions& o)
      : Talker(o.system), o_(o), sample_(o.sample), opened_(open_model(o.open)) {
    require_text(opened_);
    use_model_sampling(*opened_.model->source, sample_);
    EngineConfig config = o.engine;
    config.sequences = 1;
    set_up_speculation(o.spec, opened_, config);
    if (opened_.model->spec.blocks) config.prefill_chunk = std::max(config.prefill_chunk, o.eyes.budget);
    engine_ = std::make_unique<Engine>(opened_.backend, opened_.model, config);
    served_ = std::make_unique<ServedModel>(
        ServedModel{*engine_, *opened_.tokenizer, opened_.chat.get(), opened_.bos, opened_.eos, ""});
    if (o.raw) return;
    eyes_ = open_served_eyes(opened_, o.open, o.eyes, engine_->config().prefill_chunk, served_->blind);
    ears_ = open_served_ears(opened_, o.open, o.eyes, served_->deaf);
    served_->eyes = eyes_.get(), served_->ears = ears_.get();
  }

  // A token's text, and whether it is a token of its own (Tokenizer::is_mark).
  using Show = std::function<void(const std::string& text, bool mark)>;
  // One continuation of `prompt`. Returns the generated text, control tokens written out if `special`.
  std::string answer(PromptTokens prompt, bool special, const Show& show) {
    const Tokenizer& tokenizer = *opened_.tokenizer;
    Request request;
    request.prompt = std::move(prompt.tokens);
    request.soft = std::move(prompt.soft);
    const Token bos = tokenizer.data().bos;
    if (o_.raw && !o_.files.load_state.empty()) {  // the prompt continues the saved text
      const std::vector<Token> saved = saved_tokens(o_.files.load_state);
      request.prompt.insert(request.prompt.begin(), saved.begin(), saved.end());
    } else if (tokenizer.data().add_bos && bos >= 0 &&
               (request.prompt.empty() || request.prompt.front() != bos))
      request.prompt.insert(request.prompt.begin(), bos);
    if (request.prompt.empty()) throw Error("the prompt is empty");
    interrupt_.clear();
    use_prompt_files(o_.files, *opened_.model, std::exchange(first_, false), request,
                     [&](Request r) { read(std::move(r)); });
    request.sample = sample_.params;
    request.sample.seed = seed();
    if (request.sample.dry_multiplier != 0)
      request.sample.dry_breakers = find_breakers(tokenizer, sample_.dry_breakers);
    request.max_tokens = o_.sample.max_tokens;
    request.ignore_eos = o_.sample.ignore_eos;
    request.stop_tokens = tokenizer.data().end_of_generation;
    std::string all;
    std::unique_ptr<ProgressBar> bar = std::make_unique<ProgressBar>("reading", "tok");
    const double total = static_cast<double>(request.prompt.size());
    const auto on_event = [&](const Event& e) {
      if (e.tokens.empty()) {
        if (bar) bar->update(e.prompt_done, total);
        return;
      }
      bar.reset();
      for (const Token t : e.tokens) {
        if (tokenizer.is_end(t) && !o_.sample.ignore_eos) continue;
        const std::string text = tokenizer.decode({&t, 1}, special);
        all += text;
        show(text, tokenizer.is_mark(t));
      }
    };
    const Generated g = generate(*engine_, std::move(request), on_event, interrupt_.flag());
    bar.reset();
    if (o_.timings) report(g);
    if (g.finish == Finish::length && o_.sample.max_tokens < 0)
      std::fprintf(stderr, "(the context of %d tokens is full; -c N makes it larger)\n",
                   engine_->config().context);
    return all;
  }

  void raw(const std::string& prompt) {
    Utf8Stream utf8;
    const auto show = [&](const std::string& text, bool) {
      const std::string whole = utf8.push(text);
      std::fwrite(whole.data(), 1, whole.size(), stdout);
      std::fflush(stdout);
    };
    answer({opened_.tokenizer->encode(prompt, true), {}}, o_.special, show);
    std::fputs((utf8.finish() + "\n").c_str(), stdout);
  }

  void chat(const std::string& user) override {
    add_user(user);
    ChatInput input;
    input.messages = messages_;
    words_for_media(input.messages, *served_);
    std::vector<AskedMedium> media = take_media(input.messages, senses_of(*served_));
    std::vector<PlaceMark> marks = place_marks(*served_);
    hide_spelled(marks, {&input.messages});
    input.think = o_.think;
    input.bos = opened_.bos;
    input.eos = opened_.eos;
    const PlacedText placed = find_places(opened_.chat->render(input), marks);
    const std::string& prompt = placed.text;
    const auto parser = opened_.chat->parser(prompt, {nullptr, opened_.tokenizer.get()});
    ChatPrinter printer(::isatty(1) != 0);
    std::string content;
    const auto take = [&](std::vector<ChatDelta> deltas) {
      for (const ChatDelta& d : deltas)
        if (d.kind == ChatDelta::Kind::content) content += d.text;
      printer.print(deltas);
    };
    answer(perceived(placed, std::move(media)), opened_.chat->wants_special(),
           [&](const std::string& text, bool mark) {
             take(mark ? parser->push_mark(text) : parser->push(text));
           });
    take(parser->finish(false));
    printer.finish();
    messages_.push_back({{"role", "assistant"}, {"content", content}});
  }

 private:
  void read(Request request) {
    ProgressBar bar("reading", "tok");
    const double total = static_cast<double>(request.prompt.size());
    const Generated g = generate(
        *engine_, std::move(request), [&](const Event& e) { bar.update(e.prompt_done, total); },
        interrupt_.flag());
    if (g.finish == Finish::cancelled)
      throw Error("the prompt was not read to its end, and nothing is saved");
  }
  uint64_t seed() {
    if (o_.sample.seed >= 0) return static_cast<uint64_t>(o_.sample.seed);
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }
  static void report(const Generated& g) {
    const double n = static_cast<double>(g.tokens.size());
    std::fprintf(stderr, "\nprompt %zu tokens in %.2f s (%.1f tok/s), generated %zu in %.2f s (%.1f tok/s)\n",
                 g.prompt_tokens, g.prompt_seconds, static_cast<double>(g.prompt_tokens) / g.prompt_seconds,
                 g.tokens.size(), g.seconds, n > 1 && g.seconds > 0 ? (n - 1) / g.seconds : 0.0);
    if (g.spec)
      std::fprintf(stderr, "speculation: %.2f tokens a step; %llu of %llu drafted tokens accepted\n",
                   g.spec->accepted_length(), static_cast<unsigned long long>(g.spec->accepted),
                   static_cast<unsigned long long>(g.spec->drafted));
  }

  PromptTokens perceived(const PlacedText& placed, std::vector<AskedMedium> asked) {
    if (placed.places().size() != asked.size())
      throw Error("the chat template has no places for pictures or sounds");
    const std::vector<PromptMedium> media = read_media(*served_, Json::object(), std::move(asked));
    PromptTokens out = encode_placed(*served_, placed, media);
    perceive(*served_, media, out.soft);
    return out;
  }

  const RunOptions& o_;
  SampleFlags sample_;
  Opened opened_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Eyes> eyes_;
  std::unique_ptr<Ears> ears_;
  std::unique_ptr<ServedModel> served_;  // with those of the two that it has
  bool first_ = true;                    // no prompt has been read yet
  InterruptFlag interrupt_;
};

class RemoteRunner : public Talker {
 public:
  explicit RemoteRunner(const RunOptions& o)
      : Talker(o.system), timings_(o.timings), remote_(o.remote, o.sample, o.think) {}
  const std::string& model() const { return remote_.model(); }

  void chat(const std::string& user) override {
    add_user(user);
    ChatPrinter printer(::isatty(1) != 0);
    interrupt_.clear();
    const RemoteAnswer answer = remote_.ask(messages_, [&](const ChatDelta& d) {
      printer.print({d});
      return !*interrupt_.flag();
    });
    printer.finish();
    messages_.push_back({{"role", "assistant"}, {"content", answer.content}});
    if (timings_ && answer.timings.is_object())
      std::fprintf(stderr, "\nprompt %lld tokens, generated %lld (%.1f tok/s)\n",
                   static_cast<long long>(answer.timings.value("prompt_n", int64_t{0})),
                   static_cast<long long>(answer.timings.value("predicted_n", int64_t{0})),
                   answer.timings.value("predicted_per_second", 0.0));
  }

 private:
  const bool timings_;
  RemoteChat remote_;
  InterruptFlag interrupt_;
};

void interactive(Talker& runner) {
  std::fputs(
      "Type a message. /image FILE shows a picture with the next one, /audio FILE plays a sound with it, "
      "/clear starts anew, /exit or Ctrl-D ends, Ctrl-C stops an answer, \\ continues a line.\n",
      stdout);
  LineReader reader;
  std::string line;
  while (reader.read(line)) {
    if (line.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (line == "/exit" || line == "/quit" || line == "/bye") break;
    if (line == "/clear") {
      runner.clear();
      std::puts("(a new conversation)");
    } else if (line.front() == '/' && line.find(' ') == std::string::npos) {
      std::puts("Commands: /image FILE, /audio FILE, /clear, /exit");
    } else {
      try {
        const std::string file = line.substr(std::min(line.find_first_not_of(' ', 7), line.size()));
        if (line.starts_with("/image ")) {
          runner.show(file);
          std::puts("(shown with the next message)");
        } else if (line.starts_with("/audio ")) {
          runner.play(file);
          std::puts("(played with the next message)");
        } else {
          runner.chat(line);
        }
      } catch (const Error& e) {
        std::fprintf(stderr, "error: %s\n%s%s%s", e.what(),
                     e.hint().empty() ? "" : "hint: ", e.hint().c_str(), e.hint().empty() ? "" : "\n");
        runner.undo();
      }
    }
  }
}

// For the first message.
void add_files(Talker& talker, const EyesFlags& flags) {
  for (const std::string& image : flags.images) talker.show(image);
  for (const std::string& sound : flags.sounds) talker.play(sound);
}

void run(const RunOptions& o) {
  std::string prompt = o.prompt;
  const bool piped = ::isatty(0) == 0;
  if (!o.file.empty()) prompt += read_file(o.file, size_t{256} << 20);
  if (piped && o.prompt.empty() && o.file.empty())
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  const bool once = piped || !o.prompt.empty() || !o.file.empty();
  if (once && prompt.empty())
    throw Error("the prompt is empty", "give one with -p TEXT, -f FILE or through a pipe");
  if (o.raw && !once) throw Error("--raw needs a prompt", "give one with -p TEXT, -f FILE or through a pipe");
  if (o.remote.url.empty() == o.open.model.empty())
    throw Error(o.remote.url.empty() ? "no model is given" : "both a model and a server are given",
                "give a model with -m FILE or -hf OWNER/REPO, or a running server with --url URL");
  if (!o.remote.url.empty()) {
    if (o.raw || o.files.any())
      throw Error("a server continues no raw texts and no saved states",
                  "leave out --raw, --load-state, --save-state, --save-prompt and --prompt-cache");
    RemoteRunner remote(o);
    add_files(remote, o.eyes);
    if (once) return remote.chat(prompt);
    std::printf("%s at %s. ", remote.model().c_str(), o.remote.url.c_str());
    return interactive(remote);
  }
  check_prompt_files(o.files);
  LocalTalker runner(o);
  if (o.raw && !(o.eyes.images.empty() && o.eyes.sounds.empty()))
    throw Error("a raw prompt has no place for pictures and sounds", "leave out --raw");
  add_files(runner, o.eyes);
  if (!once)
    interactive(runner);
  else if (o.raw)
    runner.raw(prompt);
  else
    runner.chat(prompt);
}

}  // namespace

void add_run(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* run_app =
      app.add_subcommand("run", "Chat in the terminal, or answer one prompt (-p, or through a pipe)");
  add_open_flags(*run_app, o->open);
  add_engine_flags(*run_app, o->engine);
  add_sample_flags(*run_app, o->sample);
  add_spec_flags(*run_app, o->spec);
  run_app->add_option("-p,--prompt", o->prompt, "Answer this prompt and exit");
  run_app->add_option("-f,--file", o->file, "Read the prompt from a file (it follows the text of -p)");
  run_app->add_option("--system", o->system, "System message (-sys)");
  add_eyes_flags(*run_app, o->eyes);
  run_app->get_option("--model")->required(false);
  run_app->add_option("--url", o->remote.url,
                      "Talk with a running server instead of loading a model (with -p, --system, --think, "
                      "-n, -s, --temp, --top-k, --top-p, --min-p)");
  run_app->add_option("--api-key", o->remote.key, "With --url: the server's key");
  run_app->add_option("--url-model", o->remote.model, "With --url: which of its models (default: the first)");
  add_prompt_file_flags(*run_app, o->files);
  run_app->add_flag("--raw", o->raw, "Continue the prompt as it stands: no chat template");
  run_app->add_flag("--think,!--no-think", o->think,
                    "Let the model think before it answers, or not (default: as its chat template does)");
  run_app->add_flag("--special", o->special, "With --raw: print control tokens too");
  run_app->add_flag("--timings", o->timings, "Print tokens per second to stderr");
  run_app->callback([o] { run(*o); });
}

}  // namespace carat
