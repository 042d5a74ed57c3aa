// Where programs are cut, and layers dealt.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "parts/split.h"

namespace carat {
namespace parts {

Cuts::Cuts(int32_t devices, const PartsOptions& o)
    : devices_(devices), mode_(o.mode), layers_(o.layers), first_layer_(o.first_layer), shares_(o.shares) {
  if (shares_.empty()) shares_.assign(static_cast<size_t>(devices), 1);
  const double sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  double until = 0;
  for (double& s : shares_) {
    s /= sum;
    until_.push_back(until += s);
  }
  first_layer_.resize(static_cast<size_t>(devices), layers_);
}

Cuts::Bounds Cuts::of(int32_t n, int32_t step) const {
  const int32_t groups = (n + step - 1) / step;
  Bounds b = {0};
  for (int32_t d = 0; d + 1 < devices_; ++d)
    b.push_back(
        std::min(n, step * static_cast<int32_t>(std::lround(groups * until_[static_cast<size_t>(d)]))));
  b.push_back(n);
  return b;
}

int32_t Cuts::layer_device(int32_t layer) const {
  int32_t d = 0;
  while (d + 1 < devices_ && layer >= first_layer_[static_cast<size_t>(d) + 1]) ++d;
  return d;
}

int32_t Cuts::expert_device(int32_t layer) const {
  std::vector<int32_t> count(shares_.size());
  size_t chosen = 0;
  for (int32_t l = 0; l <= layer; ++l) {
    chosen = 0;
    for (size_t d = 1; d < shares_.size(); ++d)
      if (shares_[d] * (l + 1) - count[d] > shares_[chosen] * (l + 1) - count[chosen] + 1e-9) chosen = d;
    ++count[chosen];
  }
  return static_cast<int32_t>(chosen);
}

}  // namespace parts

std::vector<int32_t> deal_layers(const std::vector<int64_t>& bytes, const std::vector<double>& shares) {
  double all = 0, sum = 0, until = 0;
  for (const int64_t b : bytes) all += static_cast<double>(b);
  for (const double s : shares) sum += s;
  std::vector<int32_t> first;
  size_t layer = 0;
  double before = 0;
  for (const double s : shares) {
    // A layer that crosses the border is where more than half of it lies.
    while (layer < bytes.size() && before + static_cast<double>(bytes[layer]) / 2 < all * until / sum)
      before += static_cast<double>(bytes[layer++]);
    first.push_back(static_cast<int32_t>(layer));
    until += s;
  }
  return first;
}

}  // namespace carat
