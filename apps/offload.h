// Which weights stay with the host where a GPU has no room for all of them, or where somebody says so.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "model/files/source.h"

namespace CLI {
class App;
}

namespace carat {

struct OffloadFlags {
  std::optional<int32_t> gpu_layers;  // the last so many layers on the GPU
  int32_t cpu_moe = 0;                // experts of the first so many layers on the host
  std::vector<std::string> tensors;   // "REGEX=CPU": those whose names it is found in
  bool fetches = true;                // for prompts, the host's weights come to the GPU
  bool given() const { return gpu_layers || cpu_moe > 0 || !tensors.empty(); }
};
// -ngl, -ncmoe, -cmoe, -ot, --no-op-offload, as in llama.cpp
void add_offload_flags(CLI::App& app, OffloadFlags& flags);

// Bytes of a GPU's free memory that weights may take: caches and a step's activations need some.
int64_t weights_room(const DeviceInfo& device);

struct Offload {
  int64_t device = 0, host = 0;  // bytes of weights
  int64_t come = 0;              // room on the device for those of a layer that come to it
  std::string text;              // what the host has: "tables, experts of 12 layers"; empty: nothing
  std::function<bool(const Tensor& file, WeightUse use)> keeps;
};
// Without flags, whatever must stay with the host for the rest to fit into `room` bytes: first tables of
// which rows are looked up, then experts, then layers, from the first layer on. With flags, what they say,
// and tables. Error naming flags that would fit if it does not.
Offload plan_offload(const WeightSource& source, const OffloadFlags& flags, int64_t room);

}  // namespace carat
