// A program turned into launches, and the step's arrays in device memory.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/exchange.h"
#include "cuda/host_part.h"
#include "cuda/ops/ops.h"

namespace carat::cuda {

// Memory of the device; freed with its owner.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);  // Error if there is none left
  Memory(Memory&& o) noexcept : p_(std::exchange(o.p_, nullptr)), n_(std::exchange(o.n_, 0)) {}
  Memory& operator=(Memory&& o) noexcept {
    std::swap(p_, o.p_), std::swap(n_, o.n_);
    return *this;
  }
  ~Memory();
  std::byte* data() const { return p_; }
  size_t size() const { return n_; }

 private:
  std::byte* p_ = nullptr;
  size_t n_ = 0;
};

struct Span {  // which positions an attention sees: rows are cut alike where it is the same
  int32_t window = 0;
  bool both_ways = false;  // up to DevStep::last_pos
  bool operator==(const Span&) const = default;
};

// A packed cache is decoded for the rows of one sequence if they are more than this.
inline constexpr int32_t kUnpackRows = 8;

struct CudaExecutable : Executable {
  ~CudaExecutable() override;
  const StepState* state = nullptr;
  std::vector<std::function<void(const Context&)>> launches;
  std::vector<int32_t> record;  // of the program, by launch
  std::vector<Span> spans;
  std::vector<AttentionArgs> split;  // attentions that leave partial results
  std::vector<int32_t> split_span;
  int32_t tiles[kMaxSpans] = {};       // of packed caches, decoded at a time before prompts attend; 0: never
  int32_t unpackings[kMaxSpans] = {};  // as StepImage's: how often the graph does so
  int32_t mixtures = 0;                // whose choices go by DevStep::chosen
  int64_t left = 0;                    // words that an attention's fold needs
  bool begun = false;                  // products need DevStep::begun
  bool blocks = false;                 // DevStep::last_pos is that of the row's block, not of its sequence
  bool chains = false;                 // rows of trees are not looked for
  struct Embedded {                    // where soft rows go to
    Tensor y;
    RowSet rows;
  };
  std::vector<Embedded> embedded;
  int32_t max_rows = 0, max_out = 0;
  int32_t page_tokens = 0, ring_pages = 0;  // of its caches: the smallest page, the longest ring
  std::shared_ptr<Memory> scratch;
  std::shared_ptr<Memory> weights;  // where those come to that the host keeps
  Memory step;                      // a DevStep
  Memory arrays;                    // what it points at
  Exchange* exchange = nullptr;     // where its shares meet
  std::unique_ptr<HostOps> host;    // null: the device computes everything
  Graph graph = nullptr;
  int64_t runs = 0;
  int64_t kernels = 0;  // that one run launches
};

// Bytes of scratch that programs share: `room` gives at least so many.
using Room = std::function<std::shared_ptr<Memory>(size_t)>;
std::unique_ptr<CudaExecutable> compile_program(const Program& program, const StepState* state,
                                                const DeviceProps& device, HostPart& host, const Room& room);

// The step's arrays, ready to be copied to `device`, with pointers as they will be there. partial: floats
// that attention needs.
struct StepImage {
  DevStep step{};
  std::vector<std::byte> bytes;
  int64_t partial = 0;
  int32_t unpackings[kMaxSpans] = {};  // how often so many tiles (CudaExecutable) are decoded and attended to
};
void make_image(const CudaExecutable& exe, StepImage& image);
void point_into(StepImage& image, std::byte* device);  // once its place is known

}  // namespace carat::cuda
