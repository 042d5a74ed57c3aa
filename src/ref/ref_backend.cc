// Replays a Program one operation at a time on this thread.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "core/backend.h"
#include "core/operands.h"
#include "ref/ref_ops.h"

namespace carat {
namespace {

class RefExecutable : public Executable {
 public:
  RefExecutable(const Program& p, const StepState* state) : program(p), step(state) {}
  const Program program;
  const StepState* step;
};

void run_op(const OpRecord& op, const StepState& step) {
  const ref::Rows rows{step, op.rows};
  const int32_t bucket = first_operand(op).rows;
  CARAT_CHECK(rows.count() <= bucket, "{} rows in a bucket of {}", rows.count(), bucket);
  switch (op.op) {
#define X(name) \
  case Op::name: return ref::run(op.as<name##Args>(), rows);
    CARAT_OPS(X)
#undef X
  }
}

class RefBackend : public Backend {
 public:
  bool reads_single_copies() const override { return true; }
  bool protects_rows() const override { return true; }
  bool takes_soft_rows() const override { return true; }
  DeviceInfo info() const override {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return {"reference (scalar, float64)", page * sysconf(_SC_PHYS_PAGES), page * sysconf(_SC_AVPHYS_PAGES)};
  }
  Buffer alloc(size_t bytes) override {
    if (bytes == 0) return {};
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw Error(fmt::format("cannot allocate {} MiB: {}", bytes >> 20, std::strerror(errno)),
                  "use a smaller context or a smaller model");
    return {static_cast<std::byte*>(p), bytes, [bytes](std::byte* q) { munmap(q, bytes); }};
  }
  void copy(void* dst, const void* src, size_t bytes) override { std::memcpy(dst, src, bytes); }
  Tensor place_weight(const Tensor& host, WeightUse, Buffer&) override { return host; }
  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    for (const OpRecord& op : program.ops()) check_op(op);
    return std::make_unique<RefExecutable>(program, state);
  }
  void submit(Executable& executable) override {
    const auto& e = static_cast<RefExecutable&>(executable);
    for (const OpRecord& op : e.program.ops()) run_op(op, *e.step);
  }
  void wait() override {}
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<RefBackend>(); }

}  // namespace carat
