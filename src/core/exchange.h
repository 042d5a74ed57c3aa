// Where the parts of a program meet (ShareArgs): devices whose threads run at the same time.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "core/ops.h"

namespace carat {

// How devices with memory of their own reach each other; of their backend (cuda/links.h).
class DeviceLinks {
 public:
  virtual ~DeviceLinks() = default;
  virtual void begin(uint32_t step) = 0;  // no part of the step before runs any more
  virtual void fail() = 0;                // no device waits for another any more
};

// A part has given up because another one has failed, which says why.
class OtherPart : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

class Exchange {
 public:
  explicit Exchange(int32_t parts) : at_(static_cast<size_t>(parts)) {}

  // Before a step that so many parts take part in, while none runs.
  void begin(int32_t running);
  // A part does not go on: no other waits for it.
  void fail();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  uint32_t step() const { return step_; }

  // Between parts that read each other's memory: `rows` rows of a.y. Waits for the parts that give, and for
  // those that take. False: a part has failed, and y is unfinished.
  bool share(const ShareArgs& a, int32_t rows);

  // All parts have come so far: what stops a device (memory that is asked for) has been done. False: a part
  // has failed.
  bool meet();

  std::shared_ptr<DeviceLinks> links;  // null: the devices' memory is the host's

 private:
  struct Place {
    uint64_t ready = 0, taken = 0;  // the last share whose columns are there; that it has taken
  };
  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<Place> at_;
  std::atomic<bool> failed_{false};
  uint32_t step_ = 0;
  int32_t running_ = 0, met_ = 0;
};

}  // namespace carat
