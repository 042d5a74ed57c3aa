#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/spec_keys.h"

namespace carat {
namespace {

constexpr double kMostFactor = 1e6, kLeastFactor = 1e-3;
constexpr const char* kTypeHint =
    "known are none, linear and yarn; --rope-scaling none takes positions as they are";

RopeScaling::Type read_type(const SpecKeys& k) {
  const std::string key = k.full("rope.scaling.type");
  // Older files have the factor alone, which means linear.
  const bool factor = k.has("rope.scaling.factor") || k.has("rope.scale_linear");
  const std::string name = k.text_or("rope.scaling.type", factor ? "linear" : "none");
  if (name == "none") return RopeScaling::Type::none;
  if (name == "linear") return RopeScaling::Type::linear;
  if (name == "yarn") return RopeScaling::Type::yarn;
  throw Error(fmt::format("'{}' is '{}'", key, name), kTypeHint);
}

// The pair that turns so often over the trained positions.
double pair_of_turns(double turns, double base, int32_t dim, int32_t trained) {
  return dim * std::log(trained / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

}  // namespace

RopeScaling read_rope_scaling(const SpecKeys& k, int32_t context) {
  RopeScaling s;
  s.type = read_type(k);
  if (!s.any()) return {};
  const auto number = [&](const char* key, float value, double low, double high) {
    return k.has(key) ? k.number(key, low, high) : value;
  };
  const char* factor = k.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  s.factor = number(factor, 1, kLeastFactor, kMostFactor);
  s.attention = number("rope.scaling.attn_factor", 1, 1e-3, 1e3);
  if (s.type == RopeScaling::Type::linear) return s.factor == 1 && s.attention == 1 ? RopeScaling{} : s;
  s.trained = k.integer_or("rope.scaling.original_context_length", context, 0, 1 << 30);
  if (s.trained == 0) s.trained = context;
  if (s.trained < 1)
    throw Error(fmt::format("'{}' is missing", k.full("rope.scaling.original_context_length")),
                "YaRN depends on the positions of the training: give --yarn-orig-ctx N");
  s.attention *= number("rope.scaling.yarn_attn_factor", 1, 1e-3, 1e3);
  s.extrapolate = number("rope.scaling.yarn_ext_factor", 1, 0, 1);
  s.beta_fast = number("rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6);
  s.beta_slow = number("rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6);
  if (number("rope.scaling.yarn_log_multiplier", 0, 0, 1e3) != 0)
    throw Error(fmt::format("'{}' is of another family", k.full("rope.scaling.yarn_log_multiplier")),
                kSpecHint);
  return s;
}

double rope_stretch(const RopeScaling& s, double base, int32_t dim, int32_t pair) {
  if (!s.any()) return 1;
  const double slow = 1 / double{s.factor};
  if (s.type == RopeScaling::Type::linear) return slow;
  const double from = std::max(0.0, std::floor(pair_of_turns(s.beta_fast, base, dim, s.trained)));
  const double to = std::min(dim - 1.0, std::ceil(pair_of_turns(s.beta_slow, base, dim, s.trained)));
  const double along = std::clamp((pair - from) / std::max(0.001, to - from), 0.0, 1.0);
  const double kept = (1 - along) * s.extrapolate;  // pairs that turn fast stay as they are
  return slow * (1 - kept) + kept;
}

double rope_magnitude(const RopeScaling& s) {
  if (!s.any()) return 1;
  const bool grows = s.type == RopeScaling::Type::yarn && s.extrapolate != 0 && s.factor > 1;
  return s.attention * (grows ? 1 + 0.1 * std::log(double{s.factor}) : 1);
}

std::string rope_text(const RopeScaling& s) {
  if (!s.any()) return "";
  std::string text = s.type == RopeScaling::Type::linear ? fmt::format("linear, {:g} times", s.factor)
                                                         : fmt::format("yarn, {:g} times", s.factor);
  if (s.type == RopeScaling::Type::yarn) {
    text += fmt::format(" {} positions", s.trained);
    if (s.extrapolate != 1) text += fmt::format(", extrapolation {:g}", s.extrapolate);
    if (s.beta_fast != 32 || s.beta_slow != 1)
      text += fmt::format(", betas {:g} and {:g}", s.beta_fast, s.beta_slow);
  }
  return s.attention == 1 ? text : text + fmt::format(", attention {:g}", s.attention);
}

}  // namespace carat
