#include "engine/soft_rows.h"

#include <algorithm>

#include "base/error.h"

namespace carat {

const SoftRows* soft_at(std::span<const SoftRows> all, int32_t place) {
  const auto before = [](int32_t at, const SoftRows& s) { return at < s.end(); };
  const auto it = std::upper_bound(all.begin(), all.end(), place, before);
  return it != all.end() && it->begin <= place ? &*it : nullptr;
}

std::vector<const float*> soft_in(std::span<const SoftRows> all, int32_t from, int32_t n) {
  std::vector<const float*> out;
  for (const SoftRows& s : all) {
    const size_t width = s.values->size() / static_cast<size_t>(s.rows);
    for (int32_t at = std::max(from, s.begin); at < std::min(from + n, s.end()); ++at) {
      out.resize(static_cast<size_t>(n), nullptr);
      out[static_cast<size_t>(at - from)] = s.values->data() + static_cast<size_t>(at - s.begin) * width;
    }
  }
  return out;
}

std::vector<int32_t> places_of(std::span<const SoftRows> all, std::span<const int32_t> positions) {
  std::vector<int32_t> out;
  for (const int32_t position : positions) {
    int32_t at = position, row = 0, column = 0;
    for (const SoftRows& s : all) {
      if (s.begin > position) break;
      const int32_t inside = std::min(position - s.begin, s.rows);
      at -= inside;
      if (inside == s.rows)
        at += std::max(s.high, s.wide);
      else
        row = inside / s.wide, column = inside % s.wide;
    }
    out.insert(out.end(), {at, at + row, at + column});
  }
  return out;
}

std::vector<Token> known_as(std::span<const SoftRows> all, std::span<const Token> tokens) {
  std::vector<Token> out(tokens.begin(), tokens.end());
  for (const SoftRows& s : all)
    for (int32_t i = 0; i < s.rows && s.begin + i < static_cast<int32_t>(out.size()); ++i) {
      const uint32_t word = s.content[static_cast<size_t>(i) % s.content.size()];
      out[static_cast<size_t>(s.begin + i)] = -1 - static_cast<Token>(word & 0x7fffffff);
    }
  return out;
}

void check_soft(std::span<const SoftRows> all, size_t prompt, int32_t width) {
  int32_t free = 0;
  for (const SoftRows& s : all) {
    CARAT_CHECK(s.begin >= free && s.rows > 0 && static_cast<size_t>(s.end()) <= prompt,
                "rows {} to {} of a prompt of {}", s.begin, s.end(), prompt);
    CARAT_CHECK(s.values && s.values->size() == static_cast<size_t>(s.rows) * static_cast<size_t>(width),
                "rows of another width than {}", width);
    CARAT_CHECK(s.high * s.wide == s.rows, "{} rows of {} x {}", s.rows, s.high, s.wide);
    free = s.end();
  }
}

}  // namespace carat
