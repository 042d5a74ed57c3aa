// Files as requests carry them: data: URLs, or base64 alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

inline constexpr size_t kMostFileBytes = 20 << 20;

// White space and the alphabet of URLs (- and _) are taken, padding may be missing; Error for all else.
std::vector<uint8_t> decode_base64(std::string_view text, size_t most_bytes = kMostFileBytes);

std::string encode_base64(std::span<const uint8_t> bytes);

// "data:TYPE;base64,..." or base64 alone. What TYPE says is not looked at: the content decides. Error for
// addresses of other kinds.
std::vector<uint8_t> file_of_request(std::string_view value, size_t most_bytes = kMostFileBytes);

}  // namespace carat
