// The published shapes of Gemma 4 (gemma4.md section 1.1) and of hybrids of recurrent layers and attention
// (qwen36.md section 1), and tiny ones of the same kinds for tests.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/source.h"

namespace carat {

struct ModelShape {
  std::string_view name, title;
  int32_t layers = 0, period = 0;  // every period-th layer is global
  int32_t dim = 0, heads = 0, kv_sliding = 0, kv_global = 0, head_sliding = 256, head_global = 512;
  int32_t ffn = 0, experts = 0, experts_used = 0, expert_ffn = 0;
  int32_t per_layer = 0, shared = 0;  // width of per-layer embeddings; layers that share keys and values
  bool wide_shared = false;           // the sharing layers' MLP is twice as wide
  int32_t window = 0, context = 0, vocab = 262144;
  int64_t parameters = 0;  // published count, 0 for shapes of our own

  // Hybrids: every period-th layer attends, the others keep a state; a drafting head is behind the layers.
  int32_t k_heads = 0, v_heads = 0, state_dim = 0, taps = 4, shared_ffn = 0;
  std::string_view arch = "gemma4";
  // Drafters. Assistants: width of the target, clusters of the head and how many of them are computed (0: the
  // full head). DFlash: tapped layers of a target that is as wide.
  int32_t target_dim = 0, clusters = 0, top_clusters = 0, features = 0, mask_token = 4;
  double theta = 1e6;  // of DFlash's rotation

  bool is_drafter() const { return target_dim > 0 || features > 0; }
  bool is_hybrid() const { return v_heads > 0; }
  bool is_global(int32_t layer) const { return layer % period == period - 1; }
  int32_t ffn_of(int32_t layer) const { return wide_shared && layer >= layers - shared ? 2 * ffn : ffn; }
};

const ModelShape& find_shape(std::string_view name);  // Error that lists the known ones
std::string shape_names();

// A weight's place in the network, which decides how large random values may be.
struct ShapeTensor {
  std::string name;
  std::vector<int64_t> shape;
  float mean = 0, spread = 0;  // of random values: standard deviation for matrices, half width for vectors
};
// In the order of published files. Matrices keep the size of what they multiply (1/sqrt(in)); norms are near
// 1, those of queries and keys such that attention scores are of size 1; layer scales keep the stream
// bounded.
std::vector<ShapeTensor> shape_tensors(const ModelShape& shape);
Metadata shape_metadata(const ModelShape& shape);
std::vector<ShapeTensor> hybrid_shape_tensors(const ModelShape& shape);
Metadata hybrid_shape_metadata(const ModelShape& shape);
std::vector<ShapeTensor> draft_shape_tensors(const ModelShape& shape);
Metadata draft_shape_metadata(const ModelShape& shape);
int64_t parameter_count(const std::vector<ShapeTensor>& tensors);  // rope_freqs is none

}  // namespace carat
