// Gemma 4's audio front end: 20 ms frames every 10 ms, 10 ms of silence in front, periodic Hann window,
// magnitudes of 512 points, 128 HTK triangles, logarithm. In double; the reference mixes float and double,
// and agrees to its own rounding.
#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <numbers>

#include "base/error.h"
#include "media/sound.h"

namespace carat {
namespace {

constexpr int kHop = 160, kFrame = 320, kPoints = 512, kSpectrum = kPoints / 2 + 1;
constexpr double kFloor = 0.001;

double mel_of(double hz) { return 2595 * std::log10(1 + hz / 700); }
double hz_of(double mel) { return 700 * (std::pow(10, mel / 2595) - 1); }

struct Tables {
  std::array<double, kFrame> window;
  std::array<std::complex<double>, kPoints / 2> turns;
  std::array<std::array<double, kSpectrum>, LogMel::kBins> mel;
  std::array<int, LogMel::kBins> first{}, end{};  // of what is not zero in it
  Tables() {
    for (int i = 0; i < kFrame; ++i) window[i] = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / kFrame);
    for (int i = 0; i < kPoints / 2; ++i) turns[i] = std::polar(1.0, -2 * std::numbers::pi * i / kPoints);
    const double top = kSoundRate / 2.0;
    std::array<double, LogMel::kBins + 2> corner;
    for (size_t i = 0; i < corner.size(); ++i)
      corner[i] = hz_of(mel_of(top) * static_cast<double>(i) / (LogMel::kBins + 1));
    for (int b = 0; b < LogMel::kBins; ++b)
      for (int k = 0; k < kSpectrum; ++k) {
        const double hz = top * k / (kSpectrum - 1);
        const double rise = (hz - corner[b]) / (corner[b + 1] - corner[b]);
        const double fall = (corner[b + 2] - hz) / (corner[b + 2] - corner[b + 1]);
        mel[b][k] = std::max(0.0, std::min(rise, fall));
        if (mel[b][k] == 0) continue;
        if (end[b] == 0) first[b] = k;
        end[b] = k + 1;
      }
  }
};

// In place, radix 2.
void transform(std::array<std::complex<double>, kPoints>& x, const Tables& t) {
  for (size_t i = 1, j = 0; i < kPoints; ++i) {
    size_t bit = kPoints / 2;
    for (; j & bit; bit /= 2) j ^= bit;
    j |= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  for (size_t length = 2; length <= kPoints; length *= 2)
    for (size_t i = 0; i < kPoints; i += length)
      for (size_t k = 0; k < length / 2; ++k) {
        const auto a = x[i + k], b = x[i + k + length / 2] * t.turns[k * (kPoints / length)];
        x[i + k] = a + b, x[i + k + length / 2] = a - b;
      }
}

}  // namespace

// A frame is valid if the sample behind it exists: the reference cuts frames of 321 samples and drops each
// one's last.
static int frames_of(size_t samples) {
  return samples < kSoundLeast ? 0 : static_cast<int>((samples - 1) / kHop);
}

int sound_tokens(size_t samples) { return (frames_of(samples) + 3) / 4; }

LogMel log_mel(std::span<const float> samples) {
  static const Tables tables;
  if (samples.size() < kSoundLeast)
    throw Error(fmt::format("the sound has {} samples: it is shorter than 10 ms", samples.size()),
                "send more of it");
  LogMel out;
  out.frames = frames_of(samples.size());
  out.values.resize(static_cast<size_t>(out.frames) * LogMel::kBins);
  std::array<std::complex<double>, kPoints> x;
  std::array<double, kSpectrum> magnitude;
  for (int f = 0; f < out.frames; ++f) {
    x.fill(0);
    for (int i = 0; i < kFrame; ++i) {
      const int64_t at = static_cast<int64_t>(f) * kHop + i - kHop;
      if (at >= 0 && at < static_cast<int64_t>(samples.size()))
        x[i] = static_cast<double>(samples[static_cast<size_t>(at)]) * tables.window[i];
    }
    transform(x, tables);
    for (int k = 0; k < kSpectrum; ++k) magnitude[k] = std::abs(x[k]);
    for (int b = 0; b < LogMel::kBins; ++b) {
      double sum = 0;
      for (int k = tables.first[b]; k < tables.end[b]; ++k) sum += tables.mel[b][k] * magnitude[k];
      out.values[static_cast<size_t>(f) * LogMel::kBins + b] = static_cast<float>(std::log(sum + kFloor));
    }
  }
  return out;
}

}  // namespace carat
