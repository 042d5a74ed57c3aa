#include "apps/attn_blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "apps/attn_vectors.h"

namespace carat {
namespace {

constexpr int32_t kMean = 16, kEveryRow = 4;

// One block of queries of a KV head: [head][row][block] of what the softmax gives.
struct Masses {
  int32_t heads, blocks;
  std::vector<double> at;

  Masses(int32_t heads_, int32_t blocks_)
      : heads(heads_),
        blocks(blocks_),
        at(static_cast<size_t>(heads_) * kKeyBlock * static_cast<size_t>(blocks_)) {}
  double* row(int32_t head, int32_t r) { return at.data() + (int64_t{head} * kKeyBlock + r) * blocks; }
};

// Means of kMean keys each; the last ones of what is there.
std::vector<float> means_of(const AttentionVectors& v, const std::vector<float>& keys, int32_t positions) {
  std::vector<float> means;
  for (int32_t p = 0; p < positions; p += kMean) {
    const int32_t n = std::min(kMean, positions - p);
    for (int32_t i = 0; i < v.columns; ++i) {
      float sum = 0;
      for (int32_t j = 0; j < n; ++j) sum += v.key(keys, p + j)[i];
      means.push_back(sum / static_cast<float>(n));
    }
  }
  return means;
}

// Weights 2^score of [0, n), added up by blocks of `per`, as shares of their sum.
void shares_of(const std::vector<double>& scores, int32_t per, double* to, int32_t blocks) {
  const double most = *std::max_element(scores.begin(), scores.end());
  std::fill(to, to + blocks, 0.0);
  double sum = 0;
  for (size_t p = 0; p < scores.size(); ++p) {
    const double w = std::exp2(scores[p] - most);
    to[p / static_cast<size_t>(per)] += w, sum += w;
  }
  for (int32_t n = 0; n < blocks; ++n) to[n] /= sum;
}

// What heads read together: each the blocks that hold `share` of the mean of its rows, every `step`th.
std::vector<uint8_t> union_of(Masses& m, double share, int32_t step) {
  std::vector<uint8_t> chosen(static_cast<size_t>(m.blocks));
  std::vector<double> mean(static_cast<size_t>(m.blocks));
  for (int32_t h = 0; h < m.heads; ++h) {
    std::fill(mean.begin(), mean.end(), 0.0);
    for (int32_t r = 0; r < kKeyBlock; r += step)
      for (int32_t n = 0; n < m.blocks; ++n)
        mean[static_cast<size_t>(n)] += m.row(h, r)[n] * step / kKeyBlock;
    choose_blocks(mean.data(), m.blocks, share, chosen.data());
  }
  for (int32_t n = 0; n < m.blocks; ++n)
    if (n < kSinkBlocks || n >= m.blocks - kLocalBlocks) chosen[static_cast<size_t>(n)] = 1;
  return chosen;
}

ChosenBlocks kept_by(Masses& mass, const std::vector<uint8_t>& chosen) {
  ChosenBlocks c;
  c.all = mass.blocks, c.read = std::count(chosen.begin(), chosen.end(), 1);
  for (int32_t h = 0; h < mass.heads; ++h)
    for (int32_t r = 0; r < kKeyBlock; ++r) {
      double kept = 0;
      for (int32_t n = 0; n < mass.blocks; ++n)
        if (chosen[static_cast<size_t>(n)]) kept += mass.row(h, r)[n];
      c.kept += kept, c.worst = std::min(c.worst, kept), ++c.rows;
    }
  return c;
}

// Rows [m, m + kKeyBlock), the last of which sees `positions`.
BlockCount count_block(const AttentionVectors& v, const std::vector<float>& keys,
                       const std::vector<float>& means, int32_t m, int32_t positions, int32_t first_head,
                       int32_t heads) {
  const int32_t blocks = positions / kKeyBlock;
  Masses exact(heads, blocks), guessed(heads, blocks);
  for (int32_t h = 0; h < heads; ++h)
    for (int32_t r = 0; r < kKeyBlock; ++r) {
      const std::vector<float> q = v.query(m + r, first_head + h);
      const int32_t seen = positions - kKeyBlock + r + 1;
      std::vector<double> scores;
      for (int32_t p = 0; p < seen; ++p) scores.push_back(v.score(q.data(), v.key(keys, p)));
      shares_of(scores, kKeyBlock, exact.row(h, r), blocks);
      std::vector<double> best(static_cast<size_t>(blocks), -INFINITY);
      for (int32_t p = 0; p < seen; p += kMean) {
        double& b = best[static_cast<size_t>(p / kKeyBlock)];
        b = std::max(b, double{v.score(q.data(), means.data() + int64_t{p / kMean} * v.columns)});
      }
      shares_of(best, 1, guessed.row(h, r), blocks);
    }
  BlockCount c;
  for (size_t g = 0; g < kKeptShares.size(); ++g) {
    c.best[g] = kept_by(exact, union_of(exact, kKeptShares[g], 1));
    c.by_means[g] = kept_by(exact, union_of(guessed, kKeptShares[g], kEveryRow));
  }
  return c;
}

}  // namespace

void ChosenBlocks::add(const ChosenBlocks& other) {
  all += other.all, read += other.read, rows += other.rows;
  kept += other.kept, worst = std::min(worst, other.worst);
}
void BlockCount::add(const BlockCount& other) {
  for (size_t g = 0; g < kKeptShares.size(); ++g)
    best[g].add(other.best[g]), by_means[g].add(other.by_means[g]);
}

void choose_blocks(const double* mass, int32_t blocks, double share, uint8_t* chosen) {
  std::vector<int32_t> order(static_cast<size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return mass[a] > mass[b]; });
  double held = 0;
  for (const int32_t n : order) {
    if (held >= share) break;
    held += mass[n], chosen[n] = 1;
  }
}

BlockCount count_blocks(const AttentionArgs& a, const StepState& state, RowSet set) {
  const AttentionVectors v{a};
  const int32_t group = a.q.cols / a.kv.spec.dim / a.kv.spec.heads,
                count = set == RowSet::all ? state.n_rows : state.n_out;
  const auto row_at = [&](int32_t m) { return set == RowSet::all ? m : state.out_row[m]; };
  BlockCount counts;
  for (int32_t kv_head = 0; kv_head < a.kv.spec.heads; ++kv_head)
    for (int32_t m = 0; m + kKeyBlock <= count; ++m) {
      const int32_t row = row_at(m), seq = state.seq[row], last = row_at(m + kKeyBlock - 1);
      if (state.pos[row] % kKeyBlock || state.seq[last] != seq ||
          state.pos[last] != state.pos[row] + kKeyBlock - 1)
        continue;
      const int32_t positions = state.pos[last] + 1;
      const std::vector<float> keys = v.keys(state.seqs[seq], positions, kv_head),
                               means = means_of(v, keys, positions);
      counts.add(count_block(v, keys, means, m, positions, kv_head * group, group));
    }
  return counts;
}

}  // namespace carat
