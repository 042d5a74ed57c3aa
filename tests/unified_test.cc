// label: slow
// A GPU that shares the host's memory: weights come past the mapping of their file, whose pages take no
// memory beside them, and what is free is what the kernel would give.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "cuda/matmul/table.h"
#include "tests/backends.h"
#include "tests/op_cases.h"

using namespace carat;
using namespace carat::test;
namespace fs = std::filesystem;

namespace {

struct Unified {  // the device is one while this lives
  Unified() { cuda::force_kernels({"unified"}); }
  ~Unified() { cuda::force_kernels({}); }
};

struct TestFile {
  std::string path = (fs::temp_directory_path() / fmt::format("carat-unified-{}", ::getpid())).string();
  ~TestFile() { fs::remove(path); }
};

// Bytes of this process, by name: VmHWM, the most that it has had since forget_peak(), or RssFile.
int64_t memory(const std::string& name) {
  const std::string status = read_file("/proc/self/status");
  return std::stoll(status.substr(status.find(name + ":") + name.size() + 1)) * 1024;
}
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// What the device has of a weight, as the test reads it back.
std::vector<std::byte> placed(Backend& b, const Tensor& host) {
  Buffer owner;
  b.place_weight(host, WeightUse::product, owner);
  std::vector<std::byte> out(owner.size());
  b.copy(out.data(), owner.data(), out.size());
  return out;
}

}  // namespace

TEST_CASE("weights of a mapped file and of other memory are the same bytes on a device that shares memory") {
  if (cuda_devices().empty()) return;
  const TestFile file;
  Random random(3);
  constexpr int32_t kRows = 150, kSlices = 3;
  for (const DType type : {DType::q4_k, DType::q8_0, DType::q3_k, DType::bf16, DType::fp8}) {
    CAPTURE(static_cast<int>(type));
    const int32_t cols = info(type).family == Family::block ? 512 : 208;
    const int64_t bytes = row_bytes(type, cols) * kRows * kSlices, odd = 13;  // where a tensor begins
    std::vector<char> image(static_cast<size_t>(odd + bytes));
    for (char& c : image) c = static_cast<char>(random());
    std::ofstream(file.path, std::ios::binary)
        .write(image.data(), static_cast<std::streamsize>(image.size()));
    const MappedFile mapped(file.path);
    const auto weight = [&](const void* p) {
      return make_tensor(const_cast<std::byte*>(static_cast<const std::byte*>(p)) + odd, type, kRows, cols,
                         kSlices);
    };
    const auto want = placed(*make_cuda_backend(0), weight(mapped.bytes().data()));
    const Unified unified;
    const auto backend = make_cuda_backend(0);
    CHECK(placed(*backend, weight(mapped.bytes().data())) == want);
    CHECK(placed(*backend, weight(image.data())) == want);
  }
}

TEST_CASE("loading takes what the weights take, and not their file's pages besides") {
  if (cuda_devices().empty()) return;
  const TestFile file;
  constexpr int64_t kBytes = int64_t{384} << 20, kMore = int64_t{256} << 20;
  constexpr int32_t kCols = 4096, kTensors = 12;
  std::ofstream(file.path).close();
  fs::resize_file(file.path, kBytes);  // zeros
  const MappedFile mapped(file.path);
  struct Grown {
    int64_t most, mapped;
  };
  const auto load = [&] {
    const auto backend = make_cuda_backend(0);
    std::vector<Buffer> owners(kTensors);
    forget_peak();
    const int64_t most = memory("VmHWM"), pages = memory("RssFile");
    for (int32_t i = 0; i < kTensors; ++i)
      backend->place_weight(
          make_tensor(const_cast<std::byte*>(mapped.bytes().data()) + kBytes / kTensors * i, DType::bf16,
                      static_cast<int32_t>(kBytes / kTensors / kCols / 2), kCols),
          WeightUse::product, owners[static_cast<size_t>(i)]);
    return Grown{memory("VmHWM") - most, memory("RssFile") - pages};
  };
  {
    const Unified unified;
    const Grown g = load();
    MESSAGE("a file of ", kBytes >> 20, " MiB: ", g.most >> 20, " MiB at most, ", g.mapped >> 20,
            " MiB of its pages");
    CHECK(g.most <= kBytes + kMore);
    CHECK(g.mapped < kMore / 4);
  }
  CHECK(load().mapped > kBytes / 2);  // elsewhere the mapping is copied from
}

TEST_CASE("what is free is what /proc/meminfo says, less a reserve") {
  if (cuda_devices().empty()) return;
  const TestFile file;
  const Unified unified;
  CudaOptions o;
  o.meminfo = file.path;
  std::ofstream(file.path) << "MemTotal:  9000000 kB\nMemAvailable:   300000 kB\n";
  const DeviceInfo d = make_cuda_backend(0, o)->info();
  CHECK(d.mem_free == std::max<int64_t>(0, int64_t{300000} * 1024 - d.mem_total / 16));
  std::ofstream(file.path) << "MemAvailable: 900000000 kB\n";
  CHECK(make_cuda_backend(0, o)->info().mem_free == d.mem_total);
}
