// What builds without a CUDA compiler have instead of the backend.
#include "base/error.h"
#include "cuda/cuda.h"
#include "cuda/guest.h"

namespace carat {

std::vector<std::string> cuda_devices(std::string* why) {
  if (why) *why = "this build has no CUDA backend";
  return {};
}

std::unique_ptr<Backend> make_cuda_backend(int, const CudaOptions&) {
  throw Error("this build has no CUDA backend",
              "build it where nvcc is found (docs/operations.md), or use --device cpu");
}

std::shared_ptr<DeviceLinks> make_cuda_links(const std::vector<int>&, bool, double, std::string*, bool*) {
  throw Error("this build has no CUDA backend");
}

double measure_cuda_read(int) { return 0; }
void time_cuda_ops(Backend&, std::vector<double>*) {}
CudaUse cuda_use(Backend&) { return {}; }
std::unique_ptr<Backend> make_cuda_guest(Backend&) { return nullptr; }

}  // namespace carat
