// Cases of the operations with a recurrent state: fresh and old sequences, kept rows, settled and logged
// rows.
#include <cmath>

#include "base/error.h"
#include "tests/op_cases.h"

namespace carat::test {
namespace {

struct Shape {
  RecurrentSpec spec;
  std::vector<Rows> sequences;
  int32_t draft_rows = 0;
};

void conv(CaseRun& c, const Shape& s, Act act) {
  c.step(s.sequences);
  const int32_t m = c.n_rows(), n = s.spec.channels;
  const RecurrentView state = c.states(s.spec, s.spec.conv_base(), s.spec.conv_entry(), s.draft_rows);
  const Operand x = c.input(m + 1, n, m), w = c.input(s.spec.taps, n, s.spec.taps, 0.6);
  const Tensor y = c.output(m + 1, n);
  c.push(ConvArgs{y, x.t, w.t, state, act});
  c.expect("y", y, m, [](int32_t, int32_t) { return 1e-5; });
  c.expect_states(state, s.spec.conv_base(), s.spec.conv_entry(), 0);
}

void delta(CaseRun& c, const Shape& s) {
  c.step(s.sequences);
  const RecurrentSpec& p = s.spec;
  const int32_t m = c.n_rows();
  const RecurrentView state = c.states(p, p.matrix_base(), p.matrix_entry(), s.draft_rows);
  const double unit = 1 / std::sqrt(static_cast<double>(p.k_dim));
  const Operand q = c.input(m + 1, p.k_heads * p.k_dim, m, unit),
                k = c.input(m + 1, p.k_heads * p.k_dim, m, unit);
  const Operand v = c.input(m + 1, p.v_heads * p.v_dim, m), a = c.input(m + 1, p.v_heads, m, 4);
  const Operand beta = c.input(m + 1, p.v_heads, m, 0.3);
  const Operand rate = c.shared_row(p.v_heads, -2, -0.01), bias = c.shared_row(p.v_heads, -3, 3);
  const Tensor y = c.output(m + 1, p.v_heads * p.v_dim);
  c.push(DeltaNetArgs{y, q.t, k.t, v.t, a.t, beta.t, rate.t, bias.t, state});
  c.expect("y", y, m, [](int32_t, int32_t) { return 3e-5; });
  c.expect_states(state, p.matrix_base(), p.matrix_entry(), 3e-5);
}

// A whole layer: the convolution, norms of queries and keys, the delta rule, and the norm of its result times
// a gate, of which a device may compute some at once.
void delta_layer(CaseRun& c, const Shape& s) {
  c.step(s.sequences);
  const RecurrentSpec& p = s.spec;
  const int32_t m = c.n_rows(), keys = p.k_heads * p.k_dim, values = p.v_heads * p.v_dim;
  const RecurrentView taps = c.states(p, p.conv_base(), p.conv_entry(), s.draft_rows),
                      state = c.states(p, p.matrix_base(), p.matrix_entry(), s.draft_rows);
  const Operand x = c.input(m, p.channels, m), w = c.input(p.taps, p.channels, p.taps, 0.6),
                a = c.input(m, p.v_heads, m, 4), beta = c.input(m, p.v_heads, m, 0.3),
                z = c.input(m, values, m), rate = c.shared_row(p.v_heads, -2, -0.01),
                bias = c.shared_row(p.v_heads, -3, 3), gain = c.shared_row(p.v_dim, 0.5, 2);
  const Tensor y = c.output(m, p.channels), o = c.output(m, values), none;
  c.push(ConvArgs{y, x.t, w.t, taps, Act::silu});
  const auto dim = static_cast<float>(p.k_dim);
  for (const auto& [first, scale] : {std::pair(0, 1 / dim), std::pair(keys, 1 / std::sqrt(dim))}) {
    const Tensor head = y.columns(first, keys);
    RmsNormArgs norm{head, head, none, none, none, p.k_dim, 1e-6f / dim};
    norm.scale = scale;
    c.push(norm);
  }
  c.push(DeltaNetArgs{o, y.columns(0, keys), y.columns(keys, keys), y.columns(2 * keys, values), a.t, beta.t,
                      rate.t, bias.t, state});
  RmsNormArgs norm{z.t, o, gain.t, none, none, p.v_dim, 1e-6f};
  norm.mul = z.t, norm.act = Act::silu;
  c.push(norm);
  c.expect("y", y, m, [](int32_t, int32_t) { return 1e-5; });
  c.expect("o", o, m, [](int32_t, int32_t) { return 3e-5; });
  c.expect("z", z.t, m, [](int32_t, int32_t) { return 3e-3; });
  c.expect_states(taps, p.conv_base(), p.conv_entry(), 0);
  c.expect_states(state, p.matrix_base(), p.matrix_entry(), 3e-5);
}

}  // namespace

std::vector<OpCase> recurrent_cases() {
  const RecurrentSpec specs[] = {{2, 4, 16, 16, 128, 4},
                                 {1, 3, 20, 48, 79, 3},
                                 {4, 8, 32, 64, 513, 2},
                                 {2, 2, 128, 128, 768, 4},
                                 {1, 1, 7, 32, 5, kMaxTaps}};
  const std::vector<Rows> steps[] = {
      {{0, 1}}, {{0, 9}}, {{5, 1}, {0, 3}, {77, 6}}, {{1, 2}, {3, 17}}, {{900, 40}}};
  std::vector<OpCase> out;
  int i = 0;
  for (const RecurrentSpec& spec : specs)
    for (const auto& sequences : steps)
      for (const int32_t draft_rows : {0, 4, 40}) {
        const Shape s{spec, sequences, draft_rows};
        const Act act = i++ % 3 ? Act::silu : Act::none;
        out.push_back({fmt::format("conv {} channels {} from {}", i, spec.channels, sequences[0].first_pos),
                       [=](CaseRun& c) { conv(c, s, act); }});
        out.push_back(
            {fmt::format("delta {} {}x{} from {}", i, spec.k_dim, spec.v_dim, sequences[0].first_pos),
             [=](CaseRun& c) { delta(c, s); }});
      }
  // Trees behind what is committed, beside chains.
  const std::vector<Rows> forests[] = {
      {{5, 6, {-1, 0, 0, 1, 1, 2}}, {0, 3}},
      {{0, 9, {-1, -1, 0, 1, 2, 2, 0, 6, 4}}, {60, 12, {-1, 0, 1, 0, 3, 4, 2, 6, 5, 8, 9, 1}}}};
  for (const RecurrentSpec& spec : specs)
    for (const auto& forest : forests) {
      const Shape s{spec, forest, 12};
      ++i;
      out.push_back({fmt::format("conv {} tree", i), [=](CaseRun& c) { conv(c, s, Act::silu); }});
      out.push_back({fmt::format("delta {} tree", i), [=](CaseRun& c) { delta(c, s); }});
    }
  const std::vector<Rows> more[] = {{{0, 1}}, {{9, 1}}, {{5, 1}, {0, 3}, {77, 6}}, forests[0], {{3, 40}}};
  for (const RecurrentSpec& spec : {RecurrentSpec{2, 4, 16, 16, 128, 4},
                                    {2, 6, 24, 48, 384, 3},
                                    {2, 2, 128, 128, 768, 4},
                                    {2, 4, 24, 80, 416, 4}})
    for (const auto& sequences : more)
      for (const int32_t draft_rows : {0, 12}) {
        if (!sequences[0].parents.empty() && draft_rows == 0) continue;  // a tree's rows are drafts
        const Shape s{spec, sequences, draft_rows};
        out.push_back({fmt::format("delta layer {} {}x{}", ++i, spec.k_dim, spec.v_dim),
                       [=](CaseRun& c) { delta_layer(c, s); }});
      }
  // A tree behind rows of its step that stay.
  for (const RecurrentSpec& spec : {RecurrentSpec{2, 4, 16, 16, 128, 4}, {2, 2, 128, 128, 768, 4}}) {
    const Shape s{spec, {{5, 7, {-1, 0, 1, 1, 2, 3, 1}}, {9, 3}}, 5};
    out.push_back({fmt::format("delta layer, settled tree {}x{}", spec.k_dim, spec.v_dim),
                   [=](CaseRun& c) { delta_layer(c, s); }});
  }
  return out;
}

}  // namespace carat::test
