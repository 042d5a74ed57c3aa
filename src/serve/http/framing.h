// What a request's head may look like, stricter than RFC 9112 asks for: two programs that read one connection
// must agree on where a request ends (request smuggling), so what is ambiguous is refused and the connection
// closed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carat {

constexpr size_t kMaxLine = size_t{16} << 10;   // request line, or one header
constexpr size_t kMaxHead = size_t{256} << 10;  // all of them
constexpr size_t kMaxFields = 1000;
constexpr size_t kMaxIdleBody = size_t{64} << 10;  // of a request that has no use for one: read and dropped

struct HttpFault {
  int status = 0;
  std::string message;
};

// Looks at a head as it comes, a byte once.
class HeadScanner {
 public:
  enum class State : uint8_t { more, whole, wrong };
  State scan(std::string_view all);    // what came before, and more
  size_t size() const { return at_; }  // of the whole head
  const HttpFault& fault() const { return fault_; }

 private:
  State fail(int status, const char* message);
  size_t at_ = 0, line_ = 0, fields_ = 0;
  HttpFault fault_;
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;  // names in lower case

// How the body is framed, and everything that makes it ambiguous.
struct Framing {
  bool chunked = false, wants_continue = false;
  std::optional<uint64_t> length;
};
std::optional<HttpFault> check_fields(const HttpFields& fields, bool version_1_0, Framing& framing);

// A request target (RFC 9112, 3.2) as path, query and, in absolute form, host.
struct Target {
  std::string path, query, host;
};
std::optional<Target> parse_target(std::string_view target, std::string_view method);

// %xx; nothing if it is malformed. plus: '+' is a space, as in queries.
std::optional<std::string> percent_decoded(std::string_view text, bool plus);

}  // namespace carat
