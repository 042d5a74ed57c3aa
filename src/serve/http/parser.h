// Boost.Beast's parser behind our limits. parser.cc alone includes it, for the compiler's time.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/framing.h"

namespace carat {

class RequestParser {
 public:
  RequestParser();
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;
  RequestParser& operator=(RequestParser&&) noexcept;

  struct Head {
    std::string method, target;
    bool version_1_0 = false, keep_alive = false;
    HttpFields fields;
    Framing framing;
  };
  // The whole head, as HeadScanner found it.
  std::optional<HttpFault> read_head(std::string_view bytes, Head& head);
  // More of the body; `used` bytes of it were taken.
  std::optional<HttpFault> read_body(std::string_view bytes, size_t& used);
  void set_max_body(size_t bytes);
  bool done() const;
  std::string take_body();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
