// From flags to a model that can run: picks the backend, opens files, loads weights, tokenizer and chat
// format. The only place that names a backend.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/devices.h"
#include "apps/offload.h"
#include "apps/rope_flags.h"
#include "core/backend.h"
#include "engine/engine.h"
#include "model/model.h"
#include "serve/config.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace carat {

struct OpenOptions {
  std::string model, backend = "cpu", device = "auto", isa,
                     chat_template;  // chat_template: a file that replaces the model's own
  int threads = 0;
  std::string numa;
  bool lock = false;  // memory that was touched is never written to swap
  RopeFlags rope;
  OffloadFlags offload;
  SplitFlags split;
  std::shared_ptr<SplitPlan> planned = {};  // make_backend() leaves there how it splits a model
  double gpu_memory = 1;                    // share of a GPU's memory that may be used
  uint64_t gpu_memory_limit = 0;            // bytes; the GPU counts as one with no more; 0: none
  std::string cuda_graphs = "on";           // or off
  std::string activations;                  // "fp8": of products with FP8, MXFP4 and NVFP4 weights
  std::string load_as;                      // "fp8": what weights of 16 and 32 bits become
};
// -m, -t, --device, --gpu-memory-utilization, --cuda-graphs, --load-as, add_offload_flags(),
// add_rope_flags(), --isa, --backend,
// --chat-template
void add_open_flags(CLI::App& app, OpenOptions& options);

// source: what it is to hold; where a GPU has no room for all of it, the CPU keeps the rest (offload.h).
std::shared_ptr<Backend> make_backend(const OpenOptions& options, const WeightSource* source = nullptr);
// Bytes per second that the backend's device reads from its memory (with that many threads), measured now.
// bytes: what is read over and over, which a processor's caches may hold; 0: more than they hold.
double measure_read_ceiling(const OpenOptions& options, const Backend& backend, double bytes = 0);
// Operations per second of byte dots, with those threads and that instruction set.
double measure_dot_ceiling(const OpenOptions& options);

struct Opened {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;  // null if the file has none
  std::shared_ptr<const ChatFormat> chat;      // null without a tokenizer
  std::string bos, eos;                        // their text
};
// Shows a progress bar while loading, and tells `report` too. Error if anything is missing or wrong.
Opened open_model(const OpenOptions& options, const Progress& report = {});
// tokenizer and chat, or Error naming the file.
void require_text(const Opened& opened);

// -n, --temp, --top-k, --top-p, --min-p, --repeat-penalty, ..., -s: names as in llama.cpp.
struct SampleFlags {
  SampleParams params;
  std::vector<std::string> dry_breakers = ServeConfig{}.dry_breakers;
  int32_t max_tokens = -1;
  int64_t seed = -1;  // -1: a new one each time
  bool ignore_eos = false;
  // What the command line said nothing of, the model may.
  CLI::Option *temp = nullptr, *top_k = nullptr, *top_p = nullptr, *min_p = nullptr;
};
void add_sample_flags(CLI::App& app, SampleFlags& flags);
// Where no flag was given, what the model's publisher recommends: general.sampling.* of a GGUF file, or
// generation_config.json of a directory.
void use_model_sampling(const WeightSource& source, SampleFlags& flags);

// -c, -b and those of caches
void add_engine_flags(CLI::App& app, EngineConfig& config);
// -ctk, -ctv and all others that say what caches keep
void add_cache_flags(CLI::App& app, EngineConfig& config);
// An option that names whole caches stands in the place of all those.
void exclude_cache_flags(CLI::App& app, CLI::Option& caches);
// What those flags make of one sequence of so many positions.
KvFormats flag_formats(EngineConfig cache, const Opened& opened, int32_t context);
// The KV cache format of that name, as -ctk and -ctv know it.
DType cache_type(const std::string& name);
// Of "f16" or "f16/q8_0/...", and of "5=f16/q8_0" (layer 5).
std::vector<DType> cache_types(const std::string& names);
KvLayerFormat layer_format(const std::string& text);
// A flag whose value is such a name.
CLI::Option* add_cache_type(CLI::App& app, const std::string& flag, DType& type, const std::string& help);

}  // namespace carat
