// FLAC, MP3, Ogg and WAV's rarer codecs by libsndfile, from memory.
#include <algorithm>
#include <cstring>
#include <memory>

#include "media/sound_files.h"
#ifdef CARAT_SNDFILE
#include <sndfile.h>

namespace carat {
namespace {

struct Memory {
  std::span<const uint8_t> bytes;
  sf_count_t at = 0;
};
sf_count_t length(void* m) { return static_cast<sf_count_t>(static_cast<Memory*>(m)->bytes.size()); }
sf_count_t tell(void* m) { return static_cast<Memory*>(m)->at; }
sf_count_t seek(sf_count_t offset, int whence, void* p) {
  auto& m = *static_cast<Memory*>(p);
  const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m.at : length(p);
  if (offset > length(p) - base || offset < -base) return -1;
  return m.at = base + offset;
}
sf_count_t read(void* to, sf_count_t n, void* p) {
  auto& m = *static_cast<Memory*>(p);
  n = std::clamp<sf_count_t>(n, 0, length(p) - m.at);
  if (n > 0) std::memcpy(to, &m.bytes[static_cast<size_t>(m.at)], static_cast<size_t>(n));
  m.at += n;
  return n;
}
sf_count_t write(const void*, sf_count_t, void*) { return 0; }

}  // namespace

Mono read_by_library(std::span<const uint8_t> bytes, std::string_view format, const SoundLimits& limits) {
  Memory memory{bytes};
  SF_VIRTUAL_IO io{length, seek, read, write, tell};
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, decltype(&sf_close)> file(sf_open_virtual(&io, SFM_READ, &info, &memory),
                                                           sf_close);
  if (!file) damaged_sound(format, sf_strerror(nullptr));
  check_format(format, info.samplerate, info.channels);
  // What a header says of the length may be unknown or false: samples are counted as they come.
  const bool known = info.frames > 0 && info.frames < SF_COUNT_MAX;
  if (known) check_length(static_cast<double>(info.frames) / info.samplerate, limits);
  constexpr sf_count_t kFrames = 4096;
  std::vector<float> block(static_cast<size_t>(kFrames * info.channels));
  Mono mono{info.samplerate, {}};
  for (;;) {
    const sf_count_t n = sf_readf_float(file.get(), block.data(), kFrames);
    if (n <= 0) break;
    const float* p = block.data();
    for (sf_count_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int c = 0; c < info.channels; ++c) sum += *p++;
      mono.samples.push_back(static_cast<float>(sum / info.channels));
    }
    check_length(static_cast<double>(mono.samples.size()) / info.samplerate, limits);
  }
  const bool lossless = (info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_FLAC;
  if (sf_error(file.get()) != SF_ERR_NO_ERROR) damaged_sound(format, sf_strerror(file.get()));
  if (lossless && known && static_cast<sf_count_t>(mono.samples.size()) < info.frames)
    damaged_sound(format, fmt::format("{} of {} samples are there", mono.samples.size(), info.frames));
  return mono;
}

std::string sound_library() { return sf_version_string(); }

}  // namespace carat
#else
namespace carat {
Mono read_by_library(std::span<const uint8_t>, std::string_view format, const SoundLimits&) {
  throw Error(fmt::format("the sound is {}, which this build does not read", format),
              "convert it to WAV, or build with libsndfile1-dev");
}
std::string sound_library() { return {}; }
}  // namespace carat
#endif
