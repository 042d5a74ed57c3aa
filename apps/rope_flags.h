// How positions are encoded beyond those a model was trained for: llama.cpp's flags, which replace what the
// model's file says (model/rope.h).
#pragma once
#include <optional>
#include <string>

#include "model/files/source.h"

namespace CLI {
class App;
}

namespace carat {

struct RopeFlags {
  std::string type;  // none, linear, yarn; empty: as the file says
  std::optional<double> scale, freq_scale, freq_base, extrapolate, attention, beta_slow, beta_fast;
  std::optional<int64_t> trained;
};
// --rope-scaling, --rope-scale, --rope-freq-scale, --rope-freq-base, --yarn-*
void add_rope_flags(CLI::App& app, RopeFlags& flags);
// Error with a hint where flags contradict each other, or one would change nothing.
void apply_rope_flags(const RopeFlags& flags, WeightSource& source);

}  // namespace carat
