// Names of tensors, taken apart from the left.
#pragma once
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace carat {

using NamePair = std::pair<std::string_view, std::string_view>;  // theirs, ours

inline bool skip_prefix(std::string_view& s, std::string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}
// A canonical number and the dot behind it, else "layers.1." and "layers.01." would be one tensor. nullopt:
// none.
inline std::optional<int> take_number(std::string_view& s) {
  int n = -1;
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), n);
  const std::string digits(s.data(), end);
  if (ec != std::errc() || n < 0 || digits != std::to_string(n)) return std::nullopt;
  s.remove_prefix(digits.size());
  if (!skip_prefix(s, ".")) return std::nullopt;
  return n;
}

// The name of a tensor of a layer of Gemma 4's towers, from its number on: BLOCKS and the number, then what
// `whole` says, or a product with its weight or limits. nullopt: unknown.
std::optional<std::string> tower_layer_name(std::string_view name, std::string_view blocks,
                                            std::span<const NamePair> whole,
                                            std::span<const NamePair> products);

}  // namespace carat
