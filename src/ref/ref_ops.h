// The operations in scalar code: the meaning of core/ops.h and docs/numerics.md, with float64 sums. Slow and
// plain on purpose; every other backend is compared with it.
#pragma once
#include "core/ops.h"

namespace carat::ref {

// The rows one operation runs over.
struct Rows {
  const StepState& step;
  RowSet set;
  int32_t count() const { return rows_in(set, step.n_rows, step.n_out); }
  int32_t step_row(int32_t i) const { return set == RowSet::all ? i : step.out_row[i]; }
  int32_t token(int32_t i) const { return step.token[step_row(i)]; }
  int32_t pos(int32_t i) const { return step.pos[step_row(i)]; }
  // Of the last row of row i's sequence in this step.
  int32_t last_pos(int32_t i) const {
    int32_t r = step_row(i);
    while (r + 1 < step.n_rows && step.seq[r + 1] == step.seq[r]) ++r;
    return step.pos[r];
  }
  // Of the row's block.
  int32_t until(int32_t i) const { return step.until ? step.until[step_row(i)] : pos(i); }
  int32_t slot(int32_t i) const { return step.slot_of(step_row(i)); }
  const SeqView& seq(int32_t i) const { return step.seqs[step.seq[step_row(i)]]; }
};

#define X(name) void run(const name##Args& a, const Rows& rows);
CARAT_OPS(X)
#undef X

double activate(Act act, double x);

}  // namespace carat::ref
