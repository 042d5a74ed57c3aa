// Records and what stands in them: spreads, hashes, joules by planted sources, planted load.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "measure/energy.h"
#include "measure/load.h"
#include "measure/record.h"
#include "measure/sha256.h"

using namespace carat;
namespace fs = std::filesystem;

namespace {

// A folder that goes away with the test.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("carat-measure-" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

// A process that works until the test ends.
struct Spinner {
  pid_t pid = ::fork();
  Spinner() {
    if (pid == 0)
      for (;;) {}
  }
  ~Spinner() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

void rest(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

TEST_CASE("sha256 of the standard's examples") {
  const auto of = [](const std::string& s) { return sha256(std::as_bytes(std::span(s.data(), s.size()))); };
  CHECK(of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(of(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("a spread has median, p10 and range") {
  const Record s = spread({5, 1, 3, 2, 4});
  CHECK(s["median"] == 3);
  CHECK(s["p10"] == doctest::Approx(1.4));
  CHECK(s["min"] == 1);
  CHECK(s["max"] == 5);
  CHECK(s["n"] == 5);
  CHECK(spread({}).is_null());
}

TEST_CASE("a line of CSV has what the record has, and nothing where it has nothing") {
  Record r = new_record("bench");
  r["model"] = {{"name", "a \"b\", c"}, {"arch", "gemma4"}};
  r["settings"] = {{"config", "x"}, {"dm", 4}};
  r["figures"] = {{"decode_tps", 12.5}};
  r["busy"] = Record::array();
  const std::string head = csv_header(), line = csv_line(r);
  CHECK(head.starts_with("config,arch,dist,draft,kv_k,kv_v,ctx,dm,wall_s,prefill_ms,prefill_tps,decode_ms"));
  CHECK(line.starts_with("x,gemma4,,,,,,4,,,,,12.5,"));
  CHECK(line.ends_with(",\"a \"\"b\"\", c\",no"));
  CHECK(std::count(head.begin(), head.end(), ',') + 1 == std::count(line.begin(), line.end(), ','));
}

TEST_CASE("records are read from an array and from lines; newer ones are refused") {
  const Folder folder;
  Record a = new_record("bench"), b = a;
  b["version"] = kRecordVersion + 1;
  write(folder.path / "a.json", Record::array({a, a}).dump(1));
  write(folder.path / "b.json", a.dump() + "\n" + a.dump() + "\nnoise\n" + a.dump() + "\n");
  write(folder.path / "c.json", b.dump());
  CHECK(read_records((folder.path / "a.json").string()).size() == 2);
  CHECK(read_records((folder.path / "b.json").string()).size() == 3);
  CHECK_THROWS_AS(read_records((folder.path / "c.json").string()), Error);
}

TEST_CASE("without a source there is no figure") {
  EnergyMeter meter({"/nowhere/libnvidia-ml.so", "/nowhere"});
  CHECK_FALSE(meter.any());
  const Energy e = meter.read();
  CHECK_FALSE(e.joules());
  CHECK_FALSE(e.watts());
  Record f = Record::object();
  put_energy(f, e, e, 100);
  CHECK(f.empty());
}

TEST_CASE("a GPU's joules, by its counter and by its watts") {
  ::setenv("NVML_WATTS", "250", 1);
  for (const char* counter : {"0", "1"}) {
    ::setenv("NVML_COUNTER", counter, 1);
    EnergyMeter meter({CARAT_FAKE_NVML, "/nowhere"});
    REQUIRE(meter.any());
    const Energy before = meter.read();
    rest(700);
    const Energy e = meter.read() - before;
    CHECK(e.watts().value() == doctest::Approx(250).epsilon(0.03));
    CHECK(e.joules().value() == doctest::Approx(250 * e.seconds).epsilon(0.03));
    CHECK_FALSE(e.cpu);
  }
}

TEST_CASE("watts that change are integrated") {
  ::setenv("NVML_COUNTER", "0", 1);
  ::setenv("NVML_WATTS", "100", 1);
  EnergyMeter meter({CARAT_FAKE_NVML, "/nowhere"});
  rest(500);
  ::setenv("NVML_WATTS", "300", 1);
  rest(500);
  const Energy e = meter.read();
  CHECK(e.joules().value() / e.seconds == doctest::Approx(200).epsilon(0.12));
}

TEST_CASE("a processor's counter goes round") {
  const Folder folder;
  write(folder.path / "intel-rapl:0" / "energy_uj", "9000000");
  write(folder.path / "intel-rapl:0" / "max_energy_range_uj", "10000000");
  write(folder.path / "intel-rapl:0:0" / "energy_uj", "5");
  EnergyMeter meter({"/nowhere/libnvidia-ml.so", folder.path.string()});
  write(folder.path / "intel-rapl:0" / "energy_uj", "2000000");
  CHECK(meter.read().cpu.value() == doctest::Approx(3));
  CHECK_FALSE(meter.read().gpu);
}

TEST_CASE("a busy process is named with what it takes") {
  LoadWatch watch(nullptr);
  rest(300);
  const double before = watch.state()["others_cpus"];
  const Spinner spinner;
  rest(150);
  watch.state();
  rest(600);
  const Record state = watch.state();
  bool named = false;
  for (const Record& p : state["top"]) named |= p["pid"] == spinner.pid && p["cpus"] > 0.05;
  CHECK(named);
  const double others = state["others_cpus"];
  CHECK((others > 0.5 || others > before));
  BusyLimits none;
  none.cores = 0.01;
  REQUIRE_FALSE(busy_with(state, none).empty());
  CHECK(busy_with(state, none).front().find(std::to_string(spinner.pid)) != std::string::npos);
}

TEST_CASE("a busy GPU and its process are named; one at rest is not") {
  ::setenv("NVML_BUSY", "73", 1);
  ::setenv("NVML_PID", "4711", 1);
  LoadWatch watch(Nvml::open(CARAT_FAKE_NVML));
  BusyLimits gpus;
  gpus.cores = gpus.steal = 100;  // this machine's own load aside
  const auto busy = busy_with(watch.state(), gpus);
  REQUIRE(busy.size() >= 2);
  CHECK(busy[busy.size() - 2] == "GPU 0 is busy 73 % of the time");
  CHECK(busy.back() == "a process (4711) holds 3.2 GB of GPU 0");
  const Spinner spinner;
  ::setenv("NVML_PID", std::to_string(spinner.pid).c_str(), 1);
  const std::string named = busy_with(watch.state(), gpus).back();
  CHECK(named.ends_with(" (" + std::to_string(spinner.pid) + ") holds 3.2 GB of GPU 0"));
  CHECK_FALSE(named.starts_with("a process"));
  gpus.holders = false;
  CHECK(busy_with(watch.state(), gpus) == std::vector<std::string>{"GPU 0 is busy 73 % of the time"});
  ::setenv("NVML_BUSY", "2", 1);
  ::unsetenv("NVML_PID");
  for (const std::string& what : busy_with(watch.state(), gpus)) CHECK(what.find("GPU") == std::string::npos);
}

TEST_CASE("a quiet machine is not busy") {
  const Record quiet = {{"seconds", 1}, {"cpus", 8}, {"others_cpus", 0.4}, {"steal_cpus", 0.1}};
  CHECK(busy_with(quiet).empty());
  Record busy = quiet;
  busy["others_cpus"] = 4.3;
  CHECK(busy_with(busy).size() == 1);
}
