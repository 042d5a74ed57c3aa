// carat bench: prompt processing and generation speed, with the bytes read and the share of the machine's
// read ceiling.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/attn_count.h"
#include "apps/bench_row.h"
#include "apps/cli.h"
#include "apps/cmd_bench_spec.h"
#include "apps/eval.h"
#include "apps/fill.h"
#include "apps/measurement.h"
#include "apps/op_profile.h"
#include "apps/open.h"
#include "apps/progress.h"
#include "apps/traffic.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "cpu/op_times.h"
#include "cuda/cuda.h"
#include "cuda/matmul/table.h"
#include "engine/setup.h"
#include "model/stepper.h"

namespace carat {
namespace {

struct BenchOptions {
  OpenOptions open;
  std::vector<int32_t> prompts{512}, generate{64}, depths{0}, rows;
  int32_t repeats = 5, chunk = 512;
  EngineConfig cache;               // its formats
  std::vector<std::string> caches;  // to compare, in turns; empty: the one above
  bool cold = false;                // the file is read from the disk
  bool fill = false;                // depths are rows of noise
  std::vector<int32_t> ops;         // rows of the steps to take apart
  std::vector<std::string> execs;   // instruction sets to compare
  std::string attn_count;           // a text: dead tiles of its attention are counted
  MeasureFlags measure;
};

constexpr int32_t kSteps = 16;  // of so many rows each, with --n-rows

// Positions that its sequences have.
int32_t context_of(const BenchOptions& o) {
  const auto most = [](const std::vector<int32_t>& v) {
    return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
  };
  return most(o.depths) +
         (o.ops.empty() ? std::max({most(o.prompts), most(o.generate), kSteps * most(o.rows)}) : most(o.ops));
}

class Bench {
 public:
  Bench(const Opened& opened, const BenchOptions& o, const KvFormats& formats, EnergyMeter* energy = nullptr)
      : o_(o),
        formats_(formats),
        stepper_(opened.backend, opened.model, limits(opened, o), formats),
        backend_(*opened.backend),
        energy_(energy) {}

  // n tokens in steps of `rows` behind `depth` others.
  BenchRow begin(const char* kind, int32_t n, int32_t depth, int32_t rows) {
    BenchRow r;
    r.kind = kind, r.tokens = n, r.depth = depth, r.rows = rows, r.formats = formats_;
    const bool decodes = rows == 1;
    const int32_t wanted = r.kind == "st" ? rows : 1;
    r.bytes_per_token =
        step_read_bytes(stepper_.prepare(rows, wanted), rows, decodes ? depth + n / 2 : depth) / rows;
    r.cache_bytes = stepper_.kv().plan().bytes();
    return r;
  }
  // all: every row's logits are wanted.
  double seconds(int32_t n, int32_t depth, int32_t rows, bool all) {
    if (!sequence_ || depth_ != depth || !rewinds(n)) {
      sequence_.reset();
      sequence_.emplace(stepper_.pages());
      if (o_.fill)
        fill_sequence(backend_, stepper_.kv(), *sequence_, depth);
      else
        feed(*sequence_, depth, o_.chunk);
      depth_ = depth;
    }
    const CudaUse before = cuda_use(backend_);
    const Energy drawn = energy_ ? energy_->read() : Energy{};
    const auto began = std::chrono::steady_clock::now();
    feed(*sequence_, n, rows, all);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    energy_used_ = energy_ ? energy_->read() - drawn : Energy{};
    const CudaUse used = cuda_use(backend_) - before;
    idle_share_ = 1 - used.device / s;
    kernels_ = static_cast<double>(used.kernels) / ((n + rows - 1) / rows);
    if (rewinds(n))
      sequence_->rewind(depth);
    else
      sequence_.reset();
    return s;
  }
  // Of the last run: how much of its time the device did not work, and kernels a step.
  double idle_share() const { return idle_share_; }
  double kernels() const { return kernels_; }
  const Energy& energy_used() const { return energy_used_; }
  // A step of m rows behind `depth` others, its operations' times the medians over the repeats. Up to 32 rows
  // are a decode or verify step, with logits for all of them; more are a prompt.
  std::vector<OpGroup> operations(Backend& backend, int32_t m, int32_t depth) {
    std::vector<std::vector<double>> times;
    ProgressBar bar(fmt::format("{} rows at depth {}", m, depth));
    for (int32_t i = 0; i <= o_.repeats; ++i) {
      Sequence sequence(stepper_.pages());
      if (o_.fill)
        fill_sequence(backend_, stepper_.kv(), sequence, depth);
      else
        feed(sequence, depth, o_.chunk);
      std::vector<double> seconds;
      time_ops(backend, &seconds);
      time_cuda_ops(backend, &seconds);
      step(sequence, m, m <= kVerifyRows ? Stepper::Wanted::all : Stepper::Wanted::last);
      time_ops(backend, nullptr);
      time_cuda_ops(backend, nullptr);
      if (seconds.empty())
        throw Error("--ops times the operations of one device, and several share this model",
                    "name one --device");
      if (i > 0) times.push_back(std::move(seconds));
      bar.update(i + 1, o_.repeats + 1);
    }
    std::vector<double> median;
    for (size_t op = 0; op < times[0].size(); ++op) {
      std::vector<double> t;
      for (const std::vector<double>& run : times) t.push_back(run[op]);
      std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
      median.push_back(t[t.size() / 2]);
    }
    const int32_t wanted = m <= kVerifyRows ? m : 1;
    return group_ops(stepper_.prepare(m, wanted), median, m, wanted, depth);
  }

 private:
  static constexpr int32_t kVerifyRows = 32;
  static KvLimits limits(const Opened& opened, const BenchOptions& o) {
    const int32_t context = context_of(o);
    if (context > opened.model->spec.context) log_warn("{}", beyond_training(context, opened.model->spec));
    int32_t widest = 0;
    for (const std::vector<int32_t>* rows : {&o.ops, &o.rows})
      for (const int32_t m : *rows) widest = std::max(widest, m);
    return {.context = context, .sequences = 1, .step_rows = std::min(std::max(o.chunk, widest), context)};
  }

  bool rewinds(int32_t n) const {
    return n <= stepper_.limits().step_rows && stepper_.kv().plan().recurrent.empty();
  }

  void feed(Sequence& sequence, int32_t n, int32_t rows, bool all = false) {
    for (int32_t left = n; left > 0;) {
      const int32_t now = std::min({left, rows, stepper_.limits().step_rows});
      const bool last = left == now || rows == 1;
      step(sequence, now, all ? Stepper::Wanted::all : last ? Stepper::Wanted::last : Stepper::Wanted::none);
      left -= now;
    }
  }

  void step(Sequence& sequence, int32_t n, Stepper::Wanted wanted) {
    const auto vocab = static_cast<double>(stepper_.model().spec.vocab);
    CARAT_CHECK(sequence.append(n));
    tokens_.resize(n);
    for (int32_t i = 0; i < n; ++i)
      tokens_[i] = static_cast<int32_t>(uniform_noise(1, sequence.committed() + i, 0) * vocab);
    const Stepper::Part part{&sequence, tokens_, wanted};
    stepper_.run({&part, 1});
    sequence.commit(n);
  }

  const BenchOptions& o_;
  const KvFormats formats_;
  Stepper stepper_;
  Backend& backend_;
  std::optional<Sequence> sequence_;  // of `depth_` positions, kept between runs
  int32_t depth_ = -1;
  double idle_share_ = 0, kernels_ = 0;
  EnergyMeter* energy_;
  Energy energy_used_;
  std::vector<int32_t> tokens_;
};

// Where the time of steps goes, for every instruction set asked for.
void bench_ops(BenchOptions o) {
  if (o.execs.empty()) o.execs.push_back(o.open.isa);
  for (const std::string& isa : o.execs) {
    o.open.isa = isa;
    const Opened opened = open_model(o.open);
    const auto weights = static_cast<double>(opened.model->source->total_bytes());
    const double read = measure_read_ceiling(o.open, *opened.backend, weights),
                 dots = measure_dot_ceiling(o.open);
    Bench b(opened, o, flag_formats(o.cache, opened, context_of(o)));
    fmt::print("{} | {} | read ceiling {:.1f} GB/s, byte dots {:.0f} GOPS\n", opened.model->spec.name,
               opened.backend->info().name, read / 1e9, dots / 1e9);
    for (const int32_t depth : o.depths)
      for (const int32_t m : o.ops) {
        const std::vector<OpGroup> groups = b.operations(*opened.backend, m, depth);
        fmt::print("\n{} rows at depth {}\n\n{}", m, depth, op_table(groups, read, dots));
      }
    fmt::print("\n");
  }
}

// A test with all caches in turns, so that what else the machine does hits all of them.
void measure(std::vector<std::unique_ptr<Bench>>& benches, const BenchOptions& o, const char* kind, int32_t n,
             int32_t depth, int32_t rows, std::vector<BenchRow>& out) {
  const size_t first = out.size();
  for (const auto& b : benches) out.push_back(b->begin(kind, n, depth, std::min(rows, n)));
  ProgressBar bar(fmt::format("{} at depth {}", out[first].test(), depth));
  for (int32_t i = 0; i <= o.repeats; ++i) {  // the first time does not count
    for (size_t c = 0; c < benches.size(); ++c) {
      const double seconds = benches[c]->seconds(n, depth, rows, kind == std::string_view("st"));
      BenchRow& row = out[first + c];
      if (i == 0) {
        row.first_seconds = seconds;
        continue;
      }
      row.seconds.push_back(seconds);
      row.until = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
      if (i == 1) row.from = row.until - seconds;
      row.energy += benches[c]->energy_used();
      row.idle_share.push_back(benches[c]->idle_share());
      row.kernels = benches[c]->kernels();
    }
    bar.update(i + 1, o.repeats + 1);
  }
  for (size_t c = first; c < out.size(); ++c) out[c].resident = resident_bytes();
}

// What the system keeps of a file (of a directory's files) in memory is dropped, as far as nothing else maps
// it.
void forget_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.is_regular_file()) forget_file(entry.path());
    return;
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;  // opening the model says why
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

void bench(const BenchOptions& o) {
  if (!o.ops.empty()) return bench_ops(o);
  Measurement m(o.measure, "bench");
  if (o.cold) forget_file(o.open.model);
  const auto began = std::chrono::steady_clock::now();
  const Opened opened = open_model(o.open);
  const double open_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  m.opened(opened);
  const auto weights = static_cast<double>(opened.model->source->total_bytes());
  double ceiling = measure_read_ceiling(o.open, *opened.backend, weights);
  std::vector<KvFormats> formats;
  for (const std::string& cache : o.caches) formats.push_back(cache_formats(cache));
  if (formats.empty()) formats.push_back(flag_formats(o.cache, opened, context_of(o)));
  std::vector<std::unique_ptr<Bench>> benches;
  for (const KvFormats& f : formats)
    benches.push_back(std::make_unique<Bench>(opened, o, f, m.has_energy() ? &m.energy() : nullptr));
  std::vector<BenchRow> rows;
  for (const int32_t depth : o.depths) {
    for (const int32_t n : o.prompts)
      if (n > 0) measure(benches, o, "pp", n, depth, o.chunk, rows);
    for (const int32_t n : o.generate)
      if (n > 0) measure(benches, o, "tg", n, depth, 1, rows);
    for (const int32_t step : o.rows)
      if (step > 0) measure(benches, o, "st", kSteps * step, depth, step, rows);
  }
  // Before and after: what else runs lowers the ceiling as it lowers the speeds.
  ceiling = std::max(ceiling, measure_read_ceiling(o.open, *opened.backend, weights));
  for (BenchRow& r : rows) r.ceiling_share = r.tok_s(0.5) * r.bytes_per_token / ceiling;
  if (m.prints_table()) print_bench(rows, opened, ceiling);
  if (m.prints_table() && o.cold) fmt::print("\nopened cold in {:.2f} s\n", open_s);
  for (const BenchRow& r : rows) {
    Record record = bench_record(m, r, ceiling);
    record["settings"]["cold"] = o.cold;
    record["figures"]["open_s"] = open_s;
    m.add(std::move(record));
  }
  m.finish();
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* b =
      app.add_subcommand("bench", "Measure the speed of prompt processing (pp) and generation (tg)");
  add_open_flags(*b, o->open);
  const auto list = [&](const char* flag, std::vector<int32_t>& values, const char* help) {
    b->add_option(flag, values, help)->delimiter(',')->check(CLI::Range(0, 1 << 24))->capture_default_str();
  };
  list("-p,--n-prompt", o->prompts, "Prompt lengths, comma-separated (0: none)");
  list("-n,--n-gen", o->generate, "Tokens to generate, comma-separated (0: none)");
  list("--n-rows", o->rows, "Rows per step, each with logits, as N streams or drafts have; comma-separated");
  list("-d,--n-depth", o->depths, "Tokens already in the context, comma-separated");
  b->add_option("-r,--repetitions", o->repeats, "Measured runs, after one warm-up run")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  b->add_option("-b,--batch-size", o->chunk, "Prompt tokens per step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  add_cache_flags(*b, o->cache);
  add_caches_flag(*b, o->caches, "Compare these caches in turns");
  b->add_flag("--cold", o->cold,
              "Drop the file from the system's memory first, and print how long opening takes");
  b->add_flag("--fill", o->fill,
              "Fill the context up to the depth with random rows instead of running a prompt");
  b->add_option("--ops", o->ops,
                "Profile steps of these many rows: time, bytes and operations per kind of operation")
      ->delimiter(',')
      ->check(CLI::Range(1, 8192));
  b->add_option("--exec", o->execs, "With --ops: instruction sets to compare")
      ->delimiter(',')
      ->check(CLI::IsMember({"baseline", "neon", "i8mm", "avx2", "avx512", "amx"}));
  b->add_option(
      "--attn-count", o->attn_count,
      "A text FILE: how many tiles of 64 keys have no weight in the attention of its -p tokens behind "
      "its first -d, by global layer");
  b->add_option_function<std::vector<std::string>>(
       "--kernel", [](const std::vector<std::string>& names) { cuda::force_kernels(names); },
       "CUDA: other kernels than the default: float-mma (bf16 and f16 weights on tensor cores), float-f32 "
       "(none), float-rows=N (up to N rows by the kernel of few), float-tiles (without wgmma), wide-rows=N "
       "(N rows and more by warpgroups), packed-tiles (33 rows and more by tiles), sm_80 (what an Ampere GPU "
       "runs), sm_121 (what a GB10 runs), shared=N (what needs N KiB of shared memory at most), unified "
       "(memory as on a GB10)")
      ->delimiter(',');
  add_measure_flags(*b, o->measure);
  auto s = std::make_shared<SpecBenchOptions>();
  add_spec_bench_flags(*b, *s);
  b->callback([o, s, b] {
    o->open.planned = std::make_shared<SplitPlan>();  // whose mode measure_read_ceiling() asks for
    const bool drafts = !s->spec.types.empty() || !s->spec.synthetic.empty() || !s->spec.draft_model.empty();
    if (!drafts) {
      refuse_without_effect(*b,
                            {"--prompts", "--only", "--draft-depths", "--parallel", "--temp", "--top-k",
                             "--top-p", "--ctx-size", "--before"},
                            "bench without --spec");
      if (!o->attn_count.empty()) {
        refuse_without_effect(*b,
                              {"--n-gen", "--n-rows", "--caches", "--cold", "--fill", "--ops", "--exec",
                               "--repetitions", "--kernel", "--kv-recent", "--kv-sinks"},
                              "bench --attn-count");
        if (o->prompts.size() != 1 || o->prompts.front() < 1)
          throw Error("bench --attn-count has one -p of a token or more", "-p 512");
        return bench_attention_count(
            {o->open, o->cache, o->attn_count, o->depths, o->prompts.front(), o->chunk, o->measure});
      }
      if (!o->ops.empty())
        refuse_without_effect(*b,
                              {"--n-prompt", "--n-gen", "--n-rows", "--caches", "--cold", "--json", "--csv",
                               "--records", "--require-idle", "--wait-idle"},
                              "bench --ops");
      else
        refuse_without_effect(*b, {"--exec"}, "bench without --ops");
      return bench(*o);
    }
    refuse_without_effect(*b, {"--ops", "--exec", "--caches", "--cold", "--fill", "--n-prompt", "--n-rows"},
                          "bench --spec");
    if (s->prompts.empty()) throw Error("bench --spec needs prompts", "give them with --prompts FILE.json");
    s->depth = o->depths.front();
    if (o->generate.size() > 1)
      throw Error("bench --spec has one -n", "go through several with --sweep n-gen=64,512");
    if (o->depths.size() > 1)
      throw Error("bench --spec has one --n-depth", "go through several with --sweep n-depth=1000,4000");
    if ((s->depth > 0) != !s->before.empty())
      throw Error("--n-depth and --before belong together in bench --spec", "--n-depth 4000 --before FILE");
    s->open = o->open;
    s->cache = o->cache;
    s->cache.prefill_chunk = o->chunk;
    s->tokens = std::max(2, o->generate.front());
    s->repeats = o->repeats;
    s->measure = o->measure;
    bench_spec(*s);
  });
}

}  // namespace carat
