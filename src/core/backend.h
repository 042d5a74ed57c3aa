// The seam to a device: ref, cpu, cuda. About three virtual calls per step, none per operation.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/cpus.h"
#include "core/program.h"

namespace carat {

// Owns bytes of one device; move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* p, size_t n, std::function<void(std::byte*)> free) : p_(p, std::move(free)), n_(n) {}
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;
  std::byte* data() const { return p_.get(); }
  size_t size() const { return n_; }

 private:
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> p_;
  size_t n_ = 0;
};

struct DeviceInfo {
  std::string name;  // "cpu avx512 x 2 threads"
  int64_t mem_total = 0, mem_free = 0;
};

// How a weight is read: in products with all its rows, or a row at a time by index (embedding tables). A
// tied table is placed once for each. experts: in products with chosen slices alone.
enum class WeightUse : uint8_t { product, rows, experts };

class Executable {  // a compiled Program
 public:
  virtual ~Executable() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  // Whether the host may read and write what alloc() returned; else only copy() may (core/host_rows.h).
  virtual bool host_memory() const { return true; }
  // Zeroed, 64-byte aligned (or better) device memory. Pages that are never touched may cost nothing.
  virtual Buffer alloc(size_t bytes) = 0;
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;  // ordered with submits
  // Between two places of this backend's memory: ordered with submits and copies; may return before it is
  // done.
  virtual void copy_within(void* dst, const void* src, size_t bytes) { copy(dst, src, bytes); }
  // The tensor as this backend wants it: the same view (the mapped file), or a repacked copy that `owner`
  // then holds. With WeightUse::rows the packing stays 0.
  virtual Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) = 0;
  // Checks every operation (check_op, then what this backend supports) and resolves it to a function. The
  // state's fields are read at submit; the pointer must stay valid as long as the executable.
  virtual std::unique_ptr<Executable> compile(const Program& program, const StepState* state) = 0;
  virtual void submit(Executable& executable) = 0;  // asynchronous, in order
  virtual void wait() = 0;                          // until everything submitted is done
  // Seconds in which the device was at work on what was submitted; 0 where the host does the work.
  virtual double device_seconds() const { return 0; }
  // Runs of a program that take longer than all later ones: they load its code, or record what is replayed.
  virtual int32_t slow_runs() const { return 0; }
  // Whether its attention reads caches that keep one copy of K = V (KvSpec::pairs).
  virtual bool reads_single_copies() const { return false; }
  // Whether rows may be something else than tokens (StepState::soft), in blocks that see themselves whole.
  virtual bool takes_soft_rows() const { return false; }
  // Whether it writes and reads second copies of rows (KvSpec::protect).
  virtual bool protects_rows() const { return false; }
};

std::unique_ptr<Backend> make_ref_backend();
// threads 0: as many as the machine and the cgroup allow. isa "": the best present; else "baseline", "avx2",
// "avx512", "amx", "neon", "i8mm" (Error with the list of what is present if it is not).
std::unique_ptr<Backend> make_cpu_backend(int threads, std::string_view isa, Numa numa = Numa::off);

}  // namespace carat
