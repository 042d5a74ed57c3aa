// Sound files, each with its outcome, and the features against the reference's (tests/data/media).
#include "media/sound.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "tests/sound_makers.h"

using namespace carat;
using namespace carat::test;

namespace {

template <class T>
std::vector<T> stored(const std::string& name) {
  const MappedFile file(std::string(CARAT_TEST_DATA) + "/media/" + name);
  std::vector<T> out(file.bytes().size() / sizeof(T));
  std::memcpy(out.data(), file.bytes().data(), out.size() * sizeof(T));
  return out;
}

std::string refusal(const std::vector<uint8_t>& file, const SoundLimits& limits = {}) {
  try {
    return fmt::format("heard: {}", decode_sound(file, limits).samples.size());
  } catch (const Error& e) {
    CHECK(!e.hint().empty());
    return e.what();
  }
}

// How far b is from a, against a's own power, in the middle, away from edges. dB.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double power = 0, error = 0;
  for (size_t i = a.size() / 4; i < std::min(a.size() * 3 / 4, b.size()); ++i)
    power += a[i] * a[i], error += (a[i] - b[i]) * (a[i] - b[i]);
  return 10 * std::log10(error / power + 1e-30);
}
double level(const std::vector<float>& a) {
  double power = 0;
  for (size_t i = a.size() / 4; i < a.size() * 3 / 4; ++i) power += a[i] * a[i];
  return 10 * std::log10(power / (static_cast<double>(a.size()) / 2) + 1e-30);
}

}  // namespace

TEST_CASE("sound: the features are the reference's") {
  const auto want = stored<float>("audio_features.f32");  // [2][102][128]
  constexpr int kFrames = 102;
  const int valid[] = {101, 60}, tokens[] = {26, 15};
  double most = 0;
  for (const float v : want) most = std::max(most, std::abs(double{v}));
  for (int clip = 0; clip < 2; ++clip) {
    const auto pcm = stored<int16_t>(fmt::format("audio_{}.pcm", clip));
    std::vector<float> samples(pcm.begin(), pcm.end());
    for (float& s : samples) s /= 32768;
    const LogMel got = log_mel(samples);
    CHECK(got.frames == valid[clip]);
    CHECK(got.tokens() == tokens[clip]);
    CHECK(sound_tokens(samples.size()) == tokens[clip]);
    double worst = 0;
    for (int f = 0; f < got.frames; ++f)
      for (int b = 0; b < LogMel::kBins; ++b)
        worst = std::max(worst, std::abs(double{got.values[f * LogMel::kBins + b]} -
                                         want[(clip * kFrames + f) * LogMel::kBins + b]));
    MESSAGE("largest difference " << worst << " of " << most);
    CHECK(worst <= 2e-4 * most);
  }
}

TEST_CASE("sound: tokens of so many samples") {
  struct Row {
    size_t samples;
    int frames, tokens;
  };
  for (const Row& r : {Row{161, 1, 1},
                       {320, 1, 1},
                       {321, 2, 1},
                       {640, 3, 1},
                       {641, 4, 1},
                       {801, 5, 2},
                       {16'000, 99, 25},
                       {32'000, 199, 50},
                       {80'000, 499, 125},
                       {160'000, 999, 250},
                       {480'000, 2999, 750}}) {
    CAPTURE(r.samples);
    CHECK(sound_tokens(r.samples) == r.tokens);
    if (r.samples > 32'000) continue;
    const LogMel mel = log_mel(std::vector<float>(r.samples));
    CHECK(mel.frames == r.frames);
    CHECK(mel.tokens() == r.tokens);
    CHECK(mel.values[0] == doctest::Approx(std::log(0.001)));  // silence
  }
  for (const size_t none : {0, 1, 160}) {
    CHECK(sound_tokens(none) == 0);
    CHECK_THROWS_WITH(log_mel(std::vector<float>(none)), doctest::Contains("shorter than 10 ms"));
  }
}

TEST_CASE("sound: long ones are cut where they are quiet") {
  CHECK(split_sound(std::vector<float>(480'000)).size() == 1);
  const auto two = split_sound(std::vector<float>(480'001));
  REQUIRE(two.size() == 2);
  CHECK(two[1].end - two[1].begin >= kSoundLeast);
  std::vector<float> speech = tone(300, kSoundRate, 100);
  const size_t pauses[] = {28 * 16'000, 55 * 16'000 + 777, 84 * 16'000};
  for (const size_t at : pauses) std::fill_n(speech.begin() + static_cast<ptrdiff_t>(at), 800, 0.0f);
  const auto pieces = split_sound(speech);
  REQUIRE(pieces.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(pieces[i].end - pieces[i].begin <= 480'000);
    CHECK(pieces[i].begin == (i ? pieces[i - 1].end : 0));
    if (i == 3) break;
    CHECK(pieces[i].end >= pauses[i]);
    CHECK(pieces[i].end <= pauses[i] + 800);
  }
  CHECK(pieces[3].end == speech.size());
}

TEST_CASE("sound: WAV of every kind") {
  const std::vector<float> want = tone(440, kSoundRate, 0.5);
  const auto near = [&](const std::string& file, double db) {
    const Sound got = decode_sound(file_of(file));
    CHECK(got.samples.size() == want.size());
    CHECK(distance(want, got.samples) < db);
  };
  near(wav(1, 1, 16'000, 16, pcm16(want)), -80);
  near(wav(1, 1, 16'000, 16, pcm16(want), "LIST" + le(3, 4) + "abc" + std::string(1, '\0')), -80);
  std::string b8, b24, b32, f32, f64, stereo;
  for (const float v : want) {
    b8 += static_cast<char>(std::lround(v * 127) + 128);
    b24 += le(static_cast<uint32_t>(std::lround(v * 8388607)), 3);
    b32 += le(static_cast<uint32_t>(std::lround(double{v} * 2147483647)), 4);
    const double d = v;
    f32.append(reinterpret_cast<const char*>(&v), 4);
    f64.append(reinterpret_cast<const char*>(&d), 8);
    stereo += pcm16({v * 1.5f, v * 0.5f});  // their mean
  }
  near(wav(1, 1, 16'000, 8, b8), -35);
  near(wav(1, 1, 16'000, 24, b24), -120);
  near(wav(1, 1, 16'000, 32, b32), -120);
  near(wav(3, 1, 16'000, 32, f32), -200);
  near(wav(3, 1, 16'000, 64, f64), -200);
  near(wav(1, 2, 16'000, 16, stereo), -80);
  std::string streamed = wav(1, 1, 16'000, 16, pcm16(want));  // by a program that does not know its end
  for (const size_t at : {size_t{4}, size_t{40}}) streamed.replace(at, 4, "\xff\xff\xff\xff");
  near(streamed, -80);
  streamed.replace(40, 4, std::string(4, '\0'));
  near(streamed, -80);
  std::string extensible = wav(1, 1, 16'000, 16, pcm16(want));
  extensible.replace(20, 2, "\xfe\xff");
  extensible.replace(16, 4, le(40, 4));
  extensible.insert(36, le(22, 2) + le(16, 2) + le(4, 4) + le(1, 2) + std::string(14, 'x'));
  near(extensible, -80);
}

TEST_CASE("sound: G.711") {
  // Loudest and softest codes of the recommendation's tables, of 32,768.
  const auto value = [](int codec, uint8_t code) {
    const std::string data(200, static_cast<char>(code));
    return std::lround(decode_sound(file_of(wav(codec, 1, 16'000, 8, data))).samples[0] * 32768);
  };
  CHECK(value(7, 0x00) == -32124);
  CHECK(value(7, 0x80) == 32124);
  CHECK(value(7, 0xff) == 0);
  CHECK(value(7, 0xf0) == 120);
  CHECK(value(6, 0xd5) == 8);
  CHECK(value(6, 0x55) == -8);
  CHECK(value(6, 0xaa) == 32256);
  CHECK(value(6, 0x2a) == -32256);
}

TEST_CASE("sound: other rates") {
  const std::vector<float> want = tone(440, kSoundRate, 1);
  for (const int rate : {8'000, 11'025, 22'050, 24'000, 44'100, 48'000, 96'000}) {
    CAPTURE(rate);
    const std::vector<float> got = resample(tone(440, rate, 1), rate);
    CHECK(got.size() >= want.size() - 1);
    CHECK(got.size() <= want.size() + 1);
    CHECK(distance(want, got) < -70);
  }
  CHECK(level(resample(tone(10'000, 44'100, 1), 44'100)) < -80);  // beyond what 16 kHz can hold
  const std::vector<float> whole = tone(440, 44'100, 1);
  CHECK(refusal(file_of(wav(1, 1, 44'100, 16, pcm16(whole)))) == "heard: 16000");
}

TEST_CASE("sound: files that are broken, too long or too short") {
  const std::string whole = wav(1, 1, 16'000, 16, pcm16(tone(440, 16'000, 0.1)));
  CHECK(refusal(file_of(whole)) == "heard: 1600");
  CHECK(refusal(file_of(whole.substr(0, 1000))) ==
        "the WAV sound is damaged or ends too early: 956 of 3200 bytes are there");
  for (const size_t n : {12, 20, 36, 43})
    CHECK(refusal(file_of(whole.substr(0, n))).starts_with("the WAV sound is damaged"));
  CHECK(refusal(file_of(wav(1, 0, 16'000, 16, "abcd"))).find("0 channels") != std::string::npos);
  CHECK(refusal(file_of(wav(1, 1, 10, 16, "abcd"))).find("a rate of 10 Hz") != std::string::npos);
  CHECK(refusal(file_of(wav(1, 1, 16'000, 16, pcm16(tone(440, 16'000, 0.01))))) ==
        "the sound is shorter than 10 ms: 160 samples of 16000 Hz");
  CHECK(refusal(file_of(whole), {0.05}) ==
        "the sound is longer than the 0.05 s that are allowed: 0.1 s or more");
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::string nan(4 * 400, '\0');
  std::memcpy(nan.data() + 80, &bad, 4);
  CHECK(refusal(file_of(wav(3, 1, 16'000, 32, nan))) == "the sound has samples that are no numbers");
  using namespace std::string_literals;
  const std::pair<std::string, std::string> foreign[] = {
      {"\0\0\0\x1c"
       "ftypM4A "s,
       "M4A"},
      {"\x1a\x45\xdf\xa3"s, "WebM"},
      {"FORM\0\0\0\0AIFF"s, "AIFF"},
      {"#!AMR\n"s, "AMR"},
      {"\xff\xf1\x50\x80"s, "AAC"},
      {"MThd"s, "MIDI"},
      {"<html>"s, "web page"},
  };
  for (const auto& [start, name] : foreign) {
    const std::string said = refusal(file_of(start + std::string(64, 'x')));
    CAPTURE(said);
    CHECK(said.find(name) != std::string::npos);
    CHECK(said.find("is not read") != std::string::npos);
  }
  CHECK(refusal({}) == "the sound is empty");
  CHECK(refusal(file_of("some words")) == "the sound is of no format that is known");
}

#ifdef CARAT_SNDFILE
TEST_CASE("sound: FLAC, MP3, Ogg and rare codecs") {
  const std::vector<float> want = tone(440, kSoundRate, 1);
  struct Case {
    const char* name;
    int format;
    double db;  // how near the tone comes back
  };
  const Case cases[] = {{"FLAC", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, -80},
                        {"Vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS, -15},
                        {"Opus", SF_FORMAT_OGG | SF_FORMAT_OPUS, -10},
                        {"MP3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, -15},
                        {"ADPCM", SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, -20}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const auto file = encoded(c.format, 1, kSoundRate, want);
    if (file.empty()) continue;  // libsndfile without that encoder
    const Sound got = decode_sound(file);
    CHECK(got.samples.size() >= want.size());
    CHECK(got.samples.size() < want.size() + 3000);
    CHECK(distance(want, got.samples) < c.db);
    CHECK(refusal(file, {0.5}).starts_with("the sound is longer than the 0.5 s"));
    if (c.db > -70) continue;  // the others do not know their length; and see decoder_test.cc
    for (const size_t n : {file.size() / 2, size_t{40}, size_t{5}})
      CHECK(refusal({file.begin(), file.begin() + static_cast<ptrdiff_t>(n)})
                .starts_with("the FLAC sound is damaged"));
  }
  std::vector<float> two;
  for (const float v : tone(440, 48'000, 1)) two.insert(two.end(), {v * 1.5f, v * 0.5f});
  CHECK(distance(want, decode_sound(encoded(SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 2, 48'000, two)).samples) <
        -70);
}
#endif
