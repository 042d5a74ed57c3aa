#include "apps/bench_row.h"

#include <fmt/format.h>

#include "apps/progress.h"

namespace carat {

double BenchRow::tok_s(double q) const { return tokens / quantile(seconds, 1 - q); }

Record bench_record(const Measurement& m, const BenchRow& r, double ceiling) {
  Record record = m.begin(fmt::format("{} d{} {}", r.test(), r.depth, r.formats.text()));
  Record& s = record["settings"];
  s["test"] = r.test();
  s["depth"] = r.depth;
  s["ctx"] = r.depth + r.tokens;
  s["rows_per_step"] = r.rows;
  s["draft"] = "none";
  s["dm"] = 0;
  put_cache(s, r.formats);
  Record& f = record["figures"];
  std::vector<double> speeds;
  double wall = 0;
  for (const double t : r.seconds) speeds.push_back(r.tokens / t), wall += t;
  const bool decodes = r.kind != "pp";
  const std::string phase = decodes ? "decode" : "prefill";
  f["tok_s"] = spread(speeds);
  f["wall_s"] = wall;
  f["from"] = r.from, f["until"] = r.until;
  f[phase + "_ms"] = 1e3 * quantile(r.seconds, 0.5);
  f[phase + "_tps"] = r.tok_s(0.5);
  f["warmup_ms"] = 1e3 * r.first_seconds;
  f["bytes_per_token"] = r.bytes_per_token;
  f["read_ceiling_gb_s"] = ceiling / 1e9;
  f["ceiling_share"] = r.ceiling_share;
  f["kv_mib"] = static_cast<double>(r.cache_bytes) / (1 << 20);
  if (r.kernels > 0) f["device_idle_share"] = r.idle(), f["kernels_per_step"] = r.kernels;
  if (m.has_energy()) {
    const double all = r.tokens * static_cast<double>(r.seconds.size());
    put_energy(f, decodes ? std::nullopt : std::optional(r.energy),
               decodes ? std::optional(r.energy) : std::nullopt, all);
    if (const auto j = r.energy.joules()) f["j_per_tok"] = *j / all;
  }
  return record;
}

void print_bench(const std::vector<BenchRow>& rows, const Opened& opened, double ceiling) {
  const int64_t resident = rows.empty() ? 0 : rows.back().resident;
  fmt::print("{} | {} | {} | read ceiling {:.1f} GB/s | resident {}\n\n", opened.model->spec.name,
             human_bytes(static_cast<double>(opened.model->source->total_bytes())),
             opened.backend->info().name, ceiling / 1e9, human_bytes(static_cast<double>(resident)));
  fmt::print(
      "| test    |  depth | cache K/V        | its size |    tok/s |      p10 |    min .. max     | "
      "bytes/token | of read ceiling | J/token |\n");
  fmt::print(
      "| ------- | -----: | ---------------- | -------: | -------: | -------: | ----------------: | "
      "----------: | --------------: | ------: |\n");
  for (const BenchRow& r : rows) {
    std::string joules = "-";
    if (const auto j = r.energy.joules())
      joules = fmt::format("{:.3f}", *j / (r.tokens * static_cast<double>(r.seconds.size())));
    fmt::print(
        "| {:<7} | {:>6} | {:<16} | {:>8} | {:>8.2f} | {:>8.2f} | {:>7.2f} .. {:>7.2f} | {:>11} | "
        "{:>13.1f} % | {:>7} |\n",
        r.test(), r.depth, r.formats.text(), human_bytes(static_cast<double>(r.cache_bytes)), r.tok_s(0.5),
        r.tok_s(0.1), r.tok_s(0), r.tok_s(1), human_bytes(r.bytes_per_token), r.ceiling_share * 100, joules);
  }
  for (const BenchRow& r : rows)
    if (r.kernels > 0)
      fmt::print("{}{} at depth {}, {}: {:.0f} kernels a step, the device waits for the host {:.1f} %\n",
                 &r == rows.data() ? "\n" : "", r.test(), r.depth, r.formats.text(), r.kernels,
                 100 * r.idle());
}

}  // namespace carat
