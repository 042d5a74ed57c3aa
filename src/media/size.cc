// How large a tower sees a picture: the rules of the reference's processors, in double as they are there.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "media/picture.h"

namespace carat {
namespace {

// Python's round: halves to the even side.
int64_t round_even(double x) {
  const double down = std::floor(x), rest = x - down;
  const auto n = static_cast<int64_t>(down);
  if (rest != 0.5) return rest < 0.5 ? n : n + 1;
  return n % 2 == 0 ? n : n + 1;
}

}  // namespace

GridSize gemma_size(int width, int height, int budget, int patch, int pooling) {
  CARAT_CHECK(width > 0 && height > 0 && budget > 0, "{} x {}, {}", width, height, budget);
  const int side = patch * pooling;
  const double area = static_cast<double>(width) * height;
  const double factor = std::sqrt(static_cast<double>(budget) * pooling * pooling * patch * patch / area);
  const auto cells = [&](int n) { return static_cast<int>(std::floor(factor * n / side)); };
  const auto thin = [&](int along, int across) {
    return static_cast<int>(std::min<double>(std::floor(static_cast<double>(along) / across), budget));
  };
  int columns = cells(width), rows = cells(height);
  if (rows == 0) rows = 1, columns = std::max(1, thin(width, height));
  if (columns == 0) columns = 1, rows = std::max(1, thin(height, width));
  return {columns * side, rows * side, columns * rows};
}

GridSize qwen_size(int width, int height, int64_t min_pixels, int64_t max_pixels, int factor) {
  CARAT_CHECK(width > 0 && height > 0 && factor > 0, "{} x {}, {}", width, height, factor);
  const auto [small, large] = std::minmax(width, height);
  if (large > 200.0 * small)
    throw Error(fmt::format("the picture has {} x {} pixels: one side is more than 200 times the other",
                            width, height),
                "cut it into pieces");
  const double area = static_cast<double>(width) * height;
  int64_t w = round_even(static_cast<double>(width) / factor),
          h = round_even(static_cast<double>(height) / factor);
  const int64_t pixels = w * h * factor * factor;
  if (pixels > max_pixels) {
    const double beta = std::sqrt(area / static_cast<double>(max_pixels));
    w = static_cast<int64_t>(std::floor(width / beta / factor));
    h = static_cast<int64_t>(std::floor(height / beta / factor));
  } else if (pixels < min_pixels) {
    const double beta = std::sqrt(static_cast<double>(min_pixels) / area);
    w = static_cast<int64_t>(std::ceil(width * beta / factor));
    h = static_cast<int64_t>(std::ceil(height * beta / factor));
  }
  w = std::max<int64_t>(w, 1), h = std::max<int64_t>(h, 1);
  return {static_cast<int>(w) * factor, static_cast<int>(h) * factor, static_cast<int>(w * h)};
}

}  // namespace carat
