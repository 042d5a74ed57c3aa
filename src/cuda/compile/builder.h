// From operations to launches, once a program: which operations are one kernel, what is rounded once, where
// scratch lies, what this backend refuses.
#pragma once
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/operands.h"
#include "cuda/compile/scratch.h"
#include "cuda/executable.h"
#include "cuda/streamed.h"

namespace carat::cuda {

inline bool rounds(const Tensor& w) { return info(w.type).family == Family::block; }
// Up to so many rows attention is cut into segments for want of tasks.
inline constexpr int32_t kSplitRows = 32;

class Builder {
 public:
  Builder(const Streamed& streamed, const DeviceProps& device, HostPart& host, const Room& room)
      : streamed_(streamed),
        program_(streamed.program),
        device_(device),
        host_(host),
        room_(room),
        exe_(std::make_unique<CudaExecutable>()) {}
  std::unique_ptr<CudaExecutable> build();

 private:
  // One operation, or some that are one kernel (compile.cc).
  void add(size_t i);
  template <class Args>  // one kernel
  void add(const Args& a, RowSet rows) {
    push([=](const Context& c) { run(c, a, rows); });
    scratch_.writes(a.y);
  }
  void add(const EmbedArgs& a, RowSet rows);
  void add(const GatherArgs& a, RowSet);
  void add(const RefineArgs& a, RowSet rows);
  void add(const RouteArgs& a, RowSet rows);
  void add(const TopArgs& a, RowSet rows);
  void add(const ShareArgs& a, RowSet rows);
  void bring(const Streamed::Weight& w);

  // Sizes of what operations share, and rules of this backend (measure.cc).
  void measure(const OpRecord& op);
  void require(bool ok, const std::string& what) const;
  bool used_before(const OpRecord& op, const Tensor& y) const;
  void room(const Tensor& y, RowSet rows);
  void plain(const Tensor& w) const;

  // Weights whose products round activations to e4m3, on a device that has no kernel for that: rows are
  // rounded before, and multiplied in f32; of fp8_a8 as by fp8. True: x must be rounded.
  template <class... Weights>
  bool rounds_before(Parts parts, const Tensor& x, Weights&... w) {
    const DType type = std::get<0>(std::tie(w...)).type;
    const bool same = ((w.type == type) && ...), some = (rounds_to_e4m3(w.type) || ...);
    require(same || !some, "weights of several types of which some round activations to FP8");
    if (!some || parts != Parts::none) return false;
    if (type == DType::fp8_a8) ((w.type = DType::fp8), ...);
    Scratch::need(scratch_.e4m3, int64_t{x.rows} * x.cols * 4);
    return true;
  }
  bool rounds_before(MatmulArgs& a);
  bool rounds_before(GateUpArgs& a);
  bool rounds_before(ExpertsArgs& a);
  bool rounds_before(SliceMatmulArgs& a);
  void cache(const KvView& kv);

  // What follows an operation, and mixtures (fused.cc).
  bool follow(std::initializer_list<Op> kinds, size_t i) const;
  bool weights_come(size_t i, size_t n = 1) const;
  bool mixes(size_t i) const;
  bool adds_branch(size_t i, const Mixture& m, RowSet rows) const;
  bool apart(const GateUpArgs& gate, const MatmulArgs& down, const ExpertsArgs& experts, RowSet rows) const;
  Mixture mixture_at(size_t i) const;
  bool branches(size_t i) const;
  bool rounded_soon(const Tensor& y, RowSet rows) const;
  bool chosen_early() const;

  // Products, rounded and split rows (products.cc).
  Rounded split_once(const Tensor& x, const Tensor& w, Parts parts, RowSet rows);
  Tensor e4m3_once(DType w, const Tensor& x, RowSet rows);
  Rounded round_once(const Tensor& x, RowSet rows);
  static bool by_erf(const MatmulArgs& a);
  void add(MatmulArgs a, RowSet rows);
  bool reads_too(size_t i, const MatmulArgs& a, RowSet rows) const;
  void add(GateUpArgs a, RowSet rows);
  void add(ExpertsArgs a, RowSet rows);
  void add(SliceMatmulArgs a, RowSet rows);
  void mix(size_t i);
  void branch(size_t i);

  // Norms, and recurrent operations with theirs (norms.cc).
  bool goes_ahead(const RowNorms& norms, RowSet rows) const;
  void add(const RmsNormArgs& a, RowSet rows);
  void add(const ConvArgs& a, RowSet);
  void add(const DeltaNetArgs& a, RowSet);

  // Attention (attention.cc).
  bool attends(const QkvPrepArgs& a) const;
  bool read_behind(const Tensor& row, RowSet rows, size_t i) const;
  void add(const QkvPrepArgs& a, RowSet rows);
  void add(const AttentionArgs& a, RowSet rows);
  void attend(const AttentionArgs& a, RowSet rows, const std::optional<QkvPrepArgs>& prepares);

  template <class F>
  void push(F&& f) {
    if (beside_)
      exe_->launches.emplace_back([f](const Context& c) { f(beside(c)); });
    else if (alone_)
      exe_->launches.emplace_back([f](const Context& c) { f(alone(c)); });
    else
      exe_->launches.emplace_back(std::forward<F>(f));
    exe_->record.push_back(index_);
  }
  // Kernels ask for weights before their inputs are there: for those that come with the step, not before
  // they have come.
  static Context alone(Context c) {
    c.launcher.overlap = false;
    return c;
  }
  static Context beside(Context c) {
    if (c.launcher.beside) c.launcher.stream = c.launcher.beside;
    return c;
  }

  const Streamed& streamed_;
  const Program& program_;
  const DeviceProps& device_;
  HostPart& host_;
  const Room& room_;
  std::unique_ptr<CudaExecutable> exe_;
  const OpRecord* op_ = nullptr;
  int32_t index_ = 0;
  RowNorms ahead_;                    // what the next operation's products begin with
  bool alone_ = false;                // kernels of this operation begin when those before have ended
  bool beside_ = false;               // kernels of this operation run beside those of the next ones
  bool both_ways_ = false;            // some attention sees its sequence's later rows
  std::ptrdiff_t done_ = 0;           // operations that went with one before them
  int32_t boxes_ = 0;                 // shares that use boxes
  uint32_t fetched_[kMaxParts] = {};  // one more than the share that a part had from the host's memory last
  std::vector<AttentionArgs> unpacked_;
  Scratch scratch_;
  std::tuple<DType, Parts, uint8_t> parts_kind_;
  DType e4m3_kind_ = DType::f32;
};

}  // namespace carat::cuda
