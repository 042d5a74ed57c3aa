// WAV (RIFF, RF64): whole numbers of 8 to 32 bits, floats, A-law and mu-law. So a build without libraries
// hears, too.
#include <algorithm>
#include <cstring>

#include "media/sound_files.h"

namespace carat {
namespace {

using Bytes = std::span<const uint8_t>;

uint64_t number(Bytes b, size_t at, int n) {
  uint64_t v = 0;
  for (int i = n; i-- > 0;) v = v << 8 | b[at + i];
  return v;
}
bool named(Bytes b, size_t at, std::string_view name) {
  return at + 4 <= b.size() && std::memcmp(&b[at], name.data(), 4) == 0;
}

enum : int { kInteger = 1, kFloat = 3, kALaw = 6, kMuLaw = 7, kExtensible = 0xFFFE };

struct Format {
  int codec = 0, channels = 0, bits = 0, rate = 0;
  size_t sample() const { return static_cast<size_t>(bits) / 8; }
};

Format read_format(Bytes chunk) {
  if (chunk.size() < 16) damaged_sound("WAV", "its format is too short");
  Format f;
  f.codec = static_cast<int>(number(chunk, 0, 2));
  f.channels = static_cast<int>(number(chunk, 2, 2));
  const uint64_t rate = number(chunk, 4, 4);
  f.bits = static_cast<int>(number(chunk, 14, 2));
  if (f.codec == kExtensible && chunk.size() >= 26) f.codec = static_cast<int>(number(chunk, 24, 2));
  check_format("WAV", static_cast<int64_t>(rate), f.channels);
  f.rate = static_cast<int>(rate);
  return f;
}

bool known(const Format& f) {
  switch (f.codec) {
    case kInteger: return f.bits == 8 || f.bits == 16 || f.bits == 24 || f.bits == 32;
    case kFloat: return f.bits == 32 || f.bits == 64;
    case kALaw:
    case kMuLaw: return f.bits == 8;
    default: return false;
  }
}

// ITU-T G.711.
float mu_law(uint8_t code) {
  code = static_cast<uint8_t>(~code);
  const int magnitude = (((code & 15) << 3) + 132) << (code >> 4 & 7);
  return static_cast<float>(code & 128 ? 132 - magnitude : magnitude - 132) / 32768;
}
float a_law(uint8_t code) {
  code ^= 0x55;
  const int step = code >> 4 & 7;
  int magnitude = ((code & 15) << 4) + 8;
  if (step > 0) magnitude = (magnitude + 256) << (step - 1);
  return static_cast<float>(code & 128 ? magnitude : -magnitude) / 32768;
}

double sample(const uint8_t* p, const Format& f) {
  const Bytes b(p, f.sample());
  if (f.codec == kMuLaw) return mu_law(*p);
  if (f.codec == kALaw) return a_law(*p);
  if (f.codec == kFloat && f.bits == 32) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
  if (f.codec == kFloat) {
    double v;
    std::memcpy(&v, p, 8);
    return v;
  }
  if (f.bits == 8) return (*p - 128) / 128.0;
  const auto high = static_cast<int32_t>(number(b, 0, f.bits / 8) << (32 - f.bits));
  return high / 2147483648.0;
}

std::vector<float> mean_of_channels(Bytes data, const Format& f) {
  const size_t frame = f.sample() * f.channels;
  std::vector<float> out(data.size() / frame);
  const uint8_t* p = data.data();
  for (float& to : out) {
    double sum = 0;
    for (int c = 0; c < f.channels; ++c, p += f.sample()) sum += sample(p, f);
    to = static_cast<float>(sum / f.channels);
  }
  return out;
}

// Sizes that programs write who do not know yet how much follows.
bool to_the_end(uint64_t size, Bytes b, size_t at) {
  return size >= 0x7FFFFFF0 || (size == 0 && at < b.size());
}

}  // namespace

bool read_wav(Bytes b, const SoundLimits& limits, Mono& mono) {
  Format format;
  for (size_t at = 12; at + 8 <= b.size();) {
    const uint64_t size = number(b, at + 4, 4);
    const size_t begin = at + 8, left = b.size() - begin;
    if (named(b, at, "data")) {
      if (!format.codec) damaged_sound("WAV", "its format is missing");
      if (!known(format)) return false;
      if (size > left && !to_the_end(size, b, begin))
        damaged_sound("WAV", fmt::format("{} of {} bytes are there", left, size));
      const size_t n = to_the_end(size, b, begin) ? left : static_cast<size_t>(size);
      const Bytes data = b.subspan(begin, n);
      check_length(static_cast<double>(n / (format.sample() * format.channels)) / format.rate, limits);
      mono = {format.rate, mean_of_channels(data, format)};
      return true;
    }
    if (size > left) break;
    if (named(b, at, "fmt ")) format = read_format(b.subspan(begin, static_cast<size_t>(size)));
    at = begin + static_cast<size_t>(size + (size & 1));
  }
  damaged_sound("WAV", "it has no samples");
}

}  // namespace carat
