// Decoding apart: the same results, and files or libraries that go wrong cost one error.
#include "media/decoder.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/error.h"
#include "tests/picture_makers.h"
#include "tests/sound_makers.h"

using namespace carat;
using namespace carat::test;

namespace {

const std::string kColours("\x0a\x14\x1e\xc8\x64\0", 6);

File little_gif(int width, int height) {
  GifFrame f{0, 0, width, height, {}, -1, false, {}};
  for (int i = 0; i < width * height; ++i) f.indices.push_back(static_cast<uint8_t>(i % 3 == 0));
  return gif(width, height, kColours, {f});
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
    return "no error";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("decoder: what it reads is what is read without it") {
  Decoder decoder;
  const File file = little_gif(70, 50);
  for (int i = 0; i < 3; ++i) CHECK(decoder.picture(file).rgb == decode_picture(file).rgb);
  const PictureInfo info = decoder.info(file);
  CHECK(info.width == 70);
  CHECK(info.format == "GIF");
  const auto sound = file_of(wav(1, 1, 44'100, 16, pcm16(tone(440, 44'100, 0.5))));
  CHECK(decoder.sound(sound).samples == decode_sound(sound).samples);
  CHECK(refusal([&] { decoder.picture(bytes("%PDF-1.7")); }) == "the picture is PDF, which is not read");
  CHECK(refusal([&] { decoder.sound(bytes("nothing")); }) == "the sound is of no format that is known");
  CHECK(refusal([&] {
          decoder.picture(file, {100, 100});
        }) == "the picture has 70 x 50 = 3500 pixels, and 100 are allowed");
  CHECK(refusal([&] {
          decoder.info(little_gif(70, 50), {1000, 60});
        }) == "the picture has 70 x 50 pixels, and a side may have 60");
#ifdef CARAT_PNG
  CHECK(refusal([&] { decoder.info(png_claim(30'000, 30'000)); }).find("900000000 pixels") !=
        std::string::npos);
  CHECK(decoder.picture(png(noise(40, 30))).rgb == noise(40, 30).rgb);
#endif
#ifdef CARAT_JPEG
  const File photo = jpeg(noise(64, 48));
  CHECK(decoder.picture(photo).rgb == decode_picture(photo).rgb);
  CHECK(refusal([&] {
          decoder.picture(File(photo.begin(), photo.begin() + 500));
        }).starts_with("the JPEG picture is damaged"));
#endif
#ifdef CARAT_WEBP
  const File web = webp(16, 16, std::vector<uint8_t>(16 * 16 * 4, 200), false);
  CHECK(decoder.picture(web).rgb == decode_picture(web).rgb);
#endif
#ifdef CARAT_SNDFILE
  for (const int format : {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS,
                           SF_FORMAT_OGG | SF_FORMAT_OPUS, SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III}) {
    const auto f = encoded(format, 2, 48'000, tone(440, 96'000, 0.3));
    if (f.empty()) continue;  // libsndfile without that encoder
    CHECK(decoder.sound(f).samples == decode_sound(f).samples);
    for (const size_t n :
         {f.size() / 2, size_t{40}, size_t{5}})  // part of it or an error; libvorbis leaks on some
      refusal([&] { decoder.sound({f.data(), n}); });
    CHECK(decoder.sound(f).samples == decode_sound(f).samples);
  }
#endif
}

TEST_CASE("decoder: a process that breaks costs one error, and the next file is read") {
  DecoderLimits limits;
  limits.cpu_seconds = 0;
  Decoder decoder(limits);
  const File file = little_gif(20, 10);
  const std::vector<uint8_t> want = decode_picture(file).rgb;
  using M = Decoder::Misdeed;
  const auto broke = [&](M what, const char* said) {
    const std::string got = refusal([&] { decoder.misbehave(what); });
    CAPTURE(got);
    CHECK(got.find(said) != std::string::npos);
    CHECK(decoder.picture(file).rgb == want);
  };
  const bool whole = decoder.missing().empty();  // sanitized builds and some containers have no filter
  MESSAGE("missing: '" << decoder.missing() << "'");
  broke(M::crash, "the file broke its decoder");
  broke(M::spin, "it took more than 0 s of the processor");
  if (!whole) return;
  broke(M::crash, "it ended with signal 11");
  broke(M::allocate, "the file needs more memory");
  broke(M::open_file, "a file cannot be opened");
  broke(M::start_program, "for a call that it may not make");
  broke(M::map_code, "for a call that it may not make");
}

TEST_CASE("decoder: several threads") {
  Decoder decoder;
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const File file = little_gif(20 + t, 10);
      const std::vector<uint8_t> want = decode_picture(file).rgb;
      for (int i = 0; i < 10; ++i) right += decoder.picture(file).rgb == want;
    });
  for (std::thread& t : threads) t.join();
  CHECK(right == 40);
}
