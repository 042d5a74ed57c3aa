// The HTTP layer over a socket pair's worth of bytes: whatever a client sends, in whatever pieces, heads,
// targets and bodies are read or refused, and the same bytes in other pieces give the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "serve/http/address.h"
#include "serve/http/framing.h"
#include "serve/http/parser.h"

using namespace carat;

namespace {

// What a connection makes of the bytes when they come `step` at a time: a line per request.
std::vector<std::string> read_all(std::string_view bytes, size_t step) {
  std::vector<std::string> out;
  std::string in;
  HeadScanner scanner;
  std::optional<RequestParser> parser;
  RequestParser::Head head;
  for (size_t at = 0; at <= bytes.size(); at += step) {
    in += bytes.substr(at, step);
    for (bool more = false; !more;) {
      if (!parser) {
        const auto state = scanner.scan(in);
        if (state == HeadScanner::State::more) break;
        if (state == HeadScanner::State::wrong) {
          out.push_back("refused " + std::to_string(scanner.fault().status));
          return out;
        }
        parser.emplace();
        head = {};
        const auto fault = parser->read_head(std::string_view(in).substr(0, scanner.size()), head);
        in.erase(0, scanner.size());
        if (fault || !parse_target(head.target, head.method)) {
          out.push_back("refused " + std::to_string(fault ? fault->status : 400));
          return out;
        }
        parser->set_max_body(1 << 16);
        for (const auto& [name, value] : head.fields)
          if (name == "host") parse_host(value);
      }
      size_t used = 0;
      const auto fault = parser->read_body(in, used);
      in.erase(0, used);
      if (fault) {
        out.push_back("refused body");
        return out;
      }
      more = !parser->done();
      if (more) break;
      out.push_back(head.method + " " + head.target + " " + parser->take_body());
      parser.reset();
      scanner = {};
      if (in.empty()) more = true;
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto whole = read_all(bytes, size + 1);
  if (read_all(bytes, 1) != whole || read_all(bytes, 7) != whole) std::abort();
  return 0;
}
