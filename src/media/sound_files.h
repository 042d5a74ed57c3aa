// The readers behind decode_sound.
#pragma once
#include "base/error.h"
#include "media/sound.h"

namespace carat {

// A file's frames as one channel, at the file's rate.
struct Mono {
  int rate = 0;
  std::vector<float> samples;
};
// Limits on what a header may say; the number of frames only where it is known.
void check_format(std::string_view format, int64_t rate, int64_t channels);
void check_length(double seconds, const SoundLimits& limits);
[[noreturn]] void damaged_sound(std::string_view format, std::string_view why);

// false: its codec is one that is left to libsndfile.
bool read_wav(std::span<const uint8_t> bytes, const SoundLimits& limits, Mono& mono);
// By libsndfile; format is for messages.
Mono read_by_library(std::span<const uint8_t> bytes, std::string_view format, const SoundLimits& limits);
std::string sound_library();  // empty: this build has none
std::string resample_library();

}  // namespace carat
