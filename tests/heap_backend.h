// A backend that only has memory: for tests of what is laid out and recorded, not computed.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/backend.h"

namespace carat::test {

class HeapBackend : public Backend {
 public:
  DeviceInfo info() const override { return {}; }
  Buffer alloc(size_t n) override {
    return {static_cast<std::byte*>(std::calloc(n, 1)), n, [](std::byte* p) { std::free(p); }};
  }
  void copy(void* to, const void* from, size_t n) override { std::memcpy(to, from, n); }
  Tensor place_weight(const Tensor& t, WeightUse, Buffer&) override { return t; }
  std::unique_ptr<Executable> compile(const Program& p, const StepState*) override {
    for (const OpRecord& op : p.ops()) check_op(op);
    return nullptr;
  }
  void submit(Executable&) override {}
  void wait() override {}
};

}  // namespace carat::test
