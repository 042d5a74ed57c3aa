// carat bench: prompt processing and generation speed, with the bytes read and the share of the machine's
// read ceiling.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli.h"
#include "apps/cmd_bench_spec.h"
#include "apps/eval.h"
#include "apps/fill.h"
#include "apps/op_profile.h"
#include "apps/open.h"
#include "apps/progress.h"
#include "apps/traffic.h"
#include "base/error.h"
#include "base/rng.h"
#include "cpu/op_times.h"
#include "cuda/cuda.h"
#include "model/stepper.h"

namespace carat {
namespace {

struct BenchOptions {
  OpenOptions open;
  std::vector<int32_t> prompts{512}, generate{64}, depths{0};
  int32_t repeats = 5, chunk = 512;
  DType cache_k = DType::f16, cache_v = DType::f16;
  std::vector<std::string> caches;  // to compare, in turns; empty: the one above
  bool fill = false;                // depths are rows of noise
  std::vector<int32_t> ops;         // rows of the steps to take apart
  std::vector<std::string> execs;   // instruction sets to compare
  bool json = false;
};

struct Record {
  std::string test, cache;
  int32_t depth = 0;
  std::vector<double> tok_s;  // ascending
  double bytes_per_token = 0, ceiling_share = 0;
  int64_t cache_bytes = 0, resident = 0;  // planned; of the process, after it
  std::vector<double> idle_share = {};    // with CUDA: of the time, what the device did not work; ascending
  double kernels = 0;                     // with CUDA: a step
  double median() const { return tok_s[tok_s.size() / 2]; }
  double idle() const { return kernels > 0 ? idle_share[idle_share.size() / 2] : 0; }
};

std::string cache_name(const BenchOptions& o) {
  return fmt::format("{}/{}", info(o.cache_k).name, info(o.cache_v).name);
}

class Bench {
 public:
  Bench(const Opened& opened, const BenchOptions& o, std::string cache)
      : o_(o),
        cache_(std::move(cache)),
        stepper_(opened.backend, opened.model, limits(opened, o), cache_formats(cache_)),
        backend_(*opened.backend) {}

  // n tokens in steps of `rows` behind `depth` others.
  Record begin(const char* kind, int32_t n, int32_t depth, int32_t rows) {
    Record r{fmt::format("{}{}", kind, n), cache_, depth, {}};
    const bool decodes = rows == 1;
    r.bytes_per_token =
        step_read_bytes(stepper_.prepare(rows, 1), rows, decodes ? depth + n / 2 : depth) / rows;
    r.cache_bytes = stepper_.kv().plan().bytes();
    return r;
  }
  double seconds(int32_t n, int32_t depth, int32_t rows) {
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
    const auto began = std::chrono::steady_clock::now();
    feed(*sequence_, n, rows);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
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
    const auto most = [](const std::vector<int32_t>& v) {
      return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
    };
    const int32_t context =
        most(o.depths) + (o.ops.empty() ? std::max(most(o.prompts), most(o.generate)) : most(o.ops));
    if (context > opened.model->spec.context)
      throw Error(fmt::format("{} tokens are more than the model's context of {}", context,
                              opened.model->spec.context),
                  "choose smaller -d, -p or -n");
    return {
        .context = context, .sequences = 1, .step_rows = std::min(std::max(o.chunk, most(o.ops)), context)};
  }

  bool rewinds(int32_t n) const {
    return n <= stepper_.limits().step_rows && stepper_.kv().plan().recurrent.empty();
  }

  void feed(Sequence& sequence, int32_t n, int32_t rows) {
    for (int32_t left = n; left > 0;) {
      const int32_t now = std::min({left, rows, stepper_.limits().step_rows});
      step(sequence, now, left == now || rows == 1 ? Stepper::Wanted::last : Stepper::Wanted::none);
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
  const std::string cache_;
  Stepper stepper_;
  Backend& backend_;
  std::optional<Sequence> sequence_;  // of `depth_` positions, kept between runs
  int32_t depth_ = -1;
  double idle_share_ = 0, kernels_ = 0;
  std::vector<int32_t> tokens_;
};

void print(const std::vector<Record>& records, const Opened& opened, double ceiling, const BenchOptions& o) {
  if (o.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const Record& r : records)
      all.push_back({{"test", r.test},
                     {"depth", r.depth},
                     {"tok_s", r.median()},
                     {"tok_s_min", r.tok_s.front()},
                     {"tok_s_max", r.tok_s.back()},
                     {"repeats", r.tok_s.size()},
                     {"bytes_per_token", r.bytes_per_token},
                     {"ceiling_share", r.ceiling_share},
                     {"read_ceiling_gb_s", ceiling / 1e9},
                     {"model", opened.model->spec.name},
                     {"model_bytes", opened.model->source->total_bytes()},
                     {"device", opened.backend->info().name},
                     {"cache", r.cache},
                     {"cache_bytes", r.cache_bytes},
                     {"resident_bytes", r.resident},
                     {"device_idle_share", r.idle()},
                     {"kernels_per_step", r.kernels}});
    fmt::print("{}\n", all.dump(1));
    return;
  }
  fmt::print("{} | {} | {} | read ceiling {:.1f} GB/s | resident {}\n\n", opened.model->spec.name,
             human_bytes(static_cast<double>(opened.model->source->total_bytes())),
             opened.backend->info().name, ceiling / 1e9,
             human_bytes(static_cast<double>(records.empty() ? 0 : records.back().resident)));
  fmt::print(
      "| test    |  depth | cache K/V        | its size |    tok/s |    min .. max     | bytes/token | of "
      "read "
      "ceiling |\n");
  fmt::print(
      "| ------- | -----: | ---------------- | -------: | -------: | ----------------: | ----------: | "
      "--------------: |\n");
  for (const Record& r : records)
    fmt::print(
        "| {:<7} | {:>6} | {:<16} | {:>8} | {:>8.2f} | {:>7.2f} .. {:>7.2f} | {:>11} | {:>13.1f} % |\n",
        r.test, r.depth, r.cache, human_bytes(static_cast<double>(r.cache_bytes)), r.median(),
        r.tok_s.front(), r.tok_s.back(), human_bytes(r.bytes_per_token), r.ceiling_share * 100);
  for (const Record& r : records)
    if (r.kernels > 0)
      fmt::print("{}{} at depth {}, {}: {:.0f} kernels a step, the device waits for the host {:.1f} %\n",
                 &r == records.data() ? "\n" : "", r.test, r.depth, r.cache, r.kernels, 100 * r.idle());
}

// Where the time of steps goes, for every instruction set asked for.
void bench_ops(BenchOptions o) {
  if (o.execs.empty()) o.execs.push_back(o.open.isa);
  for (const std::string& isa : o.execs) {
    o.open.isa = isa;
    const Opened opened = open_model(o.open);
    const double read = measure_read_ceiling(o.open, *opened.backend), dots = measure_dot_ceiling(o.open);
    Bench b(opened, o, cache_name(o));
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
             int32_t depth, int32_t rows, std::vector<Record>& out) {
  const size_t first = out.size();
  for (const auto& b : benches) out.push_back(b->begin(kind, n, depth, std::min(rows, n)));
  ProgressBar bar(fmt::format("{} at depth {}", out[first].test, depth));
  for (int32_t i = 0; i <= o.repeats; ++i) {  // the first time does not count
    for (size_t c = 0; c < benches.size(); ++c) {
      const double seconds = benches[c]->seconds(n, depth, rows);
      if (i == 0) continue;
      out[first + c].tok_s.push_back(n / seconds);
      out[first + c].idle_share.push_back(benches[c]->idle_share());
      out[first + c].kernels = benches[c]->kernels();
    }
    bar.update(i + 1, o.repeats + 1);
  }
  for (size_t c = first; c < out.size(); ++c) {
    std::sort(out[c].tok_s.begin(), out[c].tok_s.end());
    std::sort(out[c].idle_share.begin(), out[c].idle_share.end());
    out[c].resident = resident_bytes();
  }
}

void bench(const BenchOptions& o) {
  if (!o.ops.empty()) return bench_ops(o);
  const Opened opened = open_model(o.open);
  const double ceiling = measure_read_ceiling(o.open, *opened.backend);
  std::vector<std::unique_ptr<Bench>> benches;
  for (const std::string& cache : o.caches.empty() ? std::vector{cache_name(o)} : o.caches)
    benches.push_back(std::make_unique<Bench>(opened, o, cache));
  std::vector<Record> records;
  for (const int32_t depth : o.depths) {
    for (const int32_t n : o.prompts)
      if (n > 0) measure(benches, o, "pp", n, depth, o.chunk, records);
    for (const int32_t n : o.generate)
      if (n > 0) measure(benches, o, "tg", n, depth, 1, records);
  }
  for (Record& r : records) r.ceiling_share = r.median() * r.bytes_per_token / ceiling;
  print(records, opened, ceiling, o);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* b = app.add_subcommand("bench", "Speed of prompt processing (pp) and generation (tg)");
  add_open_flags(*b, o->open);
  const auto list = [&](const char* flag, std::vector<int32_t>& values, const char* help) {
    b->add_option(flag, values, help)->delimiter(',')->check(CLI::Range(0, 1 << 24))->capture_default_str();
  };
  list("-p,--n-prompt", o->prompts, "Prompt lengths, comma-separated (0: none)");
  list("-n,--n-gen", o->generate, "Tokens to generate, comma-separated (0: none)");
  list("-d,--n-depth", o->depths, "Tokens already in the context, comma-separated");
  b->add_option("-r,--repetitions", o->repeats, "Runs that count, after one to warm up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  b->add_option("-b,--batch-size", o->chunk, "Prompt tokens per step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  add_cache_type(*b, "--cache-type-k", o->cache_k, "Type of cached keys (-ctk)");
  add_cache_type(*b, "--cache-type-v", o->cache_v, "Type of cached values (-ctv)");
  b->add_option("--caches", o->caches,
                "Compare these caches in turns: q8_0 (all), q8_0/tq4 (K/V), kv4/tq3/q8_0/q8_0 (then those of "
                "sliding layers), with +single behind it one copy of K = V")
      ->delimiter(',');
  b->add_flag("--fill", o->fill,
              "Fill the context up to the depth with rows of noise in place of running a prompt");
  b->add_option("--ops", o->ops,
                "Take steps of these many rows apart: time, bytes and operations per kind of operation")
      ->delimiter(',')
      ->check(CLI::Range(1, 8192));
  b->add_option("--exec", o->execs, "With --ops: instruction sets to compare")
      ->delimiter(',')
      ->check(CLI::IsMember({"baseline", "avx2", "avx512", "amx"}));
  b->add_flag("--json", o->json, "Print an array of records");
  auto s = std::make_shared<SpecBenchOptions>();
  add_spec_flags(*b, s->spec);
  list("--draft-depths", s->depths, "With --spec: fixed depths that the controller is compared with");
  b->add_option("--prompts", s->prompts, "With --spec: JSON file of prompts by kind (share/prompts.json)");
  b->add_option("--only", s->only, "With --spec: kinds to take, comma-separated (default: all)")
      ->delimiter(',');
  b->add_option("--parallel", s->streams, "With --spec: prompts at once (-np)")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  s->sample.temperature = 0;
  b->add_option("--temp", s->sample.temperature, "With --spec: temperature")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  b->add_option("--top-k", s->sample.top_k, "With --spec: only the k best tokens (0: all)")
      ->check(CLI::Range(0, 1 << 30));
  b->add_option("--top-p", s->sample.top_p, "With --spec: the best tokens whose share reaches p")
      ->check(CLI::Range(0.0, 1.0));
  b->callback([o, s] {
    if (s->spec.types.empty() && s->spec.synthetic.empty()) return bench(*o);
    if (s->prompts.empty()) throw Error("bench --spec needs prompts", "give them with --prompts FILE.json");
    s->open = o->open;
    s->cache_k = o->cache_k;
    s->cache_v = o->cache_v;
    s->tokens = std::max(2, o->generate.front());
    s->repeats = o->repeats;
    s->json = o->json;
    bench_spec(*s);
  });
}

}  // namespace carat
