#include "serve/api/mask_work.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads.h"

namespace carat {
namespace {

constexpr int kNice = 5;        // steps of the model come first where cores are few
constexpr size_t kForced = 64;  // tokens that are looked for ahead

// A few threads of the process; tasks are short (a mask's budget) and never throw.
class Threads {
 public:
  static Threads& all() {
    static Threads t;
    return t;
  }
  ~Threads() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_ && threads_.size() < most_) threads_.emplace_back([this] { work(); });
    wake_.notify_one();
  }

 private:
  void work() {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      --idle_;
      if (stop_) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const size_t most_ = static_cast<size_t>(std::clamp(available_cpus() / 2, 1, 4));
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stop_ = false;
};

// Where the walk stands. What is worked out belongs to one thread at a time: to a task until `done`, then to
// the engine until it picks.
class Walked {
 public:
  explicit Walked(std::shared_ptr<const TokenGrammar> grammar)
      : matcher_(std::move(grammar)), state_(matcher_.start()) {}

  void work(Token token) {
    std::exception_ptr error;
    try {
      if (token >= 0) state_ = matcher_.advance(state_, token);
      words_ = matcher_.allowed(state_);
      forced_ = matcher_.forced_tokens(state_, kForced);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    done_ = true;
    came_.notify_all();
  }
  bool wait(std::chrono::microseconds patience) {
    std::unique_lock lock(mutex_);
    return came_.wait_for(lock, patience, [&] { return done_; });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return done_; });
  }
  void begin() {
    const std::lock_guard lock(mutex_);
    done_ = false;
  }
  std::span<const uint64_t> words() const {
    if (error_) std::rethrow_exception(error_);
    return words_;
  }
  const std::vector<Token>& forced() const { return forced_; }
  bool failed() {
    const std::lock_guard lock(mutex_);
    return done_ && error_;
  }

 private:
  GrammarMatcher matcher_;
  GrammarMatcher::State state_;
  std::span<const uint64_t> words_;
  std::vector<Token> forced_;
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable came_;
  bool done_ = false;
};

class GrammarMask : public TokenMask {
 public:
  explicit GrammarMask(std::shared_ptr<const TokenGrammar> grammar)
      : walked_(std::make_shared<Walked>(std::move(grammar))) {}

  bool ready(std::chrono::microseconds patience) override {
    begin();
    return walked_->wait(patience);
  }
  std::span<const uint64_t> allowed() override {
    begin();
    walked_->wait();
    return walked_->words();
  }
  void picked(Token token) override {
    begin();
    walked_->wait();
    walked_->begin();
    post(token);
  }
  std::vector<Token> forced(size_t most) override {
    if (!ready({})) return {};
    const std::vector<Token>& all = walked_->forced();
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size()))};
  }
  bool failed() const { return walked_->failed(); }

 private:
  void begin() {
    if (!std::exchange(begun_, true)) post(-1);
  }
  // A request that is gone needs no mask: then nobody but the task would hold what it fills.
  void post(Token token) {
    Threads::all().add([walked = std::weak_ptr(walked_), token] {
      if (const auto w = walked.lock()) w->work(token);
    });
  }

  const std::shared_ptr<Walked> walked_;
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<TokenMask> make_mask(std::shared_ptr<const TokenGrammar> grammar) {
  return std::make_shared<GrammarMask>(std::move(grammar));
}

bool mask_failed(const TokenMask& mask) {
  const auto* const ours = dynamic_cast<const GrammarMask*>(&mask);
  return ours && ours->failed();
}

}  // namespace carat
