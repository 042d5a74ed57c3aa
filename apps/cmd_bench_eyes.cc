// carat bench-eyes TOWERS: how long a tower looks at a picture, by the rows that it becomes, and with how
// many operations a second. The picture is noise; a tower does the same work for every one.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <memory>

#include "apps/cmd_bench_eyes.h"
#include "apps/npy.h"
#include "apps/op_profile.h"
#include "apps/open.h"
#include "apps/progress.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"
#include "core/backend.h"
#include "cpu/op_times.h"
#include "cuda/cuda.h"
#include "cuda/matmul/table.h"
#include "measure/record.h"
#include "model/open_tower.h"

namespace carat {
namespace {

struct BenchEyesOptions {
  std::string file, isa, out, device = "cpu";
  std::vector<int32_t> budgets{70, 280, 1120};
  int threads = 0, repeats = 3;
  bool ops = false;
};

// Of products and attention, for all patches of a picture.
double operations(const WeightSource& towers, const VisionTower::Shape& shape, double rows) {
  const Metadata& m = towers.meta();
  const auto get = [&](const char* key) { return static_cast<double>(m.get_int(key)); };
  const double d = get("clip.vision.embedding_length"), patches = rows * shape.group;
  double weights = 0;
  for (const TensorInfo& t : towers.tensors())
    if (t.name.starts_with("v.") && t.shape.size() > 1 && t.name != "v.position_embd.weight")
      weights += static_cast<double>(t.elements());
  double merger = 0;
  for (const TensorInfo& t : towers.tensors())
    if (t.name.starts_with("mm.") && t.shape.size() == 2) merger += static_cast<double>(t.elements());
  return 2 * (patches * weights + rows * merger) + 4 * patches * patches * d * get("clip.vision.block_count");
}

// As square as a budget allows, so that no scaling is in the way.
Picture noise_for(const VisionTower& tower, int32_t budget) {
  const GridSize size = tower.size({1024, 1024, {}}, budget);
  Picture p{size.width, size.height, std::vector<uint8_t>(size_t{3} * size.width * size.height)};
  for (size_t i = 0; i < p.rgb.size(); ++i)
    p.rgb[i] = static_cast<uint8_t>(256 * uniform_noise(1, static_cast<uint64_t>(i), 0));
  return p;
}

// Where the time of the encoder's last picture goes: its program once more, operation by operation.
void print_ops(Backend& backend, const Encoder& encoder) {
  const auto whole = backend.compile(encoder.program(), &encoder.state());
  std::vector<double> seconds;
  for (int i = 0; i < 2; ++i) {  // the first run loads code
    seconds.clear();
    time_ops(backend, &seconds);
    time_cuda_ops(backend, &seconds);
    backend.submit(*whole);
    backend.wait();
    time_ops(backend, nullptr);
    time_cuda_ops(backend, nullptr);
  }
  // Every patch sees all: as many as rows that begin behind half of them see on average.
  const StepState& s = encoder.state();
  const std::vector<OpGroup> groups = group_ops(encoder.program(), seconds, s.n_rows, s.n_out, s.n_rows / 2);
  double all = 0;
  for (const OpGroup& g : groups) all += g.seconds;
  fmt::print("\n| operation | n | ms | share | TFLOP/s |\n| --- | --: | --: | --: | --: |\n");
  for (const OpGroup& g : groups)
    fmt::print("| {} | {} | {:.2f} | {:.1f} % | {:.1f} |\n", g.name, g.count, 1e3 * g.seconds,
               100 * g.seconds / all, 1e-12 * g.operations / g.seconds);
}

template <class F>
double median_seconds(int repeats, F&& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {  // the first loads code, and counts where it is alone
    const auto began = std::chrono::steady_clock::now();
    work();
    if (i > 0 || repeats == 0)
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return quantile(seconds, 0.5);
}

void write_rows(const std::string& path, const std::vector<float>& values, int32_t rows) {
  NpyWriter out(path, {rows, static_cast<int64_t>(values.size()) / rows});
  out.write(values);
  out.commit();
}

void bench_budget(const BenchEyesOptions& o, int32_t budget, const WeightSource& towers,
                  const std::shared_ptr<const VisionTower>& tower, const std::shared_ptr<Backend>& backend) {
  Encoder encoder(backend, tower);
  const Picture picture = noise_for(*tower, budget);
  const int32_t rows = encoder.rows_of(picture);
  VisionTower::Input input;
  std::vector<float> values;
  const double prepared = median_seconds(o.repeats, [&] { tower->prepare(picture, input); }),
               s = median_seconds(o.repeats, [&] { values = encoder.encode(picture); }),
               work = 1e-12 * operations(towers, tower->shape(), rows);
  fmt::print("| {} | {} | {} x {} | {:.4f} | {:.4f} | {:.2f} | {:.3f} | {} |\n", rows,
             rows * tower->shape().group, picture.width, picture.height, s, prepared, work, work / s,
             human_bytes(static_cast<double>(encoder.memory_bytes())));
  std::fflush(stdout);
  if (budget != o.budgets.back()) return;
  if (o.ops) print_ops(*backend, encoder);
  if (!o.out.empty()) write_rows(o.out, values, rows);
}

void run_bench_eyes(const BenchEyesOptions& o) {
  const std::shared_ptr<const WeightSource> towers = open_towers(o.file);
  if (!towers)
    throw Error(fmt::format("'{}' holds no tower for pictures", o.file),
                "give an mmproj file, or a directory of a model that sees");
  OpenOptions open;
  open.device = o.device, open.isa = o.isa, open.threads = o.threads;
  const std::shared_ptr<Backend> backend = make_backend(open);
  const std::shared_ptr<const VisionTower> tower = open_vision(towers, *backend);
  fmt::print("{}\n{}\n", towers->path(), backend->info().name);
  fmt::print(
      "| tokens | patches | picture | seconds (median of {}) | of them preparing | TFLOP | TFLOP/s | "
      "activations |\n",
      std::max(1, o.repeats));
  fmt::print("| --: | --: | --- | --: | --: | --: | --: | --: |\n");
  for (const int32_t budget : o.budgets) bench_budget(o, budget, *towers, tower, backend);
}

}  // namespace

void add_bench_eyes(CLI::App& app) {
  auto* sub = app.add_subcommand("bench-eyes", "Measure how long a model's picture encoder takes");
  auto o = std::make_shared<BenchEyesOptions>();
  sub->add_option("file", o->file, "An mmproj .gguf, or a directory of a model that sees")->required();
  sub->add_option("--image-tokens", o->budgets, "Tokens of the pictures")
      ->delimiter(',')
      ->check(CLI::Range(70, 1120))
      ->capture_default_str();
  sub->add_option("--device", o->device, "cpu, or cuda:0, cuda:1, ...")->capture_default_str();
  sub->add_option("--isa", o->isa, "baseline, avx2, avx512 or amx; empty: the best");
  sub->add_option("-t,--threads", o->threads, "Threads; 0: all allowed")->check(CLI::Range(0, 1024));
  sub->add_option("-r,--repetitions", o->repeats,
                  "Measured pictures behind one that is not; 0: the first one, where a picture takes minutes")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  sub->add_option_function<std::vector<std::string>>(
         "--kernel", [](const std::vector<std::string>& names) { cuda::force_kernels(names); },
         "CUDA: other kernels than the default, as of `bench`; sm_80: what an Ampere GPU runs")
      ->delimiter(',');
  sub->add_option("--out", o->out, "Write the last budget's rows to this .npy file, float32 [rows, columns]");
  sub->add_flag("--ops", o->ops, "Also where the time of the last budget goes, by operation");
  sub->callback([o] { run_bench_eyes(*o); });
}

}  // namespace carat
