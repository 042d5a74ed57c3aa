// Forms: the first line is a Content-Type, the rest a body. Every part lies in the body, and what is refused
// says why.
#include <algorithm>

#include "serve/api/form.h"

using namespace carat;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), text.size());
  const std::string_view body = text.substr(std::min(line + 1, text.size()));
  try {
    const std::vector<FormPart> form = parse_form(text.substr(0, line), body);
    for (const FormPart& p : form)
      if (!p.body.empty() &&
          (p.body.data() < body.data() || p.body.data() + p.body.size() > body.data() + body.size()))
        __builtin_trap();
    dump_json(body_of_form(form, {"model", "prompt"}));
  } catch (const ApiError&) {}
  return 0;
}
