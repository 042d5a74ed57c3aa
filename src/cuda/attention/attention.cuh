// What the kernels of attention have in common: which positions a row sees and where they are, the state of
// a softmax, how parts of it are put together (docs/numerics.md, "Attention"). Scores are in powers of two.
#pragma once
#include "cuda/kv/rows.cuh"
#include "cuda/ops/ops.h"
#include "cuda/quant/rounding.cuh"

namespace carat::cuda {

// Which sequences a launch is for, by their rows of the step: more than `over`, at most `most`.
struct RunLengths {
  int32_t over = 0, most = INT32_MAX;
  CARAT_HD bool has(int32_t rows) const { return rows > over && rows <= most; }
};

// Where packed caches are decoded to: `tiles` of 64 positions at a time, [tile][KV head][64][column] halves.
struct UnpackedTiles {
  uint8_t *k = nullptr, *v = nullptr;
  float2* states = nullptr;  // [row of the set][query head]: top and sum behind the tiles before
  int32_t tiles = 0, key_columns = 0, part = 0;  // part: tiles part * tiles .. of all that the step decodes
};

struct AttentionPart {  // AttentionArgs as kernels see them
  Tensor y, q;
  DevKv kv;
  float scale, softcap;
  bool both_ways, split;
  int32_t heads, group;   // query heads; of them per KV head
  int32_t chunks, width;  // tasks a KV head, and query heads a task
  Divider by_chunks, by_width;
  int32_t span;     // of DevStep::segments
  bool forks;       // only rows of trees: the others are done
  bool folds;       // the task of the last segment folds what the others leave
  Rounded rounded;  // y rounded as well, or q null; only where segments are folded
  DevCopies copies;
  RunLengths runs = {};
  UnpackedTiles unpacked = {};
  bool covered = false;  // rows of DevStep::unpacked are done

  void cut_heads(int32_t most) {  // of a task
    chunks = (group + most - 1) / most, width = (group + chunks - 1) / chunks;
    by_chunks = Divider(chunks), by_width = Divider(width);
  }
};

inline constexpr int kKvTile =
    64;  // positions whose scores are looked at together, cut at absolute multiples
inline constexpr float kLog2e = 1.44269504f;

// Which segment a position is in: lengths are powers of two.
CARAT_D int32_t segment_at(int32_t p, int32_t length) { return p >> log2_of(length); }

// What a segment, or all so far, leaves of a query head.
struct SoftmaxState {
  float top, sum;
};

CARAT_D float weight_of(float top, float most) { return top == -INFINITY ? 0 : exp2f(top - most); }
// total = total and the next segment.
CARAT_D void fold(float& value, float next, float keep, float take) {
  value = fmaf(next, take, value * keep);
}
CARAT_D float score_of(const AttentionPart& a, float dot) {
  const float v = dot * a.scale;
  return (a.softcap > 0 ? a.softcap * tanhf(v / a.softcap) : v) * kLog2e;
}

// The row's positions and where they are stored.
struct Seen {
  const DevStep* s;
  const SeqView* seq;
  int32_t row, first, last, settled;  // below `settled` positions are slots

  CARAT_D int32_t slot(int32_t p) const { return p < settled ? p : slot_seen(s, row, p); }
  CARAT_D int32_t clamped(int32_t p) const { return p < first ? first : p > last ? last : p; }
};
// Of a row on a chain.
CARAT_D Seen seen_at(const AttentionPart& a, const DevStep* s, const SeqView* seq, int32_t row, int32_t pos) {
  const int32_t window = a.kv.window;
  Seen v{s, seq, row, 0, a.both_ways ? s->last_pos[row] : pos, INT32_MAX};
  if (window && pos - window + 1 > 0) v.first = pos - window + 1;
  return v;
}
CARAT_D Seen seen_by(const AttentionPart& a, const DevStep* s, int32_t row) {
  Seen v = seen_at(a, s, seq_of(s, row), row, pos_of(s, row));
  if (on_chain(s, row)) return v;
  while (s->parent[row] >= 0) row = s->parent[row];
  v.settled = s->pos[row];
  return v;
}

// Where a split segment's output and state go.
CARAT_HD int64_t partial_at(const AttentionPart& a, int32_t segments, int32_t m, int32_t head, int32_t k) {
  return ((int64_t{m} * a.heads + head) * segments + k) * (a.kv.dim + 2);
}

// x, a head of up to 32 EACH elements in shared memory, out of the domain of V, there and to y: by a warp.
template <int EACH>
CARAT_D void write_head(const AttentionPart& a, float* x, float* y, const Rotation<EACH>& rotation,
                        int lane) {
  float v[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) v[k] = lane + 32 * k < a.kv.dim ? x[lane + 32 * k] : 0;
  rotation.turn(v, lane);
#pragma unroll
  for (int k = 0; k < EACH; ++k)
    if (lane + 32 * k < a.kv.dim) x[lane + 32 * k] = y[lane + 32 * k] = v[k];
}
// What write_head() left in x, rounded as a head of row m.
CARAT_D void round_head(const AttentionPart& a, const float* x, int32_t m, int32_t head, int lane) {
  sync_warp();
  const int64_t first = int64_t{m} * a.rounded.blocks + head * (a.kv.dim / 256);
  for (int b = 0; b < a.kv.dim / 256; ++b) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = x[256 * b + 8 * lane + i];
    round_block(v, a.rounded, first + b, lane);
  }
}

// A single row: false if it is nothing for this kernel. a.folds: whether segments are folded, too. prepares:
// queries, and the row's key and value, are to be made of this first, by the same kernel; or null.
bool attention_single(const Context& c, AttentionPart& a, int32_t rows, RowSet set,
                      const QkvPrepArgs* prepares);

// Sequences with a row each, in steps of more rows than are split: false if these caches or heads are nothing
// for this kernel. Other sequences' rows are left to others.
bool attention_batch(const Context& c, const AttentionPart& a, int32_t rows, RowSet set);

// Towers (attends_whole()). rows: of the program's bucket; all stand on chains.
void attention_whole(const Context& c, const AttentionPart& a, int32_t rows, RowSet set);

// What rows see of a packed cache is decoded to halves (a.unpacked), then they attend, `parts` times.
UnpackedTiles unpacked_at(const AttentionArgs& a, std::byte* to, int32_t tiles);
void attend_unpacked(const Context& c, AttentionPart a, int32_t rows, RowSet set, int32_t parts);

// By the formats of the cache; `rows`: of the program's bucket.
void attention_f16(const Context& c, AttentionPart a, int32_t rows, RowSet set);
void attention_q8_0(const Context& c, AttentionPart a, int32_t rows, RowSet set);
void attention_packed(const Context& c, AttentionPart a, int32_t rows, RowSet set);  // any but f32
void attention_f32(const Context& c, AttentionPart a, int32_t rows, RowSet set);     // any, in f32
// Single copies of K = V, protected rows: heads of 256 and 512, any format but f32.
void attention_copies(const Context& c, AttentionPart a, int32_t rows, RowSet set);

}  // namespace carat::cuda
