#include "serve/api/eyes.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace carat {
namespace {

std::array<uint32_t, 8> hash_of(std::string_view kind, std::span<const uint8_t> bytes) {
  std::vector<uint8_t> all(kind.begin(), kind.end());
  all.insert(all.end(), bytes.begin(), bytes.end());
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(all.data(), all.size(), digest.data());
  std::array<uint32_t, 8> out{};
  static_assert(sizeof(out) == sizeof(digest));
  std::memcpy(out.data(), digest.data(), sizeof(out));
  return out;
}

}  // namespace

Eyes::Eyes(std::unique_ptr<Encoder> encoder, const Tokenizer& tokenizer, const EyesOptions& options)
    : encoder_(std::move(encoder)), options_(options) {
  const VisionTower::Shape& s = encoder_->tower().shape();
  const auto find = [&](std::string_view mark) { return mark.empty() ? -1 : tokenizer.find(mark); };
  marks_ = {s.mark, find(s.mark), find(s.open), find(s.close)};
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

const Eyes::Seen* Eyes::find(Hash Seen::*by, const Hash& hash) {
  const auto it = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& s) { return s.*by == hash; });
  if (it == seen_.end()) return nullptr;
  seen_.splice(seen_.begin(), seen_, it);
  return &seen_.front();
}

void Eyes::keep(Seen seen) {
  bytes_ += static_cast<int64_t>(seen.values->size() * sizeof(float));
  seen_.push_front(std::move(seen));
  while (bytes_ > options_.cache_bytes && seen_.size() > 1) {
    bytes_ -= static_cast<int64_t>(seen_.back().values->size() * sizeof(float));
    seen_.pop_back();
  }
}

SoftRows Eyes::rows_of(const Seen& seen) const {
  const auto width = static_cast<size_t>(encoder_->tower().shape().dim);
  SoftRows out;
  out.rows = static_cast<int32_t>(seen.values->size() / width);
  out.values = seen.values;
  out.content = seen.content;
  out.high = seen.high, out.wide = seen.wide;
  return out;
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
  const Hash of_file = hash_of(fmt::format("file {} ", budget), file);
  {
    const std::lock_guard lock(mutex_);
    if (const Seen* known = find(&Seen::file, of_file)) return rows_of(*known);
  }
  const Picture stored = decoder_.picture(file);
  const GridSize grid = size(stored.width, stored.height, budget);
  const Picture picture = resize(stored, grid.width, grid.height, options_.resize);
  const Hash content =
      hash_of(fmt::format("{} rgb {} {} ", options_.tower, grid.width, grid.height), picture.rgb);
  const std::lock_guard lock(mutex_);
  tell_small(stored, grid);
  // Another file may show the same, and another request may have brought this one meanwhile.
  if (const Seen* known = find(&Seen::content, content)) return rows_of(*known);
  auto values = std::make_shared<const std::vector<float>>(encoder_->encode(picture));
  ++encoded_;
  const int32_t cell = encoder_->tower().shape().cell;
  keep({of_file, content, std::move(values), grid.height / cell, grid.width / cell});
  return rows_of(seen_.front());
}

uint64_t Eyes::encoded() const {
  const std::lock_guard lock(mutex_);
  return encoded_;
}

}  // namespace carat
