// The processors of machines that are trees of files here, as Linux shows them.
#include "base/cpus.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"

using namespace carat;
namespace fs = std::filesystem;

namespace {

// Files of a machine, below a folder of their own.
class Tree {
 public:
  explicit Tree(const std::map<std::string, std::string>& files) {
    for (const auto& [path, text] : files) put(path, text);
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  ~Tree() { fs::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  const std::string& root() const { return root_; }

 private:
  static inline int made_ = 0;
  std::string root_ =
      (fs::temp_directory_path() / fmt::format("carat-cpus-{}-{}", ::getpid(), ++made_)).string();
};

const char kVersion2[] = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";

std::vector<int> first(int n) {
  std::vector<int> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

TEST_CASE("a quota of cgroup v2 is the least of the group and those around it") {
  Tree t({{"/proc/self/mountinfo", kVersion2},
          {"/proc/self/cgroup", "0::/user.slice/app.scope/inner"},
          {"/sys/fs/cgroup/user.slice/cpu.max", "max 100000"},
          {"/sys/fs/cgroup/user.slice/app.scope/cpu.max", "250000 100000"},
          {"/sys/fs/cgroup/user.slice/app.scope/inner/cpu.max", "max 100000"}});
  CHECK(cgroup_quota(t.root()) == 2.5);
  t.put("/sys/fs/cgroup/user.slice/app.scope/inner/cpu.max", "40000 50000");
  CHECK(cgroup_quota(t.root()) == 0.8);
  t.put("/sys/fs/cgroup/user.slice/cpu.max", "10000 100000");
  CHECK(cgroup_quota(t.root()) == 0.1);
  CHECK(threads_for(64, 0.1) == 1);
}

TEST_CASE("in a container the group's folder is where the file system begins") {
  // With a namespace of groups the path is /; without one, /proc names a folder that only the machine sees.
  Tree t({{"/proc/self/mountinfo", kVersion2},
          {"/proc/self/cgroup", "0::/"},
          {"/sys/fs/cgroup/cpu.max", "150000 100000"}});
  CHECK(cgroup_quota(t.root()) == 1.5);
  t.put("/proc/self/cgroup", "0::/../../kubepods/pod7");
  CHECK(cgroup_quota(t.root()) == 1.5);
  t.put("/proc/self/cgroup", "0::/docker/77aa");
  CHECK(cgroup_quota(t.root()) == 1.5);
}

TEST_CASE("quotas of cgroup v1, wherever its controller is mounted") {
  Tree t({{"/proc/self/mountinfo",
           "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
           "32 24 0:28 / /sys/fs/cgroup/cpuset rw shared:11 - cgroup cgroup rw,cpuset\n"
           "33 24 0:29 / /sys/fs/cgroup/unified rw shared:12 - cgroup2 cgroup2 rw"},
          {"/proc/self/cgroup", "5:cpuset:/other\n4:cpu,cpuacct:/jobs/7\n0::/jobs"},
          {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1"},
          {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"},
          {"/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "320000"},
          {"/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000"},
          {"/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us", "-1"},
          {"/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_period_us", "100000"},
          {"/sys/fs/cgroup/cpuset/other/cpu.cfs_quota_us", "1000"}});
  CHECK(cgroup_quota(t.root()) == doctest::Approx(3.2));
  // Docker without a namespace of groups: the mount shows the group's own folder, its root says which.
  t.put("/proc/self/mountinfo", "31 24 0:27 /jobs/7 /mnt/cpu rw - cgroup cgroup rw,cpu,cpuacct");
  t.put("/mnt/cpu/cpu.cfs_quota_us", "50000");
  t.put("/mnt/cpu/cpu.cfs_period_us", "100000");
  CHECK(cgroup_quota(t.root()) == 0.5);
  t.put("/proc/self/cgroup", "4:cpu,cpuacct:/jobs/77");  // another's: its name begins alike
  CHECK(cgroup_quota(t.root()) == 0.5);
}

TEST_CASE("no quota where no file tells one") {
  const Tree t({{"/proc/self/cgroup", "nonsense\n0::/"}, {"/proc/self/mountinfo", "- - -\n x - "}});
  CHECK(cgroup_quota(t.root()) < 0);
  CHECK(cgroup_quota("/nowhere") < 0);
  CHECK(threads_for(96, -1) == 96);
}

TEST_CASE("processors are ordered by node: threads of a node follow each other") {
  const Tree t({{"/sys/devices/system/node/online", "0-1"},
                {"/sys/devices/system/node/node0/cpulist", "0-31,64-95"},
                {"/sys/devices/system/node/node1/cpulist", "32-63,96-127"}});
  const std::vector<Cpu> cpus = cpus_of(first(128), t.root());
  REQUIRE(cpus.size() == 128);
  for (size_t i = 0; i < 128; ++i) CHECK(cpus[i].node == (i < 64 ? 0 : 1));
  CHECK(cpus[31].id == 31);
  CHECK(cpus[32].id == 64);
  CHECK(cpus[64].id == 32);

  const std::vector<Place> all = places(0, Numa::off, cpus, -1, 0);  // fills the machine: one processor each
  REQUIRE(all.size() == 128);
  CHECK(all[64].cpus == std::vector<int>{32});
  CHECK(all[64].node == 1);

  const std::vector<Place> some = places(24, Numa::off, cpus, -1, 0);
  CHECK((some[0].cpus.empty() && some[23].cpus.empty()));
  const std::vector<Place> spread = places(24, Numa::distribute, cpus, -1, 0);
  REQUIRE(spread.size() == 24);
  for (size_t i = 0; i < 24; ++i) {
    CHECK(spread[i].node == (i < 12 ? 0 : 1));
    CHECK(spread[i].cpus.size() == 64);
  }
  const std::vector<Place> alone = places(0, Numa::isolate, cpus, -1, 40);
  REQUIRE(alone.size() == 64);
  CHECK(alone[0].cpus == std::vector<int>{32});
  for (const Place& p : alone) CHECK(p.node == 1);
  CHECK(places(0, Numa::isolate, cpus, 5.5, 40).size() == static_cast<size_t>(threads_for(64, 5.5)));
  CHECK(places(200, Numa::off, cpus, -1, 0).size() == 200);  // more than there are is what was asked for
}

TEST_CASE("cores of two kinds: speeds beside the fastest") {
  Tree arm({});
  for (const int id : first(20))
    arm.put(fmt::format("/sys/devices/system/cpu/cpu{}/cpu_capacity", id), id % 10 < 5 ? "718" : "1024");
  const std::vector<Cpu> ten = cpus_of(first(20), arm.root());
  CHECK(ten[0].speed == 718);
  CHECK(ten[9].speed == 1024);

  Tree intel({{"/sys/devices/cpu_core/cpus", "0-7"}, {"/sys/devices/cpu_atom/cpus", "8-11"}});
  for (const int id : first(12))
    intel.put(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq", id),
              id < 8 ? "5000000" : "4000000");
  const std::vector<Cpu> hybrid = cpus_of(first(12), intel.root());
  CHECK(hybrid[0].speed == 1024);
  CHECK(hybrid[11].speed == 410);
  CHECK(cpus_of({10, 11}, intel.root())[0].speed == 1024);  // beside its like it is not slow

  const std::vector<Cpu> plain = cpus_of(first(3), "/nowhere");
  for (const Cpu& c : plain) CHECK((c.speed == 1024 && c.node == 0));
}

TEST_CASE("--numa takes llama.cpp's words") {
  CHECK(parse_numa("") == Numa::off);
  CHECK(parse_numa("distribute") == Numa::distribute);
  CHECK(parse_numa("isolate") == Numa::isolate);
  CHECK(parse_numa("numactl") == Numa::numactl);
  CHECK_THROWS_AS(parse_numa("mirror"), Error);
}

TEST_CASE("this process may use at least one processor, each named once") {
  const std::vector<int> ids = allowed_cpus();
  CHECK(std::set<int>(ids.begin(), ids.end()).size() == ids.size());
  CHECK(!ids.empty());
}
