#include "media/sound.h"

#include <algorithm>
#include <cmath>

#include "base/file_kind.h"
#include "media/sound_files.h"

namespace carat {
namespace {

using Bytes = std::span<const uint8_t>;
using namespace std::string_view_literals;

struct Start {
  std::string_view bytes;
  size_t at;
  std::string_view name;
};
constexpr Start kRead[] = {{"fLaC"sv, 0, "FLAC"}, {"OggS"sv, 0, "Ogg"}, {"ID3"sv, 0, "MP3"}};
constexpr Start kForeign[] = {
    {"ftyp"sv, 4, "MP4 or M4A (AAC)"},
    {"\x1a\x45\xdf\xa3"sv, 0, "WebM"},
    {"FORM"sv, 0, "AIFF"},
    {"caff"sv, 0, "CAF"},
    {"#!AMR"sv, 0, "AMR"},
    {"\x30\x26\xb2\x75"sv, 0, "WMA"},
    {"MThd"sv, 0, "MIDI"},
    {".snd"sv, 0, "AU"},
    {"wvpk"sv, 0, "WavPack"},
    {"MAC "sv, 0, "Monkey's Audio"},
};

bool starts(Bytes b, const Start& s) {
  if (b.size() < s.at + s.bytes.size()) return false;
  return std::equal(s.bytes.begin(), s.bytes.end(), b.begin() + static_cast<ptrdiff_t>(s.at),
                    [](char a, uint8_t c) { return static_cast<uint8_t>(a) == c; });
}
// Frames of MPEG audio begin with eleven ones, version and layer; a layer of 0 is AAC's.
bool mpeg_frame(Bytes b) {
  return b.size() > 2 && b[0] == 0xFF && (b[1] & 0xE0) == 0xE0 && (b[1] & 0x18) != 0x08;
}

[[noreturn]] void refuse(Bytes b) {
  constexpr std::string_view kConvert = "convert it to WAV, FLAC, MP3 or Ogg";
  if (b.empty()) throw Error("the sound is empty", "send the file's bytes");
  std::string_view name;
  for (const Start& s : kForeign)
    if (starts(b, s)) name = s.name;
  if (mpeg_frame(b)) name = "AAC";
  if (name.empty())
    if (const FileKind* kind =
            foreign_kind(std::string_view(reinterpret_cast<const char*>(b.data()), b.size())))
      name = kind->is;
  if (name.empty()) throw Error("the sound is of no format that is known", std::string(kConvert));
  throw Error(fmt::format("the sound is {}, which is not read", name), std::string(kConvert));
}

bool is_wav(Bytes b) {
  return (starts(b, {"RIFF"sv, 0, {}}) || starts(b, {"RF64"sv, 0, {}})) && starts(b, {"WAVE"sv, 8, {}});
}
bool is_mp3(Bytes b) { return mpeg_frame(b) && (b[1] & 0x06) != 0; }

Mono read(Bytes b, const SoundLimits& limits) {
  if (is_wav(b)) {
    Mono mono;
    return read_wav(b, limits, mono) ? mono : read_by_library(b, "WAV of a rare codec", limits);
  }
  for (const Start& s : kRead)
    if (starts(b, s)) return read_by_library(b, s.name, limits);
  if (is_mp3(b)) return read_by_library(b, "MP3", limits);
  refuse(b);
}

}  // namespace

void check_format(std::string_view format, int64_t rate, int64_t channels) {
  constexpr int64_t kSlowest = 1'000, kFastest = 768'000, kMostChannels = 64;
  if (rate < kSlowest || rate > kFastest)
    damaged_sound(format, fmt::format("a rate of {} Hz, where {} to {} are read", rate, kSlowest, kFastest));
  if (channels < 1 || channels > kMostChannels)
    damaged_sound(format, fmt::format("{} channels, where 1 to {} are read", channels, kMostChannels));
}

void check_length(double seconds, const SoundLimits& limits) {
  if (seconds > limits.seconds)
    throw Error(fmt::format("the sound is longer than the {} s that are allowed{}", limits.seconds,
                            seconds < 1e7 ? fmt::format(": {:.1f} s or more", seconds) : ""),
                "send a part of it; carat serve --audio-max-seconds allows more");
}

void damaged_sound(std::string_view format, std::string_view why) {
  throw Error(fmt::format("the {} sound is damaged or ends too early: {}", format, why),
              "send the whole file, or save it again with another program");
}

bool is_sound_file(Bytes b) {
  return is_wav(b) || is_mp3(b) ||
         std::any_of(std::begin(kRead), std::end(kRead), [&](const Start& s) { return starts(b, s); });
}

Sound decode_sound(Bytes bytes, const SoundLimits& limits) {
  const Mono mono = read(bytes, limits);
  Sound sound{resample(mono.samples, mono.rate)};
  if (sound.samples.size() < kSoundLeast)
    throw Error(
        fmt::format("the sound is shorter than 10 ms: {} samples of {} Hz", mono.samples.size(), mono.rate),
        "send more of it");
  for (float& s : sound.samples)
    if (!std::isfinite(s))
      throw Error("the sound has samples that are no numbers", "save it again with another program");
  return sound;
}

std::vector<Piece> split_sound(std::span<const float> samples, double seconds) {
  constexpr size_t kStep = kSoundRate / 100, kQuiet = 2 * kStep;  // 20 ms, every 10 ms
  const auto most = static_cast<size_t>(seconds * kSoundRate);
  CARAT_CHECK(most >= 20 * kQuiet, "{}", seconds);
  std::vector<Piece> pieces;
  size_t begin = 0;
  while (samples.size() - begin > most) {
    size_t cut = begin + most;
    double quietest = -1;
    for (size_t at = begin + most - most / 10; at + kQuiet <= begin + most; at += kStep) {
      double energy = 0;
      for (size_t i = at; i < at + kQuiet; ++i) energy += static_cast<double>(samples[i]) * samples[i];
      if (quietest < 0 || energy <= quietest) quietest = energy, cut = at + kQuiet / 2;
    }
    pieces.push_back({begin, cut});
    begin = cut;  // the rest has more than half of kQuiet: kSoundLeast at least
  }
  pieces.push_back({begin, samples.size()});
  return pieces;
}

std::string sound_formats() {
  const std::string library = sound_library();
  return fmt::format(
      "WAV{}; resampled by {}",
      library.empty() ? "; not in this build: FLAC, MP3, Ogg" : ", FLAC, MP3, Ogg (" + library + ")",
      resample_library());
}

}  // namespace carat
