#include "measure/energy.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "measure/nvml.h"

namespace carat {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

std::optional<double> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  double v = 0;
  if (!(in >> v)) return {};
  return v;
}

// A package's counter of microjoules, which goes round.
class RaplDomain {
 public:
  RaplDomain(std::filesystem::path folder, double at, double range)
      : folder_(std::move(folder)), last_(at), range_(range) {}
  double joules() {
    if (const auto now = number_in(folder_ / "energy_uj")) {
      sum_ += *now >= last_ ? *now - last_ : *now + range_ - last_;
      last_ = *now;
    }
    return sum_ * 1e-6;
  }

 private:
  std::filesystem::path folder_;
  double last_, range_, sum_ = 0;
};

std::optional<double> both(std::optional<double> a, std::optional<double> b, double sign) {
  if (!a || !b) return {};
  return *a + sign * *b;
}

}  // namespace

std::optional<double> Energy::joules() const {
  if (!gpu && !cpu) return {};
  return gpu.value_or(0) + cpu.value_or(0);
}
std::optional<double> Energy::watts() const {
  const auto j = joules();
  if (!j || seconds <= 0) return {};
  return *j / seconds;
}
Energy Energy::operator-(const Energy& before) const {
  return {seconds - before.seconds, both(gpu, before.gpu, -1), both(cpu, before.cpu, -1)};
}
Energy& Energy::operator+=(const Energy& other) {
  const auto add = [](std::optional<double>& to, const std::optional<double>& more) {
    if (more) to = to.value_or(0) + *more;
  };
  seconds += other.seconds;
  add(gpu, other.gpu), add(cpu, other.cpu);
  return *this;
}

struct EnergyMeter::Impl {
  Clock::time_point began = Clock::now();
  std::shared_ptr<Nvml> nvml;
  std::vector<int> counters, sampled;  // GPUs with a counter of joules, and those with watts alone
  std::vector<double> first;
  std::vector<RaplDomain> rapl;
  // Watts are integrated by a thread of our own.
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::vector<double> watts;
  double at = 0, sum = 0;
  std::thread thread;

  void sample() {  // with the mutex held
    const double now = since(began);
    for (size_t i = 0; i < sampled.size(); ++i) {
      const double w = nvml->watts(sampled[i]).value_or(watts[i]);
      sum += (now - at) * 0.5 * (w + watts[i]);  // trapezoids
      watts[i] = w;
    }
    at = now;
  }
  void loop() {
    std::unique_lock lock(mutex);
    while (!stop) {
      changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return stop; });
      sample();
    }
  }
};

EnergyMeter::EnergyMeter(const EnergySources& sources) : impl_(std::make_unique<Impl>()) {
  Impl& i = *impl_;
  i.nvml = Nvml::open(sources.nvml);
  for (int d = 0; i.nvml && d < i.nvml->count(); ++d) {
    if (sources.gpu >= 0 && d != sources.gpu) continue;
    if (const auto j = i.nvml->total_joules(d))
      i.counters.push_back(d), i.first.push_back(*j);
    else if (const auto w = i.nvml->watts(d))
      i.sampled.push_back(d), i.watts.push_back(*w);
  }
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(sources.rapl, ec)) {
    const std::string name = e.path().filename().string();
    // intel-rapl:0 is a package; intel-rapl:0:1 a part of it, intel-rapl-mmio the same package once more
    if (!name.starts_with("intel-rapl:") || name.find(':', 11) != std::string::npos) continue;
    const auto at = number_in(e.path() / "energy_uj");
    if (at) i.rapl.emplace_back(e.path(), *at, number_in(e.path() / "max_energy_range_uj").value_or(0));
  }
  i.at = since(i.began);
  if (!i.sampled.empty()) i.thread = std::thread([&i] { i.loop(); });
}

EnergyMeter::~EnergyMeter() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

bool EnergyMeter::any() const { return !names().empty(); }

std::vector<std::string> EnergyMeter::names() const {
  std::vector<std::string> all;
  if (!impl_->counters.empty()) all.emplace_back("nvml counter");
  if (!impl_->sampled.empty()) all.emplace_back("nvml power at 10 Hz");
  if (!impl_->rapl.empty()) all.emplace_back("rapl");
  return all;
}

Energy EnergyMeter::read() {
  Impl& i = *impl_;
  const std::lock_guard lock(i.mutex);
  Energy e;
  if (!i.sampled.empty()) i.sample(), e.gpu = i.sum;
  for (size_t c = 0; c < i.counters.size(); ++c)
    e.gpu = e.gpu.value_or(0) + i.nvml->total_joules(i.counters[c]).value_or(i.first[c]) - i.first[c];
  for (RaplDomain& d : i.rapl) e.cpu = e.cpu.value_or(0) + d.joules();
  e.seconds = since(i.began);
  return e;
}

}  // namespace carat
