#include "model/blocks.h"

namespace carat {

void push_linear(Program& p, const Tensor& y, const Tensor& x, const Linear& w, const LinearOptions& o) {
  MatmulArgs a{.y = y, .x = x, .w = w.w, .bias = o.bias, .mul = o.mul};
  a.scale = o.scale * w.scale;
  a.softcap = o.softcap;
  a.act = o.act;
  a.residual = o.residual;
  p.push(a);
}

void push_norm(Program& p, const Tensor& y, const Tensor& x, const Tensor& weight, float eps,
               const NormOptions& o) {
  p.push(RmsNormArgs{y, x, weight, o.residual, o.gain, o.width, eps, o.scale, o.mul, o.act});
}

void push_mlp(Program& p, const Tensor& y, const Tensor& x, const Tensor& h, const GatedMlp& w, Act act) {
  p.push(GateUpArgs{h, x, w.gate.w, w.up.w, w.gate.scale, w.up.scale, act});
  push_linear(p, y, h, w.down);
}

}  // namespace carat
