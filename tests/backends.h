// Every backend and instruction set that this machine can run.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "core/backend.h"

namespace carat::test {

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

// The backends to compare with ref.
inline std::vector<NamedBackend> cpu_backends([[maybe_unused]] int threads = 2) {
  std::vector<NamedBackend> out;
#ifdef CARAT_HAVE_CPU
  for (const char* isa : {"baseline", "avx2", "avx512", "amx"}) {
    try {
      out.push_back({std::string("cpu ") + isa, make_cpu_backend(threads, isa)});
    } catch (const Error& e) {
      if (std::string_view(e.what()).find("not present") == std::string_view::npos) throw;
    }
  }
#endif
  return out;
}

inline std::vector<NamedBackend> all_backends(int threads = 2) {
  std::vector<NamedBackend> out;
  out.push_back({"ref", make_ref_backend()});
  for (NamedBackend& b : cpu_backends(threads)) out.push_back(std::move(b));
  return out;
}

}  // namespace carat::test
