// Sound: any bytes as WAV, and the features of what is heard. With CARAT_FUZZ_LIBRARIES in the environment
// what libsndfile reads is tried, too: its faults are its own, and Decoder keeps them apart, so they fail no
// check.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "media/sound_files.h"

// These leak on broken files; Decoder's processes are replaced before that matters.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libvorbis\nleak:libsndfile\nleak:libFLAC\nleak:libmpg123\nleak:libopus\nleak:libogg\n";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    static const bool libraries = std::getenv("CARAT_FUZZ_LIBRARIES") != nullptr;
    carat::Mono mono;
    if (!libraries && !carat::read_wav({data, size}, {0.5}, mono)) return 0;
    const carat::Sound sound = libraries ? carat::decode_sound({data, size}, {0.5})
                                         : carat::Sound{carat::resample(mono.samples, mono.rate)};
    const carat::LogMel mel = carat::log_mel(sound.samples);
    if (mel.tokens() != carat::sound_tokens(sound.samples.size()) || mel.tokens() < 1) std::abort();
    if (carat::split_sound(sound.samples, 0.4).back().end != sound.samples.size()) std::abort();
  } catch (const carat::Error&) {}
  return 0;
}
