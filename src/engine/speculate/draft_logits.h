// A drafting network's logits of one pass: of each row its best columns, and all of it where that is not
// enough.
#pragma once
#include "engine/speculate/draft_tree.h"
#include "model/top_rows.h"

namespace carat {

class DraftLogits {
 public:
  DraftLogits() = default;
  // Recorded behind the product, over the same rows.
  DraftLogits(Program& program, Arena& arena, const Backend& backend, const Tensor& logits, RowSet set)
      : logits_(logits), top_(program, arena, backend, logits, set) {}

  std::span<const float> row(HostRows& host, int32_t i) const {
    return {host.row<float>(logits_, i), static_cast<size_t>(logits_.cols)};
  }
  // best_candidates, keyed_candidates and extend_chain of row i.
  std::vector<Candidate> best(HostRows& host, int32_t i, int32_t k) const {
    const TopRows::Row top = top_.row(host, i);
    return enough(top, k) ? best_candidates(top, k) : best_candidates(row(host, i), k);
  }
  std::vector<Candidate> keyed(HostRows& host, int32_t i, int32_t k, const SampleParams& params,
                               int64_t pos) const {
    const TopRows::Row top = top_.row(host, i);
    return enough(top, kKeyedPool) ? keyed_candidates(top, k, params, pos)
                                   : keyed_candidates(row(host, i), k, params, pos);
  }
  bool extend(HostRows& host, int32_t i, DraftAsk& ask) const {
    const TopRows::Row top = top_.row(host, i);
    if (top.column.empty()) return false;
    if (const std::optional<Candidate> next = chain_candidate(top, ask)) return extend_chain(*next, ask);
    return extend_chain(row(host, i), {top.column[0], top.share}, ask);
  }

 private:
  bool enough(const TopRows::Row& top, int32_t k) const {
    return !top.value.empty() && static_cast<int32_t>(top.column.size()) >= std::min(k, logits_.cols);
  }
  Tensor logits_;  // [rows, columns]
  TopRows top_;
};

}  // namespace carat
