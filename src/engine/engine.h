// The engine: one thread owns the device and every sequence; requests come and events go from any thread.
// Tokens only.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "core/backend.h"
#include "engine/mask.h"
#include "engine/prefix/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/soft_rows.h"
#include "engine/speculate/speculator.h"
#include "model/kv_policy.h"
#include "model/model.h"

namespace carat {

struct EngineConfig {
  int32_t context = 0;    // positions per sequence; 0: the model's own, at most 8192 unless asked for
  int32_t sequences = 4;  // at once; further requests wait in order. 0: as many as memory allows
  // Of all sequences together, in layers that see everything; 0: a whole context for each. With less the one
  // that came last is paused when pages run out, and reads again what the prefix cache has lost.
  int64_t kv_tokens = 0;
  int32_t prefill_chunk = 512;
  // While others generate a step takes fewer prompt rows if it would last longer; 0: it never does.
  double step_seconds = 0.2;
  DType cache_k = DType::f16, cache_v = DType::f16;
  std::optional<DType> sliding_k = {}, sliding_v = {};  // of layers with a window, if not the same
  std::optional<bool> single_copy = {};       // KvFormats::single; not given: the policy's choice, or no
  std::vector<KvLayerFormat> kv_layers = {};  // of single layers
  std::optional<KvProtect> kv_protect = {};   // KvFormats::protect; not given: the policy's choice, or none
  std::string kv_policy = {};                 // not empty: chooses all of them (model/kv_policy.h)
  size_t max_queue = 256;                     // waiting requests; more are refused
  std::vector<std::shared_ptr<Drafter>> drafters = {};  // none: plain decoding
  SpecConfig spec = {};
  // Where texts are kept beyond the end of the process; empty: nowhere.
  std::string prefix_cache_dir = {};
  int64_t prefix_disk_bytes = int64_t{16} << 30;
  int64_t prefix_cache_bytes = -1;  // for texts that may come again; 0: none; -1: a part of what is free
  // Called on the engine's thread with what the prefix cache has come to know and has forgotten; must not
  // wait. It returns false where it could not take the changes: then the next ones hold all that is known.
  // May be empty.
  std::function<bool(PrefixChanges)> prefix_changes = {};
};

// The queue is full or the device has failed: not the request's fault, another time or place may do.
class Unavailable : public Error {
 public:
  using Error::Error;
};

class QueueFull : public Unavailable {
 public:
  using Unavailable::Unavailable;
};

enum class Finish : uint8_t { none, stop, length, cancelled, error };

// One event when the request leaves the queue, then one a step. tokens: newly generated, several where a
// draft was right. Called on the engine's thread: hand over and return.
struct Event {
  std::vector<Token> tokens;
  std::vector<Logprobs> logprobs;         // per token, if asked for
  std::vector<Logprobs> prompt_logprobs;  // per prompt token from the second on, once, if asked for
  int32_t prompt_done = 0;                // prompt tokens processed so far, or found
  int32_t cached = 0;                     // of them, those found in the prefix cache
  int32_t slot = -1;                      // where its text is left when it ends; -1: it waits
  Finish finish = Finish::none;
  std::string error, hint;                // with Finish::error
  std::shared_ptr<const SpecStats> spec;  // so far, if drafters are loaded
  // Of this step's draft (the likeliest way through a tree): its tokens from where the model picked another.
  std::vector<Token> rejected;
};

struct Request {
  std::vector<Token> prompt;  // at least one token
  // Pictures, ascending, in the places of tokens. Not with prompt_logprobs.
  std::vector<SoftRows> soft = {};
  SampleParams sample;
  std::vector<int32_t> shared;  // ascending: beginnings of the prompt that others will probably have, too
  int32_t max_tokens = -1;      // -1: until the context is full; 0: only read the prompt
  // One of these ends the request; it is the last of the last event's tokens, and no content.
  std::vector<Token> stop_tokens;
  int32_t slot = -1;        // where its text is left when it ends, for save_slot(); -1: any
  int32_t priority = 0;     // lower ones go first; then in order of arrival
  bool ignore_eos = false;  // stop_tokens do not end it
  int32_t logprobs = -1;    // -1: none; else how many alternatives beside the chosen one
  bool prompt_logprobs = false;
  bool speculate = true;  // false: nothing drafts for it
  // Files of state/snapshot.h: loaded, it must hold the beginning of the prompt, which is then not read
  // again; saved, it holds all that was committed when the request ended. Empty: none.
  std::string load_state = {}, save_state = {};
  // A request finds only texts of its own salt in the prefix cache, so that neither times nor counts tell a
  // client what others have sent.
  uint64_t salt = 0;
  std::shared_ptr<TokenMask> mask;  // this request's alone; null: every token is allowed
  std::function<void(const Event&)> sink;
};

struct EngineStats {
  int32_t running = 0, waiting = 0;  // the paused wait, too
  int32_t paused = 0;
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;  // processed; those of the prefix cache are not
  uint64_t generated_tokens = 0, requests = 0, steps = 0;
  int64_t kv_pages_used = 0, kv_pages_total = 0;  // used: by what runs
  PrefixStats prefix;
  double busy_seconds = 0;
  double device_seconds = 0;  // of them, those in which a device was at work; 0 where the host computes
  double last_step_unix = 0;  // when the loop last made progress
  double step_seconds = 0;    // how long the step that runs now has taken; 0: none runs
  bool failed = false;        // the device is gone: nothing will run again
  SpecStats spec;             // of all requests
};

// What was done with a slot's text: the one that the last request there ended with.
struct SlotResult {
  int32_t tokens = 0;
  int64_t bytes = 0;
  double seconds = 0;
};

class Engine {
 public:
  Engine(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> model, const EngineConfig& config);
  ~Engine();  // cancels what runs
  // Error if the prompt is empty or longer than the context or a parameter is out of range; Unavailable if
  // the queue is full.
  uint64_t submit(Request request);
  void cancel(uint64_t id);  // its sink gets Finish::cancelled
  // A slot's text to a file (state/snapshot.h), from a file into the prefix cache, and out of the cache.
  // slot: below config().sequences. Between steps; returns when it is done. Error if there is none or no
  // cache.
  SlotResult save_slot(int32_t slot, const std::string& path);
  SlotResult restore_slot(int32_t slot, const std::string& path);
  SlotResult erase_slot(int32_t slot);
  // From now on `s` decides what is drafted, and knows what it has learnt before; null: nothing is drafted.
  // Its drafters are some of those that the engine was made with, and it has none of their taps or all of
  // them: settings are compared in one engine (carat bench --spec). Error if a request runs or waits.
  void speculate(std::shared_ptr<Speculator> s);
  EngineStats stats() const;
  const EngineConfig& config() const;  // with defaults resolved
  int64_t memory_bytes() const;        // KV, scratch and checkpoints allocated, drafters' too

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
