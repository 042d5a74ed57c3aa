// NVIDIA's management library, loaded at run time: what a GPU draws, how busy it is and with what. A machine
// without it has no GPUs as far as this class knows.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace carat {

struct GpuFacts {
  std::string name, driver;
  std::optional<double> power_limit_w;
  int64_t memory_bytes = 0;
};
struct GpuState {
  std::optional<double> utilization;  // share of time in which a kernel ran, 0..1
  std::optional<double> temperature_c, sm_mhz, watts;
  std::optional<uint64_t> throttle;  // NVML's bits of reasons; idle is none
  int64_t memory_used = 0;
  struct Process {
    uint32_t pid = 0;
    int64_t bytes = 0;
  };
  std::vector<Process> processes;  // that compute, this one too
};

class Nvml {
 public:
  // library: tests give one of their own. Null if it cannot be loaded or finds no GPU.
  static std::shared_ptr<Nvml> open(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  int count() const;
  GpuFacts facts(int gpu) const;
  GpuState state(int gpu) const;
  std::optional<double> total_joules(int gpu) const;  // since the driver was loaded; Volta and later
  std::optional<double> watts(int gpu) const;

 private:
  Nvml() = default;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
