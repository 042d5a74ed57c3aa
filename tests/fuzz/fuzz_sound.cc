// Sound: any bytes, and the features of what is heard.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "media/sound.h"

// These leak on broken files; Decoder's processes are replaced before that matters.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libvorbis\nleak:libsndfile\nleak:libFLAC\nleak:libmpg123\nleak:libopus\nleak:libogg\n";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const carat::Sound sound = carat::decode_sound({data, size}, {0.5});
    const carat::LogMel mel = carat::log_mel(sound.samples);
    if (mel.tokens() != carat::sound_tokens(sound.samples.size()) || mel.tokens() < 1) std::abort();
    if (carat::split_sound(sound.samples, 0.4).back().end != sound.samples.size()) std::abort();
  } catch (const carat::Error&) {}
  return 0;
}
