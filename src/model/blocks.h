// What transformer families share, as fragments of a Program. All run over the program's current RowSet.
#pragma once
#include "model/bind.h"
#include "model/model.h"

namespace carat {

// y = x w^T, with the weight's own factor.
struct LinearOptions {
  float scale = 1, softcap = 0;
  Act act = Act::none;
  Tensor mul = {}, residual = {}, bias = {};
};
void push_linear(Program& p, const Tensor& y, const Tensor& x, const Linear& w, const LinearOptions& o = {});

// logits = cap(hidden head^T), both of wanted rows. A quantized head sees rows rounded twice (Refine): most
// of what rounding costs is there (docs/numerics.md).
void push_head(Program& p, Arena& arena, const Tensor& logits, const Tensor& hidden, const Linear& head,
               float softcap = 0);

struct NormOptions {
  Tensor residual = {}, gain = {};
  int32_t width = 0;
  float scale = 1;
  Tensor mul = {};
  Act act = Act::none;
};
void push_norm(Program& p, const Tensor& y, const Tensor& x, const Tensor& weight, float eps,
               const NormOptions& o = {});

// y = down(act(gate x) * (up x)); h: [M, ffn] scratch.
struct GatedMlp {
  Linear gate, up, down;
};
void push_mlp(Program& p, const Tensor& y, const Tensor& x, const Tensor& h, const GatedMlp& w, Act act);

}  // namespace carat
