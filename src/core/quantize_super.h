// Super-blocks of 256 columns: groups with small integer scales (and minima) under one f16 scale (and one f16
// minimum). Private to core's quantizers.
#pragma once
#include <cstdint>
#include <optional>

#include "core/codec.h"
#include "core/quantize_formats.h"

namespace carat::quant {

// What a super-block stores, before packing.
struct Super {
  uint16_t d = 0, dmin = 0;  // f16
  int scale[16] = {}, min[16] = {};
  float code[256];  // values of the code book
};

inline Group part(const Group& g, int i, int n) { return {g.x + i * n, g.w + i * n, n}; }

// x ~ d * scale * code with scales in lo..hi; n columns per group.
template <class Book>
class ScaledSearch {
 public:
  ScaledSearch(const Book& book, const Group& g, int n, int lo, int hi)
      : book_(book), g_(g), n_(n), groups_(256 / n), lo_(lo), hi_(hi) {}

  // fitted: the free scale of every group.
  Super run(const float* fitted) {
    std::copy(fitted, fitted + groups_, fitted_);
    const float top = extreme(fitted, groups_);
    try_scale(0);
    // Steps of a third of a grid point are worth a try where the grid is coarse.
    const int steps = hi_ < 64 ? 3 : 0;
    for (const int end : {lo_, hi_}) {
      const float d = top / static_cast<float>(end);
      for (int k = -steps; k <= steps; ++k)
        try_scale(d * (1 + 0.35f * static_cast<float>(k) / static_cast<float>(hi_)));
    }
    refine();
    if (hi_ < 64 && try_all_scales()) refine();
    const float d = f16_to_f32(best_.d);
    for (int i = 0; i < groups_; ++i)
      codes(book_, part(g_, i, n_), d * static_cast<float>(best_.scale[i]), 0, best_.code + i * n_);
    return best_;
  }

 private:
  void refine() {
    for (int turn = 0; turn < 4; ++turn) {
      const std::optional<float> d = refit();
      if (!d || !try_scale(*d)) break;
    }
  }

  // Every scale of the grid for every group: a group of few distinct values has scales far apart that fit it
  // equally well alone, and only one of them may lie on the grid.
  bool try_all_scales() {
    const float d = f16_to_f32(best_.d), before = best_error_;
    if (d == 0) return false;
    best_error_ = 0;
    for (int i = 0; i < groups_; ++i) {
      float best = std::numeric_limits<float>::infinity();
      for (int v = lo_; v <= hi_; ++v) {
        const float e = error(book_, part(g_, i, n_), d * static_cast<float>(v));
        if (e < best) best = e, best_.scale[i] = v;
      }
      best_error_ += best;
      fitted_[i] = d * static_cast<float>(best_.scale[i]);
    }
    return best_error_ < before;
  }

  // Whether one of the f16 values at d beats the best so far.
  bool try_scale(float d) {
    bool better = false;
    const auto around = f16_around(d);
    // Neighbours matter only where f16 is coarse.
    const size_t count = (around[0] & 0x7fff) < 0x400 ? around.size() : 1;
    for (size_t i = 0; i < count; ++i) better |= try_half(around[i]);
    return better;
  }

  bool try_half(uint16_t h) {
    const float d = f16_to_f32(h), inv = d != 0 ? 1 / d : 0;
    Super s;
    s.d = h;
    float total = 0;
    for (int i = 0; i < groups_ && total < best_error_; ++i) {
      const int first = static_cast<int>(
          std::clamp(std::round(fitted_[i] * inv), static_cast<float>(lo_), static_cast<float>(hi_)));
      float best = std::numeric_limits<float>::infinity();
      for (int v = std::max(first - 1, lo_); v <= std::min(first + 1, hi_); ++v) {
        const float e = error(book_, part(g_, i, n_), d * static_cast<float>(v));
        if (e < best) best = e, s.scale[i] = v;
      }
      total += best;
    }
    if (!(total < best_error_)) return false;
    best_error_ = total;
    best_ = s;
    return true;
  }

  // The least-squares d for the scales and codes of the best.
  std::optional<float> refit() const {
    const float d = f16_to_f32(best_.d);
    Lanes xv{}, vv{};
    for (int i = 0; i < groups_; ++i) {
      const float scale = static_cast<float>(best_.scale[i]), s = d * scale, inv = s != 0 ? 1 / s : 0;
      for (int k = i * n_; k < (i + 1) * n_; k += 4) {
        const Lanes x = at(g_.x + k), v = scale * book_.nearest(x * inv), wv = at(g_.w + k) * v;
        xv += wv * x;
        vv += wv * v;
      }
    }
    if (!(sum(vv) > 0)) return std::nullopt;
    return sum(xv) / sum(vv);
  }

  const Book& book_;
  const Group& g_;
  const int n_, groups_, lo_, hi_;
  float fitted_[16];
  Super best_;
  float best_error_ = std::numeric_limits<float>::infinity();
};

}  // namespace carat::quant
