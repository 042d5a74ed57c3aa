// One HTTP request's generation: its choices, how tokens become text, what it cost.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/api/ears.h"
#include "serve/api/eyes.h"
#include "serve/api/generation.h"
#include "serve/api/request.h"
#include "serve/api/stream.h"
#include "serve/metrics.h"
#include "text/chat/chat.h"

namespace carat {

// What everything in the API layer works with.
struct ServedModel {
  Engine& engine;
  const Tokenizer& tokenizer;
  const ChatFormat* chat = nullptr;  // null: completions only
  std::string bos, eos;              // their text
  std::string chat_template;         // for /props
  bool on_gpu = false;
  Eyes* eyes = nullptr;  // null: it reads text only, and why
  std::string blind = kBlind;
  Ears* ears = nullptr;  // null: it does not hear, and why
  std::string deaf = kDeaf;

  static constexpr const char* kBlind =
      "this model reads text only, no images: no tower for them is with it (--mmproj FILE names one)";
  static constexpr const char* kDeaf =
      "this model does not hear: no tower for sound is with it (of Gemma 4, E2B and E4B have one; --mmproj "
      "FILE names it)";
};

struct StepTrace;

struct ToolCall {
  std::string id, name, arguments;
  bool whole = false;  // false: it was cut, or is still written
};

// A token's log probabilities, as text.
struct TokenReport {
  std::string text;
  Logprobs logprobs;
};

struct Choice {
  std::vector<Token> prompt;
  std::vector<int32_t> shared;  // as in Request
  std::vector<SoftRows> soft;   // likewise
  Utf8Stream utf8;
  StopFilter stop;
  std::unique_ptr<ChatParser> parser;  // null: plain text
  bool special = false;                // control tokens are text for the parser
  std::string content, thinking;
  std::vector<ToolCall> tools;
  std::vector<TokenReport> reports;
  std::vector<Logprobs> prompt_logprobs;
  std::vector<Token> tokens;           // what was generated, but the token that ended it
  Token end_token = -1;                // that one
  int64_t generated = 0, thought = 0;  // tokens; of them thinking
  int64_t cached = 0;                  // prompt tokens that were not read again
  int32_t slot = -1;                   // Event::slot
  Finish finish = Finish::none;
  bool by_stop_string = false;
  Token by_stop_token = -1;  // of the request's own
  std::string error, hint;
  int status = 500;                       // of the answer that tells of the error
  std::shared_ptr<TokenMask> mask;        // of its grammar; null: there is none
  std::shared_ptr<const SpecStats> spec;  // once it has ended, if drafters are loaded
  Generation::Clock::time_point started{}, first{}, said{}, last{};
  std::shared_ptr<LiveRequest> live;
  std::shared_ptr<StepTrace> trace;  // null unless asked for
  // What is new since the last call of take(), for streams.
  std::vector<ChatDelta> fresh;
  size_t fresh_reports = 0, fresh_tokens = 0;
  bool prompt_told = false;     // its tokens, where they are asked for
  int64_t read = 0;             // prompt tokens so far, those of the cache too
  bool progress_fresh = false;  // that changed

  const char* finish_reason() const;
  Json prompt_progress() const;  // llama.cpp's: {"total", "cache", "processed", "time_ms"}
  Json stop_reason() const;      // vLLM's: the stop string, or the stop token of the request; null: neither
};

class Job {
 public:
  using Clock = Generation::Clock;
  // stuck_seconds: a step of the engine that takes longer ends the job with an error.
  Job(const ServedModel& model, Metrics& metrics, std::string id_prefix, GenerateOptions options,
      double stuck_seconds);
  ~Job();  // counts what was not finished as aborted

  // A choice and its request, not yet submitted.
  Choice& add(std::vector<Token> prompt);
  void submit(bool prompt_logprobs);

  // Runs until all choices have ended; on_change is called whenever a choice has something fresh or has
  // ended. False if the client has gone (or on_change returned false): everything is cancelled.
  using OnChange = std::function<bool(int choice)>;
  bool run(const std::function<bool()>& gone, const OnChange& on_change);
  // The same bit by bit, for streams: what has come is handed over; nothing: more comes, co_await more().
  std::optional<bool> step(const std::function<bool()>& gone, const OnChange& on_change);
  HttpStream::Pause more();

  const std::string& id() const { return id_; }
  int64_t created() const { return created_; }
  const GenerateOptions& options() const { return options_; }
  const ServedModel& model() const { return model_; }
  std::vector<Choice>& choices() { return choices_; }
  std::string prompt_text;  // to be told with the answer; empty: it is not
  Json usage() const;
  double elapsed() const;  // seconds since this job began
  Json timings() const;

 private:
  // False: that was all.
  bool look(const std::function<bool()>& gone, const OnChange& on_change);
  bool hand_over(const Generation::Item& item, const OnChange& on_change);
  void fail_stuck(double step_seconds, const OnChange& on_change);
  bool take(Choice& c, const Generation::Item& item);
  void take_token(Choice& c, Token token);
  bool ended_early(Choice& c);
  void take_end(Choice& c, bool cut);
  void add_delta(Choice& c, ChatDelta delta);
  void add_stop_token(Choice& c, Token token);
  void count(const Choice& c, const char* reason);
  void add_energy(Json& timings, int64_t generated) const;

  const ServedModel& model_;
  Metrics& metrics_;
  const std::string id_;
  const int64_t created_;
  const GenerateOptions options_;
  const double stuck_seconds_;
  const Clock::time_point began_ = Clock::now();
  double joules_before_ = 0;    // of the machine, and
  uint64_t tokens_before_ = 0;  // of all requests, when this one was submitted
  std::vector<Choice> choices_;
  std::vector<bool> counted_;
  size_t open_ = 0, ended_ = 0;
  std::unique_ptr<Generation> generation_;
};

// Why a choice ended with Finish::error, for whoever asked.
std::string why_failed(const Choice& c);
// Said to those whose answer is cut because the server ends.
inline constexpr const char* kEnding = "the server is ending";

// Letters and digits, for ids.
std::string random_id(size_t length);

}  // namespace carat
