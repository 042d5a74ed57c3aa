// A served model's eyes: from the files of a request's pictures to rows of its prompt. Files are read in a
// process of their own (media/decoder.h), the tower runs on a backend of its own, so that what others are
// told goes on meanwhile. Any thread; one picture is encoded at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "media/decoder.h"
#include "model/tower.h"
#include "serve/api/soft_cache.h"
#include "serve/api/soft_marks.h"

namespace carat {

struct EyesOptions {
  int32_t budget = 0;     // rows of a picture where a request does not say; 0: the tower's usual
  int32_t most_rows = 0;  // of a picture, whatever a request says; 0: any
  Resize resize = Resize::torch;
  std::string tower = {};                    // tells it from others, for texts that outlive the process
  int64_t cache_bytes = int64_t{256} << 20;  // for rows of pictures that may come again
  // A picture's file by its address, from the hosts that the server's owner names; none: there are no such.
  std::function<std::vector<uint8_t>(const std::string& url)> load = {};
};

class Eyes {
 public:
  // Error if the vocabulary has no place for pictures.
  Eyes(std::unique_ptr<Encoder> encoder, const Tokenizer& tokenizer, const EyesOptions& options);

  const SoftMarks& marks() const { return marks_; }
  // Of a video, and of each of its frames. mark: empty: the model knows none.
  const SoftMarks& frame_marks() const { return frame_marks_; }
  const VisionTower::Shape& shape() const { return encoder_->tower().shape(); }
  const EyesOptions& options() const { return options_; }

  // Rows that a picture will be, by its header alone. budget: 0: the default.
  int32_t rows(std::span<const uint8_t> file, int32_t budget);
  // With values and content; a picture that was seen lately is not encoded again. Error if it is none.
  SoftRows see(std::span<const uint8_t> file, int32_t budget);
  uint64_t encoded() const;  // pictures so far; those of the cache are not among them

 private:
  void tell_small(const Picture& stored, const GridSize& grid);
  GridSize size(int width, int height, int32_t budget) const;

  const std::unique_ptr<Encoder> encoder_;
  const EyesOptions options_;
  SoftMarks marks_, frame_marks_;
  Decoder decoder_;
  SoftCache cache_;
  mutable std::mutex mutex_;  // of all below, and of the encoder
  uint64_t encoded_ = 0;
  bool told_small_ = false;
};

}  // namespace carat
