// A backend with hooks around every step, by default the reference: for tests of what happens when a device
// is slow, fails or returns nonsense.
#pragma once
#include <functional>
#include <memory>

#include "core/backend.h"
#include "ref/ref_ops.h"

namespace carat::test {

class HookedBackend : public Backend {
 public:
  explicit HookedBackend(std::shared_ptr<Backend> inner = make_ref_backend()) : inner_(std::move(inner)) {}
  // Set them before a request is submitted; they run on the engine's thread. after_step
  // reads memory of the host: inner backends with memory of their own have none.
  std::function<void()> before_step;
  std::function<void(const Tensor& logits)> after_step;

  DeviceInfo info() const override { return inner_->info(); }
  bool host_memory() const override { return inner_->host_memory(); }
  bool reads_single_copies() const override { return inner_->reads_single_copies(); }
  bool protects_rows() const override { return inner_->protects_rows(); }
  Buffer alloc(size_t bytes) override { return inner_->alloc(bytes); }
  void copy(void* dst, const void* src, size_t bytes) override { inner_->copy(dst, src, bytes); }
  void copy_within(void* dst, const void* src, size_t bytes) override {
    inner_->copy_within(dst, src, bytes);
  }
  Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) override {
    return inner_->place_weight(host, use, owner);
  }
  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    auto e = std::make_unique<Hooked>();
    e->inner = inner_->compile(program, state);
    e->state = state;
    for (const OpRecord& op : program.ops()) {
      if (op.op == Op::Matmul) e->logits = op.as<MatmulArgs>().y;  // the last product, or sum of two
      if (op.op == Op::Fold) e->logits = op.as<FoldArgs>().y;
      if (op.op == Op::Top) e->top = op.as<TopArgs>(), e->rows = op.rows;
    }
    return e;
  }
  void submit(Executable& executable) override {
    auto& e = static_cast<Hooked&>(executable);
    if (before_step) before_step();
    inner_->submit(*e.inner);
    if (!after_step) return;
    inner_->wait();
    after_step(e.logits);
    if (e.top.x.valid()) ref::run(e.top, {*e.state, e.rows});  // of what the hook left
  }
  void wait() override { inner_->wait(); }

 private:
  struct Hooked : Executable {
    std::unique_ptr<Executable> inner;
    const StepState* state = nullptr;
    Tensor logits;
    TopArgs top;
    RowSet rows = RowSet::all;
  };
  std::shared_ptr<Backend> inner_;
};

}  // namespace carat::test
