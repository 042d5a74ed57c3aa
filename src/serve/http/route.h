// A method and a path, whose parts in brackets stand for others.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

#include "serve/http/http.h"

namespace carat {

struct Route {
  std::string method, path;
  HttpServer::Handler handler;
  bool urgent = false;

  bool matches(std::string_view asked) const {
    std::string_view pattern = path;
    while (!pattern.empty() && !asked.empty()) {
      if (pattern.front() != '(') {
        if (pattern.front() != asked.front()) return false;
        pattern.remove_prefix(1);
        asked.remove_prefix(1);
        continue;
      }
      const std::string_view part = pattern.substr(0, pattern.find(')') + 1);
      pattern.remove_prefix(part.size());
      const size_t end = part == "(.+)" ? asked.size() : std::min(asked.find('/'), asked.size());
      const std::string_view given = asked.substr(0, end);
      const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
      if (given.empty() || (part == "(\\d+)" && !std::all_of(given.begin(), given.end(), is_digit)))
        return false;
      asked.remove_prefix(end);
    }
    return pattern.empty() && asked.empty();
  }
};

}  // namespace carat
