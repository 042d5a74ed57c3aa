// One model on several devices: which ones, how it is split, and what each of them holds.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "model/files/source.h"
#include "parts/parts.h"

namespace CLI {
class App;
}

namespace carat {

// As llama.cpp's users know them: -sm, -ts, -mg; and --peer.
struct SplitFlags {
  std::string mode = "auto";   // none, layer, tensor
  std::vector<double> shares;  // of the weights, by device; 0: none
  int main = 0;                // the device where the model is not split
  std::string peer = "auto";   // or host
};
void add_split_flags(CLI::App& app, SplitFlags& flags);

// "cuda:0,cuda:1", "cpu,cpu": N of cuda:N, -1 of the CPU. Empty of auto. Error with what may be said.
std::vector<int> device_numbers(const std::string& text);

struct DeviceRoom {
  std::string name;  // what it is; equal names are equal devices
  int64_t total = 0, free = 0;
};
// What the file says about how it can be split.
struct SplitModel {
  std::vector<int64_t> layers;  // bytes
  int64_t table = 0;            // read by rows: every device that computes whole rows has it
  int64_t head = 0;
  bool experts = false, small = false;  // small: E-models, whose tables are most of them
  int64_t products() const;
};
SplitModel split_model(const WeightSource& source);

struct SplitPlan {
  SplitMode mode = SplitMode::layer;
  std::vector<double> shares;
  std::vector<int32_t> first_layer;
  std::vector<int64_t> weights;    // bytes, by device
  std::vector<std::string> names;  // of the devices
  std::string text;                // "tensor: 50 % and 50 % of every product"
  // Of caches with so many bytes by layer (owners only), and states of recurrent layers in all, what device d
  // has.
  int64_t cache(size_t d, const std::vector<std::pair<int32_t, int64_t>>& layers, int64_t states) const;
};
// direct: all devices reach each other's memory. mode: of the flags; auto: tensor where devices are alike and
// reach each other, and the model is a dense one. Error if a device has no room for its part.
SplitPlan plan_split(const SplitModel& model, const std::vector<DeviceRoom>& devices, const SplitFlags& flags,
                     bool direct);

}  // namespace carat
