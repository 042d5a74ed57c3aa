// The operation contract: every case on every backend and instruction set of this machine gives what ref
// gives, and nothing is written where it should not be.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "cuda/matmul/table.h"
#include "tests/backends.h"
#include "tests/op_cases.h"

using namespace carat;
using namespace carat::test;

namespace {
#ifdef CARAT_EMULATED
constexpr size_t kEvery = 3;  // a CPU that plays a GPU takes its time
constexpr size_t kEverySampled = 7;
constexpr bool kSpecial = true;  // all of the kinds with kernels of their own, whatever kEvery says
#else
const size_t kEvery = one_case_in();
constexpr bool kSpecial = false;
#endif

void compare_backends(const std::vector<OpCase>& cases) {
  const auto ref = make_ref_backend();
  const std::vector<NamedBackend> others = compared_backends();
  uint64_t seed = 1;
  for (const OpCase& op : cases) {
    CAPTURE(op.name);
    CaseRun want(*ref, ++seed);
    op.build(want);
    CHECK(want.run() == "");
    for (const NamedBackend& b : others) {
      CAPTURE(b.name);
      if (op.name.find("one copy") != std::string::npos && !b.backend->reads_single_copies()) continue;
      const bool tower = op.name.starts_with("picture") || op.name.starts_with("sound");
      if (tower && !b.backend->takes_soft_rows()) continue;
      if (op.name.find("protected") != std::string::npos && !b.backend->protects_rows()) continue;
      CaseRun got(*b.backend, seed);
      op.build(got);
      CHECK(got.run() == "");
      CHECK(compare(want, got) == "");
    }
  }
}
}  // namespace

TEST_CASE("every backend computes what ref computes, and writes nowhere else") {
  std::vector<OpCase> cases;
  size_t index = 0;
  for (OpCase& op : op_cases()) {
    bool always = false;
    for (const char* kind :
         {"many rows", "shared out", "single row", "routed", "mixture", "picture", "sound"})
      always = always || (kSpecial && op.name.find(kind) != std::string::npos);
    if (index++ % kEvery == 0 || always) cases.push_back(std::move(op));
  }
  compare_backends(cases);
}

#if defined(CARAT_ONLY_CUDA) && !defined(CARAT_EMULATED)
TEST_CASE("products large enough for a whole GPU") { compare_backends(large_op_cases()); }
#endif

#ifdef CARAT_ONLY_CUDA
namespace {
struct Forcing {  // while it lives
  explicit Forcing(const std::vector<std::string>& names) { cuda::force_kernels(names); }
  ~Forcing() { cuda::force_kernels({}); }
};
}  // namespace

TEST_CASE("kernels that are not the rule compute what ref computes") {
  const Forcing these({"float-mma", "float-rows=32", "float-tiles", "packed-tiles"});
  std::vector<OpCase> cases;
  for (OpCase& op : op_cases())
    for (const char* kind : {"matmul bf16", "matmul f16", "gate-up bf16", "gate-up f16", "experts",
                             "matmul q4_k some outputs 40", "matmul q8_0 some outputs 40"})
      if (op.name.starts_with(kind)) {
        cases.push_back(std::move(op));
        break;
      }
  CHECK(cases.size() > 20);
  compare_backends(cases);
}

#ifdef CARAT_EMULATED
namespace {
// Those of `kinds`, every `each`-th of a kind.
std::vector<OpCase> some_cases(std::initializer_list<const char*> kinds, size_t each) {
  std::vector<OpCase> out;
  std::map<std::string, size_t> seen;
  for (OpCase& op : op_cases())
    for (const char* kind : kinds)
      if (op.name.find(kind) != std::string::npos) {
        if (seen[kind]++ % each == 0) out.push_back(std::move(op));
        break;
      }
  return out;
}
// Of the device that `names` force, and of the 9.0 device.
void compare_bytes(const std::vector<std::string>& names, const std::vector<OpCase>& cases) {
  const auto usual = make_cuda_backend(0);
  const Forcing these(names);
  const auto small = make_cuda_backend(0);
  uint64_t seed = 1;
  for (const OpCase& op : cases) {
    CAPTURE(op.name);
    CaseRun want(*usual, ++seed), got(*small, seed);
    op.build(want), op.build(got);
    {
      const Forcing none({});
      CHECK(want.run() == "");
    }
    cuda::force_kernels(names);
    CHECK(got.run() == "");
    REQUIRE(want.regions().size() == got.regions().size());
    for (size_t i = 0; i < want.regions().size(); ++i)
      CHECK(want.bytes(want.regions()[i]) == got.bytes(got.regions()[i]));
  }
}
std::vector<OpCase> sampled() {
  return some_cases({"mixture", "single row", "shared out", "many rows", "routed", "attention", "matmul q",
                     "gate-up q", "experts q"},
                    kEverySampled);
}
std::vector<OpCase> all_but_fp8_activations() {  // these meet FP8 tensor cores on 9.0 alone
  std::vector<OpCase> cases = op_cases();
  std::erase_if(cases, [](const OpCase& c) { return c.name.find("_a8") != std::string::npos; });
  return cases;
}
}  // namespace

// 99 KiB of shared memory a block, bulk copies, and no warpgroups' products.
TEST_CASE("a card of 12.1 gives a 9.0 card's bytes: a sample") { compare_bytes({"sm_121"}, sampled()); }
TEST_CASE("a card of 12.1 gives a 9.0 card's bytes: all cases" * doctest::skip()) {
  compare_bytes({"sm_121"}, all_but_fp8_activations());
}
// The same without bulk copies: lanes bring what their warp asks for.
TEST_CASE("a card of 8.6 gives a 9.0 card's bytes: a sample") {
  compare_bytes({"sm_80", "shared=99"}, sampled());
}
TEST_CASE("a card of 8.6 gives a 9.0 card's bytes: all cases" * doctest::skip()) {
  compare_bytes({"sm_80", "shared=99"}, all_but_fp8_activations());
}
TEST_CASE("a card of 8.0 gives a 9.0 card's bytes: all cases" * doctest::skip()) {
  compare_bytes({"sm_80", "shared=163"}, all_but_fp8_activations());
}
#endif

TEST_CASE("FP8 activations compute what ref computes on a device without FP8 tensor cores") {
  const Forcing these({"sm_80"});
  std::vector<OpCase> cases = op_cases();
  std::erase_if(cases, [](const OpCase& c) { return c.name.find("_a8") == std::string::npos; });
  CHECK(cases.size() > 40);
  compare_backends(cases);
}

TEST_CASE("4-bit weights and FP8 activations compute what ref computes on a card of 12.1") {
  const Forcing these({"sm_121"});
  std::vector<OpCase> cases = op_cases();
  std::erase_if(cases, [](const OpCase& c) { return c.name.find("fp4_a8") == std::string::npos; });
  CHECK(cases.size() > 30);
  compare_backends(cases);
}

TEST_CASE("warpgroups from nine rows on compute what ref computes") {
  const Forcing these({"wide-rows=9"});
  std::vector<OpCase> cases;
  for (OpCase& op : op_cases())
    for (const char* kind : {"matmul q4_k", "matmul q6_k", "matmul q3_k", "matmul iq4_xs", "matmul q2_k",
                             "gate-up q4_k", "gate-up q6_k", "experts"})
      if (op.name.starts_with(kind)) {
        cases.push_back(std::move(op));
        break;
      }
  CHECK(cases.size() > 20);
  compare_backends(cases);
}

namespace {
// A product's first two rows in a step of m rows, with weights of that type. Experts: two of five a row.
std::vector<std::vector<std::byte>> two_rows(Backend& backend, DType type, Op op, int32_t m) {
  const bool fours = info(type).elems > 1;
  const int32_t slices = op == Op::Experts ? 5 : 1, inner = fours ? 192 : 144, dim = fours ? 640 : 608;
  const int32_t cols = op != Op::Matmul ? dim : fours ? 2624 : 2608;  // enough blocks for tiles to be cut
  const int32_t n = op == Op::Experts ? dim : 150, outputs = std::max(inner, 150);
  CaseRun c(backend, 5);
  const Operand w = c.weight(type, outputs, cols, slices), up = c.weight(type, outputs, cols, slices);
  const Operand down = c.weight(type, dim, inner, slices);
  Tensor shares = c.input(130, 2, 130).t;
  shares.rows = m;
  const Operand x = c.input(m, cols, m);  // before the step, whose tokens are drawn from the same dice
  std::vector<int32_t> chosen;
  for (int32_t i = 0; i < 2 * m; ++i) chosen.push_back((i / 2 * 3 + i % 2 + 1) % 5);
  c.step({{0, m}});
  const Tensor y = c.output(m, n);
  const Operand gate = c.weight_rows(w, 0, op == Op::Experts ? inner : n),
                second = c.weight_rows(up, 0, op == Op::Experts ? inner : n);
  if (op == Op::Matmul) c.push(MatmulArgs{y, x.t, gate.t, {}, {}});
  if (op == Op::GateUp) c.push(GateUpArgs{y, x.t, gate.t, second.t, 0.5f, 1.5f, Act::gelu_tanh});
  if (op == Op::Experts) {
    const Tensor none, experts = c.ints(chosen, m, 2);
    c.push(ExpertsArgs{y, x.t, gate.t, second.t, down.t, shares, experts, none, none, none, Act::gelu_tanh,
                       none});
  }
  c.expect("y", y, 2);
  for (int32_t r = 2; r < m; ++r)
    c.expect_row("y", y.row<std::byte>(r), DType::f32, std::vector<double>(static_cast<size_t>(n), 1e9));
  CHECK(c.run() == "");
  return {c.bytes(c.regions()[0]), c.bytes(c.regions()[1])};
}
struct StepOf {
  int32_t rows;
  const char* kernel;
};
void compare_steps(std::initializer_list<DType> types, std::initializer_list<StepOf> steps) {
  for (const NamedBackend& b : compared_backends())
    for (const DType type : types)
      for (const Op op : {Op::Matmul, Op::GateUp, Op::Experts}) {
        std::vector<std::vector<std::byte>> first;  // of the smallest step
        for (const auto& [m, kernel] : steps) {
          if (std::string_view(kernel) == "float-tiles" && type == DType::fp8_a8)
            continue;  // those are sums of another kind
          CAPTURE(b.name);
          CAPTURE(info(type).name);
          CAPTURE(m);
          std::vector<std::string> names = {"float-mma"};
          if (*kernel) names.push_back(kernel);
          const Forcing these(names);
          const std::vector<std::vector<std::byte>> rows = two_rows(*b.backend, type, op, m);
          if (first.empty()) first = rows;
          CHECK(rows == first);
        }
      }
}
}  // namespace

TEST_CASE("a row times weights in floats on the tensor cores has the same bits in steps of every size") {
  compare_steps(
      {DType::bf16, DType::f16, DType::fp8, DType::fp8_a8},
      {{2, ""}, {8, ""}, {11, ""}, {27, ""}, {66, ""}, {130, ""}, {27, "float-tiles"}, {130, "float-tiles"}});
}
TEST_CASE("a row times 4-bit weights with FP8 activations has the same bits in steps of every size") {
  compare_steps({DType::mxfp4_a8, DType::nvfp4_a8}, {{2, ""}, {11, ""}, {66, ""}});
  const Forcing before_backends({"sm_121"});
  compare_steps({DType::mxfp4_a8, DType::nvfp4_a8},
                {{2, "sm_121"}, {8, "sm_121"}, {11, "sm_121"}, {66, "sm_121"}, {130, "sm_121"}});
}
#endif

TEST_CASE("the cases differ, have names of their own, and cover every operation and format") {
  std::set<std::string> names;
  for (const OpCase& op : op_cases()) CHECK(names.insert(op.name).second);
  const auto any = [&](const std::string& start) {
    const auto it = names.lower_bound(start);
    return it != names.end() && it->starts_with(start);
  };
  for (const char* start : {"matmul ", "gate-up ", "experts ", "embed ", "gather ", "norm ", "route ",
                            "prep ", "attention ", "conv ", "delta ", "picture attention", "picture prep",
                            "picture embed", "picture pointwise", "picture layer norm", "sound band "})
    CHECK(any(start));
  for (int i = 0; i < kDTypeCount; ++i)
    if (kDTypes[i].family == Family::block) CHECK(any(fmt::format("matmul {} ", kDTypes[i].name)));
}

TEST_CASE("the comparison sees a wrong bit, a stray write and a NaN") {
  const auto ref = make_ref_backend();
  // Two rows are normed; `used` of them have values, `declared` of them are said to be written.
  const auto build = [](CaseRun& c, float scale, int32_t used, int32_t declared) {
    c.step({{0, 2}});
    const Operand x = c.input(2, 8, used);
    const Tensor y = c.output(2, 8);
    RmsNormArgs a{y, x.t, {}, {}, {}};
    a.scale = scale;
    c.push(a);
    c.expect("y", y, declared, [](int32_t, int32_t) { return 1e-6; });
  };
  CaseRun good(*ref, 1), stray(*ref, 1), off(*ref, 1), nan(*ref, 1);
  build(good, 1, 2, 2);
  build(stray, 1, 2, 1);
  build(off, 1.001f, 2, 2);
  build(nan, 1, 1, 2);
  CHECK(good.run() == "");
  CHECK(stray.run() != "");
  CHECK(off.run() == "");
  CHECK(nan.run() == "");
  CHECK(compare(good, good) == "");
  CHECK(compare(good, off) != "");
  CHECK(compare(good, nan) != "");
}
