#include "serve/http/parser.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>

namespace carat {
namespace {

namespace http = boost::beast::http;

constexpr size_t kReserve = size_t{1} << 20;  // of a declared length, before any of it is here

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

HttpFault fault_of(const boost::system::error_code& error) {
  if (error == http::error::bad_version) return {505, "this server speaks HTTP/1.1"};
  if (error == http::error::header_limit) return {431, "the headers are larger than 256 KiB"};
  if (error == http::error::body_limit) return {413, "the body is larger than it may be"};
  return {400, fmt::format("the request could not be read: {}", error.message())};
}

// Appends to a string, without Beast's reserve of all that a client declares.
struct Body {
  using value_type = std::string;
  struct reader {
    template <bool R, class F>
    reader(http::header<R, F>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>& length, boost::system::error_code& error) {
      if (length) body_.reserve(static_cast<size_t>(std::min<std::uint64_t>(*length, kReserve)));
      error = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it)
        body_.append(static_cast<const char*>((*it).data()), (*it).size());
      return body_.size() - before;
    }
    void finish(boost::system::error_code& error) { error = {}; }
    value_type& body_;
  };
};

}  // namespace

struct RequestParser::Impl {
  http::request_parser<Body> parser;
  bool begun = false;  // the body
};

RequestParser::RequestParser() : impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(std::numeric_limits<std::uint32_t>::max());  // HeadScanner has looked at it
  impl_->parser.body_limit(std::numeric_limits<std::uint64_t>::max());
}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

std::optional<HttpFault> RequestParser::read_head(std::string_view bytes, Head& head) {
  auto& p = impl_->parser;
  boost::system::error_code error;
  p.eager(false);
  p.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (error && error != http::error::need_more) return fault_of(error);
  if (!p.is_header_done()) return HttpFault{400, "the request's head could not be read"};
  const auto& m = p.get();
  head.method = std::string(m.method_string());
  head.target = std::string(m.target());
  if (m.version() != 10 && m.version() != 11) return HttpFault{505, "this server speaks HTTP/1.1"};
  head.version_1_0 = m.version() == 10;
  head.keep_alive = p.keep_alive();
  for (const auto& field : m)
    head.fields.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                             std::string(field.value()));
  p.eager(true);
  return check_fields(head.fields, head.version_1_0, head.framing);
}

void RequestParser::set_max_body(size_t bytes) { impl_->parser.body_limit(bytes); }

std::optional<HttpFault> RequestParser::read_body(std::string_view bytes, size_t& used) {
  boost::system::error_code error;
  used = 0;
  // Beast 1.74 asserts that the last chunk comes with two bytes behind it or not at all.
  constexpr size_t kShortest = 5;  // "0", and two ends of lines
  if (!impl_->begun && impl_->parser.chunked() && bytes.size() < kShortest) return {};
  impl_->begun = true;
  while (!impl_->parser.is_done() && used < bytes.size()) {
    const size_t n = impl_->parser.put(boost::asio::buffer(bytes.data() + used, bytes.size() - used), error);
    used += n;
    if (error == http::error::need_more) return {};
    if (error) return fault_of(error);
    if (n == 0) break;
  }
  return {};
}

bool RequestParser::done() const { return impl_->parser.is_done(); }
std::string RequestParser::take_body() { return std::move(impl_->parser.get().body()); }

}  // namespace carat
