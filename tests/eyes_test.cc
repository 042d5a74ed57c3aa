// Pictures and sounds on the command line: from their files to the logits of the reference implementation.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/eval.h"
#include "apps/eyes.h"
#include "tests/goldens.h"
#include "tests/sound_makers.h"

#ifdef CARAT_PNG
#include <png.h>
#endif

using namespace carat;
using namespace carat::test;

namespace {

class Folder {
 public:
  Folder() {
    char path[] = "/tmp/carat-eyes-XXXXXX";
    CARAT_CHECK(mkdtemp(path), "{}", path);
    path_ = path;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& bytes, const std::string& name) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
    return path_ + "/" + name;
  }
#ifdef CARAT_PNG
  std::string png(const GoldenTensor& rgb, const std::string& name) const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = static_cast<png_uint_32>(rgb.shape[1]),
    image.height = static_cast<png_uint_32>(rgb.shape[0]);
    image.format = PNG_FORMAT_RGB;
    const std::string path = path_ + "/" + name;
    REQUIRE(png_image_write_to_file(&image, path.c_str(), 0, rgb.u8.data(), 0, nullptr));
    return path;
  }
#endif

 private:
  std::string path_;
};

Opened open_golden(const std::string& name) {
  OpenOptions o;
  o.model = golden_dir(name), o.device = "cpu", o.threads = 2;
  return open_model(o);
}

#ifdef CARAT_PNG
EyesFlags pictures_of(const Goldens& g, const Folder& folder) {
  EyesFlags flags;
  flags.budget = 70;
  for (int i = 0; g.has(fmt::format("image.{}.rgb", i)); ++i)
    flags.images.push_back(folder.png(g.get(fmt::format("image.{}.rgb", i)), fmt::format("{}.png", i)));
  return flags;
}
#endif

EyesFlags sounds_of(const Goldens& g, const Folder& folder) {
  EyesFlags flags;
  for (int i = 0; g.has(fmt::format("audio.{}.pcm", i)); ++i) {
    std::string samples;
    for (const int32_t v : g.get(fmt::format("audio.{}.pcm", i)).i)
      samples += le(static_cast<uint16_t>(v), 2);
    flags.sounds.push_back(folder.file(wav(1, 1, kSoundRate, 16, samples), fmt::format("{}.wav", i)));
  }
  return flags;
}

void check_logits(const std::string& name, const std::string& file,
                  EyesFlags (*files_of)(const Goldens&, const Folder&)) {
  const Goldens g(name, file);
  const Folder folder;
  const Opened opened = open_golden(name);
  const std::vector<Token> tokens = g.get("input_ids").i;
  const Seen seen = see(opened, files_of(g, folder), tokens);
  const GoldenTensor want = g.get("logits");
  const auto n = static_cast<int32_t>(tokens.size());
  for (const int32_t chunk : {1, 7, 64, 512}) {
    CAPTURE(chunk);
    Feeder feeder(opened, chunk, KvFormats{DType::f32, DType::f32, DType::f32, DType::f32}, n, seen.soft);
    double worst = 0;
    int32_t rows = 0;
    feeder.feed(tokens, 0, [&](int32_t at, std::span<const float> z) {
      CHECK(at == rows++);
      for (size_t i = 0; i < z.size(); ++i)
        worst = std::max(worst, std::abs(double{z[i]} - want.f[static_cast<size_t>(at) * z.size() + i]));
    });
    CHECK(rows == n);
    CHECK(worst <= 2e-3);  // goldens' README
  }
}

}  // namespace

TEST_CASE("logits of a prompt with sounds, in steps of any size") {
  check_logits("gemma4_audio", "goldens_sound.safetensors", sounds_of);
}

TEST_CASE("sounds that do not fit their prompt or model are refused with what is wrong") {
  const Goldens g("gemma4_audio", "goldens_sound.safetensors");
  const Folder folder;
  const std::vector<Token> tokens = g.get("input_ids").i;
  EyesFlags flags = sounds_of(g, folder);
  CHECK_THROWS_WITH_AS(see(open_golden("gemma4_vision"), flags, tokens),
                       doctest::Contains("holds no tower for sound"), Error);
  flags.sounds.pop_back();
  const Opened opened = open_golden("gemma4_audio");
  CHECK_THROWS_WITH_AS(see(opened, flags, tokens),
                       "the tokens have 41 places of token 503, but the files become 26 rows", Error);
  flags.sounds = {folder.file("no sound", "a.wav")};
  CHECK_THROWS_WITH_AS(see(opened, flags, tokens), doctest::Contains("a.wav': the sound is of no format"),
                       Error);
  flags.closed = true;
  CHECK_THROWS_AS(see(opened, flags, tokens), Error);
}

#ifdef CARAT_PNG
TEST_CASE("logits of a prompt with pictures, in steps of any size") {
  check_logits("gemma4_vision", "goldens.safetensors", pictures_of);
  check_logits("gemma4_audio", "goldens_image.safetensors", pictures_of);
}

TEST_CASE("pictures that do not fit their prompt or model are refused with what is wrong") {
  const Goldens g("gemma4_vision");
  const Folder folder;
  const std::vector<Token> tokens = g.get("input_ids").i;
  const Opened opened = open_golden("gemma4_vision");
  EyesFlags flags = pictures_of(g, folder);
  const auto message = [&](const Opened& model, const EyesFlags& f) -> std::string {
    try {
      see(model, f, tokens);
    } catch (const Error& e) {
      return std::string(e.what()) + " " + e.hint();
    }
    return {};
  };
  CHECK(message(opened, flags) == "");
  CHECK(see(opened, {}, tokens).soft.empty());
  flags.images.pop_back();
  CHECK(message(opened, flags).find("120 places of token 500, but the files become 60 rows") !=
        std::string::npos);
  CHECK(message(open_golden("gemma4_dense"), flags).find("holds no tower") != std::string::npos);
  flags.mmproj = golden_dir("gemma4_vision");
  // Given by hand it serves: the places are still too many.
  CHECK(message(open_golden("gemma4_dense"), flags).find("120 places") != std::string::npos);
  CHECK(message(open_golden("qwen3_5"), flags).find("holds the tower") != std::string::npos);
  flags.mmproj = "", flags.images = {golden_dir("gemma4_vision") + "/config.json"};
  CHECK(message(opened, flags).find("config.json") != std::string::npos);
}
#endif
