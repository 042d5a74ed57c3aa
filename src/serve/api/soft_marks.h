// How a picture or a sound stands in a prompt.
#pragma once
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace carat {

// `open`, a place for each row, `close`; -1: none of those two. mark: the place's text, which templates write
// once; it lives as long as the tower.
struct SoftMarks {
  std::string_view mark;
  Token place = -1, open = -1, close = -1;
};

// place is -1 where the vocabulary has none.
inline SoftMarks soft_marks(const Tokenizer& tokenizer, std::string_view mark, std::string_view open,
                            std::string_view close) {
  const auto find = [&](std::string_view name) { return name.empty() ? -1 : tokenizer.find(name); };
  return {mark, find(mark), find(open), find(close)};
}

}  // namespace carat
