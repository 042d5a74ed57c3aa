// A CUDA device whose context is lost when a test says so, by a kernel that reads an address that was never
// allocated.
#pragma once
#include <atomic>
#include <memory>
#include <utility>

#include "core/ops.h"
#include "cuda/cuda.h"

namespace carat::test {

class LostDevice : public Backend {
 public:
  explicit LostDevice(int device) : inner_(make_cuda_backend(device)) {
    bad_state_.n_rows = bad_state_.n_out = 1, bad_state_.out_row = &row_;
    Program bad;
    bad.at_rows(RowSet::out);
    bad.push(GatherArgs{make_tensor(reinterpret_cast<void*>(4096), DType::f32, 1, 256),
                        make_tensor(reinterpret_cast<void*>(8192), DType::f32, 1, 256)});
    bad_ = inner_->compile(bad, &bad_state_);
  }
  void lose() { lost_ = true; }  // in the next step

  DeviceInfo info() const override { return inner_->info(); }
  bool host_memory() const override { return false; }
  bool reads_single_copies() const override { return inner_->reads_single_copies(); }
  bool takes_soft_rows() const override { return inner_->takes_soft_rows(); }
  bool protects_rows() const override { return inner_->protects_rows(); }
  Buffer alloc(size_t n) override { return inner_->alloc(n); }
  void copy(void* to, const void* from, size_t n) override { inner_->copy(to, from, n); }
  void copy_within(void* to, const void* from, size_t n) override { inner_->copy_within(to, from, n); }
  Tensor place_weight(const Tensor& t, WeightUse use, Buffer& owner) override {
    return inner_->place_weight(t, use, owner);
  }
  std::unique_ptr<Executable> compile(const Program& p, const StepState* s) override {
    return inner_->compile(p, s);
  }
  void submit(Executable& e) override {
    if (lost_.exchange(false)) inner_->submit(*bad_);
    inner_->submit(e);
  }
  void wait() override { inner_->wait(); }

 private:
  std::shared_ptr<Backend> inner_;
  StepState bad_state_;
  int32_t row_ = 0;
  std::atomic<bool> lost_{false};
  std::unique_ptr<Executable> bad_;
};

}  // namespace carat::test
