// Files that are part of the program: the page at /, which Vite made of web/, and the description of the API.
#pragma once
#include "serve/config.h"
#include "serve/http/http.h"

namespace carat {

// Routes of these files. They tell nothing and are for everybody, key or not.
// Without config.page the description alone.
void add_page(HttpServer& http, const ServeConfig& config);
bool is_page(std::string_view path);

}  // namespace carat
