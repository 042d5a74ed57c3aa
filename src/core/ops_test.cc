// Shape and type rules: each broken one is an Error that names the operation and the operand.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "core/program.h"

using namespace carat;

namespace {

std::byte memory[1 << 16];

// Tensors in different places, so that only meant aliases alias.
Tensor at(int place, int32_t rows, int32_t cols, DType type = DType::f32, int32_t slices = 1) {
  return make_tensor(memory + place * 256, type, rows, cols, slices);
}

template <class A>
std::string error_of(const A& args, RowSet rows = RowSet::all, int layer = -1) {
  Program p;
  p.at_rows(rows);
  p.at_layer(layer);
  p.push(args);
  try {
    check_op(p.ops()[0]);
  } catch (const Error& e) {
    CHECK_FALSE(e.hint().empty());
    return e.what();
  }
  return "";
}

bool says(const std::string& message, const std::string& part) {
  CAPTURE(message);
  CAPTURE(part);
  return message.find(part) != std::string::npos;
}

KvView cache() {
  KvView v{memory, memory + 32768, 4096, 4096, 16, 0, {}};
  v.spec = {DType::f32, DType::f32, 2, 8, 0};
  return v;
}

}  // namespace

TEST_CASE("matmul") {
  const MatmulArgs good{at(0, 3, 5), at(1, 3, 32), at(2, 5, 32, DType::q4_0), {}, {}};
  CHECK(error_of(good) == "");
  MatmulArgs a = good;
  a.y = {};
  CHECK(error_of(a) == "Matmul: y is missing");
  a = good, a.x = at(1, 3, 64);
  CHECK(error_of(a, RowSet::all, 7) == "Matmul (layer 7): w is [1, 5, 32], expected [1, 5, 64]");
  a = good, a.x = at(1, 2, 32);
  CHECK(says(error_of(a), "x has 2 rows, y 3"));
  a = good, a.w = at(2, 5, 32, DType::i8);
  CHECK(error_of(a) == "Matmul: w cannot be i8");
  a = good, a.x = at(1, 3, 48), a.w = at(2, 5, 48, DType::q4_0);
  CHECK(says(error_of(a), "the 48 columns of w are not a multiple of q4_0's block of 32"));
  a = good, a.bias = at(3, 2, 5);
  CHECK(error_of(a) == "Matmul: bias is [2, 5], expected [1, 5]");
  a = good, a.mul = at(3, 3, 4);
  CHECK(error_of(a) == "Matmul: mul is [3, 4], expected [3, 5]");
  a = good, a.y = a.x, a.w = at(2, 32, 32);
  CHECK(says(error_of(a), "y and x may not be the same memory"));
  a = good, a.softcap = -1;
  CHECK(says(error_of(a), "softcap is -1"));
  a = good, a.y.pitch = 4;
  CHECK(says(error_of(a), "the rows of y overlap"));
  a = good, a.y.type = DType::f16;
  CHECK(error_of(a) == "Matmul: y must be f32, not f16");
  a = good, a.x.data += 1;
  CHECK(says(error_of(a), "x is not aligned"));
}

TEST_CASE("embed, gather, norm, gate-up") {
  CHECK(error_of(EmbedArgs{at(0, 2, 32), at(1, 9, 32, DType::q8_0)}) == "");
  CHECK(says(error_of(EmbedArgs{at(0, 2, 32), at(1, 9, 64, DType::q8_0)}), "table is [1, 9, 64]"));
  EmbedArgs packed{at(0, 2, 32), at(1, 9, 32, DType::q8_0)};
  packed.table.packing = 1;
  CHECK(says(error_of(packed), "documented layout"));
  CHECK(error_of(GatherArgs{at(0, 1, 8), at(1, 4, 8)}, RowSet::out) == "");
  CHECK(says(error_of(GatherArgs{at(0, 1, 8), at(1, 4, 8)}), "wanted rows only"));
  CHECK(says(error_of(GatherArgs{at(0, 1, 8), at(1, 4, 9)}, RowSet::out), "y has 8 columns, x 9"));
  RmsNormArgs norm{at(0, 2, 8), at(1, 2, 8), at(2, 1, 4), {}, {}};
  norm.width = 4;
  CHECK(error_of(norm) == "");
  norm.width = 3;
  CHECK(says(error_of(norm), "not whole groups of 3"));
  norm.width = 0;
  CHECK(says(error_of(norm), "weight is [1, 4], expected [1, 8]"));
  norm.weight = {}, norm.gain = at(3, 1, 2);
  CHECK(says(error_of(norm), "gain is [1, 2]"));
  norm.gain = at(3, 1, 1), norm.eps = -1;
  CHECK(says(error_of(norm), "eps is -1"));
  const GateUpArgs up{at(0, 2, 6), at(1, 2, 8), at(2, 6, 8), at(3, 5, 8)};
  CHECK(says(error_of(up), "up is [1, 5, 8], expected [1, 6, 8]"));
}

TEST_CASE("route and experts") {
  RouteArgs r{at(0, 2, 3), at(1, 2, 3, DType::i32), at(2, 2, 8), {}, 3};
  CHECK(error_of(r) == "");
  r.top_k = 9;
  CHECK(says(error_of(r), "top_k is 9 of 8"));
  r.top_k = 3, r.experts.type = DType::f32;
  CHECK(says(error_of(r), "experts must be i32"));
  const Tensor none;
  const ExpertsArgs good{at(0, 2, 8),
                         at(1, 2, 8),
                         at(2, 4, 8, DType::f32, 5),
                         at(8, 4, 8, DType::f32, 5),
                         at(16, 8, 4, DType::f32, 5),
                         at(24, 2, 3),
                         at(25, 2, 3, DType::i32),
                         none,
                         none,
                         none,
                         Act::silu};
  CHECK(error_of(good) == "");
  ExpertsArgs a = good;
  a.down.slices = 4;
  CHECK(says(error_of(a), "down is [4, 8, 4], expected [5, 8, 4]"));
  a = good, a.up = at(8, 3, 8, DType::f32, 5);
  CHECK(says(error_of(a), "up is [5, 3, 8]"));
  a = good, a.weights = at(24, 2, 6), a.experts = at(25, 2, 6, DType::i32);
  CHECK(says(error_of(a), "6 experts a row of 5"));
  a = good, a.down_scale = at(30, 1, 4);
  CHECK(says(error_of(a), "down_scale is [1, 4], expected [1, 5]"));
}

TEST_CASE("prep and attention") {
  static const float freq[4] = {};
  const QkvPrepArgs good{at(0, 2, 32), at(8, 2, 16), at(8, 2, 16), at(20, 1, 8), at(21, 1, 8),
                         {freq, 4, 4}, 1e-6f,        true,         cache()};
  CHECK(error_of(good) == "");
  QkvPrepArgs p = good;
  p.v = {};
  CHECK(says(error_of(p), "k and v must come together"));
  p = good, p.k = at(8, 2, 8);
  CHECK(says(error_of(p), "k is [2, 8], expected [2, 16]"));
  p = good, p.rope.pairs = 5;
  CHECK(says(error_of(p), "rope rotates 5 pairs 4 apart"));
  p = good, p.rope.offset = 5;
  CHECK(says(error_of(p), "exceed heads of 8"));
  p = good, p.rope.freq = nullptr;
  CHECK(says(error_of(p), "rope has no frequencies"));
  p = good, p.kv.spec.k = DType::q8_0;
  CHECK(says(error_of(p), "not a multiple of q8_0's block"));
  p = good, p.kv.k_page_bytes = 100;
  CHECK(says(error_of(p), "the K pages overlap"));
  const AttentionArgs fine{at(0, 2, 32), at(8, 2, 32), cache(), 1, 0};
  CHECK(error_of(fine) == "");
  AttentionArgs a = fine;
  a.y = a.q;
  CHECK(says(error_of(a), "may not be the same memory"));
  a = fine, a.y = at(0, 2, 24), a.q = at(8, 2, 24);
  CHECK(says(error_of(a), "3 query heads do not share 2 KV heads"));
  a = fine, a.kv.ring_tokens = 24, a.kv.spec.window = 8;
  CHECK(says(error_of(a), "not whole pages of 16"));
  a = fine, a.kv.ring_tokens = 16, a.kv.spec.window = 17;
  CHECK(says(error_of(a), "cannot hold a window of 17"));
  a = fine, a.kv.k = nullptr;
  CHECK(says(error_of(a), "the KV cache is missing"));
}

TEST_CASE("dump: a line per operation with layer, shapes and types") {
  Program p;
  p.push(EmbedArgs{at(0, 4, 32), at(1, 9, 32, DType::q8_0), 2});
  p.at_layer(3);
  p.at_rows(RowSet::out);
  MatmulArgs m{at(0, 4, 5), at(1, 4, 32), at(2, 5, 32, DType::q4_k), {}, {}};
  m.softcap = 30, m.act = Act::gelu_tanh;
  p.push(m);
  p.push(AttentionArgs{at(0, 2, 32), at(8, 2, 32), cache(), 1, 0});
  CHECK(dump(p) ==
        "  - Embed     all y:f32[4,32] table:q8_0[9,32] scale=2\n"
        "  3 Matmul    out y:f32[4,5] x:f32[4,32] w:q4_k[5,32] act=gelu_tanh softcap=30\n"
        "  3 Attention out y:f32[2,32] q:f32[2,32] kv=2x8 f32/f32\n");
}

TEST_CASE("refine and fold: two rows for each wanted one, and products alone over them") {
  const RefineArgs refine{at(0, 4, 32), at(8, 2, 32)};
  CHECK(error_of(refine, RowSet::out) == "");
  CHECK(says(error_of(refine), "the wanted rows only"));
  CHECK(
      says(error_of(RefineArgs{at(0, 3, 32), at(8, 2, 32)}, RowSet::out), "y is [3, 32], expected [4, 32]"));
  const FoldArgs fold{at(0, 2, 5), at(8, 4, 5), 30};
  CHECK(error_of(fold, RowSet::out) == "");
  CHECK(says(error_of(FoldArgs{at(0, 2, 5), at(8, 2, 5)}, RowSet::out), "x is [2, 5], expected [4, 5]"));
  CHECK(says(error_of(FoldArgs{at(0, 2, 5), at(8, 4, 5), -1}, RowSet::out), "softcap"));
  const MatmulArgs product{at(0, 4, 5), at(8, 4, 32), at(2, 5, 32, DType::q4_0), {}, {}};
  CHECK(error_of(product, RowSet::refined) == "");
  CHECK(
      says(error_of(LayerNormArgs{at(0, 4, 5), at(8, 4, 5), {}, {}, 0}, RowSet::refined), "products alone"));
}

TEST_CASE("slice matmul") {
  const SliceMatmulArgs good{at(0, 2, 12), at(4, 2, 32), at(8, 4, 32, DType::q4_0, 5),
                             at(12, 2, 3, DType::i32)};
  CHECK(error_of(good) == "");
  SliceMatmulArgs a = good;
  a.y = at(0, 2, 11);
  CHECK(says(error_of(a), "y has 11 columns, expected 3 slices of 4"));
  a = good, a.chosen = at(12, 2, 3);
  CHECK(says(error_of(a), "chosen must be i32"));
  a = good, a.w = at(8, 4, 64, DType::q4_0, 5);
  CHECK(says(error_of(a), "w is [5, 4, 64], expected [5, 4, 32]"));
}
