#include "measure/nvml.h"

#include <dlfcn.h>

namespace carat {
namespace {

// As in nvml.h, whose functions and structs with a version in their names do not change.
using Device = void*;
struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute_instance;
};
constexpr unsigned kTemperatureGpu = 0, kClockSm = 1;
constexpr unsigned long long kIdleReason = 1;

}  // namespace

struct Nvml::Impl {
  void* library = nullptr;
  std::vector<Device> devices;
  int (*shutdown)() = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*energy)(Device, unsigned long long*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;
  int (*power_limit)(Device, unsigned*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*temperature)(Device, unsigned, unsigned*) = nullptr;
  int (*clock)(Device, unsigned, unsigned*) = nullptr;
  int (*throttle)(Device, unsigned long long*) = nullptr;
  int (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;

  template <class F>
  void find(const char* symbol, F& f) const {
    f = reinterpret_cast<F>(::dlsym(library, symbol));
  }
  // What a function says of a device in thousandths; nothing where the driver does not know.
  template <class F, class... A>
  static std::optional<double> ask(F f, double scale, Device d, A... a) {
    unsigned v = 0;
    if (!f || f(d, a..., &v) != 0) return {};
    return v * scale;
  }
};

std::shared_ptr<Nvml> Nvml::open(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return nullptr;
  std::shared_ptr<Nvml> nvml(new Nvml());
  nvml->impl_ = std::make_unique<Impl>();
  Impl& i = *nvml->impl_;
  i.library = handle;
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle_of)(unsigned, Device*) = nullptr;
  i.find("nvmlInit_v2", init), i.find("nvmlDeviceGetCount_v2", count);
  i.find("nvmlDeviceGetHandleByIndex_v2", handle_of);
  if (!init || !count || !handle_of || init() != 0) return nullptr;
  i.find("nvmlShutdown", i.shutdown), i.find("nvmlSystemGetDriverVersion", i.driver);
  i.find("nvmlDeviceGetName", i.name), i.find("nvmlDeviceGetTotalEnergyConsumption", i.energy);
  i.find("nvmlDeviceGetPowerUsage", i.power), i.find("nvmlDeviceGetEnforcedPowerLimit", i.power_limit);
  i.find("nvmlDeviceGetUtilizationRates", i.utilization), i.find("nvmlDeviceGetMemoryInfo", i.memory);
  i.find("nvmlDeviceGetTemperature", i.temperature), i.find("nvmlDeviceGetClockInfo", i.clock);
  i.find("nvmlDeviceGetCurrentClocksThrottleReasons", i.throttle);
  i.find("nvmlDeviceGetComputeRunningProcesses_v3", i.processes);
  unsigned n = 0;
  if (count(&n) != 0) n = 0;
  for (unsigned d = 0; d < n; ++d)
    if (Device device = nullptr; handle_of(d, &device) == 0) i.devices.push_back(device);
  return i.devices.empty() ? nullptr : nvml;
}

Nvml::~Nvml() {
  if (!impl_) return;
  if (impl_->shutdown) impl_->shutdown();
  ::dlclose(impl_->library);
}

int Nvml::count() const { return static_cast<int>(impl_->devices.size()); }

GpuFacts Nvml::facts(int gpu) const {
  GpuFacts f;
  char text[128] = {};
  const Device d = impl_->devices[static_cast<size_t>(gpu)];
  if (impl_->name && impl_->name(d, text, sizeof text) == 0) f.name = text;
  if (impl_->driver && impl_->driver(text, sizeof text) == 0) f.driver = text;
  f.power_limit_w = Impl::ask(impl_->power_limit, 1e-3, d);
  if (Memory m{}; impl_->memory && impl_->memory(d, &m) == 0) f.memory_bytes = static_cast<int64_t>(m.total);
  return f;
}

GpuState Nvml::state(int gpu) const {
  GpuState s;
  const Device d = impl_->devices[static_cast<size_t>(gpu)];
  if (Utilization u{}; impl_->utilization && impl_->utilization(d, &u) == 0) s.utilization = u.gpu / 100.0;
  if (Memory m{}; impl_->memory && impl_->memory(d, &m) == 0) s.memory_used = static_cast<int64_t>(m.used);
  s.temperature_c = Impl::ask(impl_->temperature, 1, d, kTemperatureGpu);
  s.sm_mhz = Impl::ask(impl_->clock, 1, d, kClockSm);
  s.watts = watts(gpu);
  if (unsigned long long t = 0; impl_->throttle && impl_->throttle(d, &t) == 0) s.throttle = t & ~kIdleReason;
  unsigned n = 64;
  std::vector<ProcessInfo> all(n);
  if (impl_->processes && impl_->processes(d, &n, all.data()) == 0)
    for (unsigned p = 0; p < n && p < all.size(); ++p)
      s.processes.push_back({all[p].pid, static_cast<int64_t>(all[p].used)});
  return s;
}

std::optional<double> Nvml::total_joules(int gpu) const {
  unsigned long long mj = 0;
  if (!impl_->energy || impl_->energy(impl_->devices[static_cast<size_t>(gpu)], &mj) != 0) return {};
  return static_cast<double>(mj) * 1e-3;
}

std::optional<double> Nvml::watts(int gpu) const {
  return Impl::ask(impl_->power, 1e-3, impl_->devices[static_cast<size_t>(gpu)]);
}

}  // namespace carat
