// Forms with files: multipart/form-data (RFC 7578), as browsers and OpenAI's clients send them.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/json.h"

namespace carat {

struct FormPart {
  std::string name, filename;
  bool file = false;      // it has a filename
  std::string_view body;  // in the request's
};

// Of a request of that type, in order. ApiError 400 that says what is wrong: another type, no boundary, a
// part without a name, no end, or more than is allowed (64 parts, 8 KiB of a part's head).
std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body);

bool is_form(std::string_view content_type);

// The fields as a JSON body has them: "true", "false" and numbers are those, "name[]" is an array; files are
// left out. texts: fields that stay texts whatever they look like. ApiError 400 for a field that comes twice,
// or of more than 64 KiB.
Json body_of_form(const std::vector<FormPart>& form, std::initializer_list<std::string_view> texts);

}  // namespace carat
