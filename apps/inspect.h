// What is in a model file: for people, as JSON, and as .npy; and the memory it will need.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "model/source.h"
#include "state/layout.h"

namespace carat {

struct PlanOptions {
  int32_t context = 0;  // 0: the model's own, at most 8192
  int32_t sequences = 1, batch = 512;
  DType cache_k = DType::f16, cache_v = DType::f16;
};
struct MemoryPlan {
  int32_t context = 0;
  int64_t weights = 0, cache = 0;     // cache: recurrent states included
  int64_t states = 0, draft_row = 0;  // of them the states; and what a row that may be rejected adds
  std::vector<KvPlan::Layer> layers;
  int64_t total() const { return weights + cache; }
};
// Error if the architecture is not known or the context is beyond what can be planned.
MemoryPlan plan_memory(const WeightSource& source, const PlanOptions& options);

int64_t parameter_count(const WeightSource& source);
// Arrays above 1024 entries are given by their length alone.
nlohmann::ordered_json inspect_json(const WeightSource& source);
std::string inspect_text(const WeightSource& source);

// Dequantized to float32, in the tensor's shape.
void write_npy(const TensorInfo& tensor, const std::string& path);

}  // namespace carat
