// Operations whose weights the host keeps: its backend computes them on copies of their rows, between two
// kernels of the device's stream. Their results have the bits they have on the device (docs/numerics.md).
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "cuda/device/rt.h"

namespace carat::cuda {

// Memory of the host that the device copies from and to by itself.
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(size_t bytes) : p_(static_cast<std::byte*>(pinned_alloc(bytes))), n_(bytes) {}
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    if (p_) pinned_free(p_);
  }
  std::byte* data() const { return p_; }
  size_t size() const { return n_; }

 private:
  std::byte* p_ = nullptr;
  size_t n_ = 0;
};

class HostPart;
class Memory;

// What one program leaves to the host. Not movable: the host's programs read `state`.
class HostOps {
 public:
  explicit HostOps(HostPart& part) : part_(part) {}
  HostOps(const HostOps&) = delete;
  HostOps& operator=(const HostOps&) = delete;

  void measure(const OpRecord& op);
  void allocate();  // behind the last measure()
  // The operation's place in the program, as a launch.
  std::function<void(Stream)> add(const OpRecord& op);
  // Before a step: what operations read of it, and rows that depend on nothing else. The step before must
  // have ended.
  void begin(const StepState& step);

 private:
  struct Copy {
    Tensor device, host;
  };
  struct HostOp {
    HostPart* part = nullptr;
    std::unique_ptr<Executable> program;
    std::vector<Copy> in;
    Copy out;
  };
  static void call(void* op);

  HostPart& part_;
  StepState state_;
  std::vector<int32_t> token_, out_row_;
  std::vector<std::unique_ptr<HostOp>> ops_;
  std::vector<HostOp*> lookups_;
  int64_t kept_ = 0, shared_ = 0, next_ = 0;  // bytes of lookups' results; of the largest other operation
  std::shared_ptr<Pinned> memory_;
};

class HostPart {
 public:
  using Keeps = std::function<bool(const Tensor& file, WeightUse use)>;
  HostPart(std::shared_ptr<Backend> backend, Keeps keeps, bool sends)
      : backend_(std::move(backend)), keeps_(std::move(keeps)), sends_(sends) {}
  ~HostPart();

  bool keeps(const Tensor& file, WeightUse use) const { return backend_ && keeps_ && keeps_(file, use); }
  Tensor place(const Tensor& file, WeightUse use, Buffer& owner);
  bool has(const Tensor& t) const;  // a weight placed here
  // Error if some of its weights are here and some on the device.
  bool computes(const OpRecord& op) const;
  Backend* backend() const { return backend_.get(); }
  // Whether the device can fetch it: a weight in strips, in memory that is pinned when it is first asked.
  bool sends(const Tensor& t);
  // Memory of the device for weights that come, shared by programs.
  std::shared_ptr<Memory> room(size_t bytes);
  // Memory for copies, shared by programs, which do not run at the same time.
  std::shared_ptr<Pinned> memory(size_t bytes);
  void failed(std::exception_ptr e) { error_ = std::move(e); }
  void rethrow();  // what went wrong in the step that has ended

 private:
  std::shared_ptr<Backend> backend_;
  Keeps keeps_;
  bool sends_;
  // Pages of some weights, pinned until the last of these goes.
  struct Pages {
    std::byte* p;
    Pages(std::byte* at, size_t n) : p(pin(at, n) ? at : nullptr) {}
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    ~Pages() {
      if (p) unpin(p);
    }
  };
  using Hold = std::shared_ptr<Pages>;
  struct Placed {
    const std::byte* end;
    std::weak_ptr<Hold> pages;  // the weight's own; none before pin_placed()
    bool asked = false;
  };
  void pin_placed();

  // By their beginnings; weights' owners take them out.
  std::shared_ptr<std::multimap<const std::byte*, Placed>> placed_ =
      std::make_shared<std::multimap<const std::byte*, Placed>>();
  std::shared_ptr<Pinned> memory_;
  std::shared_ptr<Memory> room_;
  std::exception_ptr error_;
};

}  // namespace carat::cuda
