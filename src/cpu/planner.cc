#include "cpu/planner.h"

#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "cpu/compile.h"
#include "cpu/isa.h"
#include "cpu/memory.h"
#include "cpu/pack.h"

namespace carat {
namespace {

using namespace cpu;

thread_local CpuMemory* t_counts = nullptr;  // of the planner that compiles: Alloc carries no state

Buffer counted(size_t bytes, CpuMemory* counts) {
  auto pages = std::make_shared<Buffer>(alloc_pages(bytes));
  counts->other += static_cast<int64_t>(bytes);
  return {pages->data(), bytes,
          [pages, bytes, counts](std::byte*) { counts->other -= static_cast<int64_t>(bytes); }};
}
Buffer counted_now(size_t bytes) { return counted(bytes, t_counts); }

class Planner : public Backend {
 public:
  Planner(int threads, std::string_view isa, CpuMemory* counts)
      : kernels_(kernels_of(isa)), threads_(threads), counts_(counts) {}

  bool reads_single_copies() const override { return true; }
  bool protects_rows() const override { return true; }
  bool takes_soft_rows() const override { return true; }
  DeviceInfo info() const override { return {"a plan for the cpu", memory_total(), memory_free()}; }
  Buffer alloc(size_t bytes) override { return counted(bytes, counts_); }
  // Large ones are caches and weights, which no step reads while it is planned.
  void copy(void* dst, const void* src, size_t bytes) override {
    if (bytes <= size_t{1} << 20) std::memcpy(dst, src, bytes);
  }
  Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) override {
    if (use == WeightUse::rows || !can_pack(host)) {
      if (mapped_.insert(host.data).second) counts_->weights += int64_t{host.slices} * host.rows * host.pitch;
      return host;
    }
    const int64_t bytes = packed_bytes(host);
    counts_->weights += bytes;
    owner = alloc_pages(static_cast<size_t>(bytes));
    return packed_view(host, owner.data());
  }
  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    t_counts = counts_;
    return compile_program(program, state, kernels_, threads_, counted_now);
  }
  void submit(Executable& executable) override {
    t_counts = counts_;
    prepare_step(static_cast<CpuExecutable&>(executable), Lanes(threads_), counted_now);
  }
  void wait() override {}

 private:
  Kernels kernels_;
  int threads_;
  CpuMemory* counts_;
  std::set<const void*> mapped_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_planner(int threads, std::string_view isa, CpuMemory* counts) {
  const std::vector<std::string_view> present = present_isas();
  if (isa.empty()) isa = present.back();
  return std::make_unique<Planner>(threads > 0 ? threads : available_cpus(), isa, counts);
}

}  // namespace carat
