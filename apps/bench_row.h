// A test of carat bench: what was measured, its record and its line of the table.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "apps/measurement.h"

namespace carat {

struct BenchRow {
  std::string kind;  // "pp", "tg", "st": steps of `rows`, all their logits
  int32_t tokens = 0, depth = 0, rows = 0;
  KvFormats formats;
  std::vector<double> seconds;  // of every repetition
  double first_seconds = 0;     // of the one that did not count
  double from = 0, until = 0;   // they ran between these times; seconds since 1970
  Energy energy;                // of all that count
  double bytes_per_token = 0, ceiling_share = 0;
  int64_t cache_bytes = 0, resident = 0;  // planned; of the process, after it
  std::vector<double> idle_share = {};    // with CUDA: of the time, what the device did not work
  double kernels = 0;                     // with CUDA: a step

  std::string test() const { return kind + std::to_string(kind == "st" ? rows : tokens); }
  double tok_s(double quantile) const;
  double idle() const { return kernels > 0 ? quantile(idle_share, 0.5) : 0; }
};

Record bench_record(const Measurement& m, const BenchRow& row, double ceiling);
void print_bench(const std::vector<BenchRow>& rows, const Opened& opened, double ceiling);

}  // namespace carat
