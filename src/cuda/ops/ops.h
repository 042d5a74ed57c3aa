// Every operation's launches. Grids are those of the program's bucket: how many rows a step uses, kernels
// read from the step, so that a recorded graph serves every step.
#pragma once
#include "core/ops.h"
#include "cuda/device/rt.h"
#include "cuda/device/step.h"
#include "cuda/quant/tables.h"

namespace carat::cuda {

// Rows rounded to int8 (core/int_block.h): codes [rows][256 * blocks], zeros behind the last column; sums of
// 16 codes each, [rows][16 * blocks].
struct Rounded {
  int8_t* q = nullptr;
  int16_t* sums = nullptr;
  float* d = nullptr;
  int32_t blocks = 0;
  uint16_t* half_sums = nullptr;  // the same as f16, exact
  // Of float weights instead of codes: two parts of every number, [rows][256 * blocks] words or by chunks of
  // columns, and d only for f16 (matmul/float/parts.cuh).
  uint32_t* parts = nullptr;
  bool chunks = false;
};

// A step's pairs of a row and one of its experts, by expert: row * used + choice in order[start[e]] ..
// order[start[e + 1]]. start null: rows are too few for it to pay; out alone may be there even so.
struct PairLists {
  int32_t *start = nullptr, *order = nullptr;
  float* out = nullptr;  // [pairs][outputs of down]
};

struct Context {
  Launcher launcher;
  const DevStep* step = nullptr;
  const Tables* tables = nullptr;
  const int32_t* unpackings = nullptr;  // by span, as StepImage has them
};

// Of operations that are one kernel and need nothing but their operands; others have functions of their own.
#define X(name) void run(const Context& c, const name##Args& a, RowSet rows);
CARAT_OPS(X)
#undef X
void embed(const Context& c, const EmbedArgs& a, RowSet rows);
void gather(const Context& c, const GatherArgs& a);
// second: a norm of as many rows and groups, which neither reads what a writes nor the other way round.
void rms_norm(const Context& c, const RmsNormArgs& a, const RmsNormArgs* second, RowSet rows);
// Norms of whole rows that one kernel computes, one after the other: what reads the result of one before it
// finds it in registers.
struct NormChain {
  static constexpr int kMost = 4;
  enum From : int8_t { last, head, memory };  // the step before, the first, or neither
  int n = 0;
  RmsNormArgs step[kMost];
  Rounded out[kMost];     // y rounded as well, or q null
  From x[kMost] = {};     // where x comes from, behind the first step
  int8_t adds = -1;       // the step whose residual comes from memory; of others it is the step's before
  bool same[kMost] = {};  // x and eps are those of the step before

  bool add(const RmsNormArgs& b);  // false: b needs a kernel of its own
  bool rounds(int k) const;        // whether step k can be rounded
  bool plain() const;              // a norm, and a norm of its result
};
void norms(const Context& c, const NormChain& chain, RowSet rows);
// A chain of a single row that the products which read its last result compute by themselves, every block for
// itself: one kernel less to wait for (row_norms.cuh).
struct RowNorms {
  struct Step {
    const float *weight, *gain;  // or null; gain: one
    float* y;
    Rounded out;  // or q null
    float eps, scale;
    NormChain::From from;
    bool adds, adds_memory, same;  // a residual, which is `residual` and not the step's before
  };
  int32_t n = 0, cols = 0;  // n 0: none
  const float *x = nullptr, *second = nullptr, *residual = nullptr;
  Step step[NormChain::kMost];

  int32_t blocks() const { return (cols + 255) / 256; }
};
// n 0: this chain cannot, since a block would write what others have yet to read, or has more than they can
// hold.
RowNorms row_norms(const NormChain& chain);
void route(const Context& c, const RouteArgs& a, RowSet rows);
void top(const Context& c, const TopArgs& a, RowSet rows);

// per_row: so many rows of x for each row of the step.
void round_rows(const Context& c, const Tensor& x, const Rounded& out, RowSet rows, int32_t per_row);
// How products with this weight, of so many rows, want x in parts, of the weight's type. scaled: as codes of
// e4m3 with a scale for 32 columns (matmul/float/scaled_rows.cuh).
enum class Parts : uint8_t { none, rows, chunks, scaled };
Parts parts_of(const DeviceProps& device, const Tensor& w, int32_t rows);
Parts parts_of(const DeviceProps& device, const GateUpArgs& a);
Parts parts_of(const DeviceProps& device, const ExpertsArgs& a);
// Rows as weights of a type that rounds them to e4m3 see them, for products in f32. y may be x.
void round_to_e4m3(const Context& c, DType w, const Tensor& x, const Tensor& y, RowSet rows, int32_t per_row);
void split_rows(const Context& c, const Tensor& w, const Tensor& x, const Rounded& out, RowSet rows,
                int32_t per_row);
// x.q: only if a weight is quantized. x.parts: only as parts_of() says.
void matmul(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows);
// Up to four products of the same rows, none of which reads what another writes.
inline constexpr int kMatmulsAtOnce = 4;
// Whether b can be one of them: over the format of all so far, or, of a single row, over another one behind
// them (two of the formats that files mix).
bool matmuls_at_once(const std::vector<MatmulArgs>& all, const MatmulArgs& b, const RowNorms& norms,
                     const DeviceProps& device);
void matmuls(const Context& c, const std::vector<MatmulArgs>& a, const Rounded& x, RowSet rows);
void gate_up(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows);
// The same with norms ahead, if norms_fit(): x is the last one's result, of float weights any one's.
bool norms_fit(const RowNorms& norms, const MatmulArgs& a, const DeviceProps& device);
bool norms_fit(const RowNorms& norms, const GateUpArgs& a, const DeviceProps& device);
void matmuls(const Context& c, const RowNorms& norms, const std::vector<MatmulArgs>& a, RowSet rows);
void gate_up(const Context& c, const RowNorms& norms, const GateUpArgs& a, RowSet rows);
// A product of a single row that nobody has rounded and nobody else wants rounded.
bool rounds_itself(const MatmulArgs& a, const DeviceProps& device);
void matmul_rounding(const Context& c, const MatmulArgs& a, RowSet rows);
// Bytes of the lists and of `out`; 0: the kernels for so many rows need neither.
int64_t pair_bytes(const DeviceProps& device, const ExpertsArgs& a);
PairLists pair_lists(const DeviceProps& device, const ExpertsArgs& a, std::byte* memory);
void list_pairs(const Context& c, const ExpertsArgs& a, const PairLists& lists, RowSet rows);
// hidden: f32 [rows * used][inner], and rounded if down is quantized. chosen: the operation before waits for
// the one that chooses, so that weights can be asked for before the inputs are there; without lists
// experts_down always can.
void experts_gate_up(const Context& c, const ExpertsArgs& a, const Rounded& x, float* hidden,
                     const PairLists& lists, bool chosen, RowSet rows);
void experts_down(const Context& c, const ExpertsArgs& a, const float* hidden, const Rounded& h,
                  const PairLists& lists, RowSet rows);
// A row's choice, dense branch and experts as two kernels: gate and up of both, then down of both. They
// choose and round by themselves.
struct Mixture {
  RouteArgs route;
  GateUpArgs gate_up;
  MatmulArgs down;
  ExpertsArgs experts;
  bool adds = false;   // down.y is added to experts.y
  int32_t number = 0;  // of the program's mixtures
};
bool mixture_fits(const Mixture& m, const DeviceProps& device);
// hidden: as experts_gate_up(); dense, experts: the rounded inputs of both.
void mixture_up(const Context& c, const Mixture& m, const Rounded& dense, const Rounded& experts,
                float* hidden, RowSet rows);
void mixture_down(const Context& c, const Mixture& m, const float* hidden, RowSet rows);
void slice_matmul(const Context& c, const SliceMatmulArgs& a, const Rounded& x, RowSet rows);

void qkv_prep(const Context& c, const QkvPrepArgs& a, RowSet rows);

inline constexpr int kMaxHead = 512;
// How attention is cut: positions a segment, of a row that sees `span` of them. A row's own affair, so that
// its sums do not depend on its neighbours.
constexpr int32_t segment_of(int32_t window, int32_t pos) {
  const int32_t seen = pos + 1, span = window && window < seen ? window : seen;
  return span <= 4096     ? 64
         : span <= 16384  ? 128
         : span <= 32768  ? 256
         : span <= 65536  ? 512
         : span <= 262144 ? 1024
         : span <= 524288 ? 2048
                          : 4096;
}
// A single row's segments of such a window may be folded where they are made; and how many it has at the
// most.
constexpr bool folds_window(int32_t window) { return window > 0 && window <= 1024; }
constexpr int32_t window_segments(int32_t window) { return (window + 62) / 64 + 1; }
struct AttentionPlan {
  int32_t span = 0;    // index into DevStep::segments
  bool split = false;  // segments to tasks of their own, merged afterwards
  // Packed caches of prompts: decoded to halves here, so many tiles of 64 positions at a time; or null.
  std::byte* unpacked = nullptr;
  int32_t tiles = 0;
};
// Whether a packed cache is decoded before a step of so many rows attends; tiles at a time, of a window;
// bytes.
bool unpacks(const AttentionArgs& a);
constexpr int32_t unpacked_tiles(int32_t window, int32_t rows) {
  // All that rows of one sequence see of a window; else as far as a row's sums stay in registers.
  return window ? (rows + window) / 64 + 3 : 256;
}
int64_t unpacked_bytes(const AttentionArgs& a, int32_t tiles);
// Floats of DevStep::partial for so many segments a row.
int64_t partial_floats(const AttentionArgs& a, int32_t rows, int32_t segments);
// out: y rounded as well, or q null; only if attention_rounds(). prepares: the operation before, if it is to
// be done here, too; it may leave q as it was. Null: it has been done.
void attention(const Context& c, const AttentionArgs& a, const AttentionPlan& plan, const Rounded& out,
               RowSet rows, const QkvPrepArgs* prepares = nullptr);
inline bool attention_rounds(const AttentionArgs& a, const AttentionPlan& plan) {
  return plan.split && a.kv.spec.dim % 256 == 0;
}

// Whether it is a tower's attention, in which all rows of a picture see each other, over keys and values in
// f32, in heads that have a kernel of their own (attention/whole/whole.cu).
inline bool attends_whole(const AttentionArgs& a) {
  const KvSpec& kv = a.kv.spec;
  return a.blocks && kv.window == 0 && kv.k == DType::f32 && kv.v == DType::f32 && kv.pairs == 0 &&
         !kv.protect.any() && kv.dim % 8 == 0 && kv.dim <= 80;
}

// What only towers for pictures and sounds have (tower.cu), but for refine and fold.
// What output heads have (refine.cu); y is rounded, too.
void refine(const Context& c, const RefineArgs& a, const Rounded& out, RowSet rows);

// Norms of a convolution's queries and keys, heads of `width` columns, that its kernel computes.
struct HeadNorms {
  int32_t width = 0, heads = 0;  // width 0: none; heads: of each
  float eps[2] = {}, scale[2] = {};
};
// None: one of these norms needs more, or rows are too many.
HeadNorms head_norms(const ConvArgs& a, const RmsNormArgs& q, const RmsNormArgs& k);
void conv(const Context& c, const ConvArgs& a, const HeadNorms& norms);
void delta_net(const Context& c, const DeltaNetArgs& a);
bool delta_net_fits(const RecurrentSpec& s);  // keys of up to 256
// A single row's, with the norm of its result.
bool delta_row_fits(const DeltaNetArgs& a, const RmsNormArgs& norm);
void delta_row(const Context& c, const DeltaNetArgs& a, const RmsNormArgs& norm);

// Reads all of it once.
void read_memory(const Launcher& l, const std::byte* p, int64_t bytes, std::byte* sink);

}  // namespace carat::cuda
