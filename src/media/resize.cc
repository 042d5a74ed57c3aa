// Antialiased bicubic on bytes, as torchvision and Pillow compute it: separable, horizontal pass first, each
// rounded to bytes.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "media/picture.h"

namespace carat {
namespace {

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

struct Axis {
  int taps = 0;              // the most that an output has
  int bits = 0;              // of a weight's fraction
  std::vector<int> from, n;  // per output
  std::vector<int32_t> w;    // [output][taps]
};

int fraction_bits(double largest, Resize precision) {
  constexpr int kMost = 22;
  if (precision == Resize::pillow) return kMost;
  int p = kMost;  // torchvision's weights are 16-bit integers
  while (p > 0 && std::floor(0.5 + largest * (1 << p)) >= (1 << 15)) --p;
  return p;
}

Axis axis(int in, int out, Resize precision) {
  const double scale = static_cast<double>(in) / out, filter = std::max(scale, 1.0), support = 2 * filter;
  Axis a;
  a.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  a.from.resize(out), a.n.resize(out);
  std::vector<double> w(static_cast<size_t>(out) * a.taps);
  double largest = 0;
  for (int i = 0; i < out; ++i) {
    const double center = (i + 0.5) * scale;
    const int lo = std::max(static_cast<int>(center - support + 0.5), 0);
    const int hi = std::min(static_cast<int>(center + support + 0.5), in);
    double* row = &w[static_cast<size_t>(i) * a.taps];
    double sum = 0;
    for (int k = 0; k < hi - lo; ++k) sum += row[k] = cubic((k + lo - center + 0.5) / filter);
    for (int k = 0; k < hi - lo; ++k) largest = std::max(largest, row[k] /= sum);
    a.from[i] = lo, a.n[i] = hi - lo;
  }
  a.bits = fraction_bits(largest, precision);
  a.w.resize(w.size());
  for (size_t i = 0; i < w.size(); ++i)
    a.w[i] = static_cast<int32_t>(w[i] * (1 << a.bits) + (w[i] < 0 ? -0.5 : 0.5));
  return a;
}

uint8_t byte(int32_t sum, int bits) { return static_cast<uint8_t>(std::clamp(sum >> bits, 0, 255)); }

Picture across(const Picture& p, int width, Resize precision) {
  const Axis a = axis(p.width, width, precision);
  Picture out{width, p.height, std::vector<uint8_t>(static_cast<size_t>(width) * p.height * 3)};
  uint8_t* to = out.rgb.data();
  for (int y = 0; y < p.height; ++y) {
    const uint8_t* line = &p.rgb[static_cast<size_t>(y) * p.width * 3];
    for (int x = 0; x < width; ++x, to += 3) {
      const uint8_t* in = line + static_cast<size_t>(a.from[x]) * 3;
      const int32_t* w = &a.w[static_cast<size_t>(x) * a.taps];
      int32_t r = 1 << (a.bits - 1), g = r, b = r;
      for (int k = 0; k < a.n[x]; ++k, in += 3) r += w[k] * in[0], g += w[k] * in[1], b += w[k] * in[2];
      to[0] = byte(r, a.bits), to[1] = byte(g, a.bits), to[2] = byte(b, a.bits);
    }
  }
  return out;
}

Picture down(const Picture& p, int height, Resize precision) {
  const Axis a = axis(p.height, height, precision);
  const size_t line = static_cast<size_t>(p.width) * 3;
  Picture out{p.width, height, std::vector<uint8_t>(line * height)};
  std::vector<int32_t> sums(line);
  for (int y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 1 << (a.bits - 1));
    for (int k = 0; k < a.n[y]; ++k) {
      const uint8_t* in = &p.rgb[(static_cast<size_t>(a.from[y]) + k) * line];
      const int32_t w = a.w[static_cast<size_t>(y) * a.taps + k];
      for (size_t i = 0; i < line; ++i) sums[i] += w * in[i];
    }
    for (size_t i = 0; i < line; ++i) out.rgb[y * line + i] = byte(sums[i], a.bits);
  }
  return out;
}

}  // namespace

Picture resize(const Picture& picture, int width, int height, Resize precision) {
  CARAT_CHECK(width > 0 && height > 0 && picture.width > 0 && picture.height > 0, "{} x {}", width, height);
  Picture out = width == picture.width ? picture : across(picture, width, precision);
  return height == out.height ? out : down(out, height, precision);
}

}  // namespace carat
