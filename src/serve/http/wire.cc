#include "serve/http/wire.h"

#include <array>
#include <boost/asio/ssl/stream.hpp>
#include <string>

namespace carat {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Waits for the socket and reads into a buffer that all connections share: one that is idle holds none.
class PlainWire : public Wire {
 public:
  explicit PlainWire(tcp::socket socket) : socket_(std::move(socket)) {
    Error ignored;
    socket_.non_blocking(true, ignored);
  }
  void open(std::function<void(const Error&)> done) override { done({}); }

  void read(OnRead done) override {
    socket_.async_wait(tcp::socket::wait_read, [this, done = std::move(done)](Error error) mutable {
      static thread_local std::array<char, 65536> scratch;
      size_t n = 0;
      if (!error) n = socket_.read_some(asio::buffer(scratch), error);
      if (error == asio::error::would_block) return read(std::move(done));
      done(error, {scratch.data(), n});
    });
  }

  std::optional<size_t> write(std::string_view data, OnWrite done) override {
    Error error;
    const size_t n = socket_.write_some(asio::buffer(data.data(), data.size()), error);
    if (!error) return n;
    if (error != asio::error::would_block) return 0;
    socket_.async_wait(tcp::socket::wait_write, [this, data, done = std::move(done)](Error failed) mutable {
      if (failed) return done(failed, 0);
      const size_t later = socket_.write_some(asio::buffer(data.data(), data.size()), failed);
      if (failed == asio::error::would_block) failed = {};
      done(failed, later);
    });
    return {};
  }
  void end_writing() override {
    Error ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  void close() override {
    Error ignored;
    socket_.close(ignored);
  }

 private:
  tcp::socket socket_;
};

class TlsWire : public Wire {
 public:
  TlsWire(tcp::socket socket, asio::ssl::context& tls) : stream_(std::move(socket), tls) {}
  void open(std::function<void(const Error&)> done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }
  void read(OnRead done) override {
    stream_.async_read_some(asio::buffer(buffer_),
                            [this, done = std::move(done)](const Error& error, size_t n) {
                              done(error, {buffer_.data(), n});
                            });
  }
  std::optional<size_t> write(std::string_view data, OnWrite done) override {
    stream_.async_write_some(asio::buffer(data.data(), data.size()), std::move(done));
    return {};
  }
  // The alert is not waited for: a body's end is told by its framing.
  void end_writing() override {
    Error ignored;
    stream_.next_layer().shutdown(tcp::socket::shutdown_send, ignored);
  }
  void close() override {
    Error ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  asio::ssl::stream<tcp::socket> stream_;
  std::array<char, 4096> buffer_;
};

}  // namespace

std::unique_ptr<Wire> make_wire(tcp::socket socket, asio::ssl::context* tls) {
  if (tls) return std::make_unique<TlsWire>(std::move(socket), *tls);
  return std::make_unique<PlainWire>(std::move(socket));
}

}  // namespace carat
