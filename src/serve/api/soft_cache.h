// Rows of pictures and sounds that may come again, by what they show, and which of them a file became.
#pragma once
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "engine/soft_rows.h"

namespace carat {

using ContentHash = decltype(SoftRows::content);
// SHA-256 of `kind` and the bytes behind it.
ContentHash content_hash(std::string_view kind, std::span<const uint8_t> bytes);

// Any thread.
class SoftCache {
 public:
  explicit SoftCache(int64_t bytes) : most_bytes_(bytes) {}

  // What the file became; empty: it has not come lately, or not all of its rows are here.
  std::vector<SoftRows> of_file(const ContentHash& file);
  // Rows by their content; without values: they are not here.
  SoftRows of_content(const ContentHash& content);
  void keep(SoftRows rows);
  void remember(const ContentHash& file, std::vector<ContentHash> contents);

 private:
  struct File {
    ContentHash hash{};
    std::vector<ContentHash> contents;
  };
  SoftRows find(const ContentHash& content);  // it is the newest now

  const int64_t most_bytes_;
  std::mutex mutex_;  // of all below
  std::list<SoftRows> rows_;
  std::list<File> files_;  // newest first, both
  int64_t bytes_ = 0;
};

}  // namespace carat
