// Products of Gemma 4's towers: the E models keep what goes in and what comes out within limits.
#pragma once
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "model/bind.h"
#include "model/spec_keys.h"

namespace carat {

struct Limits {
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  bool any() const { return std::isfinite(low) || std::isfinite(high); }
  bool operator==(const Limits&) const = default;
};
struct Limited : Linear {
  Limits in, out;
};

// Those beside the weight `name`.weight; none where the file has none.
inline void read_limits(const Binder& b, const std::string& name, Limited& l) {
  const auto limit = [&](const char* part, float& v) {
    if (b.has(name + part)) v = b.read(name + part, 1)[0];
  };
  limit(".input_min", l.in.low), limit(".input_max", l.in.high);
  limit(".output_min", l.out.low), limit(".output_max", l.out.high);
  if (!(l.in.low <= l.in.high) || !(l.out.low <= l.out.high))
    throw Error(fmt::format("the limits of '{}' are not in order", name), kSpecHint);
}

}  // namespace carat
