// Geometry of the KV cache: which layers own one, as pages or as a ring, and how many bytes that is.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"

namespace carat {

struct KvLayerSpec {
  KvSpec kv;
  int32_t from = -1;  // layer whose cache is read; the layer's own index if it owns one
};

inline constexpr int32_t kMaxContext = 1 << 22, kMaxSequences = 256, kMaxStepRows = 1 << 16;

struct KvLimits {
  int32_t context = 0;  // positions per sequence
  int32_t sequences = 1;
  int32_t step_rows = 0;  // rows of the largest step: a ring's slack
  int32_t page_tokens = 64;
};

// Bytes as KvPool will allocate them: the memory plan.
struct KvPlan {
  struct Layer {
    int32_t layer = 0, ring_tokens = 0;
    int64_t pages = 0, k_page_bytes = 0, v_page_bytes = 0;
    int64_t bytes() const { return pages * (k_page_bytes + v_page_bytes); }
  };
  std::vector<Layer> layers;  // owners only
  int64_t bytes() const;
};
KvPlan plan_kv(std::span<const KvLayerSpec> layers, const KvLimits& limits);

// The allocated caches of all sequences. view(layer) is what kernels get (a sharing layer gets its donor's
// memory with its own window).
class KvPool {
 public:
  KvPool(Backend& backend, std::vector<KvLayerSpec> layers, const KvLimits& limits);
  KvView view(int layer) const;
  // Copies K and V of all layers' heads from one slot to another.
  void move(const SeqView& sequence, int32_t from, int32_t to) const;
  const KvLimits& limits() const { return limits_; }
  const KvPlan& plan() const { return plan_; }

 private:
  Backend& backend_;
  std::vector<KvLayerSpec> layers_;
  KvLimits limits_;
  KvPlan plan_;
  std::vector<Buffer> k_, v_;         // per owner
  std::vector<int32_t> owner_index_;  // per layer: index into k_, v_
};

}  // namespace carat
