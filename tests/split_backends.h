// A model over two CUDA devices, where there are two: both modes, in each other's memory and in the host's.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parts/parts.h"
#include "tests/backends.h"

namespace carat::test {

// patience: seconds that a device waits for the other.
inline std::unique_ptr<Backend> split_over(std::shared_ptr<Backend> first, std::shared_ptr<Backend> second,
                                           PartsOptions o, bool peers, double patience) {
  o.exchange = std::make_shared<Exchange>(2);
  o.exchange->links = make_cuda_links({0, 1}, peers, patience);
  return make_parts({std::move(first), std::move(second)}, o);
}

inline std::vector<NamedBackend> split_backends(int32_t layers) {
  std::vector<NamedBackend> out;
  if (cuda_devices().size() < 2) return out;
  for (const SplitMode mode : {SplitMode::tensor, SplitMode::layer})
    for (const bool peers : {true, false}) {
      PartsOptions o;
      o.mode = mode, o.layers = layers, o.first_layer = {0, layers / 2};
      out.push_back({std::string(mode == SplitMode::tensor ? "by outputs" : "by layers") +
                         (peers ? ", peers" : ", through the host"),
                     split_over(make_cuda_backend(0), make_cuda_backend(1), o, peers, 20)});
    }
  return out;
}

}  // namespace carat::test
