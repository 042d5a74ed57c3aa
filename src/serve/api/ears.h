// A served model's ears: from the files of a request's sounds to rows of its prompt. As Eyes are built; a
// sound longer than the tower hears at once is cut where it is quiet, and each piece stands by itself.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "media/decoder.h"
#include "model/sound_tower.h"
#include "serve/api/soft_cache.h"
#include "serve/api/soft_marks.h"

namespace carat {

struct EarsOptions {
  double seconds = 600;                      // of a request's sounds together
  std::string tower = {};                    // tells it from others, for texts that outlive the process
  int64_t cache_bytes = int64_t{256} << 20;  // for rows of pieces that may come again
  // A sound's file by its address, as EyesOptions::load.
  std::function<std::vector<uint8_t>(const std::string& url)> load = {};
};

// A sound before it is encoded. One that was heard lately has its rows already, and no samples.
struct Listened {
  Sound sound;
  std::vector<Piece> pieces;
  std::vector<int32_t> rows;  // of each piece
  double seconds = 0;
  ContentHash file{};
  std::vector<SoftRows> known;
};

class Ears {
 public:
  // Error if the vocabulary has no place for sound.
  Ears(std::unique_ptr<SoundEncoder> encoder, const Tokenizer& tokenizer, EarsOptions options);

  const SoftMarks& marks() const { return marks_; }
  const EarsOptions& options() const { return options_; }

  // Error if it is no sound, or longer than options().seconds.
  Listened listen(std::span<const uint8_t> file);
  // Samples of kSoundRate that are a piece: at least kSoundLeast, at most what the tower hears at once.
  Listened listen(std::vector<float> piece) const;
  std::vector<Piece> cut(const Sound& sound) const;
  // A file's samples, as listen() reads it.
  Sound decode(std::span<const uint8_t> file);

  // With values and content, one for each piece; what was heard lately is not encoded again.
  std::vector<SoftRows> hear(const Listened& sound);
  uint64_t encoded() const;  // pieces so far; those of the cache are not among them

 private:
  SoftRows encode(std::span<const float> piece);

  const std::unique_ptr<SoundEncoder> encoder_;
  const EarsOptions options_;
  SoftMarks marks_;
  Decoder decoder_;
  SoftCache cache_;
  mutable std::mutex mutex_;  // of all below, and of the encoder
  uint64_t encoded_ = 0;
};

}  // namespace carat
