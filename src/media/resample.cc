#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "media/sound_files.h"
#ifdef CARAT_SOXR
#include <soxr.h>

namespace carat {

std::vector<float> resample(std::span<const float> samples, int rate) {
  if (rate == kSoundRate) return {samples.begin(), samples.end()};
  const double ratio = static_cast<double>(kSoundRate) / rate;
  std::vector<float> out(static_cast<size_t>(std::ceil(static_cast<double>(samples.size()) * ratio)));
  const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t one_thread = soxr_runtime_spec(1);
  size_t done = 0;
  const soxr_error_t failed = soxr_oneshot(rate, kSoundRate, 1, samples.data(), samples.size(), nullptr,
                                           out.data(), out.size(), &done, &io, &quality, &one_thread);
  if (failed)
    throw Error(fmt::format("the sound's rate of {} Hz cannot be changed: {}", rate, failed),
                "convert it to 16 kHz");
  out.resize(done);
  return out;
}

std::string resample_library() { return soxr_version(); }

}  // namespace carat
#else
namespace carat {
namespace {

constexpr int kCrossings = 32;      // zero crossings on either side
constexpr double kPassed = 0.95;    // of the lower Nyquist frequency
constexpr double kKaiserBeta = 10;  // 100 dB of attenuation

double bessel0(double x) {
  double sum = 1, term = 1;
  for (int k = 1; term > 1e-17 * sum; ++k) sum += term *= x * x / (4.0 * k * k);
  return sum;
}

}  // namespace

// Outputs come at a few phases between inputs: each phase's weights are computed once.
std::vector<float> resample(std::span<const float> in, int rate) {
  if (rate == kSoundRate) return {in.begin(), in.end()};
  const int common = std::gcd(rate, kSoundRate), up = kSoundRate / common, down = rate / common;
  const double cutoff = kPassed * std::min(1.0, static_cast<double>(kSoundRate) / rate);
  const int half = static_cast<int>(std::ceil(kCrossings / cutoff)), taps = 2 * half;
  std::vector<double> weights(static_cast<size_t>(up) * taps);
  for (int phase = 0; phase < up; ++phase)
    for (int k = 0; k < taps; ++k) {
      const double x = k - half + 1 - static_cast<double>(phase) / up, w = x / half;
      if (std::abs(w) >= 1) continue;
      const double angle = std::numbers::pi * cutoff * x;
      const double sinc = angle == 0 ? 1 : std::sin(angle) / angle;
      weights[static_cast<size_t>(phase) * taps + k] =
          cutoff * sinc * bessel0(kKaiserBeta * std::sqrt(1 - w * w)) / bessel0(kKaiserBeta);
    }
  const auto n = static_cast<int64_t>(in.size());
  std::vector<float> out(static_cast<size_t>((n * up + down - 1) / down));
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * down, first = at / up - half + 1;
    const double* w = &weights[static_cast<size_t>(at % up) * taps];
    double sum = 0;
    for (int64_t k = std::max<int64_t>(0, -first); k < std::min<int64_t>(taps, n - first); ++k)
      sum += w[k] * in[static_cast<size_t>(first + k)];
    out[i] = static_cast<float>(sum);
  }
  return out;
}

std::string resample_library() { return "built in"; }

}  // namespace carat
#endif
