// Joules that the machine draws while something is measured: GPUs through NVML, processors through RAPL. A
// machine that tells neither has no figure, which is not the figure 0.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace carat {

// Since the meter was made.
struct Energy {
  double seconds = 0;
  std::optional<double> gpu, cpu;  // joules
  std::optional<double> joules() const;
  std::optional<double> watts() const;
  Energy operator-(const Energy& before) const;
  Energy& operator+=(const Energy& other);
};

struct EnergySources {
  std::string nvml = "libnvidia-ml.so.1", rapl = "/sys/class/powercap";
  int gpu = -1;  // only this one; -1: all of them
};

class EnergyMeter {
 public:
  explicit EnergyMeter(const EnergySources& sources = {});
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;
  bool any() const;
  std::vector<std::string> names() const;  // of what is read: "nvml counter", "nvml power at 10 Hz", "rapl"
  Energy read();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
