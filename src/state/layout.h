// Geometry of what sequences keep: which layers own a KV cache, as pages or as a ring, which a recurrent
// state, and how many bytes that is.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"

namespace carat {

struct KvLayerSpec {
  KvSpec kv;
  int32_t from = -1;  // layer whose cache is read; the layer's own index if it owns one; -1: no attention
  RecurrentSpec recurrent = {};  // of layers without attention
  const float* gain = nullptr;   // with kv.pairs: of the backend's memory (KvView)
};

inline constexpr int32_t kMaxContext = 1 << 22, kMaxSequences = 256, kMaxStepRows = 1 << 16;

struct KvLimits {
  int32_t context = 0;  // positions per sequence
  int32_t sequences = 1;
  int32_t step_rows = 0;  // rows of the largest step: a ring's slack
  int32_t page_tokens = 64;
  // The last rows of a step that commit may reject, in sequences with recurrent layers: entries of their
  // logs.
  int32_t draft_rows = 0;
  // Pages of layers that see everything, for all sequences and the prefix cache; 0: a whole context for each.
  int32_t pages = 0;
  // Pages of rings, for all sequences; 0: a whole ring for each. A text shorter than a ring needs fewer.
  int32_t ring_pages = 0;

  int64_t pages_per_sequence() const { return (int64_t{context} + page_tokens - 1) / page_tokens; }
  int64_t total_pages() const { return pages > 0 ? pages : sequences * pages_per_sequence(); }
};

// Bytes as KvPool will allocate them: the memory plan.
struct KvPlan {
  struct Layer {
    int32_t layer = 0, ring_tokens = 0;
    int64_t pages = 0, k_page_bytes = 0, v_page_bytes = 0;
    int64_t bytes() const { return pages * (k_page_bytes + v_page_bytes); }
  };
  struct Recurrent {
    int32_t layer = 0;
    int64_t conv_base = 0, conv_log = 0, matrix_base = 0, matrix_log = 0;  // bytes of all sequences
    int64_t bytes() const { return conv_base + conv_log + matrix_base + matrix_log; }
  };
  struct Edge {  // rows of a layer that are kept a second time (KvProtect)
    int32_t layer = 0, ring_tokens = 0;
    int64_t k_bytes = 0, v_bytes = 0;  // of all sequences
    int64_t bytes() const { return k_bytes + v_bytes; }
  };
  std::vector<Layer> layers;  // owners only
  int32_t ring_tokens = 0;    // of the layers that have a ring: one table of pages serves all of them
  std::vector<Edge> edges;
  std::vector<Recurrent> recurrent;
  int64_t bytes() const;
  // Of a page in all layers that have pages.
  int64_t page_bytes() const;
  // Pages of all rings.
  int64_t ring_pages(const KvLimits& limits) const;
};
KvPlan plan_kv(std::span<const KvLayerSpec> layers, const KvLimits& limits);

// The allocated caches of all sequences. view(layer) is what kernels get (a sharing layer gets its donor's
// memory with its own window).
class KvPool {
 public:
  KvPool(Backend& backend, std::vector<KvLayerSpec> layers, const KvLimits& limits);
  KvView view(int layer) const;
  // The states of a recurrent layer.
  RecurrentView conv(int layer) const;
  RecurrentView matrix(int layer) const;
  // Copies K and V of all layers' heads from one slot to another.
  void move(const SeqView& sequence, int32_t from, int32_t to) const;
  // Copies a page of all layers that have pages.
  void copy_page(int32_t from, int32_t to) const;
  const KvLimits& limits() const { return limits_; }
  const KvPlan& plan() const { return plan_; }

 private:
  Backend& backend_;
  std::vector<KvLayerSpec> layers_;
  KvLimits limits_;
  KvPlan plan_;
  struct States {
    Buffer conv_base, conv_log, matrix_base, matrix_log;
  };
  std::vector<Buffer> k_, v_;            // per owner
  std::vector<Buffer> k_edge_, v_edge_;  // of plan_.edges
  std::vector<States> states_;           // per recurrent layer
  std::vector<int32_t> owner_index_;     // per layer: index into k_, v_ or states_
  std::vector<int32_t> edge_index_;      // per owner: index into plan_.edges, -1
};

}  // namespace carat
