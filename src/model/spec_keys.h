// Reads a specification's keys, "PREFIX.KEY", each within a range: a damaged file is refused here, by name.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/files/source.h"

namespace carat {

inline constexpr const char* kSpecHint = "the file is damaged or was converted by an incompatible program";
inline constexpr int64_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxHeads = 4096, kMaxHeadDim = 4096;

// Error if a file of towers has another one than `expected` of this kind ("vision", "audio").
inline void require_projector(const WeightSource& source, const char* kind, std::string_view expected) {
  const Metadata& meta = source.meta();
  const std::string has = meta.get_string_or(fmt::format("clip.{}.projector_type", kind),
                                             meta.get_string_or("clip.projector_type", ""));
  if (has != expected)
    throw Error(fmt::format("'{}' holds the tower '{}', expected '{}'", source.path(), has, expected),
                "a tower belongs to one model: give the one that was published with it");
}

class SpecKeys {
 public:
  SpecKeys(const Metadata& meta, std::string_view prefix) : meta_(meta), prefix_(prefix) {}

  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  bool has(std::string_view key) const { return meta_.find(full(key)) != nullptr; }

  int32_t integer(std::string_view key, int64_t low, int64_t high) const {
    return ranged(key, meta_.get_int(full(key)), low, high);
  }
  int32_t integer_or(std::string_view key, int64_t value, int64_t low, int64_t high) const {
    return has(key) ? integer(key, low, high) : static_cast<int32_t>(value);
  }
  float number(std::string_view key, double low, double high) const {
    const double v = meta_.get_float(full(key));
    if (!(v >= low && v <= high))
      throw Error(fmt::format("'{}' is {:g}, expected {:g} to {:g}", full(key), v, low, high), kSpecHint);
    return static_cast<float>(v);
  }
  std::vector<int32_t> per_layer(std::string_view key, size_t layers, int64_t low, int64_t high) const {
    std::vector<int32_t> out;
    for (const int64_t v : meta_.get_ints_per_layer(full(key), layers))
      out.push_back(ranged(key, v, low, high));
    return out;
  }
  std::string text_or(std::string_view key, std::string_view value) const {
    return meta_.get_string_or(full(key), value);
  }
  // [time, height, width], of `pairs` at most.
  std::vector<int32_t> sections(std::string_view key, int32_t pairs) const {
    std::vector<int32_t> out(3);
    const MetaValue* v = meta_.find(full(key));
    const auto* all = v ? std::get_if<std::vector<int64_t>>(v) : nullptr;
    if (!all) return out;
    for (size_t i = 0; i < std::min<size_t>(3, all->size()); ++i) out[i] = ranged(key, (*all)[i], 0, pairs);
    return out;
  }
  // true = sliding.
  std::vector<bool> pattern(size_t layers) const {
    const std::string key = full("attention.sliding_window_pattern");
    const MetaValue* v = meta_.find(key);
    std::vector<bool> out;
    if (v && std::holds_alternative<std::vector<bool>>(*v)) {
      out = std::get<std::vector<bool>>(*v);
    } else if (v && std::holds_alternative<std::vector<int64_t>>(*v)) {
      for (const int64_t i : std::get<std::vector<int64_t>>(*v)) out.push_back(i != 0);
    } else {
      throw Error(fmt::format("'{}' is missing or is not an array of booleans", key), kSpecHint);
    }
    if (out.size() > layers) out.resize(layers);  // some exports count drafting layers, too
    if (out.size() != layers)
      throw Error(fmt::format("'{}' has {} entries for {} layers", key, out.size(), layers), kSpecHint);
    return out;
  }

 private:
  int32_t ranged(std::string_view key, int64_t v, int64_t low, int64_t high) const {
    if (v < low || v > high)
      throw Error(fmt::format("'{}' is {}, expected {} to {}", full(key), v, low, high), kSpecHint);
    return static_cast<int32_t>(v);
  }
  const Metadata& meta_;
  std::string prefix_;
};

}  // namespace carat
