#include "serve/api/soft_cache.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace carat {
namespace {

constexpr size_t kMostFiles = 1024;

int64_t bytes_of(const SoftRows& rows) { return static_cast<int64_t>(rows.values->size() * sizeof(float)); }

}  // namespace

ContentHash content_hash(std::string_view kind, std::span<const uint8_t> bytes) {
  std::vector<uint8_t> all(kind.begin(), kind.end());
  all.insert(all.end(), bytes.begin(), bytes.end());
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(all.data(), all.size(), digest.data());
  ContentHash out{};
  static_assert(sizeof(out) == sizeof(digest));
  std::memcpy(out.data(), digest.data(), sizeof(out));
  return out;
}

SoftRows SoftCache::find(const ContentHash& content) {
  const auto it =
      std::find_if(rows_.begin(), rows_.end(), [&](const SoftRows& r) { return r.content == content; });
  if (it == rows_.end()) return {};
  rows_.splice(rows_.begin(), rows_, it);
  return rows_.front();
}

SoftRows SoftCache::of_content(const ContentHash& content) {
  const std::lock_guard lock(mutex_);
  return find(content);
}

std::vector<SoftRows> SoftCache::of_file(const ContentHash& file) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(files_.begin(), files_.end(), [&](const File& f) { return f.hash == file; });
  if (it == files_.end()) return {};
  files_.splice(files_.begin(), files_, it);
  std::vector<SoftRows> out;
  for (const ContentHash& content : files_.front().contents) {
    out.push_back(find(content));
    if (!out.back().values) return {};
  }
  return out;
}

void SoftCache::keep(SoftRows rows) {
  const std::lock_guard lock(mutex_);
  if (find(rows.content).values) return;
  bytes_ += bytes_of(rows);
  rows_.push_front(std::move(rows));
  while (bytes_ > most_bytes_ && rows_.size() > 1) {
    bytes_ -= bytes_of(rows_.back());
    rows_.pop_back();
  }
}

void SoftCache::remember(const ContentHash& file, std::vector<ContentHash> contents) {
  const std::lock_guard lock(mutex_);
  std::erase_if(files_, [&](const File& f) { return f.hash == file; });
  files_.push_front({file, std::move(contents)});
  if (files_.size() > kMostFiles) files_.pop_back();
}

}  // namespace carat
