// A body that comes bit by bit: a coroutine that the server's threads continue when it is woken, so that a
// stream which waits costs memory and no thread.
#pragma once
#include <coroutine>
#include <exception>
#include <functional>
#include <utility>

namespace carat {

class HttpStream {
 public:
  struct promise_type {
    std::function<void()> wake;  // any thread: resume() would find something to do
    std::exception_ptr error;
    HttpStream get_return_object() {
      return HttpStream(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  using Handle = std::coroutine_handle<promise_type>;

  HttpStream() = default;
  explicit HttpStream(Handle handle) : handle_(handle) {}
  HttpStream(HttpStream&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  HttpStream& operator=(HttpStream&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~HttpStream() {
    if (handle_) handle_.destroy();
  }

  void on_wake(std::function<void()> wake) { handle_.promise().wake = std::move(wake); }
  // Goes on to where it waits again (true) or to its end (false). Throws what the body threw.
  bool resume() {
    handle_.resume();
    if (!handle_.done()) return true;
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return false;
  }

  // co_await HttpStream::Pause{arm}: `arm` gets the wake of this stream; then it rests until it is woken. It
  // is woken too when the client goes, and every few seconds.
  struct Pause {
    std::function<void(std::function<void()>)> arm;
    bool await_ready() const noexcept { return false; }
    void await_suspend(Handle handle) const {
      if (arm) arm(handle.promise().wake);
    }
    void await_resume() const noexcept {}
  };

 private:
  Handle handle_;
};

}  // namespace carat
