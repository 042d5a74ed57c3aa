// How CUDA devices that run parts of a program reach each other: directly where a test of the pair passes,
// else through pinned memory of the host.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "core/exchange.h"
#include "cuda/executable.h"
#include "cuda/ops/share.h"

namespace carat::cuda {

inline constexpr uint32_t kMostShares = 4096;  // of a program: numbers of a step begin there

class Links : public DeviceLinks {
 public:
  Links(std::vector<int> devices, bool peers, double patience);
  ~Links() override;

  void begin(uint32_t step) override;
  void fail() override;
  // 0: none; 1: another part has failed; 2: one has waited for another for too long.
  uint32_t error() const;

  // Room for columns of part p on their way through the host; before links of programs that need it.
  void reserve(int32_t part, size_t bytes);
  ShareLink of(int32_t part) const;
  // Boxes of part p; the program's shares that use boxes take turns with 0 and 1: a part gives only when all
  // have begun to give the time before, and so have taken what came before that.
  ShareBoxes boxes(int32_t part, int32_t turn) const;
  bool direct(int32_t a, int32_t b) const { return (peers_[static_cast<size_t>(a)] >> b & 1) != 0; }
  bool all_direct() const;
  std::string text() const;  // "cuda:0 and cuda:1 directly"

 private:
  bool passes(int32_t a, int32_t b);
  void make_boxes();
  void renew(uint32_t number);

  std::vector<int> devices_;
  int64_t patience_;
  std::vector<uint32_t> peers_;
  std::vector<Memory> words_;     // by part: 16 words and two counters
  std::unique_ptr<Pinned> host_;  // words of all, and the error
  std::vector<Memory>
      boxes_;  // by part that takes: [turn][giver][kBoxWords], from those that reach it directly
  std::vector<std::unique_ptr<Pinned>> host_boxes_;  // the same, from the others; null: there are none
  mutable std::mutex mutex_;
  std::vector<std::vector<std::unique_ptr<Pinned>>> staging_;  // by part; the last one is used
  std::string refused_;
};

}  // namespace carat::cuda
