#include "model/files/name_parts.h"

#include <fmt/format.h>

namespace carat {

std::optional<std::string> tower_layer_name(std::string_view name, std::string_view blocks,
                                            std::span<const NamePair> whole,
                                            std::span<const NamePair> products) {
  constexpr std::string_view kOfProduct[] = {"weight", "input_min", "input_max", "output_min", "output_max"};
  const std::optional<int> layer = take_number(name);
  if (!layer) return std::nullopt;
  for (const auto& [theirs, ours] : whole)
    if (name == theirs) return fmt::format("{}{}.{}", blocks, *layer, ours);
  for (const auto& [theirs, ours] : products) {
    std::string_view rest = name;
    if (!skip_prefix(rest, theirs)) continue;
    skip_prefix(rest, "linear.");
    for (const std::string_view part : kOfProduct)
      if (rest == part) return fmt::format("{}{}.{}{}", blocks, *layer, ours, part);
  }
  return std::nullopt;
}

}  // namespace carat
