#include "measure/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/file.h"

namespace carat {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

class Hash {
 public:
  void add(std::span<const std::byte> bytes) {
    size_ += bytes.size();
    while (!bytes.empty()) {
      const size_t n = std::min(bytes.size(), block_.size() - held_);
      std::memcpy(block_.data() + held_, bytes.data(), n);
      held_ += n;
      bytes = bytes.subspan(n);
      if (held_ == block_.size()) mix(), held_ = 0;
    }
  }
  std::string hex() {
    const uint64_t bits = size_ * 8;
    constexpr std::byte one{0x80}, zero{0};
    add({&one, 1});
    while (held_ != 56) add({&zero, 1});
    std::array<std::byte, 8> end;
    for (size_t i = 0; i < 8; ++i) end[i] = static_cast<std::byte>(bits >> (56 - 8 * i));
    add(end);
    std::string text;
    for (const uint32_t w : state_) text += fmt::format("{:08x}", w);
    return text;
  }

 private:
  void mix() {
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i)
      w[i] = std::to_integer<uint32_t>(block_[4 * i]) << 24 |
             std::to_integer<uint32_t>(block_[4 * i + 1]) << 16 |
             std::to_integer<uint32_t>(block_[4 * i + 2]) << 8 | std::to_integer<uint32_t>(block_[4 * i + 3]);
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::array<uint32_t, 8> s = state_;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t e = s[4], a = s[0];
      const uint32_t t = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                         ((e & s[5]) ^ (~e & s[6])) + kRound[i] + w[i];
      const uint32_t u =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      s = {t + u, a, s[1], s[2], s[3] + t, e, s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) state_[i] += s[i];
  }

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  size_t held_ = 0, size_ = 0;
};

// Whether all of it went in.
bool add_file(Hash& hash, const std::string& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  constexpr size_t kWhole = size_t{1} << 30, kEdge = size_t{16} << 20, kPart = size_t{64} << 10;
  if (bytes.size() <= kWhole) return hash.add(bytes), true;
  const uint64_t size = bytes.size();
  hash.add(std::as_bytes(std::span(&size, 1)));
  hash.add(bytes.first(kEdge));
  for (size_t at = kEdge; at + kPart < bytes.size() - kEdge; at += kEdge) hash.add(bytes.subspan(at, kPart));
  hash.add(bytes.last(kEdge));
  return false;
}

}  // namespace

std::string sha256(std::span<const std::byte> bytes) {
  Hash hash;
  hash.add(bytes);
  return hash.hex();
}

std::string model_hash(const std::string& path) {
  namespace fs = std::filesystem;
  Hash hash;
  std::error_code ec;
  if (!fs::is_directory(path, ec)) {
    const bool whole = add_file(hash, path);
    return (whole ? "" : "sampled-") + hash.hex();
  }
  std::vector<std::string> files;
  for (const auto& e : fs::directory_iterator(path, ec))
    if (e.path().extension() == ".safetensors" || e.path().filename() == "config.json")
      files.push_back(e.path().string());
  std::sort(files.begin(), files.end());
  bool whole = true;
  for (const std::string& f : files) whole = add_file(hash, f) && whole;
  return (whole ? "" : "sampled-") + hash.hex();
}

}  // namespace carat
