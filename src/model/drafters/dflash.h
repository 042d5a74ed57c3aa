// DFlash, the block-diffusion drafter (arXiv 2602.06036; z-lab/dflash, vLLM's qwen3_dflash): a few
// Qwen3-style layers that fill a block of mask tokens in one pass, conditioned on tapped layers of the target
// through keys and values that are kept from round to round. Embedding and output head are the target's.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "model/blocks.h"
#include "model/model.h"

namespace carat {

struct DFlashLayer {
  int32_t heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int32_t window = 0;      // 0: all positions
  bool both_ways = false;  // inside the block, a slot sees the later ones too
  float rope_base = 0;
  RopeScaling rope;
};

struct DFlashSpec {
  std::string arch, name;
  int32_t dim = 0, block = 0;  // block: slots, the newest token's included
  int32_t mask_token = 0, features = 0;
  std::vector<int32_t> taps;  // target layers whose outputs are the features, in order; empty: by default
  float eps = 0;
  bool from_anchor = false;  // slot i predicts the token behind it, not the one in its place
  std::vector<DFlashLayer> layers;
  int32_t drafts() const { return from_anchor ? block : block - 1; }
};

bool is_dflash(std::string_view arch);
DFlashSpec read_dflash_spec(const WeightSource& source);

// A mask inside the block (precedence as in vLLM): what the file says for all layers, else causal in sliding
// layers and both ways in the others.
bool dflash_both_ways(bool sliding, std::optional<bool> causal);

// Where a drafter with m features taps a target of n layers when the file does not say.
std::vector<int32_t> default_taps(int32_t layers, int32_t features);

// Drafted tokens under a budget of `rows` verified rows, the newest token's included: rows beyond the trained
// block change nothing.
constexpr int32_t dflash_drafts(int32_t rows, int32_t block) { return (rows < block ? rows : block) - 1; }

// What each layer keeps of the context, and the rows of the largest step over it.
std::vector<KvLayerSpec> kv_layers(const DFlashSpec& spec, DType type);
inline constexpr int32_t kDFlashStepRows = 64;

class DFlashNet {
 public:
  DFlashNet(std::shared_ptr<WeightSource> source, Backend& backend, const Progress& progress = {});

  // Error with a hint if it was not made for such a target.
  void check_target(const ModelSpec& target) const;
  // Layers to tap in a target of that many.
  std::vector<int32_t> taps(const ModelSpec& target) const;

  // Appends keys and values of context positions. Returns where their features go: f32 [rows, features *
  // dim].
  Tensor build_context(Program& program, Arena& arena, const KvPool& kv, int32_t rows) const;
  // The block: rows of (newest token, mask, mask, ...) behind the context. Returns logits [out_rows, vocab].
  Tensor build_block(Program& program, Arena& arena, const Model& target, const KvPool& kv, int32_t rows,
                     int32_t out_rows) const;

  const DFlashSpec& spec() const { return spec_; }
  const WeightSource& source() const { return *source_; }

 private:
  struct Layer {
    Tensor attn_norm, q_norm, k_norm, ffn_norm;
    Linear q, k, v, o;
    Rope rope;
    GatedMlp mlp;
  };
  std::shared_ptr<WeightSource> source_;
  DFlashSpec spec_;
  Linear fc_;
  Tensor hidden_norm_, final_norm_;
  std::vector<Layer> layers_;
  std::vector<Buffer> owners_;
};

}  // namespace carat
