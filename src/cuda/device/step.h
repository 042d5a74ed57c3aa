// The step as kernels see it: StepState's arrays in device memory, at an address that graphs may keep.
#pragma once
#include "core/ops.h"
#include "cuda/device/rt.h"

namespace carat::cuda {

inline constexpr int kMaxSpans = 8;  // different (window, both ways) among a program's attentions

struct SeqRun {  // rows of one sequence
  int32_t first, count;
};

// What a sequence's rows see of a packed cache, which is decoded to halves before they attend
// (attention/prompts/unpacked.cu): tiles first .. first + count - 1 of 64 positions, of which from .. to are
// seen; the at-th and so on of all that the step decodes.
struct UnpackedRun {
  int32_t seq, first, count, at, from, to;
};

struct DevStep {
  int32_t n_rows, n_out, n_runs, n_out_runs;
  int32_t segments[kMaxSpans];  // most segments a row has, by the attention's span (AttentionPlan)
  const int32_t *token, *pos, *seq, *out_row, *slot, *parent, *last_pos;  // slot, parent: null on chains
  const SeqView* seqs;                                                    // pages and kept in device memory
  const SeqRun *runs, *out_runs;                                          // of all rows; of wanted ones
  float* partial;                                                         // attention: what segments leave
  // By the attention's span, too: of sequences with many rows; whether that is all of them.
  const UnpackedRun* unpacked[kMaxSpans];
  int32_t n_unpacked[kMaxSpans];
  bool all_unpacked[kMaxSpans];
  uint32_t* left;   // as partial, for the fold inside of attention: words, zeros between operations
  SeqView one_seq;  // of the only row, if there is one: without asking for its arrays
  int32_t one_pos;
  // [4 processors][kHanded] words, zeros between operations: sums that one block hands to the next
  uint32_t* handed;
  // [mixtures][kChoiceWords]: experts that a kernel which is still at work has chosen
  // (matmul/experts/route.cuh), good in the step whose number they carry
  uint32_t* chosen;
  uint32_t number;
  uint32_t share;   // what the step's shares are counted from, the same on all devices (links.h)
  uint32_t* begun;  // [processors][kBegunTile], as handed, in programs of many rows
  // [n_rows][3] as StepState::place, or null. Soft rows are copied to where Embed leaves rows before the step
  // begins (backend.cc); their token is ~token.
  const int32_t* place;
};
inline constexpr int kHanded = 2 * 16 * 32;  // of gate and up, so many rows, outputs
inline constexpr int kChoiceWords = 32;
inline constexpr int kBegunTile = 128 * 128;  // rows, outputs

#if defined(__CUDACC__) || defined(CARAT_CUDA_EMULATE)

CARAT_HD int32_t row_count(const DevStep* s, RowSet set) { return rows_in(set, s->n_rows, s->n_out); }
CARAT_HD int32_t step_row(const DevStep* s, RowSet set, int32_t i) {
  return set == RowSet::all ? i : s->out_row[i];
}
CARAT_HD int32_t pos_of(const DevStep* s, int32_t row) { return s->n_rows == 1 ? s->one_pos : s->pos[row]; }
CARAT_HD const SeqView* seq_of(const DevStep* s, int32_t row) {
  return s->n_rows == 1 ? &s->one_seq : &s->seqs[s->seq[row]];
}
CARAT_HD int32_t slot_of(const DevStep* s, int32_t row) { return s->slot ? s->slot[row] : s->pos[row]; }
CARAT_HD bool on_chain(const DevStep* s, int32_t row) { return !s->slot || s->slot[row] == s->pos[row]; }
// As StepState::slot_seen.
CARAT_HD int32_t slot_seen(const DevStep* s, int32_t row, int32_t p) {
  if (on_chain(s, row)) return p;
  while (s->pos[row] > p && s->parent[row] >= 0) row = s->parent[row];
  return s->pos[row] == p ? s->slot[row] : p;
}
CARAT_HD int32_t continued(const DevStep* s, int32_t row) {
  if (s->parent) return s->parent[row];
  return row > 0 && s->seq[row - 1] == s->seq[row] ? row - 1 : -1;
}

template <class T>
CARAT_HD T* row_of(const Tensor& t, int64_t r) {
  return reinterpret_cast<T*>(t.data + r * t.pitch);
}

// The same bits in every lane: the order of a butterfly is that of the lanes' numbers.
CARAT_D float warp_sum_f(float v) {
  for (int m = 16; m; m >>= 1) v += shuffle_xor(v, m);
  return v;
}
CARAT_D float warp_max_f(float v) {
  for (int m = 16; m; m >>= 1) v = fmaxf(v, shuffle_xor(v, m));
  return v;
}

#endif

}  // namespace carat::cuda
