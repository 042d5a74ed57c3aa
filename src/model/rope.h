// Rotary positions stretched beyond those a model was trained for, in layers that see all positions: linear
// (arXiv 2306.15595) and YaRN (arXiv 2309.00071), by the rules of llama.cpp and transformers. Both change the
// table of frequencies alone; YaRN's factor of queries and keys goes into the gains of their norms. So
// kernels know nothing of it.
#pragma once
#include <cstdint>
#include <string>

namespace carat {

class SpecKeys;

struct RopeScaling {
  enum class Type { none, linear, yarn };
  Type type = Type::none;
  float factor = 1;       // the trained positions are stretched over so many times as many
  int32_t trained = 0;    // positions of the training, from which YaRN's ramp follows
  float extrapolate = 1;  // YaRN: share of the ramp that is applied; 0: everything is interpolated
  float attention = 1;    // times what YaRN makes of queries and keys by itself
  float beta_fast = 32, beta_slow = 1;  // YaRN: turns over the trained positions where the ramp begins, ends

  bool any() const { return type != Type::none; }
  bool operator==(const RopeScaling&) const = default;
};

// Keys "rope.scaling.*" as llama.cpp writes them; context: positions of the training where they do not say.
// Error that names the key if a type is not known or a value makes no sense.
RopeScaling read_rope_scaling(const SpecKeys& keys, int32_t context);

// What the frequency base^(-2 pair / dim) is multiplied with.
double rope_stretch(const RopeScaling& s, double base, int32_t dim, int32_t pair);
// What queries and keys are multiplied with each.
double rope_magnitude(const RopeScaling& s);

// "yarn, 4 times 262144 positions"; empty: none.
std::string rope_text(const RopeScaling& s);

}  // namespace carat
