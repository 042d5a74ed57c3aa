// The page at /: files that Vite made of web/, part of the program.
#pragma once
#include "serve/http.h"

namespace carat {

// Routes of the page's files. They tell nothing and are for everybody, key or not.
void add_page(HttpServer& http);
bool is_page(std::string_view path);

}  // namespace carat
