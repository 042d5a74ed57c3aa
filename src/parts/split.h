// A program as a part for each device.
#pragma once
#include <map>
#include <tuple>
#include <vector>

#include "core/program.h"
#include "parts/memory.h"
#include "parts/parts.h"

namespace carat::parts {

// Where things are cut, the same in every program.
class Cuts {
 public:
  explicit Cuts(int32_t devices, const PartsOptions& options);
  int32_t devices() const { return devices_; }
  SplitMode mode() const { return mode_; }
  // bounds[d] to bounds[d + 1] of n are device d's, at multiples of `step`.
  using Bounds = std::vector<int32_t>;
  Bounds of(int32_t n, int32_t step) const;
  int32_t layer_device(int32_t layer) const;
  int32_t layers() const { return layers_; }
  // The device that has all experts of a layer: in turn, by their shares.
  int32_t expert_device(int32_t layer) const;

  // What was chosen for a weight first holds for all programs.
  using Key = std::tuple<const std::byte*, int32_t, int32_t>;
  std::map<Key, Bounds> weights;

 private:
  int32_t devices_;
  SplitMode mode_;
  int32_t layers_;
  std::vector<int32_t> first_layer_;
  std::vector<double> shares_, until_;
};

struct Parts {
  std::vector<Program> programs;  // by device
  Holders left;                   // what lies where when all have ended
  int32_t shares = 0;
};
Parts split(const Program& program, Memory& memory, Cuts& cuts, Exchange* exchange);

}  // namespace carat::parts
