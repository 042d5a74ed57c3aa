// Template text to tokens, with the white-space rules of Jinja's trim_blocks and lstrip_blocks.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace carat::jinja {

struct Tok {
  enum class Kind : uint8_t {
    data,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    real,
    op,
    end
  };
  Kind kind = Kind::end;
  std::string text;  // data, name, string value, digits, operator
  int line = 0;
};

[[noreturn]] void fail_at(int line, const std::string& what);  // carat::Error naming the line

std::vector<Tok> lex(std::string_view source);

}  // namespace carat::jinja
