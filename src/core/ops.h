// The operation contract: one struct of plain data per operation. ref/ is its meaning; every other backend is
// tested against ref/ (tests/op_contract_test.cc). M = rows in use this step, N = outputs, K = inner, D =
// width, V = vocabulary.
//
// Activations are f32. Rows are tokens; heads are columns: column h * head_dim + i is element i of head h.
// Optional operands are tensors with data == nullptr.
#pragma once
#include <limits>

#include "core/dtype.h"

namespace carat {

// ---- what changes from step to step; programs point at it
// -----------------------------------------------------------

struct SeqView {         // one sequence as kernels see it
  const int32_t* pages;  // page numbers of the paged layers, [position / page_tokens]
  const int32_t* ring;   // of ring layers, [position % ring_tokens / page_tokens]
  int32_t slot;          // its slot of recurrent states and of rings of protected rows
  // Recurrent layers: a base, the state behind all rows that are settled, and a log of rows that may still be
  // rejected (docs/design.md, "Recurrent state").
  int32_t settled =
      INT32_MAX;    // the first rows of this step that stay: they go into the base, others to the log
  int32_t log = 0;  // entry of the first row behind them
  const int32_t* kept =
      nullptr;         // [n_kept] entries of the step before that were committed, in order: they go
  int32_t n_kept = 0;  // into the base first
};

struct StepState {
  int32_t n_rows = 0;                // rows in use, <= the program's bucket
  int32_t n_out = 0;                 // rows whose result is wanted (RowSet::out)
  const int32_t* token = nullptr;    // [n_rows]
  const int32_t* pos = nullptr;      // [n_rows] absolute positions; rows of one sequence are consecutive
  const int32_t* seq = nullptr;      // [n_rows] index into seqs
  const int32_t* out_row = nullptr;  // [n_out] ascending row numbers
  const SeqView* seqs = nullptr;
  // Trees (docs/design.md, "Trees"). Row i of a sequence's rows keeps its K and V at slot = pos of the first
  // of them + i, and stands at its parent's position + 1; parents come first. Without them every sequence's
  // rows are a chain, slot = pos. A row sees what is committed and its ancestors.
  const int32_t* slot = nullptr;    // [n_rows] where K and V of the row are stored; null: pos
  const int32_t* parent = nullptr;  // [n_rows] row it continues, -1: what is committed; with slot only
  // Rows of pictures and sounds (docs/design.md, "Eyes"). null: there are none.
  const float* const* soft = nullptr;  // [n_rows] what a row is instead of its token's embedding; null: that
  const int32_t* until = nullptr;      // [n_rows] the last position of the block it belongs to, or its own
  const int32_t* place = nullptr;      // [n_rows][3] where a row stands in time, height and width

  int32_t slot_of(int32_t row) const { return slot ? slot[row] : pos[row]; }
  // slot == pos: all rows before this one are its ancestors, so that it sees position p at slot p.
  bool on_chain(int32_t row) const { return !slot || slot[row] == pos[row]; }
  // The slot of what `row` sees at position p <= pos[row].
  int32_t slot_seen(int32_t row, int32_t p) const {
    if (on_chain(row)) return p;
    while (pos[row] > p && parent[row] >= 0) row = parent[row];
    return pos[row] == p ? slot[row] : p;
  }
};

// Which rows an operation runs over: all rows of the step, only those wanted (after Gather, row i is
// out_row[i]), or two for each wanted one (after Refine: products alone).
enum class RowSet : uint8_t { all, out, refined };
constexpr int32_t rows_in(RowSet set, int32_t n_rows, int32_t n_out) {
  return set == RowSet::all ? n_rows : set == RowSet::out ? n_out : 2 * n_out;
}

// The row of the same sequence that `row` continues; -1: what is committed.
inline int32_t continued_row(const StepState& s, int32_t row) {
  if (s.parent) return s.parent[row];
  return row > 0 && s.seq[row - 1] == s.seq[row] ? row - 1 : -1;
}

// ---- operand types
// ---------------------------------------------------------------------------------------------------

enum class Act : uint8_t { none, silu, gelu_tanh, sigmoid, gelu };  // gelu: by erf

// Rotates pairs (i, i + offset), i < pairs, by (p + ahead) * freq[i]; angles in f32. freq: [pairs] f32. p is
// pos, or where the step has places and the rotation axes, the place on the pair's axis.
struct Rope {
  const float* freq = nullptr;
  int32_t pairs = 0, offset = 0;
  int32_t ahead = 0;              // queries that stand behind the last key they may see
  const int32_t* axis = nullptr;  // [pairs] of StepState::place; null: pos
};

// Formats own rotations (core/kv_codec.h): QkvPrep leaves q where K is stored, Attention returns y
// un-rotated.

// Positions whose rows are kept in f16, too, beside a smaller format: what a row at position p reads of
// position j is that copy where covers(p, j). Only the two positions decide.
struct KvProtect {
  int32_t sinks = 0, recent = 0;  // the first positions; the last ones, the row's own included
  constexpr bool any() const { return sinks > 0 || recent > 0; }
  constexpr bool covers(int32_t p, int32_t j) const { return j < sinks || (recent > 0 && p - j < recent); }
  bool operator==(const KvProtect&) const = default;
};

struct KvSpec {
  DType k = DType::f16, v = DType::f16;
  int32_t heads = 0, dim = 0;
  int32_t window = 0;  // keys seen, the query's own included; 0 = all
  // One copy of K = V (docs/kv-cache.md): a key is its value times KvView::gain, but for the elements that
  // its position rotates, i and i + dim / 2, i < pairs; they alone are stored as keys, in this order. 0:
  // whole keys. QkvPrep then leaves q un-rotated, and Attention splits it.
  int32_t pairs = 0;
  KvProtect protect = {};

  int32_t key_dim() const { return pairs ? 2 * pairs : dim; }  // elements of a stored key
  int64_t k_bytes() const { return row_bytes(k, key_dim()); }
  int64_t v_bytes() const { return row_bytes(v, dim); }
  // Rows of the second copy, in the domain of the first.
  int64_t k_edge_bytes() const { return row_bytes(DType::f16, key_dim()); }
  int64_t v_edge_bytes() const { return row_bytes(DType::f16, dim); }
  bool operator==(const KvSpec&) const = default;
};

// One layer's cache: pages of [head][page_tokens][dim], addressed by slot: the position of what is committed.
// A ring (ring_tokens > 0, a multiple of page_tokens) holds slot p at p % ring_tokens; ring_tokens >= window
// + rows of the largest step, so a step never overwrites what it must read.
struct KvView {
  std::byte *k = nullptr, *v = nullptr;
  int64_t k_page_bytes = 0, v_page_bytes = 0;
  int32_t page_tokens = 0, ring_tokens = 0;
  KvSpec spec;
  const float* gain = nullptr;  // [dim], with spec.pairs
  // With spec.protect: f16 rows [sequence][sinks, then a ring of edge_ring slots][head]. edge_ring >=
  // protect.recent + rows of the largest step, or as many as the context has.
  std::byte *k_edge = nullptr, *v_edge = nullptr;
  int32_t edge_ring = 0;

  int64_t page(const SeqView& s, int32_t slot) const {
    return ring_tokens ? s.ring[slot % ring_tokens / page_tokens] : s.pages[slot / page_tokens];
  }
  // The row of one head in one slot: key_dim() and dim elements.
  std::byte* k_row(const SeqView& s, int32_t slot, int32_t head) const {
    return k + page(s, slot) * k_page_bytes +
           (int64_t{head} * page_tokens + slot % page_tokens) * spec.k_bytes();
  }
  std::byte* v_row(const SeqView& s, int32_t slot, int32_t head) const {
    return v + page(s, slot) * v_page_bytes +
           (int64_t{head} * page_tokens + slot % page_tokens) * spec.v_bytes();
  }
  int64_t edge_row(const SeqView& s, int32_t slot, int32_t head) const {
    const int32_t sinks = spec.protect.sinks, at = slot < sinks ? slot : sinks + (slot - sinks) % edge_ring;
    return (int64_t{s.slot} * (sinks + edge_ring) + at) * spec.heads + head;
  }
  std::byte* k_edge_row(const SeqView& s, int32_t slot, int32_t head) const {
    return k_edge + edge_row(s, slot, head) * spec.k_edge_bytes();
  }
  std::byte* v_edge_row(const SeqView& s, int32_t slot, int32_t head) const {
    return v_edge + edge_row(s, slot, head) * spec.v_edge_bytes();
  }
};

inline constexpr int32_t kMaxTaps = 8;

// State of one recurrent layer: short convolutions over `channels` and matrices [k_dim, v_dim] per value
// head.
struct RecurrentSpec {
  int32_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  int32_t channels = 0, taps = 0;

  bool valid() const { return v_heads > 0; }
  int64_t conv_base() const { return int64_t{taps - 1} * channels; }  // floats; the last inputs, oldest first
  int64_t conv_entry() const { return channels; }
  int64_t matrix_base() const { return int64_t{v_heads} * k_dim * v_dim; }  // [v_heads][k_dim][v_dim]
  int64_t matrix_entry() const {  // k [k_heads][k_dim], delta [v_heads][v_dim], decay [v_heads]
    return int64_t{k_heads} * k_dim + int64_t{v_heads} * v_dim + v_heads;
  }
};

// Bases [slot][base_floats] and logs [slot][entries][entry_floats] of all sequences. A base of which nothing
// has been written yet counts as zeros: it is that of a sequence whose first row here is at position n_kept.
struct RecurrentView {
  float *base = nullptr, *log = nullptr;
  int64_t base_floats = 0, entry_floats = 0;
  int32_t entries = 0;
  RecurrentSpec spec;

  float* base_of(const SeqView& s) const { return base + s.slot * base_floats; }
  float* entry(const SeqView& s, int32_t i) const {
    return log + (int64_t{s.slot} * entries + i) * entry_floats;
  }
};

// ---- operations: operands in the order out <- in
// ----------------------------------------------------------------------

// y[M,D] = table[token[m]] * scale; with `soft`, of a row for which the step has one, StepState::soft[m].
struct EmbedArgs {
  Tensor y, table;
  float scale = 1;
  bool soft = false;
};

// y[i] = x[out_row[i]], i < n_out. Runs under RowSet::out.
struct GatherArgs {
  Tensor y, x;
};

// Per group of `width` columns (0: the whole row): y = (residual + x / sqrt(mean(x^2) + eps) * weight) * gain
// * scale * act(mul). weight: [width] or none; residual, mul: [M,D] or none; gain: [1] or [D] or none. y may
// be x, residual or mul.
struct RmsNormArgs {
  Tensor y, x, weight, residual, gain;
  int32_t width = 0;
  float eps = 0, scale = 1;
  Tensor mul = {};
  Act act = Act::none;
};

// y[M,D] = act(min(max(x + add, low), high)) * mul. add, mul: f32 [M,D], or [1,D] for all rows, or none. y
// may be any of them that has M rows.
struct PointwiseArgs {
  Tensor y, x, add, mul;
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  Act act = Act::none;
};

// y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias. weight, bias: [1,D] or none. y may
// be x.
struct LayerNormArgs {
  Tensor y, x, weight, bias;
  float eps = 0;
};

// y[M,N] = cap(act(scale * x[M,K] w[N,K]^T + bias)) * mul + residual;  cap(z) = softcap * tanh(z / softcap)
// if softcap > 0. bias: f32 [1,N] or none; residual: f32 [M,N] or none; mul: f32 [M,N], [M,1] or none; y may
// be residual. Quantized w: x is rounded to int8 first (docs/numerics.md).
struct MatmulArgs {
  Tensor y, x, w, bias, mul;
  float scale = 1, softcap = 0;
  Act act = Act::none;
  Tensor residual = {};
};

// y[2 m] = x[m], y[2 m + 1] = x[m] less what Matmul with quantized weights rounds it to (docs/numerics.md).
// The products of both add up to that of an x in twice as many bits. y: [2M,K]. Runs under RowSet::out, its
// Matmul under RowSet::refined.
struct RefineArgs {
  Tensor y, x;
};
// y[m] = cap(x[2 m] + x[2 m + 1]), cap as in Matmul. x: [2M,N]. Runs under RowSet::out.
struct FoldArgs {
  Tensor y, x;
  float softcap = 0;
};

// y[M,N] = act(gate_scale * x gate^T) * (up_scale * x up^T)
struct GateUpArgs {
  Tensor y, x, gate, up;
  float gate_scale = 1, up_scale = 1;
  Act act = Act::none;
};

// Softmax over logits [M,E], the top_k largest (ties: lowest expert first), renormalized to sum 1, then times
// expert_scale[expert] if given. experts: i32 [M,top_k], best first; weights: f32 [M,top_k].
struct RouteArgs {
  Tensor weights, experts, logits, expert_scale;
  int32_t top_k = 0;
};

// y[M,D] = residual + sum over slots s ascending of weights[m,s] * down[e](act(x gate[e]^T) * (x up[e]^T)), e
// = experts[m,s]. gate, up: [E] slices of [I,D]; down: [E] slices of [D,I]. *_scale: f32 [1,E] or none, times
// that product.
struct ExpertsArgs {
  Tensor y, x, gate, up, down, weights, experts, gate_scale, up_scale, down_scale;
  Act act = Act::none;
  Tensor residual = {};  // f32 [M,D] or none; may be y
};

// y[m, s * N + n] = scale * x[m] w[chosen[m,s]][n]: a product with some slices of w, [C] of [N,K], another
// choice each row. chosen: i32 [M,S]; y: [M,S*N].
struct SliceMatmulArgs {
  Tensor y, x, w, chosen;
  float scale = 1;
};

// Per head: q = rope(rms(q) * q_norm); k = rope(rms(k) * k_norm), v = rms(v), both stored in the cache at the
// row's slot; the rotation is by pos[m]. q is rewritten in place; k and v are read only and may be the same
// tensor (K = V). k none: queries only (shared KV). q_norm, k_norm: [head_dim] or none (then no norm at all);
// v_norm: whether v is normalized (without weight). A q that only the Attention behind it reads may stay raw.
struct QkvPrepArgs {
  Tensor q, k, v, q_norm, k_norm;
  Rope rope;
  float eps = 0;
  bool v_norm = false;
  KvView kv;
};

// y[M,heads*dim] = softmax(scale * q k^T) v over positions p <= pos[m], pos[m] - p < window, each of them
// where slot_seen(m, p) says; query head h reads KV head h / (heads / kv.heads). softcap > 0 caps the scores.
// both_ways: a row of a chain also sees the later rows of its sequence in this step. blocks: it also sees
// those up to StepState::until, where the step has blocks.
struct AttentionArgs {
  Tensor y, q;
  KvView kv;
  float scale = 1, softcap = 0;
  bool both_ways = false, blocks = false;
};

// y[M,heads*dim] per head = softmax(cap(q[m] . (k[p] + ahead[m - p]))) v[p] over the rows m - window < p <= m
// that are of m's sequence, window = ahead.rows: each knows how far behind it stands. cap as in Matmul. q, k,
// v: [M,heads*dim], other memory than y's; ahead: f32 [window,heads*dim].
inline constexpr int32_t kMostBand = 64;  // rows of a window
struct BandAttentionArgs {
  Tensor y, q, k, v, ahead;
  int32_t heads = 0;
  float softcap = 0;
};

// y[m,c] = act(sum over s < taps of weight[s,c] * x[m - (taps - 1) + s, c]), where row m - 1 is what row m
// continues: rows of this step, kept rows, the base; zeros before position 0. weight: f32 [taps,C]. The base
// keeps the last taps - 1 inputs, the log one input a row.
struct ConvArgs {
  Tensor y, x, weight;
  RecurrentView state;
  Act act = Act::none;
};

// The gated delta rule (Yang et al., "Gated delta networks", arXiv 2412.06464). Per value head h, with key
// head h % k_heads, in the row's order: S = S' * decay, decay = exp(rate[h] * softplus(a[m,h] + bias[h]));
// delta = beta[m,h] * (v - S^T k); S += k delta^T; y = S^T q, where S' is the state behind the row it
// continues. y, v: [M, v_heads * v_dim]; q, k: [M, k_heads * k_dim]; a, beta: [M, v_heads]; rate, bias: f32
// [1, v_heads].
struct DeltaNetArgs {
  Tensor y, q, k, v, a, beta, rate, bias;
  RecurrentView state;
};

// The best columns of x[m], best first: larger first, ties by column; k = column.cols of them, at most
// kMostTop. column: i32 [M,k], -1 where nothing above -inf is left, and everywhere if the row holds a NaN or
// +inf. value: f32 [M,k], x there (0 of -1), or none. share: f32 [M,1], what the softmax of x[m] gives the
// first (0 of -1), or none.
inline constexpr int32_t kMostTop = 128;
struct TopArgs {
  Tensor column, value, share, x;
};

// A program that several devices run in parts (src/parts): part p has computed the columns gives[p] of
// y[M,N], and afterwards those parts that `takes` names have the columns of all. No part runs on before its
// columns have been taken. One part alone: nothing.
inline constexpr int32_t kMaxParts = 8;
class Exchange;  // core/exchange.h
struct ShareArgs {
  Tensor y;
  Exchange* exchange = nullptr;
  int32_t part = 0, parts = 1;
  int32_t number = 0;  // of the program's shares, which all parts run in the same order
  struct Run {
    int32_t first = 0, cols = 0;
  };
  Run gives[kMaxParts] = {};
  std::byte* at[kMaxParts] = {};  // where y begins on each part
  uint32_t takes = 0;             // bit p: part p
};

#define CARAT_OPS(X) \
  X(Embed)           \
  X(Gather)          \
  X(RmsNorm)         \
  X(Pointwise)       \
  X(LayerNorm)       \
  X(Matmul)          \
  X(Refine)          \
  X(Fold)            \
  X(GateUp)          \
  X(Route)           \
  X(Experts)         \
  X(SliceMatmul) X(QkvPrep) X(Attention) X(BandAttention) X(Conv) X(DeltaNet) X(Top) X(Share)

enum class Op : uint8_t {
#define X(name) name,
  CARAT_OPS(X)
#undef X
};
inline constexpr std::string_view kOpNames[] = {
#define X(name) #name,
    CARAT_OPS(X)
#undef X
};
template <class Args>
struct OpOf;
#define X(name)                           \
  template <>                             \
  struct OpOf<name##Args> {               \
    static constexpr Op value = Op::name; \
  };
CARAT_OPS(X)
#undef X

struct OpRecord;
// Shape and type rules of an operation: throws Error naming operand and rule. Called once per op by
// Backend::compile.
void check_op(const OpRecord& op);

}  // namespace carat
