#include "serve/http/connection.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"

namespace carat {
namespace {

constexpr std::chrono::milliseconds kLook{100};        // how often to see whether the server ends
constexpr std::chrono::milliseconds kLastWords{1000};  // to be written behind the cut-off

Clock::time_point in_seconds(double s) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

void name_of(const sockaddr_storage& a, std::string& ip, int& port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (a.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(a);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    port = ntohs(v4.sin_port);
  } else if (a.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(a);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    port = ntohs(v6.sin6_port);
  }
  ip = text;
}

}  // namespace

bool wait_socket(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd p{socket, events, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::min<long long>(left, 1 << 30)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

void SocketStream::start_request(double seconds, size_t bytes) {
  deadline_ = in_seconds(seconds);
  budget_ = bytes;
}

bool SocketStream::gone() const {
  if (buffered()) return false;
  char c;
  const ssize_t n = ::recv(socket_, &c, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// A client that is slow must not keep a server from ending.
bool SocketStream::wait_readable() const {
  while (!cut_off_.passed()) {
    const auto tick = std::min(deadline_, Clock::now() + kLook);
    if (wait_socket(socket_, POLLIN, tick)) return true;
    if (tick == deadline_) return false;
  }
  return false;
}
bool SocketStream::wait_writable(Clock::time_point deadline) const {
  while (Clock::now() - kLastWords < cut_off_.get()) {
    const auto tick = std::min(deadline, Clock::now() + kLook);
    if (wait_socket(socket_, POLLOUT, tick)) return true;
    if (tick == deadline) return false;
  }
  return false;
}

bool SocketStream::is_readable() const { return buffered() || wait_readable(); }
bool SocketStream::is_writable() const { return wait_writable(in_seconds(write_seconds_)) && !gone(); }

ssize_t SocketStream::read(char* to, size_t size) {
  if (!buffered()) {
    if (!wait_readable()) return -1;
    const ssize_t n = ::recv(socket_, buffer_, sizeof buffer_, 0);
    if (n <= 0) return n;
    at_ = 0;
    end_ = static_cast<size_t>(n);
  }
  const size_t n = std::min({size, end_ - at_, budget_});
  if (n == 0 && size > 0) return -1;  // the request is larger than it may be
  std::memcpy(to, buffer_ + at_, n);
  at_ += n;
  budget_ -= n;
  return static_cast<ssize_t>(n);
}

ssize_t SocketStream::write(const char* from, size_t size) {
  const auto deadline = in_seconds(write_seconds_);
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::send(socket_, from + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
      if (!wait_writable(deadline)) return -1;
    } else {
      return -1;
    }
  }
  return static_cast<ssize_t>(done);
}

void SocketStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  if (::getpeername(socket_, reinterpret_cast<sockaddr*>(&a), &n) == 0) name_of(a, ip, port);
}
void SocketStream::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  if (::getsockname(socket_, reinterpret_cast<sockaddr*>(&a), &n) == 0) name_of(a, ip, port);
}

void Connections::enqueue(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  try {
    tasks_.push_back(std::move(task));
    wake_.notify_one();
    if (idle_ >= tasks_.size() || threads_ >= most_) return;
    std::thread([this] { work(); }).detach();  // shutdown() waits for it
    ++threads_;
  } catch (const std::exception& e) {  // one of those that are there takes it, or the next one
    log_error("no thread for a connection: {}", e.what());
  }
}

void Connections::shutdown() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  wake_.notify_all();
  left_.wait(lock, [&] { return threads_ == 0; });
}

void Connections::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait_for(lock, rest_, [&] { return stop_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) break;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      task();
    } catch (const std::exception& e) {
      log_error("a connection failed: {}", e.what());
    }
    lock.lock();
  }
  if (threads_ <= 2 && !stop_) ::malloc_trim(0);  // a scraper's may stay
  --threads_;
  left_.notify_all();
}

}  // namespace carat
