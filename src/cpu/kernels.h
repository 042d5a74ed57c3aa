// What the backend and its kernels share: operands prepared at compile, the work of one phase, a function
// table per ISA.
//
// The kernels are written once, in .inl files over the vectors of a simd_*.inl, and compiled once per ISA in
// a namespace of its own, inside a region of "target" pragmas. Per-file -m flags would be shorter, but an
// inline function of the standard library that two files instantiate is kept once, and might be kept from the
// file with AVX-512.
#pragma once
#include <cstdint>
#include <iterator>
#include <string>

#include "core/ops.h"
#include "core/strips.h"

#if defined(__clang__)
#define CARAT_PRAGMA(x) _Pragma(#x)
#define CARAT_ISA_BEGIN(list) \
  CARAT_PRAGMA(clang attribute push(__attribute__((target(list))), apply_to = function))
#define CARAT_ISA_END _Pragma("clang attribute pop")
#else
#define CARAT_PRAGMA(x) _Pragma(#x)
#define CARAT_ISA_BEGIN(list) _Pragma("GCC push_options") CARAT_PRAGMA(GCC target(list))
#define CARAT_ISA_END _Pragma("GCC pop_options")
#endif

namespace carat::cpu {

constexpr int kTileRows = 16;    // activation rows that are quantized side by side
constexpr int kBlockRows = 128;  // rows a task works on: their activations stay in its L2
constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Rounded activations (docs/numerics.md). Rows stand in tiles of up to 16; a tile of R rows that begins at
// row m0 lies at m0 rows' worth of each array, columns padded with zeros to whole blocks of 256:
struct Rounded {
  int8_t* q = nullptr;         // [K/64][R][64]
  float* scale = nullptr;      // [K/256][R]
  int32_t* minus32 = nullptr;  // [K/32][R]   -sum of 32
  int32_t* minus16 = nullptr;  // [K/16][R]   -sum of 16
  uint32_t* pair32 = nullptr;  // [K/256][4][R]  two int16 sums of 32: groups (0,2) (1,3) (4,6) (5,7)
  uint32_t* pair16 = nullptr;  // [K/256][8][R]  two int16 sums of 16: groups (4c,4c+2), (4c+1,4c+3), c = 0..3
  uint32_t* lane16 = nullptr;  // [K/16][R]  two int16: -sums of columns 4i, 4i+1 and of 4i+2, 4i+3
  int32_t blocks = 0;          // of 256 columns

  // The tile that begins at row m0.
  Rounded at(int64_t m0) const {
    const int64_t b = m0 * blocks;
    return {q + b * 256,    scale + b,      minus32 + b * 8, minus16 + b * 16,
            pair32 + b * 4, pair16 + b * 8, lane16 + b * 16, blocks};
  }
  // Row r of the tile.
  Rounded row(int r) const {
    return {q + r * 64, scale + r, minus32 + r, minus16 + r, pair32 + r, pair16 + r, lane16 + r, blocks};
  }
};

struct SeqRun {  // consecutive rows of one sequence
  int32_t first, count;
};

// One submit: the state as it was then.
struct Step {
  StepState state;
  int threads = 1;
  const SeqRun* runs = nullptr;  // of all rows
  int32_t n_runs = 0;
  int32_t count(RowSet set) const { return rows_in(set, state.n_rows, state.n_out); }
  int32_t step_row(RowSet set, int32_t i) const { return set == RowSet::all ? i : state.out_row[i]; }
  int32_t pos(RowSet set, int32_t i) const { return state.pos[step_row(set, i)]; }
  int32_t seq(RowSet set, int32_t i) const { return state.seq[step_row(set, i)]; }
  // The last position that row i sees.
  int32_t last(RowSet set, int32_t i, const AttentionArgs& a) const {
    int32_t r = step_row(set, i);
    if (a.blocks && state.until) return state.until[r];
    if (a.both_ways)
      while (r + 1 < state.n_rows && state.seq[r + 1] == state.seq[r]) ++r;
    return state.pos[r];
  }
};

struct Worker {
  std::byte* scratch = nullptr;  // 64-byte aligned, Executable's scratch_bytes
};

// A phase: tasks that may run in any order, on any worker, outputs disjoint. The next phase begins when all
// are done.
using TaskCount = int64_t (*)(const Step&, const void* op);
using TaskRun = void (*)(const Step&, const void* op, int64_t task, Worker&);
struct Phase {
  TaskCount count;
  TaskRun run;
  const void* op;
  int32_t record;     // index of the OpRecord it belongs to
  size_t next_dense;  // the phase with the next weights to come, if its tasks are known; else 0
};

// ---- operations as the phases see them
// ---------------------------------------------------------------------------------

struct Slots;  // rows grouped by expert, below

struct QuantOp {  // rounds x; with slots, row i is x's row slots->row[i] (or i itself if direct)
  Tensor x;
  RowSet rows;
  const Slots* slots = nullptr;
  bool direct = false;
  Rounded to;
};

// Rows as products with weights of a type that rounds them to e4m3 see them, `used` for each row of the step.
struct E4m3Op {
  Tensor x, y;
  RowSet rows;
  DType weights;
  int32_t used = 1;
};

struct DenseOp {  // Matmul, or GateUp if `up` is valid
  MatmulArgs a;
  Tensor up;
  float up_scale = 1;
  RowSet rows;
  Rounded x;
};

// The work list of a mixture layer: slots (row, choice) sorted by expert, cut into items of one expert and at
// most kBlockRows slots.
struct Slots {
  struct Item {
    int32_t expert, first, rows;
  };
  int32_t n_items = 0;
  int32_t* row = nullptr;    // [M * top_k] the row of sorted slot i
  int32_t* place = nullptr;  // [M * top_k] where slot (m, s) went
  Item* item = nullptr;
  int32_t* start = nullptr;  // [experts + 1] scratch of the sort
};

struct ExpertsOp {
  ExpertsArgs a;
  RowSet rows;
  Slots* slots;
  Rounded x, h;             // sorted slots, rounded (only where the weights are quantized)
  float* hidden = nullptr;  // [M * top_k, I] sorted
  float* out = nullptr;     // [M * top_k, D] sorted
};

// SliceMatmul: slots are (row, choice) sorted by slice.
struct SliceOp {
  SliceMatmulArgs a;
  Slots* slots;
  Rounded x;
};

// An operation of which a task is a row.
template <class Args>
struct ByRow {
  Args a;
  RowSet rows;
};
constexpr int64_t kFoldColumns = 4096;  // of a task
struct FoldOp {
  FoldArgs a;
  RowSet rows;
};
struct RopeOp {  // cosines and sines of all rows, shared by the layers with the same frequencies
  Rope rope;
  RowSet rows;
  float* table = nullptr;  // [M][2][pairs]
};
struct PrepOp {
  QkvPrepArgs a;
  RowSet rows;
  const float* table;
};

// Attention runs over segments of 256 absolute positions, each from an empty state, folded in ascending
// order: the same arithmetic whether one worker walks all of them or many share them.
constexpr int kSegment = 256, kKvBlock = 64;
struct AttentionOp {
  AttentionArgs a;
  RowSet rows;
  int32_t most_queries = 0;  // rows x heads of a task, unless one row has more
  int32_t task_rows = 1;     // of this step
  int32_t splits = 0;        // of this step: segments of a row if tasks are parts of them; 0: not split
  int32_t run = 0;           // of this step, when split: segments of a task
  float* partial = nullptr;  // of this step: [M][heads][splits][16 + padded dim]
  float* query = nullptr;    // with spec.pairs: [M][heads][dim + key_dim], split (core/kv_codec.h)
  int32_t runs() const { return splits ? (splits + run - 1) / run : 1; }
};
constexpr int32_t kAttentionQueries = 32;  // of a task at least, where there are as many

// Recurrent layers: a task follows one sequence through the step in some of its channels or columns.
constexpr int64_t kConvChannels = 256;
inline int64_t conv_blocks(int64_t channels) { return (channels + kConvChannels - 1) / kConvChannels; }
inline int64_t delta_columns(int32_t v_dim) { return v_dim % 32 == 0 ? 32 : 16; }
struct ConvOp {
  ConvArgs a;
};
struct DeltaOp {
  DeltaNetArgs a;
};

// Attention over one kind of cache.
struct AttentionKernels {
  TaskRun run, merge;
  int32_t queries;                                          // of a task at most, unless one row has more
  int64_t (*scratch)(int32_t queries, const KvSpec& spec);  // bytes of a worker
};

// Operations of which a task is a row, and others' tasks: run_NAME in the .inl files (list.inl).
#define CARAT_CPU_ROW_OPS(X) \
  X(Embed, embed)            \
  X(Gather, gather)          \
  X(RmsNorm, norm)           \
  X(Pointwise, pointwise)    \
  X(LayerNorm, layer_norm)   \
  X(Route, route)            \
  X(Top, top)                \
  X(BandAttention, band)     \
  X(Refine, refine)
#define CARAT_CPU_TASKS(X) \
  X(rope)                  \
  X(prep)                  \
  X(quantize) X(dense) X(plan) X(gate_up) X(down) X(reduce) X(split) X(slices) X(conv) X(delta) X(fold)
struct Kernels {
#define X(name) TaskRun name = nullptr;
  CARAT_CPU_TASKS(X)
#undef X
  TaskRun by_row[std::size(kOpNames)] = {};  // by Op
  AttentionKernels (*attention)(const KvSpec& spec) = nullptr;
  TaskRun dot_test = nullptr;
  int64_t dot_test_ops = 0;  // of a task of dot_test, a product and its sum as two
};

constexpr int kDotTestRounds = 1 << 16;

// Bytes of a worker's scratch for products.
constexpr int64_t kDenseScratch = int64_t{96} << 10;

Kernels baseline_kernels();
#if defined(__x86_64__)
Kernels avx2_kernels();
Kernels avx512_kernels();
Kernels amx_kernels();
#elif defined(__aarch64__)
Kernels neon_kernels();
Kernels i8mm_kernels();
#endif

// How tasks are cut (dense.inl and cpu_backend.cc must agree).
inline int64_t strips(int64_t rows) { return (rows + kStripRows - 1) / kStripRows; }
inline int64_t strips_a_task(int64_t n, int threads) {
  const int64_t k = strips(n) / (32 * threads);
  return k < 1 ? 1 : k > 16 ? 16 : k;
}

}  // namespace carat::cpu
