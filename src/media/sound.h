// Sound: from a file's bytes to what an audio tower reads. docs/media.md says what becomes of each file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

inline constexpr int kSoundRate = 16'000;
inline constexpr int kSoundLeast = 161;  // samples: less than this gives no token

struct Sound {
  std::vector<float> samples;  // mono, kSoundRate, -1 to 1
};

struct SoundLimits {
  double seconds = 600;
};

// Error: no sound, of a format that is not read, damaged, longer than allowed or shorter than 10 ms. The
// content decides, no name or label. Channels are averaged before the rate is changed.
Sound decode_sound(std::span<const uint8_t> bytes, const SoundLimits& limits = {});

// Whether a file that begins so is one that decode_sound() takes for sound: 12 bytes tell.
bool is_sound_file(std::span<const uint8_t> beginning);

// Other rates to kSoundRate: by soxr where the build has it, else by a windowed sinc of our own.
std::vector<float> resample(std::span<const float> samples, int rate);

// Pieces of at most `seconds`, cut where the last tenth of each is quietest.
struct Piece {
  size_t begin = 0, end = 0;  // samples
};
std::vector<Piece> split_sound(std::span<const float> samples, double seconds = 30);

// Gemma 4's audio features: log of mel magnitudes, of the frames that lie in the sound. Error below
// kSoundLeast samples.
struct LogMel {
  static constexpr int kBins = 128;
  int frames = 0;
  std::vector<float> values;                       // [frames][kBins]
  int tokens() const { return (frames + 3) / 4; }  // what the tower makes of them
};
LogMel log_mel(std::span<const float> samples);
// The tokens that log_mel's frames of this many samples give, 0 below kSoundLeast.
int sound_tokens(size_t samples);

// The formats this build reads and the libraries that read them, in one line.
std::string sound_formats();

}  // namespace carat
