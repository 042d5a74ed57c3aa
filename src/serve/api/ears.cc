#include "serve/api/ears.h"

#include <utility>

#include "base/error.h"

namespace carat {
namespace {

constexpr double kRowSeconds = 0.04;

std::span<const uint8_t> bytes_of(std::span<const float> samples) {
  return {reinterpret_cast<const uint8_t*>(samples.data()), samples.size_bytes()};
}

}  // namespace

Ears::Ears(std::unique_ptr<SoundEncoder> encoder, const Tokenizer& tokenizer, EarsOptions options)
    : encoder_(std::move(encoder)), options_(std::move(options)), cache_(options_.cache_bytes) {
  const SoundTower::Shape& s = encoder_->tower().shape();
  marks_ = soft_marks(tokenizer, s.mark, s.open, s.close);
  if (marks_.place < 0)
    throw Error(fmt::format("the vocabulary has no token '{}' for sound", s.mark),
                "text works without the tower: --no-mmproj");
}

std::vector<Piece> Ears::cut(const Sound& sound) const {
  return split_sound(sound.samples, encoder_->tower().shape().seconds);
}

Sound Ears::decode(std::span<const uint8_t> file) {
  return decoder_.sound(file, {.seconds = options_.seconds});
}

Listened Ears::listen(std::span<const uint8_t> file) {
  Listened out;
  out.file = content_hash("file ", file);
  out.known = cache_.of_file(out.file);
  for (const SoftRows& s : out.known) {
    out.rows.push_back(s.rows);
    out.seconds += kRowSeconds * s.rows;
  }
  if (!out.known.empty()) return out;
  out.sound = decode(file);
  out.pieces = cut(out.sound);
  out.seconds = static_cast<double>(out.sound.samples.size()) / kSoundRate;
  for (const Piece& p : out.pieces) out.rows.push_back(encoder_->tower().rows(p.end - p.begin));
  return out;
}

Listened Ears::listen(std::vector<float> piece) const {
  Listened out;
  out.file = content_hash("piece ", bytes_of(piece));
  out.pieces = {{0, piece.size()}};
  out.seconds = static_cast<double>(piece.size()) / kSoundRate;
  out.rows = {encoder_->tower().rows(piece.size())};
  out.sound.samples = std::move(piece);
  return out;
}

SoftRows Ears::encode(std::span<const float> piece) {
  SoftRows out;
  out.heard = true;
  out.content = content_hash(options_.tower + " pcm ", bytes_of(piece));
  const std::lock_guard lock(mutex_);  // a piece at a time: other requests' come between
  if (SoftRows known = cache_.of_content(out.content); known.values) return known;
  out.values = std::make_shared<const std::vector<float>>(encoder_->encode(piece));
  out.rows = static_cast<int32_t>(out.values->size() / static_cast<size_t>(encoder_->tower().shape().dim));
  out.high = 1, out.wide = out.rows;
  ++encoded_;
  cache_.keep(out);
  return out;
}

std::vector<SoftRows> Ears::hear(const Listened& sound) {
  if (!sound.known.empty()) return sound.known;
  std::vector<SoftRows> out;
  std::vector<ContentHash> contents;
  for (const Piece& p : sound.pieces) {
    out.push_back(encode(std::span(sound.sound.samples).subspan(p.begin, p.end - p.begin)));
    contents.push_back(out.back().content);
  }
  cache_.remember(sound.file, std::move(contents));
  return out;
}

uint64_t Ears::encoded() const {
  const std::lock_guard lock(mutex_);
  return encoded_;
}

}  // namespace carat
