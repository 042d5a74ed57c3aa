// What a connection stands on: a buffered socket with deadlines, and threads that come as connections do.
#pragma once
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace carat {

using Clock = std::chrono::steady_clock;

// When a server that ends waits for nobody any more. Any thread.
class CutOff {
 public:
  void set(Clock::time_point t) { at_ = t.time_since_epoch().count(); }
  Clock::time_point get() const { return Clock::time_point(Clock::duration(at_)); }
  bool passed() const { return Clock::now() > get(); }

 private:
  std::atomic<Clock::rep> at_{Clock::time_point::max().time_since_epoch().count()};
};

// One client's socket as cpp-httplib sees it. start_request() sets the deadline and the bytes a request may
// take. What is written may take a little longer than the cut-off, so that a client is told why it ends.
class SocketStream : public httplib::Stream {
 public:
  SocketStream(int socket, double write_seconds, const CutOff& cut_off)
      : socket_(socket), write_seconds_(write_seconds), cut_off_(cut_off) {}
  void start_request(double seconds, size_t bytes);
  bool too_large() const { return budget_ == 0; }
  bool buffered() const { return at_ < end_; }
  bool gone() const;  // the client has closed its end

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  bool wait_readable() const;
  bool wait_writable(Clock::time_point deadline) const;

  int socket_;
  double write_seconds_;
  const CutOff& cut_off_;
  Clock::time_point deadline_{};
  size_t budget_ = 0, at_ = 0, end_ = 0;
  char buffer_[16384];
};

// Waits until the socket can be read or written, the deadline passes (false) or the peer hangs up (true).
bool wait_socket(int socket, short events, Clock::time_point deadline);

// A thread per connection, up to a number; further ones wait their turn. Idle threads are used again, and
// leave when nothing comes for a while; with the last of a crowd its memory is given back.
class Connections : public httplib::TaskQueue {
 public:
  Connections(size_t most, double rest_seconds) : most_(most), rest_(rest_seconds) {}
  void enqueue(std::function<void()> task) override;
  void shutdown() override;

 private:
  void work();
  const size_t most_;
  const std::chrono::duration<double> rest_;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0, threads_ = 0;
  bool stop_ = false;
};

}  // namespace carat
