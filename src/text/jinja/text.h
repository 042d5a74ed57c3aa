// Python's str operations on UTF-8. A byte that is not valid UTF-8 counts as one character.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace carat::jinja {

size_t char_bytes(std::string_view s, size_t at);      // length of the character at a byte offset
char32_t decode_char(std::string_view s, size_t& at);  // and advance; an invalid byte b gives 0xDC00 + b
void append_char(std::string& out, char32_t c);
size_t char_count(std::string_view s);
std::vector<std::string_view> chars(std::string_view s);

bool is_space(char32_t c);  // str.isspace
bool is_printable(char32_t c);
bool is_alpha(char32_t c);
std::string upper(std::string_view s);
std::string lower(std::string_view s);
std::string capitalize(std::string_view s);
std::string title(std::string_view s, bool jinja);  // jinja: words as the title filter sees them
// what: characters to strip; null means white space.
std::string_view strip(std::string_view s, const std::string_view* what, bool left, bool right);
size_t find(std::string_view s, std::string_view what, size_t from = 0);  // linear time; npos if absent
size_t rfind(std::string_view s, std::string_view what);
size_t count(std::string_view s, std::string_view what);
std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t max,
                    size_t max_bytes);
std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t max);
std::vector<std::string_view> rsplit(std::string_view s, std::string_view separator, int64_t max);
std::vector<std::string_view> split_space(std::string_view s, int64_t max);
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends);
std::string escape_html(std::string_view s);
std::string repr(std::string_view s);  // 'quoted'
std::string json_quote(std::string_view s, bool ensure_ascii);

}  // namespace carat::jinja
