#include "serve/http/transport.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstring>
#include <list>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/connection.h"

namespace carat {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using SystemError = boost::system::error_code;

constexpr int kSpare = 64;  // connections beyond those that are served, for health and metrics
constexpr int kBacklog = 4096;
constexpr int kSendBuffer = 256 << 10;  // what a client that does not read may hold of the kernel's memory
constexpr std::chrono::milliseconds kLook{100};
constexpr std::chrono::seconds kFreshness{1};  // a connection this young is not sent away

[[noreturn]] void cannot_listen(const HttpConfig& config, const std::string& why, int err) {
  std::string hint = "check --host and --port";
  if (err == EADDRINUSE)
    hint = fmt::format("another server runs there: stop it, or choose another port with --port {}",
                       config.port + 1);
  if (err == EACCES) hint = "ports below 1024 need privileges: choose another with --port";
  if (err == EADDRNOTAVAIL) hint = "--host must be an address of this machine; 0.0.0.0 is all of them";
  throw Error(fmt::format("cannot listen on {}:{}: {}", config.host, config.port, why), hint);
}

// A connection is a file descriptor; models, caches and pipes need some too.
int room_for_connections(int wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur > 1'000'000) return wanted;
  return std::min(wanted, std::max(16, static_cast<int>(limit.rlim_cur) - 256 - kSpare));
}

}  // namespace

struct Transport::Impl {
  Impl(const HttpConfig& config, TransportHooks hooks, const CutOff& cut_off)
      : loop(std::make_shared<LoopState>(config, std::move(hooks), cut_off)),
        acceptor(loop->io),
        timer(loop->io),
        most(static_cast<size_t>(room_for_connections(config.max_connections))) {
    if (!config.tls_cert.empty() || !config.tls_key.empty()) open_tls();
    bind();
  }

  void open_tls();
  void bind();
  void accept();
  void take(tcp::socket socket);
  bool send_one_away();
  void close_listener();
  void look();

  const std::shared_ptr<LoopState> loop;
  std::unique_ptr<asio::ssl::context> tls;
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  const size_t most;
  std::list<std::shared_ptr<Connection>> connections;
  int port = 0;
  bool accepting = false, told = false;
};

void Transport::Impl::open_tls() {
  const HttpConfig& c = loop->config;
  if (c.tls_cert.empty() || c.tls_key.empty())
    throw Error("TLS needs a certificate and its key", "give both --tls-cert FILE and --tls-key FILE (PEM)");
  tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(tls->native_handle(), SSL_MODE_RELEASE_BUFFERS);  // an idle client holds little
  SystemError error;
  tls->use_certificate_chain_file(c.tls_cert, error);
  if (error)
    throw Error(fmt::format("'{}' is no certificate: {}", c.tls_cert, error.message()),
                "--tls-cert takes a PEM file, the server's certificate first");
  tls->use_private_key_file(c.tls_key, asio::ssl::context::pem, error);
  if (error)
    throw Error(fmt::format("'{}' is no private key of that certificate: {}", c.tls_key, error.message()),
                "--tls-key takes a PEM file without a password");
}

void Transport::Impl::bind() {
  const HttpConfig& c = loop->config;
  SystemError error;
  if (c.listener >= 0) {
    acceptor.assign(c.host.find(':') == std::string::npos ? tcp::v4() : tcp::v6(), c.listener, error);
    if (error) cannot_listen(c, error.message(), error.value());
    port = acceptor.local_endpoint().port();
    return;
  }
  tcp::resolver resolver(loop->io);
  const auto found = resolver.resolve(c.host, std::to_string(c.port), tcp::resolver::passive, error);
  if (error || found.empty()) cannot_listen(c, "unknown host", 0);
  const tcp::endpoint endpoint = *found.begin();
  acceptor.open(endpoint.protocol(), error);
  // Not SO_REUSEPORT, which lets two servers share a port and each get some of the requests.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) cannot_listen(c, std::strerror(error.value()), error.value());
  port = acceptor.local_endpoint().port();
}

void Transport::Impl::accept() {
  if (loop->stopping || accepting || !acceptor.is_open()) return;
  accepting = true;
  acceptor.async_accept([this](const SystemError& error, tcp::socket socket) {
    accepting = false;
    if (loop->stopping || !acceptor.is_open()) return;
    if (!error) take(std::move(socket));
    if (!error || error == asio::error::connection_aborted) return accept();
    // No descriptor is left: look() accepts again, and a connection that rests may go meanwhile.
    if (!std::exchange(told, true)) log_warn("cannot accept connections: {}", error.message());
    send_one_away();
  });
}

void Transport::Impl::take(tcp::socket socket) {
  SystemError ignored;
  const auto from = socket.remote_endpoint(ignored);
  const bool full = connections.size() >= most && !send_one_away();
  if (connections.size() >= most + kSpare) return;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
  const auto c = std::make_shared<Connection>(loop, make_wire(std::move(socket), tls.get()),
                                              from.address().to_string(ignored), full);
  connections.push_back(c);
  c->start();
}

// The connection that rests for longest makes room for one that has something to say.
bool Transport::Impl::send_one_away() {
  auto oldest = connections.end();
  auto since = Clock::now() - kFreshness;
  for (auto it = connections.begin(); it != connections.end(); ++it)
    if (const auto rests = (*it)->resting(); rests && *rests < since) {
      since = *rests;
      oldest = it;
    }
  if (oldest == connections.end()) return false;
  const auto c = *oldest;
  connections.erase(oldest);
  c->close();
  return true;
}

// Who is in the queue is connected already, and would be reset.
void Transport::Impl::close_listener() {
  if (!acceptor.is_open()) return;
  SystemError error;
  acceptor.non_blocking(true, error);
  while (!error && loop->config.listener < 0) {
    tcp::socket socket(loop->io);
    acceptor.accept(socket, error);
    if (!error) take(std::move(socket));
  }
  acceptor.close(error);
}

void Transport::Impl::look() {
  const auto now = Clock::now();
  loop->hooks.tick(connections.size());
  int arriving = 0;
  for (auto it = connections.begin(); it != connections.end();) {
    const auto c = *it;
    c->look(now);
    arriving += c->arriving();
    it = c->closed() ? connections.erase(it) : std::next(it);
  }
  loop->arriving = arriving;
  if (loop->stopping) {
    close_listener();
    if (connections.empty() && loop->exchanges == 0) return loop->io.stop();
  }
  accept();
  timer.expires_after(kLook);
  timer.async_wait([this](const SystemError& error) {
    if (!error) look();
  });
}

Transport::Transport(const HttpConfig& config, TransportHooks hooks, const CutOff& cut_off)
    : impl_(std::make_unique<Impl>(config, std::move(hooks), cut_off)) {}
Transport::~Transport() = default;
int Transport::port() const { return impl_->port; }
void Transport::run() {
  const auto guard = asio::make_work_guard(impl_->loop->io);
  for (bool over = false; !over;) try {
      impl_->timer.cancel();
      impl_->look();
      impl_->loop->io.run();
      over = true;
    } catch (const std::exception& e) {  // memory is short; what it was about is cut by its time
      log_error("the server's loop: {}", e.what());
    }
  impl_->loop->io.restart();  // what was called off holds connections
  impl_->loop->io.poll();
}
void Transport::close_after_answers() { impl_->loop->closing = true; }
int Transport::arriving() const { return impl_->loop->arriving; }
void Transport::leave_queue(bool own) {
  if (own || impl_->loop->config.listener >= 0)
    asio::post(impl_->loop->io, [impl = impl_.get()] { impl->close_listener(); });
}
void Transport::stop(double last_call_seconds) {
  impl_->loop->last_call.set_in(last_call_seconds);
  impl_->loop->stopping = true;
  asio::post(impl_->loop->io, [impl = impl_.get()] {
    impl->close_listener();
    impl->timer.cancel();
    impl->timer.expires_after(std::chrono::milliseconds(0));
    impl->timer.async_wait([impl](const SystemError& error) {
      if (!error) impl->look();
    });
  });
}

}  // namespace carat
