// What the rest of the program knows of CUDA. Builds without it have the same functions (none.cc).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/exchange.h"

namespace carat {

struct CudaOptions {
  // Weights that stay with the host for want of room: `host`, a backend in its memory, multiplies by them and
  // looks their rows up. null: none.
  std::shared_ptr<Backend> host;
  std::function<bool(const Tensor& file, WeightUse use)> host_keeps;
  bool fetches = true;                    // for products of many rows the host's weights come to the device
  double memory = 1;                      // share of the device's memory that info() counts as there
  int64_t memory_limit = 0;               // bytes; the device counts as one with no more; 0: none
  std::string meminfo = "/proc/meminfo";  // where a device that shares the host's memory sees what is left
  bool graphs = true;  // steps that come again are recorded and replayed, else launched one by one
};
// Error without such a device, driver or build, saying which.
std::unique_ptr<Backend> make_cuda_backend(int device, const CudaOptions& options = {});
// For devices that run parts of a program (src/parts), in the order of the parts. peers: where a test of the
// pair passes, they write to each other's memory; the others, and all with false, meet in the host's. A
// device that waits for another longer than `patience` seconds gives up: DeviceError. text: which of both it
// is; direct: whether it is so for all pairs.
std::shared_ptr<DeviceLinks> make_cuda_links(const std::vector<int>& devices, bool peers, double patience,
                                             std::string* text = nullptr, bool* direct = nullptr);
// What cuda:0, cuda:1, ... are; empty: `why` says why there is none.
std::vector<std::string> cuda_devices(std::string* why = nullptr);
// Bytes per second that a kernel reads from the device's memory, the best of several passes over up to 4 GiB:
// the measure of every decode speed.
double measure_cuda_read(int device);

// As time_ops() of cpu/op_times.h: every submit adds to (*seconds)[i] what operation i took, by the device's
// own clock, without a graph. Another backend is left alone.
void time_cuda_ops(Backend& backend, std::vector<double>* seconds);

// What has been submitted so far, in seconds: the device's own time from a step's first kernel to its last,
// what submitting took and copies of results. While no step runs the device is idle. Zeros of another
// backend.
struct CudaUse {
  double device = 0, submit = 0, copy = 0;
  int64_t kernels = 0;
  CudaUse operator-(const CudaUse& o) const {
    return {device - o.device, submit - o.submit, copy - o.copy, kernels - o.kernels};
  }
  void operator+=(const CudaUse& o) {
    device += o.device, submit += o.submit, copy += o.copy, kernels += o.kernels;
  }
};
CudaUse cuda_use(Backend& backend);

}  // namespace carat
