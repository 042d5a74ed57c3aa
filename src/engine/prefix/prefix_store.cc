#include "engine/prefix/prefix_store.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "state/snapshot.h"

namespace carat {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".kv";
constexpr size_t kDigits = 32;

// Whether a file is one of ours, or half of one: other people's files are left alone.
bool is_ours(std::string_view name) {
  const std::string_view end = name.substr(std::min(name.size(), kDigits));
  return name.find_first_not_of("0123456789abcdef") == kDigits && end.starts_with(kSuffix) &&
         (end == kSuffix || end.starts_with(".kv.tmp."));
}

int64_t size_of(const std::string& path) {
  std::error_code ec;
  const auto n = fs::file_size(path, ec);
  return ec ? 0 : static_cast<int64_t>(n);
}

}  // namespace

PrefixStore::PrefixStore(std::string directory, std::string model, int64_t most_bytes)
    : directory_(std::move(directory)), model_(std::move(model)), most_bytes_(most_bytes) {
  std::error_code ec;
  fs::create_directories(directory_, ec);
  if (!fs::is_directory(directory_))
    throw Error(fmt::format("'{}' is no directory that can be used", directory_),
                "choose another --prefix-cache-dir");
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (const auto& entry : fs::directory_iterator(directory_, ec)) {
    const std::string name = entry.path().filename().string();
    if (!is_ours(name)) continue;
    if (entry.path().extension() != kSuffix)
      fs::remove(entry.path(), ec);
    else
      found.emplace_back(entry.last_write_time(ec), entry.path().string());
  }
  if (ec) throw Error(fmt::format("'{}' cannot be read: {}", directory_, ec.message()));
  std::sort(found.begin(), found.end());
  for (auto& [time, path] : found) {
    try {
      SavedHead head = saved_head(path);
      if (head.model == model_) files_.push_back({path, std::move(head.tokens), head.from, size_of(path)});
    } catch (const Error& e) {
      log_warn("{}: removed", e.what());
      fs::remove(path, ec);
    }
  }
  shrink();
}

std::string PrefixStore::find(std::span<const Token> tokens, int32_t known) const {
  const File* best = nullptr;
  for (const File& f : files_) {
    const auto n =
        std::mismatch(tokens.begin(), tokens.end(), f.tokens.begin(), f.tokens.end()).first - tokens.begin();
    if (n <= known || n < f.from) continue;
    known = static_cast<int32_t>(n);
    best = &f;
  }
  return best ? best->path : "";
}

std::string PrefixStore::path_of(std::span<const Token> tokens) const {
  uint64_t a = 0xcbf29ce484222325, b = 0x9e3779b97f4a7c15;
  for (const Token t : tokens) {
    a = (a ^ static_cast<uint32_t>(t)) * 0x100000001b3;
    b = (b + static_cast<uint32_t>(t)) * 0xff51afd7ed558ccd;
  }
  return fmt::format("{}/{:016x}{:016x}{}", directory_, a, b, kSuffix);
}

void PrefixStore::saved(std::span<const Token> tokens) {
  const std::string path = path_of(tokens);
  std::erase_if(files_, [&](const File& f) { return f.path == path; });
  forget(tokens);
  try {
    SavedHead head = saved_head(path);
    files_.push_back({path, std::move(head.tokens), head.from, size_of(path)});
  } catch (const Error& e) {
    log_warn("{}", e.what());
  }
  shrink();
}

void PrefixStore::forget(std::span<const Token> tokens) {
  for (size_t i = files_.size(); i-- > 0;) {
    const auto& t = files_[i].tokens;
    if (t.size() <= tokens.size() && std::equal(t.begin(), t.end(), tokens.begin())) remove(i);
  }
}

void PrefixStore::discard(const std::string& path, bool remove_file) {
  for (size_t i = files_.size(); i-- > 0;) {
    if (files_[i].path != path) continue;
    if (remove_file)
      remove(i);
    else
      files_.erase(files_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void PrefixStore::remove(size_t i) {
  std::error_code ec;
  fs::remove(files_[i].path, ec);
  files_.erase(files_.begin() + static_cast<ptrdiff_t>(i));
}

void PrefixStore::shrink() {
  int64_t bytes = 0;
  for (const File& f : files_) bytes += f.bytes;
  while (bytes > most_bytes_ && !files_.empty()) {
    bytes -= files_.front().bytes;
    remove(0);
  }
}

}  // namespace carat
