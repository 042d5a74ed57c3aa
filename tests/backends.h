// Every backend and instruction set that this machine can run.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cuda/cuda.h"

namespace carat::test {

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

// The backends to compare with ref.
inline std::vector<NamedBackend> cpu_backends([[maybe_unused]] int threads = 2) {
  std::vector<NamedBackend> out;
#ifdef CARAT_HAVE_CPU
  for (const char* isa : {"baseline", "neon", "i8mm", "avx2", "avx512", "amx"}) {
    try {
      out.push_back({std::string("cpu ") + isa, make_cpu_backend(threads, isa)});
    } catch (const Error& e) {
      if (std::string_view(e.what()).find("not present") == std::string_view::npos) throw;
    }
  }
#endif
  return out;
}

// The first CUDA device, where there is one. Its memory is not the host's: tests reach it through copy() and
// HostRows only. In builds with the emulation (CARAT_ONLY_CUDA) it is the CPU that plays it.
inline std::vector<NamedBackend> cuda_backends() {
  std::vector<NamedBackend> out;
  if (!cuda_devices().empty()) out.push_back({"cuda", make_cuda_backend(0)});
  return out;
}

// What is compared with ref, whoever owns the memory.
inline std::vector<NamedBackend> compared_backends([[maybe_unused]] int threads = 2) {
  std::vector<NamedBackend> out;
#ifndef CARAT_ONLY_CUDA
  out = cpu_backends(threads);
#endif
  for (NamedBackend& b : cuda_backends()) out.push_back(std::move(b));
  return out;
}

inline std::vector<NamedBackend> all_backends(int threads = 2) {
  std::vector<NamedBackend> out;
  out.push_back({"ref", make_ref_backend()});
  for (NamedBackend& b : cpu_backends(threads)) out.push_back(std::move(b));
  return out;
}

// ref and all that are compared with it.
inline std::vector<NamedBackend> every_backend(int threads = 2) {
  std::vector<NamedBackend> out;
#ifndef CARAT_ONLY_CUDA
  out.push_back({"ref", make_ref_backend()});
#endif
  for (NamedBackend& b : compared_backends(threads)) out.push_back(std::move(b));
  return out;
}

}  // namespace carat::test
