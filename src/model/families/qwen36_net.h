// Inside Qwen3.6: layers that the trunk and the drafting head share.
#pragma once
#include "model/bind.h"
#include "model/blocks.h"
#include "model/model.h"

namespace carat::qwen36 {

ModelSpec read_spec(const WeightSource& source);
// Index of the block of the drafting head, which is behind the trunk's; -1: the file has none.
int nextn_block(const WeightSource& source);
LayerSpec nextn_layer(const WeightSource& source);

struct Attention {
  Linear q, gate, k, v, o;
  Tensor q_norm, k_norm;
  Rope rope;
};

struct DeltaNet {
  Linear qkv, z, alpha, beta, out;
  Tensor conv, rate, bias, norm;  // conv: [taps, channels]
};

struct Moe {
  Linear router;
  Tensor gate, up, down, gate_scale, up_scale, down_scale;  // stacks
  Tensor shared_router;
  GatedMlp shared;  // which every row takes
};

struct Layer {
  Tensor mixer_norm, ffn_norm;
  Attention attention;
  DeltaNet delta;
  GatedMlp mlp;
  Moe moe;
};
Layer bind_layer(Binder& b, const LayerSpec& spec, int block, int32_t dim);

// Pushes layers. Scratch is taken for the widest of them.
class Layers {
 public:
  Layers(Program& program, Arena& arena, std::span<const LayerSpec> specs, int32_t dim, float eps,
         int32_t rows, int32_t out_rows);

  // y = x + mixer(x), then y = y + ffn(y); y may be x. With `cut` only the wanted rows go on behind the
  // layer's cache, and x becomes those rows.
  void run(const LayerSpec& spec, const Layer& w, const KvPool& kv, int layer, Tensor& x, bool fresh,
           bool cut);
  // The wanted rows of t, packed; from here on the program runs over them.
  Tensor gather(const Tensor& t);
  int32_t rows() const { return rows_; }

 private:
  Tensor now(const Tensor& t, int32_t cols) const;
  Tensor now(const Tensor& t) const { return now(t, t.cols); }
  Tensor attention(const LayerSpec& spec, const Attention& w, const KvPool& kv, int layer, Tensor& x,
                   bool cut);
  Tensor delta(const LayerSpec& spec, const DeltaNet& w, const KvPool& kv, int layer);
  void experts(const LayerSpec& spec, const Moe& w, const Tensor& x);

  Program& p_;
  Arena& arena_;
  int32_t dim_, rows_, out_rows_;
  float eps_;
  Tensor u_, wide_, mixed_, gated_, a_, beta_, k_, v_, h_, router_, chosen_, share_, shared_, of_shared_;
};

}  // namespace carat::qwen36
