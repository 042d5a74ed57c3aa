#include "serve/api/eyes.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace carat {

Eyes::Eyes(std::unique_ptr<Encoder> encoder, const Tokenizer& tokenizer, const EyesOptions& options)
    : encoder_(std::move(encoder)), options_(options), cache_(options.cache_bytes) {
  const VisionTower::Shape& s = encoder_->tower().shape();
  marks_ = soft_marks(tokenizer, s.mark, s.open, s.close);
  if (marks_.place >= 0 && tokenizer.find(s.frames.token) >= 0) {
    frame_marks_ = soft_marks(tokenizer, s.frames.token, s.frames.open, s.frames.close);
    frame_marks_.mark = s.frames.mark;
  }
  if (marks_.place < 0)
    throw Error(fmt::format("the vocabulary has no token '{}' for pictures", s.mark),
                "text works without the tower: --no-mmproj");
}

GridSize Eyes::size(int width, int height, int32_t budget) const {
  return encoder_->tower().size({width, height, {}}, budget ? budget : options_.budget);
}

int32_t Eyes::rows(std::span<const uint8_t> file, int32_t budget) {
  const PictureInfo info = decoder_.info(file);
  return size(info.width, info.height, budget).tokens;
}

// Small print that nobody can read is what users ask about most.
void Eyes::tell_small(const Picture& stored, const GridSize& grid) {
  if (stored.width <= 2 * grid.width || std::exchange(told_small_, true)) return;
  log_info(
      "a picture of {} x {} pixels is read as {} x {} ({} tokens); small print needs more: --image-tokens, "
      "or "
      "\"detail\": \"high\" in the request",
      stored.width, stored.height, grid.width, grid.height, grid.tokens);
}

SoftRows Eyes::see(std::span<const uint8_t> file, int32_t budget) {
  const ContentHash of_file = content_hash(fmt::format("file {} ", budget), file);
  if (std::vector<SoftRows> known = cache_.of_file(of_file); !known.empty()) return std::move(known.front());
  const Picture stored = decoder_.picture(file);
  const GridSize grid = size(stored.width, stored.height, budget);
  const Picture picture = resize(stored, grid.width, grid.height, options_.resize);
  SoftRows out;
  out.content =
      content_hash(fmt::format("{} rgb {} {} ", options_.tower, grid.width, grid.height), picture.rgb);
  cache_.remember(of_file, {out.content});
  const std::lock_guard lock(mutex_);
  tell_small(stored, grid);
  // Another file may show the same, and another request may have brought this one meanwhile.
  if (SoftRows known = cache_.of_content(out.content); known.values) return known;
  const VisionTower::Shape& shape = encoder_->tower().shape();
  out.values = std::make_shared<const std::vector<float>>(encoder_->encode(picture));
  out.rows = static_cast<int32_t>(out.values->size() / static_cast<size_t>(shape.dim));
  out.high = grid.height / shape.cell, out.wide = grid.width / shape.cell;
  ++encoded_;
  cache_.keep(out);
  return out;
}

uint64_t Eyes::encoded() const {
  const std::lock_guard lock(mutex_);
  return encoded_;
}

}  // namespace carat
