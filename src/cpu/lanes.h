// Which worker takes which tasks of a phase, and packs which rows of a weight: tasks lie in lanes, one a
// worker, or one for several workers where there are many. A lane begins with as many tasks as its workers'
// speed stands for, and a worker whose lane is empty takes from other lanes (run_phases.cc). Results do not
// depend on which worker ran a task.
#pragma once
#include <cstdint>
#include <vector>

#include "base/cpus.h"

namespace carat::cpu {

class Lanes {
 public:
  static constexpr int kMost = 8;

  explicit Lanes(int workers = 1) : Lanes(std::vector<Place>(static_cast<size_t>(workers))) {}
  // Workers of a node follow each other.
  explicit Lanes(const std::vector<Place>& team) : workers_(static_cast<int>(team.size())) {
    for (const Place& p : team) {
      before_.push_back(before_.back() + p.speed);
      const auto worker = static_cast<int>(lane_.size());
      lane_.push_back(worker * count() / workers_);
      if (node_start_.empty() || p.node != team[static_cast<size_t>(node_start_.back())].node)
        node_start_.push_back(worker);
    }
    node_start_.push_back(workers_);
  }

  int workers() const { return workers_; }
  int count() const { return workers_ < kMost ? workers_ : kMost; }
  int of(int worker) const { return lane_[static_cast<size_t>(worker)]; }
  int first_worker(int lane) const { return (lane * workers_ + count() - 1) / count(); }
  // The first of n tasks that a lane has, or that a worker and those behind it have.
  int64_t first_task(int64_t n, int lane) const { return first_of(n, first_worker(lane)); }
  int64_t first_of(int64_t n, int worker) const { return n * before_[worker] / before_.back(); }
  // How many of the tasks left in a lane a worker takes: of its own one by one, if it is alone there; else an
  // eighth of one worker's part, less if the worker is slow, so that the others never wait long for it.
  int64_t portion(int lane, int worker, int64_t left) const {
    const int first = first_worker(lane), end = first_worker(lane + 1);
    if (end - first == 1 && lane == of(worker)) return 1;
    const int64_t speed = before_[worker + 1] - before_[worker], all = before_[end] - before_[first];
    const int64_t some = left * speed / (8 * all);
    return some > 1 ? some : 1;
  }

  // Nodes of memory, and the first worker of each (of nodes(): all workers).
  int nodes() const { return static_cast<int>(node_start_.size()) - 1; }
  int first_on(int node) const { return node_start_[static_cast<size_t>(node)]; }
  int node_of(int worker) const {
    int node = 0;
    while (first_on(node + 1) <= worker) ++node;
    return node;
  }

 private:
  int workers_;
  std::vector<int64_t> before_{0};  // speed of the workers before
  std::vector<int> lane_;           // of a worker
  std::vector<int> node_start_;
};

}  // namespace carat::cpu
