// carat bench-ops --type q4_k --shape 12288x1536 -m 1,128 [--isa avx2]
//
// A program of as many products as make 512 MiB of weights, so that they come from memory, replayed; the
// figure is the median over replays. The read ceiling is measured just before, with the same threads.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>

#include "apps/cli.h"
#include "base/error.h"
#include "base/threads.h"
#include "core/backend.h"
#include "cpu/ceiling.h"

namespace carat {
namespace {

struct BenchOpsOptions {
  std::vector<std::string> types{"q4_k"}, shapes{"12288x1536", "1536x12288"};
  std::vector<int> rows{1, 128};
  std::string isa;
  int threads = 0, repeats = 5;
  int64_t total_mib = 512;
};

double cpu_now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Weights {
  std::vector<std::byte> file;
  std::vector<Buffer> owners;
  std::vector<Tensor> placed;
  int64_t bytes = 0;  // of one
};

// Bytes without meaning but with finite scales in every format: no f16 read from them has a large exponent.
Weights make_weights(Backend& backend, DType type, int32_t n, int32_t k, int64_t total) {
  Weights w;
  w.bytes = row_bytes(type, k) * n;
  w.file.resize(static_cast<size_t>(w.bytes));
  uint32_t s = 1;
  for (std::byte& b : w.file) b = static_cast<std::byte>((s = s * 1664525u + 1013904223u) >> 24 & 0x2f);
  const int64_t copies = std::max<int64_t>(1, total / w.bytes);
  for (int64_t i = 0; i < copies; ++i) {
    w.owners.emplace_back();
    const Tensor host = make_tensor(w.file.data(), type, n, k);
    w.placed.push_back(backend.place_weight(host, WeightUse::product, w.owners.back()));
    if (w.owners.back().size() ==
        0) {  // used as it is: a copy of its own, or all would be one and stay in cache
      w.owners.back() = backend.alloc(w.file.size());
      std::copy(w.file.begin(), w.file.end(), w.owners.back().data());
      w.placed.back().data = w.owners.back().data();
    }
  }
  return w;
}

void bench_product(Backend& backend, DType type, int32_t n, int32_t k, int32_t m, double ceiling, int threads,
                   const BenchOpsOptions& o) {
  const Weights w = make_weights(backend, type, n, k, o.total_mib << 20);
  const Buffer x = backend.alloc(size_t{4} * m * k), y = backend.alloc(size_t{4} * m * n);
  for (int64_t i = 0; i < int64_t{m} * k; ++i)
    reinterpret_cast<float*>(x.data())[i] = static_cast<float>(i % 37 - 18);
  // Enough work that starting it does not show.
  const size_t products = std::clamp<size_t>(static_cast<size_t>(1e11 / (2.0 * m * n * k)), 2, 8192);
  Program program;
  for (size_t i = 0; i < products; ++i)
    program.push(MatmulArgs{.y = make_tensor(y.data(), DType::f32, m, n),
                            .x = make_tensor(x.data(), DType::f32, m, k),
                            .w = w.placed[i % w.placed.size()],
                            .bias = {},
                            .mul = {}});
  const StepState state{.n_rows = m};
  const auto exe = backend.compile(program, &state);
  std::vector<double> seconds, cpu;
  for (int i = 0; i <= o.repeats; ++i) {
    const auto t0 = std::chrono::steady_clock::now();
    const double c0 = cpu_now();
    backend.submit(*exe);
    backend.wait();
    if (i == 0) continue;
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count());
    cpu.push_back(cpu_now() - c0);
  }
  std::sort(seconds.begin(), seconds.end());
  std::sort(cpu.begin(), cpu.end());
  const double per = 1.0 / static_cast<double>(products), s = per * seconds[seconds.size() / 2];
  const double c = per * cpu[0] / threads, gbytes = 1e-9 * static_cast<double>(w.bytes),
               gops = 2e-9 * m * n * k;
  fmt::print("{:<6} {:>6} x {:<6} M {:<4} {:9.1f} us {:6.2f} GB/s {:3.0f} % {:7.1f} GOPS", info(type).name, n,
             k, m, 1e6 * s, gbytes / s, 100 * gbytes / s / ceiling, gops / s);
  fmt::print(" | fastest {:9.1f} us | cpu {:9.1f} us {:6.2f} GB/s {:7.1f} GOPS\n", 1e6 * per * seconds[0],
             1e6 * c, gbytes / c, gops / c);
}

void run_bench_ops(const BenchOpsOptions& o) {
  const auto backend = make_cpu_backend(o.threads, o.isa);
  const int threads = o.threads ? o.threads : available_cpus();
  const double ceiling = measure_read_gbps(o.threads);
  fmt::print("{}, read ceiling {:.1f} GB/s\n", backend->info().name, ceiling);
  for (const std::string& name : o.types) {
    const auto type = dtype_of_name(name);
    if (!type) throw Error(fmt::format("unknown type '{}'", name), "for example q4_k, q6_k, q8_0, bf16");
    for (const std::string& shape : o.shapes) {
      int n = 0, k = 0;
      if (std::sscanf(shape.c_str(), "%dx%d", &n, &k) != 2 || n < 1 || k < 1 || k % info(*type).elems != 0)
        throw Error(fmt::format("'{}' is no shape for {}", shape, name),
                    "outputs x inputs, as in 12288x1536");
      for (const int m : o.rows) bench_product(*backend, *type, n, k, m, ceiling, threads, o);
    }
  }
}

}  // namespace

void add_bench_ops(CLI::App& app) {
  auto* sub = app.add_subcommand("bench-ops", "Measure the speed of single matrix products");
  auto o = std::make_shared<BenchOpsOptions>();
  sub->add_option("--type", o->types, "Weight types")->delimiter(',')->capture_default_str();
  sub->add_option("--shape", o->shapes, "Shapes, outputs x inputs")->delimiter(',')->capture_default_str();
  sub->add_option("-m,--rows", o->rows, "Rows per product")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  sub->add_option("--isa", o->isa, "baseline, avx2, avx512 or amx; empty: the best");
  sub->add_option("-t,--threads", o->threads, "Threads; 0: all allowed")->check(CLI::Range(0, 1024));
  sub->add_option("--weights", o->total_mib, "MiB of weights to walk through; 1: they stay in cache")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  sub->add_option("-r,--repetitions", o->repeats, "Measured runs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->callback([o] { run_bench_ops(*o); });
}

}  // namespace carat
