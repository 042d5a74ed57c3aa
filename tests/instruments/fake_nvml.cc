// A management library of one GPU whose figures stand in the environment of the test: NVML_WATTS, NVML_BUSY
// (percent), NVML_COUNTER (1: it counts joules, from its watts), NVML_PID (a process that computes there).
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {
const auto began = std::chrono::steady_clock::now();
double value(const char* name, double otherwise) {
  const char* v = std::getenv(name);
  return v ? std::atof(v) : otherwise;
}
double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); }
}  // namespace

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { return *n = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** d) {
  static int device;
  return *d = &device, 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned n) { return std::strncpy(text, "Planted GPU", n), 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned n) { return std::strncpy(text, "1.2.3", n), 0; }
int nvmlDeviceGetPowerUsage(void*, unsigned* mw) {
  return *mw = static_cast<unsigned>(1e3 * value("NVML_WATTS", 100)), 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* mj) {
  if (value("NVML_COUNTER", 0) == 0) return 3;  // not supported
  return *mj = static_cast<unsigned long long>(5e6 + 1e3 * value("NVML_WATTS", 100) * seconds()), 0;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  return rates[0] = static_cast<unsigned>(value("NVML_BUSY", 0)), rates[1] = 0, 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* m) {
  return m[0] = 24ULL << 30, m[1] = 20ULL << 30, m[2] = 4ULL << 30, 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* n, void* all) {
  struct Info {
    unsigned pid;
    unsigned long long used;
    unsigned a, b;
  };
  const auto pid = static_cast<unsigned>(value("NVML_PID", 0));
  *n = pid ? 1 : 0;
  if (pid) *static_cast<Info*>(all) = {pid, 3ULL << 30, 0, 0};
  return 0;
}
}
