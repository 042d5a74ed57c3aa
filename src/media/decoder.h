// Decoding in processes of their own: a file that breaks a library breaks one of those, costs one error, and
// the next file is read by a new process.
//
// They are this program, started again (/proc/self/exe and a hidden argument), not forks of it: a fork would
// have the models' mappings, so that no limit on memory would mean anything, and locks of threads that do not
// exist there; a new program has an empty memory, no environment but LD_LIBRARY_PATH, no file but its end of
// a socket, and can be started at any time. The main() of a program with a Decoder calls ran_inner_command()
// first.
#pragma once
#include <memory>
#include <mutex>
#include <string>

#include "media/picture.h"
#include "media/sound.h"

namespace carat {

struct DecoderLimits {
  uint64_t memory_bytes = uint64_t{1} << 30;
  int cpu_seconds = 20;  // for one file
  int wait_seconds = 120;
};

// Thread-safe: one process for pictures, one for sound, each takes one file after the other. They start with
// the first file.
class Decoder {
 public:
  explicit Decoder(const DecoderLimits& limits = {});
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // As picture_info, decode_picture and decode_sound, with one more Error: the decoder's end.
  PictureInfo info(std::span<const uint8_t> bytes, const PictureLimits& limits = {});
  Picture picture(std::span<const uint8_t> bytes, const PictureLimits& limits = {});
  Sound sound(std::span<const uint8_t> bytes, const SoundLimits& limits = {});

  // For tests: the picture's process does what a hijacked one might.
  enum class Misdeed : int { crash, spin, allocate, open_file, start_program, map_code };
  void misbehave(Misdeed what);
  // "" or what the system does not grant: processes without it are weaker.
  std::string missing() const;

 private:
  class Process;
  std::unique_ptr<Process> pictures_, sounds_;
};

}  // namespace carat
