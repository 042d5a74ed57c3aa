// A client's socket as a connection sees it, with and without TLS. The loop's thread alone.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace carat {

class Wire {
 public:
  using Error = boost::system::error_code;
  using OnRead = std::function<void(const Error&, std::string_view)>;
  using OnWrite = std::function<void(const Error&, size_t)>;
  virtual ~Wire() = default;
  virtual void open(std::function<void(const Error&)> done) = 0;  // TLS's handshake
  virtual void read(OnRead done) = 0;
  // Bytes that were taken at once; else `done` is called later. 0 bytes at once: the connection is lost.
  virtual std::optional<size_t> write(std::string_view data, OnWrite done) = 0;
  virtual void end_writing() = 0;
  virtual void close() = 0;
};

std::unique_ptr<Wire> make_wire(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context* tls);

}  // namespace carat
