// Sound files made for tests: WAV by hand, others by libsndfile.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "media/sound.h"
#ifdef CARAT_SNDFILE
#include <sndfile.h>
#endif

namespace carat::test {

inline std::vector<float> tone(double hz, int rate, double seconds, double level = 0.5) {
  std::vector<float> out(static_cast<size_t>(rate * seconds));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(level * std::sin(2 * std::numbers::pi * hz * static_cast<double>(i) / rate));
  return out;
}

inline std::string le(uint64_t value, int n) {
  std::string s;
  for (int i = 0; i < n; ++i) s += static_cast<char>(value >> 8 * i);
  return s;
}
// data: samples as stored. codec 1: whole numbers, 3: floats, 6 and 7: A-law, mu-law.
inline std::string wav(int codec, int channels, int rate, int bits, const std::string& data,
                       const std::string& between = {}) {
  const std::string format = le(codec, 2) + le(channels, 2) + le(rate, 4) +
                             le(rate * channels * bits / 8, 4) + le(channels * bits / 8, 2) + le(bits, 2);
  const std::string body = "WAVEfmt " + le(16, 4) + format + between + "data" + le(data.size(), 4) + data;
  return "RIFF" + le(body.size(), 4) + body;
}
inline std::string pcm16(const std::vector<float>& samples) {
  std::string s;
  for (const float v : samples) s += le(static_cast<uint16_t>(std::lround(v * 32767)), 2);
  return s;
}
inline std::vector<uint8_t> file_of(const std::string& s) { return {s.begin(), s.end()}; }

#ifdef CARAT_SNDFILE
// Interleaved samples in one of libsndfile's formats.
inline std::vector<uint8_t> encoded(int format, int channels, int rate, const std::vector<float>& samples) {
  struct Store {
    std::vector<uint8_t> bytes;
    sf_count_t at = 0;
  } store;
  SF_VIRTUAL_IO io{[](void* s) { return static_cast<sf_count_t>(static_cast<Store*>(s)->bytes.size()); },
                   [](sf_count_t offset, int whence, void* p) {
                     auto& s = *static_cast<Store*>(p);
                     const auto size = static_cast<sf_count_t>(s.bytes.size());
                     return s.at = offset + (whence == SEEK_SET ? 0 : whence == SEEK_CUR ? s.at : size);
                   },
                   [](void* to, sf_count_t n, void* p) {
                     auto& s = *static_cast<Store*>(p);
                     n = std::min(n, static_cast<sf_count_t>(s.bytes.size()) - s.at);
                     if (n > 0) std::memcpy(to, &s.bytes[static_cast<size_t>(s.at)], static_cast<size_t>(n));
                     s.at += n;
                     return n;
                   },
                   [](const void* from, sf_count_t n, void* p) {
                     auto& s = *static_cast<Store*>(p);
                     s.bytes.resize(std::max(s.bytes.size(), static_cast<size_t>(s.at + n)));
                     std::memcpy(&s.bytes[static_cast<size_t>(s.at)], from, static_cast<size_t>(n));
                     s.at += n;
                     return n;
                   },
                   [](void* s) { return static_cast<Store*>(s)->at; }};
  SF_INFO info{};
  info.format = format, info.channels = channels, info.samplerate = rate;
  SNDFILE* file = sf_open_virtual(&io, SFM_WRITE, &info, &store);
  if (!file) return {};
  sf_writef_float(file, samples.data(), static_cast<sf_count_t>(samples.size()) / channels);
  sf_close(file);
  return store.bytes;
}
#endif

}  // namespace carat::test
