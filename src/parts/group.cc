// The backend of several devices: a thread each, which runs the device's part.
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "core/operands.h"
#include "parts/parts.h"
#include "parts/split.h"

namespace carat {
namespace {

using parts::Cuts;
using parts::Memory;

// A thread that does one thing at a time.
class Runner {
 public:
  Runner() : thread_([this] { loop(); }) {}
  ~Runner() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void start(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = std::move(work), busy_ = true;
    }
    changed_.notify_all();
  }
  // What the work has thrown.
  std::exception_ptr wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
    return std::exchange(error_, nullptr);
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || work_; });
      if (stop_) return;
      const std::function<void()> work = std::exchange(work_, nullptr);
      lock.unlock();
      std::exception_ptr error;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = std::move(error), busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  std::exception_ptr error_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;  // the last member: it uses the others
};

class PartsExecutable : public Executable {
 public:
  explicit PartsExecutable(parts::Holders l) : left(std::make_shared<const parts::Holders>(std::move(l))) {}
  std::vector<std::unique_ptr<Executable>> parts;  // null: a device that has nothing to do
  std::shared_ptr<const parts::Holders> left;
};

class PartsBackend : public Backend {
 public:
  PartsBackend(std::vector<std::shared_ptr<Backend>> devices, const PartsOptions& options)
      : memory_(std::make_shared<Memory>(devices)),
        cuts_(static_cast<int32_t>(devices.size()), options),
        shares_(options.shares),
        exchange_(options.exchange ? options.exchange
                                   : std::make_shared<Exchange>(static_cast<int32_t>(devices.size()))),
        devices_(std::move(devices)) {
    if (shares_.empty()) shares_.assign(devices_.size(), 1);
    for (size_t i = 0; i < devices_.size(); ++i) runners_.push_back(std::make_unique<Runner>());
  }
  ~PartsBackend() override { settle(); }

  DeviceInfo info() const override {
    DeviceInfo all;
    double sum = 0, fits = -1;  // memory in all, if every device fills up as its share says
    for (const double s : shares_) sum += s;
    if (devices_[0]->host_memory()) {  // one memory
      all = devices_[0]->info();
      all.name = fmt::format("{} x {}", devices_.size(), all.name);
      return all;
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
      const DeviceInfo one = devices_[d]->info();
      all.name += (d ? " + " : "") + one.name;
      all.mem_total += one.mem_total;
      if (shares_[d] <= 0) continue;
      const double fit = static_cast<double>(one.mem_free) * sum / shares_[d];
      fits = fits < 0 ? fit : std::min(fits, fit);
    }
    // Weights have a place that they have not taken yet.
    all.mem_free = std::min(static_cast<int64_t>(std::max(0.0, fits)), all.mem_total);
    all.mem_free = std::max<int64_t>(0, all.mem_free - memory_->pending());
    return all;
  }
  bool host_memory() const override { return false; }
  bool reads_single_copies() const override { return all(&Backend::reads_single_copies); }
  bool takes_soft_rows() const override { return all(&Backend::takes_soft_rows); }
  bool protects_rows() const override { return all(&Backend::protects_rows); }
  int32_t slow_runs() const override {
    int32_t most = 0;
    for (const auto& d : devices_) most = std::max(most, d->slow_runs());
    return most;
  }
  double device_seconds() const override {
    double most = 0;
    for (const auto& d : devices_) most = std::max(most, d->device_seconds());
    return most;
  }

  Buffer alloc(size_t bytes) override { return memory_->alloc(memory_, bytes); }
  void copy(void* dst, const void* src, size_t bytes) override {
    if (bytes == 0) return;
    settle();
    const bool to = memory_->ours(dst), from = memory_->ours(src);
    if (to && from)
      memory_->move(dst, src, bytes);
    else if (to)
      memory_->write(dst, src, bytes);
    else
      memory_->read(dst, src, bytes);
  }
  void copy_within(void* dst, const void* src, size_t bytes) override {
    if (bytes == 0) return;
    settle();
    memory_->move(dst, src, bytes);
  }
  Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) override {
    const bool everywhere = use == WeightUse::rows && cuts_.mode() == SplitMode::tensor;
    memory_->place(memory_, host, everywhere ? memory_->devices() : 1, owner);
    return host;
  }

  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    settle();
    for (const OpRecord& op : program.ops()) check_op(op);
    parts::Parts split = parts::split(program, *memory_, cuts_, exchange_.get());
    auto exe = std::make_unique<PartsExecutable>(std::move(split.left));
    for (size_t d = 0; d < devices_.size(); ++d)
      exe->parts.push_back(split.programs[d].ops().empty() ? nullptr
                                                           : devices_[d]->compile(split.programs[d], state));
    return exe;
  }
  void submit(Executable& executable) override {
    auto& exe = static_cast<PartsExecutable&>(executable);
    wait();
    exchange_->begin(static_cast<int32_t>(
        std::count_if(exe.parts.begin(), exe.parts.end(), [](const auto& p) { return p != nullptr; })));
    memory_->ran(exe.left);
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (!exe.parts[d]) continue;
      busy_ = true;
      runners_[d]->start([this, d, part = exe.parts[d].get()] {
        try {
          devices_[d]->submit(*part);
          devices_[d]->wait();
        } catch (...) {
          exchange_->fail();
          throw;
        }
      });
    }
  }
  void wait() override {
    settle();
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  bool all(bool (Backend::*has)() const) const {
    return std::all_of(devices_.begin(), devices_.end(), [&](const auto& d) { return (*d.*has)(); });
  }
  // Until all parts have ended. What one has thrown is for wait().
  void settle() {
    if (!std::exchange(busy_, false)) return;
    std::exception_ptr other;
    for (auto& r : runners_) {
      std::exception_ptr e = r->wait();
      if (!e || error_) continue;
      try {
        std::rethrow_exception(e);
      } catch (const OtherPart&) {
        other = e;
      } catch (...) {
        error_ = e;  // the first that failed by itself
      }
    }
    if (!error_) error_ = other;
  }

  std::shared_ptr<Memory> memory_;
  Cuts cuts_;
  std::vector<double> shares_;
  std::shared_ptr<Exchange> exchange_;
  std::vector<std::shared_ptr<Backend>> devices_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::exception_ptr error_;
  bool busy_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_parts(std::vector<std::shared_ptr<Backend>> devices, const PartsOptions& o) {
  if (devices.empty() || devices.size() > static_cast<size_t>(kMaxParts))
    throw Error(fmt::format("a model is split over 1 to {} devices, not {}", kMaxParts, devices.size()));
  if (!o.shares.empty() && o.shares.size() != devices.size())
    throw Error(fmt::format("{} shares for {} devices", o.shares.size(), devices.size()),
                "give each device one, like -ts 3,1");
  return std::make_unique<PartsBackend>(std::move(devices), o);
}

}  // namespace carat
