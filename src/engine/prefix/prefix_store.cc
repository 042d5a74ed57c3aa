#include "engine/prefix/prefix_store.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
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

// Whether an unfinished file (NAME.tmp.PID) will stay so: its process has ended, or has not written for an
// hour.
bool is_abandoned(const fs::directory_entry& file) {
  std::error_code ec;
  const std::string name = file.path().filename().string();
  const long pid = std::strtol(name.c_str() + kDigits + sizeof ".kv.tmp." - 1, nullptr, 10);
  if (pid <= 0 || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)) return true;
  return fs::file_time_type::clock::now() - file.last_write_time(ec) > std::chrono::hours(1);
}

bool begins(std::span<const Token> text, const std::vector<Token>& start) {
  return start.size() <= text.size() && std::equal(start.begin(), start.end(), text.begin());
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
  for (const auto& entry : fs::directory_iterator(directory_, ec)) {
    const std::string name = entry.path().filename().string();
    if (is_ours(name) && entry.path().extension() != kSuffix && is_abandoned(entry))
      fs::remove(entry.path(), ec);
  }
  if (ec) throw Error(fmt::format("'{}' cannot be read: {}", directory_, ec.message()));
  refresh();
  shrink();
}

// What another process has saved comes in, what it has removed goes.
void PrefixStore::refresh() {
  std::error_code ec;
  const auto changed = fs::last_write_time(directory_, ec);
  if (!ec && changed == seen_) return;
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (const auto& entry : fs::directory_iterator(directory_, ec)) {
    const std::string name = entry.path().filename().string();
    if (is_ours(name) && entry.path().extension() == kSuffix)
      found.emplace_back(entry.last_write_time(ec), entry.path().string());
  }
  const auto there = [&](const std::string& path) {
    return std::any_of(found.begin(), found.end(), [&](const auto& f) { return f.second == path; });
  };
  std::erase_if(files_, [&](const File& f) { return !there(f.path); });
  std::erase_if(not_ours_, [&](const std::string& path) { return !there(path); });
  for (const auto& [time, path] : found) {
    const auto same = [&p = path](const File& f) { return f.path == p; };
    const auto known = std::find_if(files_.begin(), files_.end(), same);
    if (known != files_.end() && known->time == time) continue;
    if (known == files_.end() && std::find(not_ours_.begin(), not_ours_.end(), path) != not_ours_.end())
      continue;
    if (known != files_.end()) files_.erase(known);
    take(path, time);
  }
  std::sort(files_.begin(), files_.end(), [](const File& a, const File& b) { return a.time < b.time; });
  // Clocks of file systems are coarse: what changes in this moment might not change the time.
  constexpr std::chrono::seconds kCoarse{1};
  seen_ = fs::file_time_type::clock::now() - changed > kCoarse ? changed : fs::file_time_type{};
}

void PrefixStore::take(const std::string& path, fs::file_time_type time) {
  try {
    SavedHead head = saved_head(path);
    if (head.model == model_)
      files_.push_back({path, std::move(head.tokens), head.from, size_of(path), time});
    else
      not_ours_.push_back(path);
  } catch (const Error& e) {
    std::error_code ec;
    if (!fs::exists(path, ec)) return;  // another process has removed it meanwhile
    log_warn("{}: removed", e.what());
    fs::remove(path, ec);
  }
}

std::string PrefixStore::find(std::span<const Token> tokens, int32_t known) {
  refresh();
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
  refresh();
  for (size_t i = files_.size(); i-- > 0;)
    if (files_[i].path != path && begins(tokens, files_[i].tokens)) remove(i);
  shrink();
}

void PrefixStore::forget(std::span<const Token> tokens) {
  refresh();
  for (size_t i = files_.size(); i-- > 0;)
    if (begins(tokens, files_[i].tokens)) remove(i);
}

void PrefixStore::discard(const std::string& path, bool remove_file) {
  for (size_t i = files_.size(); i-- > 0;) {
    if (files_[i].path != path) continue;
    if (remove_file) {
      remove(i);
    } else {
      files_.erase(files_.begin() + static_cast<ptrdiff_t>(i));
      not_ours_.push_back(path);
    }
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
