// What is in a model file: for people, as JSON, and as .npy; and the memory it will need.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/offload.h"
#include "apps/spec_flags.h"
#include "model/files/source.h"
#include "model/kv_policy.h"

namespace carat {

struct PlanOptions {
  EngineConfig engine;  // as `carat run` and `carat serve` fill it
  SpecFlags spec;
  OffloadFlags offload;
  std::string mmproj;  // empty: what is with the model
  bool no_tower = false;
  int64_t room = INT64_MAX;          // of a GPU, for weights
  DeviceInfo device = {};            // free memory that policies count on, weights not yet taken
  KvAllowed allowed = {true, true};  // what the backend reads
  bool cpu_steps = false;            // the CPU computes: what its steps and repacked weights take is counted
  int threads = 0;                   // as make_cpu_backend takes them
  std::string isa;
};
struct MemoryPlan {
  int32_t context = 0;
  int64_t weights = 0, cache = 0;     // cache: recurrent states included
  int64_t host_weights = 0;           // that a GPU leaves to the CPU, besides `weights`
  std::string host_text;              // what they are
  int64_t states = 0, draft_row = 0;  // of them the states; and what a row that may be rejected adds
  int64_t drafter_weights = 0, drafter_cache = 0;
  int64_t steps = 0;     // activations, logits and lists of steps, where they are counted
  int64_t saved = 0;     // bytes of a file with a text as long as the context
  int64_t prefixes = 0;  // pages for texts that may come again
  // Of the tower for pictures: weights, and activations of the largest picture, of so many
  // rows.
  int64_t tower_weights = 0, tower_work = 0;
  int32_t tower_rows = 0;
  bool tower_within = true;  // of the model's own memory; else of the CPU's
  KvFormats formats;
  std::vector<KvPlan::Layer> layers;
  std::vector<KvPlan::Edge> edges;
  int64_t towers() const { return tower_weights + tower_work; }
  int64_t total() const {
    return weights + cache + steps + drafter_weights + drafter_cache + prefixes +
           (tower_within ? towers() : 0);
  }
};
// Error if the architecture is not known or the context is beyond what can be planned.
MemoryPlan plan_memory(const WeightSource& source, const PlanOptions& options);

int64_t parameter_count(const WeightSource& source);
// Arrays above 1024 entries are given by their length alone.
nlohmann::ordered_json inspect_json(const WeightSource& source);
std::string inspect_text(const WeightSource& source);

// One tensor as float32: by its name in the source, or, in a Hugging Face directory, by the checkpoint's,
// where the parts of a quantized matrix are multiplied out. Error if there is none of the name.
struct TensorValues {
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::string stored;
};
TensorValues tensor_values(const std::string& file, const std::string& name);
// Its shape, its scheme, range and first values; as JSON: all values.
std::string tensor_text(const TensorValues& t, const std::string& name, bool json);
// In the tensor's shape.
void write_npy(const TensorValues& t, const std::string& path);

}  // namespace carat
