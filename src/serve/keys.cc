#include "serve/keys.h"

#include <fmt/format.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace carat {
namespace {

constexpr size_t kMostBuckets = 100'000;

// No earlier exit at the first difference: the time must not tell how much of a key was right.
bool equal_keys(std::string_view a, std::string_view b) {
  unsigned char differs = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i)
    differs |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 1 : b[i % b.size()]));
  return differs == 0;
}

std::string digest(std::string_view text) {
  std::string out(SHA256_DIGEST_LENGTH, '\0');
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

uint64_t stamp_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return UINT64_MAX;
  return static_cast<uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000u +
         static_cast<uint64_t>(st.st_mtim.tv_nsec) + st.st_ino;
}

}  // namespace

std::vector<ApiKey> read_key_file(const std::string& path) {
  std::istringstream in(read_file(path, size_t{1} << 20));
  std::vector<ApiKey> out;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::vector<std::string> parts;
    for (std::string word; words >> word;) parts.push_back(word);
    if (parts.empty()) continue;
    if (parts.size() > 2)
      throw Error(fmt::format("line {} of '{}' has more than a name and a key", number, path),
                  "write NAME KEY, or KEY alone");
    ApiKey key{parts.size() == 2 ? parts[0] : fmt::format("line {}", number), parts.back()};
    if (std::any_of(out.begin(), out.end(), [&](const ApiKey& k) { return k.key == key.key; }))
      throw Error(fmt::format("line {} of '{}' repeats a key", number, path));
    out.push_back(std::move(key));
  }
  if (out.empty()) throw Error(fmt::format("'{}' holds no key", path), "write one per line: NAME KEY");
  return out;
}

KeyRing::KeyRing(std::vector<std::string> keys, std::string file, double per_minute)
    : fixed_(std::move(keys)), file_(std::move(file)), per_minute_(per_minute) {
  needed_ = !fixed_.empty() || !file_.empty();
  if (!file_.empty()) read_key_file(file_);  // or Error
  refresh();
}

// A file that cannot be read leaves the keys as they were.
void KeyRing::refresh() {
  if (!file_.empty() && Clock::now() - looked_ < std::chrono::seconds(1)) return;
  const bool first = looked_ == Clock::time_point{};
  looked_ = Clock::now();
  const uint64_t stamp = file_.empty() ? 0 : stamp_of(file_);
  if (stamp == stamp_) return;
  try {
    std::vector<ApiKey> all;
    for (size_t i = 0; i < fixed_.size(); ++i) all.push_back({fmt::format("key {}", i + 1), fixed_[i]});
    if (!file_.empty())
      for (ApiKey& k : read_key_file(file_)) all.push_back(std::move(k));
    keys_ = std::move(all);
    stamp_ = stamp;
    if (!first) log_info("{} keys after a change of '{}'", keys_.size(), file_);
  } catch (const std::exception& e) {
    log_error("the keys stay as they were: {}", e.what());
  }
}

std::optional<Client> KeyRing::client_of(std::string_view given) {
  const std::lock_guard lock(mutex_);
  refresh();
  const ApiKey* found = nullptr;
  for (const ApiKey& k : keys_)
    if (equal_keys(given, k.key)) found = &k;
  if (!found) return std::nullopt;
  return Client{found->name, digest("cached texts of " + found->key)};
}

double KeyRing::wait_of(const std::string& client) {
  if (per_minute_ <= 0) return 0;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const double most = std::max(1.0, per_minute_);
  if (buckets_.size() > kMostBuckets)
    std::erase_if(buckets_, [&](const auto& b) { return now - b.second.at > std::chrono::minutes(1); });
  auto [it, fresh] = buckets_.try_emplace(client, Bucket{most, now});
  Bucket& b = it->second;
  b.left = std::min(most, b.left + per_minute_ / 60 * std::chrono::duration<double>(now - b.at).count());
  b.at = now;
  if (b.left < 1) return (1 - b.left) * 60 / per_minute_;
  b.left -= 1;
  return 0;
}

uint64_t KeyRing::salt_of(std::string_view secret, std::string_view own) {
  const std::string of_client = digest(secret), of_both = digest(of_client + std::string(own));
  uint64_t salt = 0;
  std::memcpy(&salt, of_both.data(), sizeof salt);
  return std::max<uint64_t>(1, salt);
}

}  // namespace carat
