// Attention sees a row alone (docs/numerics.md): its bytes are the same whatever shares the step, however
// many rows the program has room for, in whatever chunk it comes, on a chain or as a path of a tree.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "core/codec.h"
#include "core/program.h"
#include "cuda/matmul/table.h"
#include "tests/backends.h"
#include "tests/op_cases.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Shape {
  std::string name;
  int32_t dim, kv_heads, groups, window;
  DType k, v;
  bool ring = false;
  KvProtect protect = {};
  int32_t pairs = 0;  // one copy of K = V
  int32_t page = 0;   // positions; 0: 16 of rings, else 64
};

// What stands before a single row's attention (QkvPrepArgs).
struct Preparation {
  int32_t pairs, offset, ahead = 0;
  bool keys = true, norms = true, v_norm = true;  // keys: and values
  bool tree = false, out = false, empty = false;  // the step: of a tree; only wanted rows; without a row
};
struct Prepared {
  std::vector<std::byte> q, y, k, v;  // k, v: the caches
};

struct Row {
  int32_t seq, pos, query;         // query: which vector it has
  int32_t slot = -1, parent = -1;  // trees
};
using Values = std::vector<std::vector<float>>;  // by row

std::vector<float> vector_of(uint64_t seed, int32_t n, double size) {
  Random rng(seed);
  std::vector<float> x;
  for (int32_t i = 0; i < n; ++i)
    x.push_back(static_cast<float>(size * (static_cast<double>(rng() >> 11) * 0x1p-52 - 1)));
  return x;
}

// Caches whose slots hold what `tokens` name, sequence by sequence.
class World {
 public:
  World(Backend& backend, const Shape& shape, std::vector<std::vector<int32_t>> tokens, int32_t most_rows)
      : backend_(backend), shape_(shape), pages_(tokens.size()) {
    const int32_t page = shape.page ? shape.page : shape.ring ? 16 : 64;
    kv_.spec = {shape.k, shape.v, shape.kv_heads, shape.dim, shape.window, shape.pairs, shape.protect};
    kv_.page_tokens = page;
    if (shape.ring) kv_.ring_tokens = (shape.window + most_rows + page - 1) / page * page;
    kv_.k_page_bytes = int64_t{shape.kv_heads} * page * kv_.spec.k_bytes();
    kv_.v_page_bytes = int64_t{shape.kv_heads} * page * kv_.spec.v_bytes();
    int32_t pages = 0;
    for (size_t s = 0; s < tokens.size(); ++s)
      for (size_t i = 0; i < (shape.ring ? kv_.ring_tokens : tokens[s].size()); i += page)
        pages_[s].push_back(pages++);
    for (size_t s = 0; s < tokens.size(); ++s)
      views_.push_back({pages_[s].data(), pages_[s].data(), static_cast<int32_t>(s)});
    std::vector<std::byte> k(static_cast<size_t>(pages * kv_.k_page_bytes), std::byte{0xff});
    std::vector<std::byte> v(static_cast<size_t>(pages * kv_.v_page_bytes), std::byte{0xff});
    kv_.edge_ring = shape.protect.recent + most_rows;
    const size_t edges =
        shape.protect.any() ? tokens.size() * (shape.protect.sinks + kv_.edge_ring) * shape.kv_heads : 0;
    std::vector<std::byte> ke(edges * kv_.spec.k_edge_bytes(), std::byte{0xff});
    std::vector<std::byte> ve(edges * kv_.spec.v_edge_bytes(), std::byte{0xff});
    KvView host = kv_;
    host.k = k.data(), host.v = v.data(), host.k_edge = ke.data(), host.v_edge = ve.data();
    for (size_t s = 0; s < tokens.size(); ++s)
      for (size_t i = 0; i < tokens[s].size(); ++i)
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          const uint64_t seed = 1000003 * static_cast<uint64_t>(tokens[s][i]) + 7919 * s + h;
          const auto slot = static_cast<int32_t>(i);
          const std::vector<float> key = vector_of(2 * seed, kv_.spec.key_dim(), 1.7),
                                   value = vector_of(2 * seed + 1, shape.dim, 1.7);
          encode_row(shape.k, key.data(), host.k_row(views_[s], slot, h), kv_.spec.key_dim());
          encode_row(shape.v, value.data(), host.v_row(views_[s], slot, h), shape.dim);
          if (edges == 0) continue;
          encode_row(DType::f16, key.data(), host.k_edge_row(views_[s], slot, h), kv_.spec.key_dim());
          encode_row(DType::f16, value.data(), host.v_edge_row(views_[s], slot, h), shape.dim);
        }
    k_ = backend.alloc(k.size()), v_ = backend.alloc(v.size());
    backend.copy(k_.data(), k.data(), k.size());
    backend.copy(v_.data(), v.data(), v.size());
    kv_.k = k_.data(), kv_.v = v_.data();
    const std::vector<float> gain = vector_of(5, shape.dim, 1.5);
    gain_ = backend.alloc(gain.size() * 4);
    backend.copy(gain_.data(), gain.data(), gain.size() * 4);
    kv_.gain = reinterpret_cast<const float*>(gain_.data());
    if (edges == 0) return;
    k_edge_ = backend.alloc(ke.size()), v_edge_ = backend.alloc(ve.size());
    backend.copy(k_edge_.data(), ke.data(), ke.size());
    backend.copy(v_edge_.data(), ve.data(), ve.size());
    kv_.k_edge = k_edge_.data(), kv_.v_edge = v_edge_.data();
  }

  // `room`: rows of the program. out: which rows are wanted; all if empty.
  Values run(const std::vector<Row>& rows, int32_t room, std::vector<int32_t> out = {}) {
    const int32_t width = shape_.kv_heads * shape_.groups * shape_.dim;
    std::vector<int32_t> zero(rows.size()), pos, seq, slot, parent;
    for (const Row& r : rows) {
      pos.push_back(r.pos), seq.push_back(r.seq);
      slot.push_back(r.slot < 0 ? r.pos : r.slot), parent.push_back(r.parent);
    }
    const bool some = !out.empty(), tree = slot != pos;
    for (size_t i = 0; i < rows.size() && !some; ++i) out.push_back(static_cast<int32_t>(i));
    const size_t bytes = static_cast<size_t>(room) * width * 4;
    Buffer q = backend_.alloc(bytes), y = backend_.alloc(bytes);
    for (size_t i = 0; i < out.size(); ++i) {
      const std::vector<float> x =
          vector_of(99 + static_cast<uint64_t>(rows[out[i]].query), width, 3 / std::sqrt(shape_.dim));
      backend_.copy(q.data() + i * width * 4, x.data(), x.size() * 4);
    }
    StepState state{static_cast<int32_t>(rows.size()),
                    static_cast<int32_t>(out.size()),
                    zero.data(),
                    pos.data(),
                    seq.data(),
                    out.data(),
                    views_.data()};
    if (tree) state.slot = slot.data(), state.parent = parent.data();
    Program program;
    program.at_rows(some ? RowSet::out : RowSet::all);
    program.push(AttentionArgs{make_tensor(y.data(), DType::f32, room, width),
                               make_tensor(q.data(), DType::f32, room, width), kv_, 1.1f});
    const auto executable = backend_.compile(program, &state);
    backend_.submit(*executable);
    backend_.wait();
    Values values(out.size(), std::vector<float>(static_cast<size_t>(width)));
    for (size_t i = 0; i < out.size(); ++i)
      backend_.copy(values[i].data(), y.data() + i * width * 4, static_cast<size_t>(width) * 4);
    return values;
  }

  // The row at `pos` prepared and attended, by one program or by two.
  Prepared prepare(int32_t pos, const Preparation& p, bool together) {
    const int32_t dim = shape_.dim, kv_width = shape_.kv_heads * dim, width = kv_width * shape_.groups;
    std::vector<Buffer> buffers;
    const auto floats = [&](uint64_t seed, int32_t n, double size) {
      const std::vector<float> x = vector_of(seed, n, size);
      buffers.push_back(backend_.alloc(x.size() * 4));
      backend_.copy(buffers.back().data(), x.data(), x.size() * 4);
      return make_tensor(buffers.back().data(), DType::f32, 1, n);
    };
    const Tensor q = floats(1, width, 2), y = floats(2, width, 1);
    QkvPrepArgs prep{};
    prep.q = q, prep.eps = 1e-6f, prep.v_norm = p.v_norm, prep.kv = kv_;
    if (p.keys) prep.k = floats(3, kv_width, 3), prep.v = shape_.pairs ? prep.k : floats(4, kv_width, 1);
    if (p.norms) prep.q_norm = floats(5, dim, 0.4), prep.k_norm = floats(6, dim, 1.5);
    if (p.pairs) {
      const Tensor freq = floats(7, p.pairs, 1);
      prep.rope = {reinterpret_cast<const float*>(freq.data), p.pairs, p.offset, p.ahead};
    }
    const int32_t zero = 0, none = -1, n = p.empty ? 0 : 1;
    StepState state{n, n, &zero, &pos, &zero, &zero, views_.data()};
    if (p.tree) state.slot = &pos, state.parent = &none;
    Program programs[2];
    for (Program& one : programs) one.at_rows(p.out ? RowSet::out : RowSet::all);
    programs[0].push(prep);
    programs[together ? 0 : 1].push(AttentionArgs{y, q, kv_, 1.1f});
    for (const Program& one : programs) {
      if (one.ops().empty()) continue;
      const auto executable = backend_.compile(one, &state);
      backend_.submit(*executable);
      backend_.wait();
    }
    const auto bytes = [&](const std::byte* from, size_t count) {
      std::vector<std::byte> b(count);
      backend_.copy(b.data(), from, count);
      return b;
    };
    const size_t wide = static_cast<size_t>(width) * 4;
    return {bytes(q.data, wide), bytes(y.data, wide), bytes(k_.data(), k_.size()),
            bytes(v_.data(), v_.size())};
  }

 private:
  Backend& backend_;
  Shape shape_;
  KvView kv_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<SeqView> views_;
  Buffer k_, v_, k_edge_, v_edge_, gain_;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

std::vector<int32_t> count_to(int32_t n) {
  std::vector<int32_t> v;
  for (int32_t i = 0; i < n; ++i) v.push_back(i);
  return v;
}
std::vector<Row> chain(int32_t seq, int32_t first, int32_t n) {
  std::vector<Row> rows;
  for (int32_t i = first; i < first + n; ++i) rows.push_back({seq, i, 5000 * seq + i});
  return rows;
}

struct Chunk {
  int32_t first, n, room;
};

// The last `rows` positions of `end` at once, then some of them in other company.
void check_chain(Backend& backend, const Shape& shape, int32_t end, int32_t rows,
                 const std::vector<Chunk>& chunks) {
  CAPTURE(shape.name);
  World world(backend, shape, {count_to(end), count_to(end)}, rows);
  const int32_t begin = end - rows;
  const Values whole = world.run(chain(0, begin, rows), std::max(rows, 40));
  for (const float v : whole.back()) CHECK(std::isfinite(v));
  for (const Chunk& c : chunks) {
    CAPTURE(c.first);
    CAPTURE(c.n);
    const Values part = world.run(chain(0, begin + c.first, c.n), c.room);
    for (int32_t i = 0; i < c.n; ++i) {
      CAPTURE(i);
      CHECK(same(part[i], whole[c.first + i]));
    }
  }
  // Behind rows of another sequence; then only some of them wanted.
  const int32_t n = std::min(rows, 23);
  std::vector<Row> both = chain(1, end - 9, 9);
  for (const Row& r : chain(0, end - n, n)) both.push_back(r);
  for (const int32_t room : {32, 50}) {
    CAPTURE(room);
    const Values mixed = world.run(both, room);
    for (int32_t i = 0; i < n; ++i) CHECK(same(mixed[9 + i], whole[rows - n + i]));
    const Values wanted = world.run(both, room, {2, 8, 9, 10, 8 + n / 2, 7 + n, 8 + n});
    CHECK(same(wanted[1], mixed[8]));
    CHECK(same(wanted[2], mixed[9]));
    CHECK(same(wanted[4], mixed[8 + n / 2]));
    CHECK(same(wanted[6], mixed[8 + n]));
  }
}

// The same of a few rows far behind the beginning.
void check_long(Backend& backend, const Shape& shape) {
  CAPTURE(shape.name);
  const int32_t begin = 16383, rows = 64;
  World world(backend, shape, {count_to(begin + rows)}, rows);
  const Values whole = world.run(chain(0, begin, rows), rows);
  for (const int32_t i : {0, 1, 40}) {
    CAPTURE(i);
    CHECK(same(world.run(chain(0, begin + i, 1), 1)[0], whole[i]));
  }
}

// Sequences with a row, a few and many in one step, whose caches begin alike or not.
void check_company(Backend& backend, const Shape& shape) {
  CAPTURE(shape.name);
  const int32_t end = 150, room = 90;
  World world(backend, shape, {count_to(end), count_to(end), count_to(end), count_to(end)}, room);
  std::vector<Row> rows = chain(0, 77, 3);
  for (const auto& [seq, first, n] : {std::array{1, 101, 40}, std::array{2, 9, 1}, std::array{3, 0, 33}})
    for (const Row& r : chain(seq, first, n)) rows.push_back(r);
  const Values together = world.run(rows, room);
  for (size_t i = 0; i < rows.size(); i += 5) {
    CAPTURE(i);
    CHECK(same(world.run({rows[i]}, 1)[0], together[i]));
  }
  const Values wanted = world.run(rows, room, {0, 2, 3, 42, 43, 44, 76});
  CHECK(same(wanted[1], together[2]));
  CHECK(same(wanted[3], together[42]));
  CHECK(same(wanted[6], together[76]));
}

void check_tree(Backend& backend, const Shape& shape, int32_t settled) {
  CAPTURE(shape.name);
  const std::vector<int32_t> parents{-1, 0, 0, 1, 2, 2, 4, 4, 7, 5, 8, -1, 11};
  const auto n = static_cast<int32_t>(parents.size());
  std::vector<int32_t> tokens = count_to(settled);
  std::vector<Row> tree;
  for (int32_t i = 0; i < n; ++i) {
    tokens.push_back(7000 + i);
    tree.push_back(
        {0, parents[i] < 0 ? settled : tree[parents[i]].pos + 1, 7000 + i, settled + i, parents[i]});
  }
  World world(backend, shape, {tokens}, n);
  const Values narrow = world.run(tree, 16), wide = world.run(tree, 40);
  for (int32_t i = 0; i < n; i += 1 + i % 3) {
    CAPTURE(i);
    std::vector<int32_t> path;
    for (int32_t r = i; r >= 0; r = parents[r]) path.insert(path.begin(), 7000 + r);
    std::vector<int32_t> line = count_to(settled);
    line.insert(line.end(), path.begin(), path.end());
    World alone(backend, shape, {line}, n);
    const Values want = alone.run({{0, static_cast<int32_t>(line.size()) - 1, 7000 + i}}, 1);
    CHECK(same(narrow[i], want[0]));
    CHECK(same(wide[i], want[0]));
  }
}

// inside: this is what a device's attention prepares by itself, and leaves the queries as they were.
void check_prepared(Backend& backend, const Shape& shape, int32_t pos, const Preparation& p,
                    [[maybe_unused]] bool inside) {
  CAPTURE(shape.name);
  CAPTURE(pos);
  CAPTURE(p.pairs);
  const auto run = [&](bool together) {
    return World(backend, shape, {count_to(pos + 1)}, 1).prepare(pos, p, together);
  };
  const Prepared one = run(true), two = run(false);
  CHECK(one.y == two.y);
  CHECK(one.k == two.k);
  CHECK(one.v == two.v);
#ifdef CARAT_EMULATED
  if (!p.empty) CHECK((one.q != two.q) == inside);
#endif
}

std::vector<NamedBackend> backends() {
#ifdef CARAT_ONLY_CUDA
  return cuda_backends();
#else
  std::vector<NamedBackend> all = compared_backends();
  if (all.size() > 2) all.erase(all.begin() + 1, all.end() - 1);  // the others: invariance_test.cc
  return all;
#endif
}

}  // namespace

TEST_CASE("a row's attention is the same alone and in any chunk") {
  using enum DType;
  const std::vector<Chunk> many{{0, 1, 1},     {33, 1, 1},   {61, 7, 7},   {58, 16, 16},
                                {110, 17, 32}, {70, 64, 64}, {199, 1, 64}, {192, 8, 8}};
  const std::vector<Chunk> few{{0, 1, 1}, {21, 7, 8}, {20, 17, 32}, {44, 1, 40}};
  const std::vector<Chunk> prompts{{0, 1, 1}, {3, 64, 64}, {1, 66, 90}, {69, 1, 1}};
  const std::vector<Chunk> packed{{0, 1, 1}, {5, 2, 2}, {3, 4, 4}, {12, 1, 1}};
  const std::vector<Chunk> drafts{{0, 1, 1}, {1, 2, 2}, {3, 8, 8}, {2, 17, 32}, {12, 1, 40}};
  for (const NamedBackend& b : backends()) {
    CAPTURE(b.name);
    check_chain(*b.backend, {"f16", 64, 2, 2, 0, f16, f16}, 330, 200, many);
    check_chain(*b.backend, {"f16, window", 64, 1, 3, 100, f16, f16}, 330, 200, many);
    check_chain(*b.backend, {"q8_0, ring", 64, 1, 2, 70, q8_0, q8_0, true}, 205, 45, few);
    check_chain(*b.backend, {"kv4", 64, 1, 4, 0, kv4, kv4}, 135, 45, few);
    check_chain(*b.backend, {"tq3", 128, 1, 1, 0, tq3, tq3}, 135, 45, few);
    check_chain(*b.backend, {"f32", 64, 1, 2, 0, f32, f32}, 135, 45, few);
    check_chain(*b.backend, {"heads of 256", 256, 1, 2, 50, f16, f16, true}, 135, 45, few);
    check_chain(*b.backend, {"heads of 512", 512, 1, 8, 0, f16, f16}, 100, 45, few);
    check_chain(*b.backend, {"heads of 256, prompts", 256, 1, 2, 50, f16, f16}, 250, 140, prompts);
    check_chain(*b.backend, {"heads of 512, prompts", 512, 1, 8, 0, f16, f16}, 190, 70, prompts);
    check_chain(*b.backend, {"heads of 512, q8_0", 512, 1, 2, 0, q8_0, q8_0}, 100, 45, few);
    check_chain(*b.backend, {"heads of 512, kv4", 512, 1, 8, 0, kv4, kv4}, 100, 13, packed);
    check_chain(*b.backend, {"heads of 512, tq3", 512, 1, 4, 0, tq3, tq3}, 100, 13, packed);
    check_chain(*b.backend, {"heads of 512, q8_0 and kv4", 512, 2, 8, 0, q8_0, kv4}, 150, 13, packed);
    check_chain(*b.backend, {"heads of 512, kv4 and tq3", 512, 2, 4, 0, kv4, tq3}, 150, 13, packed);
    for (const DType t : {q8_0, kv4, tq3})
      check_chain(*b.backend, {"heads of 512, drafts", 512, 2, 8, 0, t, t}, 150, 20, drafts);
    check_chain(*b.backend, {"heads of 512, fp8 and tq4, drafts", 512, 1, 5, 0, fp8, tq4}, 150, 20, drafts);
    check_chain(*b.backend, {"heads of 256, kv4, drafts", 256, 2, 6, 0, kv4, q8_0}, 150, 20, drafts);
    check_chain(*b.backend, {"heads of 512, kv4 in pages of 16", 512, 1, 8, 0, kv4, kv4, false, {}, 0, 16},
                150, 20, drafts);
    check_chain(*b.backend, {"heads of 256, q8_0", 256, 2, 2, 70, q8_0, q8_0}, 135, 13, packed);
    check_chain(*b.backend, {"heads of 256, kv4", 256, 1, 2, 70, kv4, kv4, true}, 135, 13, packed);
    check_chain(*b.backend, {"heads of 256, tq3", 256, 2, 4, 70, tq3, tq3}, 135, 13, packed);
    check_chain(*b.backend, {"heads of 256, kv4, prompts", 256, 2, 2, 50, kv4, kv4, true}, 250, 140, prompts);
    check_chain(*b.backend, {"heads of 512, tq3 and q8_0, prompts", 512, 1, 8, 0, tq3, q8_0}, 190, 70,
                prompts);
    check_company(*b.backend, {"heads of 256, q8_0 in company", 256, 1, 2, 70, q8_0, q8_0, true});
    check_company(*b.backend, {"heads of 512, kv4 in company", 512, 1, 8, 0, kv4, kv4});
    check_chain(*b.backend, {"heads of 192", 192, 1, 2, 0, q8_0, f16}, 100, 45, few);
    if (b.backend->reads_single_copies()) {
      check_chain(*b.backend, {"one copy", 256, 1, 3, 0, f16, q8_0, false, {}, 32}, 135, 45, few);
      check_chain(*b.backend, {"one copy, heads of 512", 512, 1, 8, 0, kv4, kv4, false, {}, 64}, 100, 20,
                  {{0, 1, 1}, {5, 2, 2}, {3, 4, 4}, {2, 17, 32}, {12, 1, 40}});
      for (const DType t : {q8_0, kv4, tq3})
        check_chain(*b.backend, {"one copy, drafts", 512, 2, 8, 0, t, t, false, {}, 64}, 150, 20, drafts);
      for (const DType t : {q8_0, kv4, tq3})
        check_chain(*b.backend,
                    {"one copy, heads of 512 in pages of 16", 512, 2, 3, 0, t, t, false, {}, 64, 16}, 200, 13,
                    packed);
      check_chain(*b.backend, {"one copy, prompts", 512, 1, 8, 0, q8_0, q8_0, false, {}, 64}, 190, 70,
                  prompts);
      check_chain(*b.backend, {"one copy, f32", 64, 2, 2, 70, f32, f16, true, {}, 8}, 135, 45, few);
    }
    if (!b.backend->protects_rows()) continue;
    check_chain(*b.backend, {"protected", 64, 1, 4, 0, tq3, tq3, false, {4, 128}}, 330, 200, many);
    check_chain(*b.backend, {"protected less", 64, 2, 8, 0, kv4, tq4, false, {3, 5}}, 135, 45, few);
    check_chain(*b.backend, {"protected, heads of 256", 256, 1, 2, 0, tq3, kv4, false, {4, 40}}, 135, 45,
                few);
    check_chain(*b.backend, {"protected, drafts", 512, 1, 8, 0, kv4, kv4, false, {4, 70}}, 250, 20, drafts);
    check_chain(*b.backend, {"protected, tq3", 512, 2, 8, 0, tq3, tq3, false, {70, 20}}, 150, 13, packed);
    check_chain(*b.backend, {"protected, kv4 and tq3", 512, 1, 2, 0, kv4, tq3, false, {4, 130}}, 250, 13,
                packed);
    for (const DType t : {kv4, tq3})
      check_chain(*b.backend, {"protected, one copy", 512, 1, 4, 0, t, t, false, {70, 20}, 64}, 100, 13,
                  packed);
    check_chain(*b.backend, {"protected, ring", 64, 1, 2, 70, tq4, tq4, true, {80, 33}}, 205, 45, few);
    check_chain(*b.backend, {"protected, prompts", 512, 1, 8, 0, kv4, tq3, false, {4, 40}}, 190, 70, prompts);
    check_chain(*b.backend, {"protected, heads of 256, prompts", 256, 2, 2, 0, tq3, tq3, false, {70, 0}}, 250,
                140, prompts);
    check_chain(*b.backend, {"protected, one copy, prompts", 512, 1, 8, 0, q8_0, q8_0, false, {0, 150}, 64},
                190, 70, prompts);
  }
}

TEST_CASE("segments grow with a row's position, in chunks as alone") {
  using enum DType;
  for (const NamedBackend& b : backends()) {
    CAPTURE(b.name);
    check_chain(*b.backend, {"f16", 32, 1, 2, 0, f16, f16}, 4108, 24,
                {{10, 1, 1}, {11, 1, 1}, {12, 1, 1}, {9, 7, 7}, {4, 17, 32}});
    check_chain(*b.backend, {"f16, prompts", 256, 1, 1, 0, f16, f16}, 4140, 66,
                {{21, 1, 1}, {22, 1, 1}, {19, 7, 7}, {1, 64, 64}});
    check_chain(*b.backend, {"kv4, drafts", 512, 1, 2, 0, kv4, kv4}, 4108, 24,
                {{10, 1, 1}, {11, 1, 1}, {12, 1, 1}, {9, 7, 7}, {4, 17, 32}});
    for (const int32_t dim : {256, 512})
      check_long(*b.backend, {"f16, long prompts", dim, 1, 1, 0, f16, f16});
    check_long(*b.backend, {"f16, long prompts, tasks of 63", 256, 2, 3, 0, f16, f16});
    check_long(*b.backend, {"kv4, long prompts", 512, 1, 1, 0, kv4, kv4});
    if (b.backend->reads_single_copies())
      for (const DType t : {tq4, q8_0, kv4, tq3})
        check_long(*b.backend, {"one copy, long prompts", 512, 1, 1, 0, t, t, false, {}, 64});
    if (!b.backend->protects_rows()) continue;
    check_long(*b.backend, {"protected, long prompts", 512, 1, 1, 0, kv4, kv4, false, {4, 128}});
    check_long(*b.backend,
               {"protected, one copy, long prompts", 512, 1, 1, 0, kv4, kv4, false, {200, 30}, 64});
  }
}

#ifdef CARAT_ONLY_CUDA
TEST_CASE("by the kernels of sm_80") {
  using enum DType;
  const std::vector<Chunk> few{{0, 1, 1}, {21, 7, 8}, {44, 1, 40}},
      prompts{{0, 1, 1}, {3, 64, 64}, {69, 1, 1}};
  cuda::force_kernels({"sm_80"});
  for (const NamedBackend& b : backends()) {
    CAPTURE(b.name);
    check_chain(*b.backend, {"heads of 256, f16", 256, 1, 2, 50, f16, f16, true}, 135, 45, few);
    check_chain(*b.backend, {"heads of 512, f16", 512, 1, 8, 0, f16, f16}, 100, 45, few);
    check_company(*b.backend, {"heads of 256, tq3 and q8_0", 256, 1, 2, 70, tq3, q8_0, true});
  }
  for (const std::vector<std::string>& card : {std::vector<std::string>{"sm_80"}, {"sm_80", "shared=99"}}) {
    cuda::force_kernels(card);
    CAPTURE(card.back());
    for (const NamedBackend& b : backends()) {
      CAPTURE(b.name);
      check_chain(*b.backend, {"heads of 256, kv4", 256, 2, 2, 50, kv4, kv4, true}, 250, 70, prompts);
      check_chain(*b.backend, {"heads of 512, f16", 512, 1, 8, 0, f16, f16}, 190, 70, prompts);
      for (const int32_t dim : {256, 512}) check_long(*b.backend, {"f16", dim, 1, 1, 0, f16, f16});
      check_long(*b.backend, {"kv4 and tq3", 512, 1, 3, 0, kv4, tq3});
      check_long(*b.backend, {"one copy", 512, 1, 1, 0, kv4, kv4, false, {}, 64});
      check_chain(*b.backend, {"protected", 512, 1, 8, 0, kv4, kv4, false, {4, 40}}, 190, 70, prompts);
      check_long(*b.backend, {"protected", 512, 1, 1, 0, kv4, tq3, false, {4, 128}});
      check_long(*b.backend, {"protected, one copy", 512, 1, 1, 0, kv4, kv4, false, {4, 128}, 64});
    }
  }
  cuda::force_kernels({});
}
#endif

TEST_CASE("a tree's rows attend as their paths") {
  using enum DType;
  for (const NamedBackend& b : backends()) {
    CAPTURE(b.name);
    check_tree(*b.backend, {"f16", 64, 1, 2, 0, f16, f16}, 60);
    check_tree(*b.backend, {"q8_0, ring", 64, 1, 4, 20, q8_0, q8_0, true}, 190);
    check_tree(*b.backend, {"kv4", 128, 2, 2, 0, kv4, tq3}, 126);
    check_tree(*b.backend, {"tq3, heads of 256", 256, 1, 2, 0, tq3, tq3}, 70);
    check_tree(*b.backend, {"kv4, heads of 512", 512, 1, 8, 0, kv4, kv4}, 126);
    if (b.backend->reads_single_copies())
      check_tree(*b.backend, {"one copy", 256, 1, 2, 0, tq4, tq3, false, {}, 32}, 70);
    if (b.backend->reads_single_copies())
      check_tree(*b.backend, {"one copy, heads of 512", 512, 1, 8, 0, q8_0, q8_0, false, {}, 64}, 126);
    if (!b.backend->protects_rows()) continue;
    check_tree(*b.backend, {"protected", 64, 1, 2, 0, tq3, tq3, false, {4, 3}}, 70);
    check_tree(*b.backend, {"protected, at the sinks", 64, 1, 4, 0, kv4, tq3, false, {5, 2}}, 3);
    check_tree(*b.backend, {"protected, heads of 256", 256, 1, 2, 0, tq3, tq3, false, {4, 9}}, 70);
    check_tree(*b.backend, {"protected, heads of 512", 512, 1, 4, 0, kv4, kv4, false, {4, 9}}, 126);
    check_tree(*b.backend, {"protected, ring", 64, 2, 2, 20, tq4, tq4, true, {0, 7}}, 190);
  }
}

TEST_CASE("a single row is prepared by its attention as before it") {
  using enum DType;
  for (const NamedBackend& b : backends()) {
    CAPTURE(b.name);
    for (const DType t : {f16, q8_0, kv4, tq3}) {
      const std::string name(info(t).name);
      // The row's own tile: with it alone, behind others, full, in a ring's second turn, in pages of 16.
      const Shape sliding{name, 256, 2, 2, 170, t, t, true, {}, 0, 64},
          small{name + ", pages of 16", 256, 1, 2, 70, t, t, true},
          global{name + ", heads of 512", 512, 2, 8, 0, t, t};
      for (const int32_t pos : {0, 1, 62, 63, 64, 191, 300, 517})
        check_prepared(*b.backend, sliding, pos, {128, 128}, true);
      for (const int32_t pos : {0, 63, 200}) check_prepared(*b.backend, small, pos, {128, 128}, true);
      // A window of whole tiles begins in the tile that it ends in, a turn of it later: both go as one.
      for (const int32_t pos : {100, 191, 255, 256, 317, 318, 319, 320, 517}) {
        check_prepared(*b.backend, {name + ", window of tiles", 256, 2, 2, 192, t, t, true, {}, 0, 64}, pos,
                       {128, 128}, true);
        check_prepared(*b.backend, {name + ", window of many", 256, 1, 4, 512, t, t, true, {}, 0, 64},
                       3 * pos, {128, 128}, true);
      }
      check_prepared(*b.backend, {name + ", window for all", 256, 1, 8, 192, t, t, true, {}, 0, 64}, 333,
                     {128, 128}, true);
      for (const int32_t pos : {0, 63, 64, 150}) check_prepared(*b.backend, global, pos, {64, 256}, true);
      // More KV heads, and fewer queries of each.
      check_prepared(*b.backend, {name, 512, 3, 3, 0, t, t}, 77, {256, 256}, true);
      // Segments of several tiles, of which the last ones come later.
      check_prepared(*b.backend, {name, 256, 1, 8, 0, t, t}, 4222, {128, 128}, true);
      check_prepared(*b.backend, {name, 512, 1, 2, 0, t, t}, 4222, {64, 256}, true);
      // Queries alone, one position ahead; of a step of a tree; without norms and rotation; 32 pairs, 32
      // apart; without a row.
      check_prepared(*b.backend, sliding, 130, {.pairs = 128, .offset = 128, .ahead = 1, .keys = false},
                     true);
      check_prepared(*b.backend, global, 130,
                     {.pairs = 64, .offset = 256, .keys = false, .norms = false, .out = true}, true);
      check_prepared(*b.backend, sliding, 130, {.pairs = 128, .offset = 128, .tree = true}, true);
      check_prepared(*b.backend, global, 130, {.pairs = 64, .offset = 256, .tree = true}, true);
      check_prepared(*b.backend, sliding, 130, {.pairs = 0, .offset = 0, .norms = false, .v_norm = false},
                     t == kv4 || t == tq3);
      check_prepared(*b.backend, sliding, 130, {32, 32}, true);
      check_prepared(*b.backend, sliding, 130, {.pairs = 128, .offset = 128, .empty = true}, true);
      // Pairs that no lane has, formats and heads without such a kernel.
      check_prepared(*b.backend, sliding, 130, {48, 48}, false);
    }
    check_prepared(*b.backend, {"f16 and q8_0", 256, 1, 2, 0, f16, q8_0}, 130, {128, 128}, false);
    check_prepared(*b.backend, {"heads of 128", 128, 1, 2, 0, f16, f16}, 130, {64, 64}, false);
    check_prepared(*b.backend, {"f32", 256, 1, 2, 0, f32, f32}, 130, {128, 128}, false);
    if (b.backend->reads_single_copies())
      check_prepared(*b.backend, {"one copy", 256, 1, 2, 0, kv4, kv4, false, {}, 32}, 130, {32, 128}, false);
  }
}

TEST_CASE("a single row far behind the beginning is prepared by its attention as before it") {
  using enum DType;
  for (const NamedBackend& b : backends()) {
    CAPTURE(b.name);
    check_prepared(*b.backend, {"kv4", 512, 1, 8, 0, kv4, kv4}, 16600, {64, 256}, true);
    check_prepared(*b.backend, {"f16", 512, 1, 8, 0, f16, f16}, 16600, {64, 256}, true);
  }
}
