#include "text/tokenizer/split.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace carat;

namespace {
std::vector<std::string> pieces(std::string_view pre, std::string_view text) {
  const PreTokenizer* p = find_pre_tokenizer(pre);
  REQUIRE(p);
  std::vector<std::string_view> parts;
  Splitter(p->pattern).split(text, parts);
  for (const std::string_view pattern : p->then) {
    const std::vector<std::string_view> whole = std::exchange(parts, {});
    for (const std::string_view piece : whole) Splitter(pattern).split(piece, parts);
  }
  return {parts.begin(), parts.end()};
}
using Strings = std::vector<std::string>;
}  // namespace

TEST_CASE("qwen35: marks belong to words, digits stand alone") {
  CHECK(pieces("qwen35", "don't e\u0301te\u0301 123  x\n\ny") ==
        Strings{"don", "'t", " e\u0301te\u0301", " ", "1", "2", "3", " ", " x", "\n\n", "y"});
  CHECK(pieces("qwen35", "(नमस्ते!) ...\r\n") == Strings{"(नमस्ते", "!)", " ...\r\n"});
  // The older pattern cuts words at their marks.
  CHECK(pieces("qwen2", "नमस्ते").size() > 1);
  CHECK(pieces("qwen35", " \u0301x  ") == Strings{" \u0301x", "  "});
}

TEST_CASE("default, and no name: punctuation apart, digits by three") {
  for (const char* name : {"default", ""}) {
    CHECK(pieces(name, "x12112 3.14") == Strings{"x", "121", "12", " ", "3", ".", "14"});
    CHECK(pieces(name, "it's 1234567, no?") ==
          Strings{"it", "'", "s", " ", "123", "456", "7", ",", " no", "?"});
    CHECK(pieces(name, "a  b\nc") == Strings{"a", " ", " b", "\n", "c"});
  }
}
