#include "apps/fill.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "core/codec.h"

namespace carat {
namespace {

constexpr int32_t kRows = 61;  // no power of two, so that neighbours differ from page to page
constexpr int32_t kRun = 256;  // rows copied at once, where they lie one behind the other

// Rows of `dim` normal values in a format: kRows, and the first ones again, as many as a run is long.
struct NoiseRows {
  size_t row;
  std::vector<std::byte> bytes;
  const std::byte* from(int32_t p) const { return bytes.data() + row * static_cast<size_t>(p % kRows); }
};
NoiseRows noise_rows(DType type, int32_t dim, uint64_t seed) {
  NoiseRows rows{static_cast<size_t>(row_bytes(type, dim)), {}};
  rows.bytes.resize(rows.row * (kRows + kRun));
  std::vector<float> x(static_cast<size_t>(dim));
  for (int r = 0; r < kRows; ++r) {
    for (int32_t i = 0; i < dim; ++i) {
      const double u = uniform_noise(seed, r, 2 * i), v = uniform_noise(seed, r, 2 * i + 1);
      x[static_cast<size_t>(i)] =
          static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
    }
    encode_row(type, x.data(), rows.bytes.data() + rows.row * static_cast<size_t>(r), dim);
  }
  for (size_t i = rows.row * kRows; i < rows.bytes.size(); ++i)
    rows.bytes[i] = rows.bytes[i - rows.row * kRows];
  return rows;
}

// Positions from `first` to `n` of a head: row(p) is where a position's row is.
template <class Row>
void fill_rows(Backend& backend, const NoiseRows& noise, int32_t head, int32_t first, int32_t n, Row row) {
  for (int32_t p = first, end; p < n; p = end) {
    std::byte* to = row(p);
    for (end = p + 1; end < n && end - p < kRun; ++end)
      if (row(end) != to + noise.row * static_cast<size_t>(end - p)) break;
    backend.copy(to, noise.from(p + 7 * head), noise.row * static_cast<size_t>(end - p));
  }
}

}  // namespace

void fill_sequence(Backend& backend, const KvPool& kv, Sequence& sequence, int32_t n) {
  if (!kv.plan().recurrent.empty())
    throw Error("recurrent states cannot be filled with noise", "leave out --fill");
  for (int32_t left = n; left > 0;) {
    const int32_t rows = std::min(left, kv.limits().step_rows);
    CARAT_CHECK(sequence.append(rows), "no room for {} positions", n);
    sequence.commit(rows);
    left -= rows;
  }
  const SeqView view = sequence.view();
  for (const KvPlan::Layer& l : kv.plan().layers) {
    const KvView cache = kv.view(l.layer);
    const KvSpec& s = cache.spec;
    const auto seed = static_cast<uint64_t>(l.layer);
    const NoiseRows keys = noise_rows(s.k, s.key_dim(), 2 * seed),
                    values = noise_rows(s.v, s.dim, 2 * seed + 1);
    const NoiseRows key_edges = noise_rows(DType::f16, s.key_dim(), seed),
                    value_edges = noise_rows(DType::f16, s.dim, seed);
    const int32_t first = l.ring_tokens ? std::max(0, n - l.ring_tokens) : 0;
    for (int32_t h = 0; h < s.heads; ++h) {
      fill_rows(backend, keys, h, first, n, [&](int32_t p) { return cache.k_row(view, p, h); });
      fill_rows(backend, values, h, first, n, [&](int32_t p) { return cache.v_row(view, p, h); });
      if (!s.protect.any()) continue;
      fill_rows(backend, key_edges, h, first, n, [&](int32_t p) { return cache.k_edge_row(view, p, h); });
      fill_rows(backend, value_edges, h, first, n, [&](int32_t p) { return cache.v_edge_row(view, p, h); });
    }
  }
}

int64_t resident_bytes() {
  long pages = 0, resident = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  if (!f) return 0;
  const bool read = std::fscanf(f, "%ld %ld", &pages, &resident) == 2;
  std::fclose(f);
  return read ? int64_t{resident} * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace carat
