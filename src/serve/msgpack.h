// MessagePack, as far as KV events need it (github.com/msgpack/msgpack, spec.md).
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace carat {

class Msgpack {
 public:
  void array(size_t n) { head(n, 0x90, 15, 0xdc); }
  void map(size_t n) { head(n, 0x80, 15, 0xde); }
  void nil() { byte(0xc0); }
  void real(double v) { byte(0xcb), big(std::bit_cast<uint64_t>(v), 8); }
  void number(uint64_t v) {
    if (v < 128) return byte(static_cast<uint8_t>(v));
    const int log = v < 0x100 ? 0 : v < 0x10000 ? 1 : v < 0x100000000 ? 2 : 3;
    byte(static_cast<uint8_t>(0xcc + log));
    big(v, 1 << log);
  }
  void text(std::string_view s) {  // up to 65,535 bytes
    if (s.size() < 32)
      byte(static_cast<uint8_t>(0xa0 + s.size()));
    else if (s.size() < 0x100)
      byte(0xd9), big(s.size(), 1);
    else
      byte(0xda), big(s.size(), 2);
    bytes_ += s;
  }
  std::string take() { return std::move(bytes_); }

 private:
  void head(size_t n, uint8_t fixed, size_t most, uint8_t two) {
    if (n <= most) return byte(static_cast<uint8_t>(fixed + n));
    byte(n < 0x10000 ? two : static_cast<uint8_t>(two + 1));
    big(n, n < 0x10000 ? 2 : 4);
  }
  void byte(uint8_t b) { bytes_ += static_cast<char>(b); }
  void big(uint64_t v, int bytes) {
    while (bytes-- > 0) byte(static_cast<uint8_t>(v >> 8 * bytes));
  }
  std::string bytes_;
};

}  // namespace carat
