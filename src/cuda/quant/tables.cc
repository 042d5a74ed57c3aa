#include "cuda/quant/tables.h"

#include <cstring>
#include <vector>

#include "core/codec_tables.h"
#include "core/kv_codec.h"

namespace carat::cuda {
namespace {

template <class Words, class Grid>
void pack(Words& out, const Grid& grid) {
  static_assert(sizeof(out) == sizeof(grid));
  std::memcpy(out, grid.data(), sizeof out);
}
template <class To, class From, size_t N>
void take(To (&to)[N], const From (&from)[N]) {
  for (size_t i = 0; i < N; ++i) to[i] = static_cast<To>(from[i]);
}

// D of H D: element i of a rotated unit vector at 0 is +-1 / sqrt(n) with i's sign.
void signs_of_head(float* sign, int32_t n) {
  for (int32_t i = 0; i < n; ++i) {
    std::vector<float> x(static_cast<size_t>(n));
    x[static_cast<size_t>(i)] = 1;
    rotate(KvRotation::head, x.data(), n);
    sign[i] = x[0] < 0 ? -1.0f : 1.0f;
  }
}
// D2 H D1, up to the sign of both.
void signs_of_group(float* first, float* second, int32_t n) {
  for (int32_t i = 0; i < n; ++i) {
    std::vector<float> x(static_cast<size_t>(n));
    x[static_cast<size_t>(i)] = 1;
    rotate(KvRotation::group128, x.data(), n);
    first[i] = x[0] < 0 ? -1.0f : 1.0f;
    for (int32_t j = 0; i == 0 && j < n; ++j)
      second[j] = (x[static_cast<size_t>(j)] < 0 ? -1.0f : 1.0f) * first[0];
  }
}

}  // namespace

void fill(Tables& t) {
  pack(t.iq2xxs, kIq2xxs), pack(t.iq2xs, kIq2xs), pack(t.iq2s, kIq2s);
  pack(t.iq3xxs, kIq3xxs), pack(t.iq3s, kIq3s);
  take(t.iq4, kIq4Values), take(t.e2m1, kE2m1Twice), take(t.tq4, kTq4Grid), take(t.tq3, kTq3Grid);
  take(t.tq3_0, kTq30Grid), take(t.tbq3, kTbq3Grid), take(t.tbq4, kTbq4Grid);
  signs_of_head(t.sign, 512);
  signs_of_group(t.sign1, t.sign2, 128);
}

}  // namespace carat::cuda
