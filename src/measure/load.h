// What else the machine does: other processes' load, time taken by a hypervisor, GPUs, throttling. Figures
// that were measured beside something else say so.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "measure/nvml.h"

namespace carat {

struct BusyLimits {
  double cores = 0.2;   // share of the processors that others take
  double steal = 0.05;  // share that a hypervisor takes
  double gpu = 0.05;    // share of a GPU's time
  bool holders = true;  // a process that holds GPU memory counts as busy
};
// One thing that is busy, for people: "python3 (4711) takes 3.8 processors".
std::vector<std::string> busy_with(const nlohmann::ordered_json& state, const BusyLimits& limits = {});

class LoadWatch {
 public:
  // proc: where /proc is (tests have their own); nvml may be null.
  explicit LoadWatch(std::shared_ptr<Nvml> nvml, std::string proc = "/proc");
  ~LoadWatch();
  // What happened since the last call, or since this was made. others_cpus and steal_cpus count processors;
  // top names the processes that took most; gpus what NVML says now.
  nlohmann::ordered_json state();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Processor, cores, memory, system; GPUs with driver and power limit.
nlohmann::ordered_json machine_json(const Nvml* nvml);

}  // namespace carat
