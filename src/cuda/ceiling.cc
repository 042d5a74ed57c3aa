#include "cuda/cuda.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "cuda/executable.h"

namespace carat {

double measure_cuda_read(int device) {
  using namespace cuda;
  const std::vector<DeviceProps> devices = device_list();
  CARAT_CHECK(device >= 0 && static_cast<size_t>(device) < devices.size(), "{}", device);
  use_device(device);
  int64_t free = 0, total = 0;
  memory_left(free, total);
  const int64_t bytes = std::min(int64_t{1} << 30, free / 2) / 65536 * 65536;
  const Memory data(static_cast<size_t>(bytes)), sink(256);
  const Launcher l{.stream = make_stream(), .sms = devices[static_cast<size_t>(device)].sms};
  zero_async(data.data(), static_cast<size_t>(bytes), l.stream);
  double best = 0;
  for (int pass = 0; pass < 6; ++pass) {
    sync(l.stream);
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) read_memory(l, data.data(), bytes, sink.data());
    sync(l.stream);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (pass > 0) best = std::max(best, 4 * static_cast<double>(bytes) / s);
  }
  destroy_stream(l.stream);
  return best;
}

}  // namespace carat
