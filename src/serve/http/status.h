// The head of an answer as text.
#pragma once
#include <string>

#include "serve/http/http.h"

namespace carat {

struct HeadForm {
  bool stream = false, version_1_0 = false, keep = false;
  double idle_seconds = 0;
};
std::string head_text(const HttpResponse& r, const HeadForm& form);
bool has_body(int status);

}  // namespace carat
