// The CPU backend: a program is compiled to phases once and replayed in one parallel region a step.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "cpu/compile.h"
#include "cpu/isa.h"
#include "cpu/memory.h"
#include "cpu/op_times.h"
#include "cpu/pack.h"

namespace carat {
namespace {

using namespace cpu;

class CpuBackend : public Backend {
 public:
  CpuBackend(int threads, std::string_view isa, Numa numa)
      : isa_(isa), kernels_(kernels_of(isa)), team_(threads, numa), lanes_(team_.places()) {}

  bool reads_single_copies() const override { return true; }
  bool protects_rows() const override { return true; }
  bool takes_soft_rows() const override { return true; }
  DeviceInfo info() const override {
    return {fmt::format("cpu {} x{}", isa_, team_.size()), memory_total(), memory_free()};
  }
  Buffer alloc(size_t bytes) override { return alloc_pages(bytes); }
  void copy(void* dst, const void* src, size_t bytes) override {
    team_.wait();
    std::memcpy(dst, src, bytes);
  }

  // Products read strips (pack.h). The copy takes the place of the file's pages: what has been repacked is
  // let go of at once, and out of the OS's cache too where memory is short (else it stays there for the next
  // start). Where even the strips do not fit, the file's own layout is used, which is slower.
  Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) override {
    if (use == WeightUse::rows || !can_pack(host)) return host;
    const int64_t bytes = packed_bytes(host);
    if (bytes > (int64_t{64} << 20) && bytes > memory_free() / 10 * 9) return host;
    owner = arena_.alloc(static_cast<size_t>(bytes));
    const Tensor packed = packed_view(host, owner.data());
    pack(host, packed, bytes);
    if (packed_ == 0) free_before_ = memory_free();
    packed_ += bytes;
    if (packed_ > free_before_ / 5 * 2) drop_file_cache(host.data);
    return packed;
  }

  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    return compile_program(program, state, kernels_, team_.size(), alloc_pages);
  }
  void submit(Executable& executable) override {
    CpuExecutable& exe = static_cast<CpuExecutable&>(executable);
    team_.wait();
    prepare_step(exe, lanes_, alloc_pages);
    exe.seconds = seconds_;
    if (seconds_ && !exe.phases.empty())
      seconds_->resize(std::max<size_t>(seconds_->size(), exe.phases.back().record + 1));
    team_.start([this, &exe](int worker) { run_phases(exe, worker); });
  }
  void wait() override { team_.wait(); }
  void time_ops(std::vector<double>* seconds) { seconds_ = seconds; }

 private:
  // The worker that writes a page first decides on which node of memory it lies: workers of a node write the
  // strips that they read first in a step (Lanes), of every slice, in the order of the file.
  void pack(const Tensor& host, const Tensor& packed, int64_t bytes) {
    const int64_t per_slice = strips(host.rows), all = per_slice * host.slices;
    if (bytes < (1 << 20)) return pack_strips(host, packed, 0, all);
    const int64_t grain = std::clamp<int64_t>((int64_t{1} << 20) / (bytes / all), 1, all / team_.size() + 1);
    std::vector<std::atomic<int64_t>> next(static_cast<size_t>(lanes_.nodes()));
    team_.start([&](int worker) {
      const int node = lanes_.node_of(worker);
      const int64_t first = lanes_.first_of(per_slice, lanes_.first_on(node)),
                    n = lanes_.first_of(per_slice, lanes_.first_on(node + 1)) - first;
      for (int64_t i; (i = next[node].fetch_add(grain, std::memory_order_relaxed)) < n * host.slices;)
        for (int64_t end = std::min(n * host.slices, i + grain); i < end;) {
          const int64_t some = std::min(end - i, n - i % n), strip = i / n * per_slice + first + i % n;
          pack_strips(host, packed, strip, strip + some);
          i += some;
        }
    });
    team_.wait();
  }

  std::string isa_;
  Kernels kernels_;
  Team team_;
  Lanes lanes_;
  Arena arena_;
  std::vector<double>* seconds_ = nullptr;
  int64_t packed_ = 0, free_before_ = 0;  // bytes of weights so far; memory when they began
};

}  // namespace

void time_ops(Backend& backend, std::vector<double>* seconds) {
  if (auto* cpu = dynamic_cast<CpuBackend*>(&backend)) cpu->time_ops(seconds);
}

std::unique_ptr<Backend> make_cpu_backend(int threads, std::string_view isa, Numa numa) {
  const std::vector<std::string_view> present = present_isas();
  if (isa.empty()) isa = present.back();
  if (std::find(present.begin(), present.end(), isa) == present.end())
    throw Error(fmt::format("the instruction set '{}' is not present on this machine", isa),
                fmt::format("present: {}", fmt::join(present, ", ")));
  if (threads < 0 || threads > 1024)
    throw Error(fmt::format("{} threads were asked for", threads),
                "use 1 to 1024, or 0 for as many as the machine allows");
  return std::make_unique<CpuBackend>(threads, isa, numa);
}

}  // namespace carat
