// The processors that this process may use: how many, how fast beside each other, on which node of memory.
// `root` stands before every path that is read, for tests with trees of their own.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace carat {

// What --numa says, in llama.cpp's words. Where a team fills all processors, its threads are pinned and
// memory is of the node that reads it in any mode.
enum class Numa {
  off,
  distribute,  // threads are spread over all nodes, and each stays on its node
  isolate,     // only the processors of the node that the process started on
  numactl,     // the processors that the process was given: what `off` does, too
};
Numa parse_numa(std::string_view word);  // Error for other words; "" is off

struct Cpu {
  int id = 0, node = 0;
  int speed = 1024;  // the fastest one's is 1024
};

// The affinity mask, however many processors the machine has.
std::vector<int> allowed_cpus();
// With node and speed, ordered by node, then number.
std::vector<Cpu> cpus_of(const std::vector<int>& ids, const std::string& root = "");
// CPUs' worth of time that control groups of either version grant this process: the least of its own group
// and all that it stands in. Negative: no limit.
double cgroup_quota(const std::string& root = "");
// Threads for n processors with that quota.
int threads_for(int n, double quota);

// Where the threads of a team run.
struct Place {
  std::vector<int> cpus;  // it may run on; empty: wherever the process may
  int node = 0, speed = 1024;
};
// threads 0: as many as fit. `here`: the processor that the caller runs on.
std::vector<Place> places(int threads, Numa numa, std::vector<Cpu> cpus, double quota, int here);

}  // namespace carat
