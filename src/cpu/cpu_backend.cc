// The CPU backend: a program is compiled to phases once and replayed in one parallel region a step.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "base/error.h"
#include "base/threads.h"
#include "cpu/compile.h"
#include "cpu/isa.h"
#include "cpu/memory.h"
#include "cpu/pack.h"

namespace carat {
namespace {

using namespace cpu;

// Tells the OS that the file pages behind a repacked weight will not be read again soon. Only a hint, since
// the memory need not be a file: nothing is lost if it is not.
void let_go(const Tensor& t) {
#if defined(MADV_COLD)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)),
                  p = reinterpret_cast<uintptr_t>(t.data);
  const int64_t last = (t.slices - 1) * t.slice_pitch + (t.rows - 1) * t.pitch + row_bytes(t.type, t.cols);
  const uintptr_t begin = (p + page - 1) / page * page,
                  end = (p + static_cast<uintptr_t>(last)) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLD);
#else
  (void)t;
#endif
}

class CpuBackend : public Backend {
 public:
  CpuBackend(int threads, std::string_view isa) : isa_(isa), kernels_(kernels_of(isa)), team_(threads) {}

  DeviceInfo info() const override {
    return {fmt::format("cpu {} x{}", isa_, team_.size()), memory_total(), memory_free()};
  }
  Buffer alloc(size_t bytes) override { return alloc_pages(bytes); }
  void copy(void* dst, const void* src, size_t bytes) override {
    team_.wait();
    std::memcpy(dst, src, bytes);
  }

  // Products read strips (pack.h): costs one pass over the file at load, and the memory of the copy. Where
  // that memory is not there, the file's own layout is used, which is slower.
  Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) override {
    if (use != WeightUse::product || !can_pack(host)) return host;
    const int64_t bytes = packed_bytes(host);
    if (bytes > (int64_t{64} << 20) && bytes > memory_free() / 10 * 9) return host;
    owner = alloc(static_cast<size_t>(bytes));
    const Tensor packed = packed_view(host, owner.data());
    const int64_t per_slice = strips(host.rows), n = per_slice * host.slices;
    if (bytes < (1 << 20)) {
      for (int64_t i = 0; i < n; ++i)
        pack_strip(host, packed, static_cast<int32_t>(i / per_slice), i % per_slice);
      return packed;
    }
    std::atomic<int64_t> next{0};
    team_.start([&](int) {
      for (int64_t i; (i = next.fetch_add(16, std::memory_order_relaxed)) < n;)
        for (const int64_t end = std::min(n, i + 16); i < end; ++i)
          pack_strip(host, packed, static_cast<int32_t>(i / per_slice), i % per_slice);
    });
    team_.wait();
    let_go(host);
    return packed;
  }

  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    return compile_program(program, state, kernels_, team_.size(), alloc_pages);
  }
  void submit(Executable& executable) override {
    CpuExecutable& exe = static_cast<CpuExecutable&>(executable);
    team_.wait();
    prepare_step(exe, team_.size(), alloc_pages);
    team_.start([this, &exe](int worker) { run_phases(exe, worker, [this] { team_.barrier(); }); });
  }
  void wait() override { team_.wait(); }

 private:
  std::string isa_;
  Kernels kernels_;
  Team team_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, std::string_view isa) {
  const std::vector<std::string_view> present = present_isas();
  if (isa.empty()) isa = present.back();
  if (std::find(present.begin(), present.end(), isa) == present.end())
    throw Error(fmt::format("the instruction set '{}' is not present on this machine", isa),
                fmt::format("present: {}", fmt::join(present, ", ")));
  if (threads < 0 || threads > 1024)
    throw Error(fmt::format("{} threads were asked for", threads),
                "use 1 to 1024, or 0 for as many as the machine allows");
  return std::make_unique<CpuBackend>(threads, isa);
}

}  // namespace carat
