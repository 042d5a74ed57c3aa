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

// Rows of `dim` normal values in a format; few of them, used again and again.
std::vector<std::vector<std::byte>> noise_rows(DType type, int32_t dim, uint64_t seed) {
  constexpr int kRows = 61;  // no power of two, so that neighbours differ from page to page
  std::vector<std::vector<std::byte>> rows;
  std::vector<float> x(static_cast<size_t>(dim));
  for (int r = 0; r < kRows; ++r) {
    for (int32_t i = 0; i < dim; ++i) {
      const double u = uniform_noise(seed, r, 2 * i), v = uniform_noise(seed, r, 2 * i + 1);
      x[static_cast<size_t>(i)] =
          static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
    }
    rows.emplace_back(static_cast<size_t>(row_bytes(type, dim)));
    encode_row(type, x.data(), rows.back().data(), dim);
  }
  return rows;
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
    const auto keys = noise_rows(s.k, s.key_dim(), 2 * seed), values = noise_rows(s.v, s.dim, 2 * seed + 1);
    const std::vector<std::byte> key_edge = noise_rows(DType::f16, s.key_dim(), seed).front(),
                                 value_edge = noise_rows(DType::f16, s.dim, seed).front();
    const int32_t first = l.ring_tokens ? std::max(0, n - l.ring_tokens) : 0;
    for (int32_t p = first; p < n; ++p)
      for (int32_t h = 0; h < s.heads; ++h) {
        const auto& k = keys[static_cast<size_t>(p + 7 * h) % keys.size()];
        const auto& v = values[static_cast<size_t>(p + 7 * h) % values.size()];
        backend.copy(cache.k_row(view, p, h), k.data(), k.size());
        backend.copy(cache.v_row(view, p, h), v.data(), v.size());
        if (!s.protect.any()) continue;
        backend.copy(cache.k_edge_row(view, p, h), key_edge.data(), key_edge.size());
        backend.copy(cache.v_edge_row(view, p, h), value_edge.data(), value_edge.size());
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
