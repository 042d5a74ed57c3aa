#include "state/layout.h"

#include <algorithm>

#include "base/error.h"
#include "core/kv_codec.h"

namespace carat {
namespace {

void check_limits(const KvLimits& l) {
  if (l.context < 1 || l.context > kMaxContext)
    throw Error(fmt::format("a context of {} positions", l.context),
                fmt::format("choose 1 to {}", kMaxContext));
  if (l.sequences < 1 || l.sequences > kMaxSequences)
    throw Error(fmt::format("{} sequences at once", l.sequences),
                fmt::format("choose 1 to {}", kMaxSequences));
  if (l.step_rows < 1 || l.step_rows > kMaxStepRows)
    throw Error(fmt::format("steps of {} rows", l.step_rows), fmt::format("choose 1 to {}", kMaxStepRows));
  CARAT_CHECK(l.page_tokens > 0, "{}", l.page_tokens);
  CARAT_CHECK(l.total_pages() >= l.pages_per_sequence() && l.total_pages() <= INT32_MAX, "{} pages",
              l.total_pages());
  if (l.draft_rows < 0 || l.draft_rows > kMaxStepRows)
    throw Error(fmt::format("{} rows of a step may be rejected", l.draft_rows),
                fmt::format("choose 0 to {}", kMaxStepRows));
}

void check_type(DType type, int32_t dim) {
  if (!is_kv_format(type)) {
    std::string known;
    for (const DType t : kv_formats()) known += fmt::format("{}{}", known.empty() ? "" : " ", info(t).name);
    throw Error(fmt::format("the KV cache cannot be {}", info(type).name), "choose one of " + known);
  }
  if (dim % info(type).elems != 0)
    throw Error(fmt::format("the KV cache cannot be {}: heads of {} are not a multiple of its block of {}",
                            info(type).name, dim, info(type).elems),
                "choose f16");
}

// Two halves: what a step logs does not overwrite what it folds.
int32_t log_entries(const KvLimits& l) { return 2 * l.draft_rows; }

KvPlan::Recurrent plan_recurrent(const RecurrentSpec& s, int32_t layer, const KvLimits& l) {
  const int64_t base = l.sequences * int64_t{sizeof(float)}, log = base * log_entries(l);
  return {layer, base * s.conv_base(), log * s.conv_entry(), base * s.matrix_base(), log * s.matrix_entry()};
}

int32_t round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

// The second copy's ring holds what any row of a step protects, as a sliding layer's does its window.
KvPlan::Edge plan_edge(const KvSpec& s, int32_t layer, const KvLimits& l) {
  CARAT_CHECK(s.protect.sinks >= 0 && s.protect.sinks <= kMaxContext && s.protect.recent >= 0 &&
                  s.protect.recent <= kMaxContext,
              "{} and {} protected positions", s.protect.sinks, s.protect.recent);
  KvPlan::Edge e{layer, std::min(s.protect.recent + l.step_rows, l.context)};
  const int64_t rows = int64_t{l.sequences} * (s.protect.sinks + e.ring_tokens) * s.heads;
  e.k_bytes = rows * s.k_edge_bytes();
  e.v_bytes = rows * s.v_edge_bytes();
  return e;
}

}  // namespace

int64_t KvPlan::bytes() const {
  int64_t sum = 0;
  for (const Layer& l : layers) sum += l.bytes();
  for (const Edge& e : edges) sum += e.bytes();
  for (const Recurrent& r : recurrent) sum += r.bytes();
  return sum;
}

int64_t KvPlan::ring_pages(const KvLimits& limits) const {
  const int64_t each = ring_tokens / limits.page_tokens, all = limits.sequences * each;
  return limits.ring_pages > 0 ? std::clamp<int64_t>(limits.ring_pages, each, all) : all;
}

int64_t KvPlan::page_bytes() const {
  int64_t sum = 0;
  for (const Layer& l : layers)
    if (l.ring_tokens == 0) sum += l.k_page_bytes + l.v_page_bytes;
  return sum;
}

KvPlan plan_kv(std::span<const KvLayerSpec> layers, const KvLimits& limits) {
  check_limits(limits);
  KvPlan plan;
  for (int32_t i = 0; i < static_cast<int32_t>(layers.size()); ++i) {
    const KvLayerSpec& l = layers[i];
    if (l.from < 0 && l.recurrent.valid()) {
      plan.recurrent.push_back(plan_recurrent(l.recurrent, i, limits));
      continue;
    }
    CARAT_CHECK(l.from >= 0 && l.from <= i && layers[l.from].from == l.from, "layer {} reads {}", i, l.from);
    if (l.from != i) {
      const KvSpec &own = l.kv, &donor = layers[l.from].kv;
      CARAT_CHECK(own.heads == donor.heads && own.dim == donor.dim, "layer {} does not fit its donor {}", i,
                  l.from);
      CARAT_CHECK(donor.window == 0 || (own.window > 0 && own.window <= donor.window),
                  "layer {} looks further back than its donor {}", i, l.from);
      continue;
    }
    check_type(l.kv.k, l.kv.key_dim());
    check_type(l.kv.v, l.kv.dim);
    KvPlan::Layer p;
    p.layer = i;
    const int32_t span = round_up(limits.context, limits.page_tokens);
    // Window plus the step: no row of a step overwrites what another row of it must read, nor does a rejected
    // tail.
    if (l.kv.window > 0 && l.kv.window < span) {
      const int32_t ring = round_up(l.kv.window + limits.step_rows, limits.page_tokens);
      if (ring < span) plan.ring_tokens = std::max(plan.ring_tokens, p.ring_tokens = ring);
    }
    p.k_page_bytes = int64_t{l.kv.heads} * limits.page_tokens * l.kv.k_bytes();
    p.v_page_bytes = int64_t{l.kv.heads} * limits.page_tokens * l.kv.v_bytes();
    plan.layers.push_back(p);
    if (l.kv.protect.any()) plan.edges.push_back(plan_edge(l.kv, i, limits));
  }
  for (KvPlan::Layer& p : plan.layers) {
    if (p.ring_tokens) p.ring_tokens = plan.ring_tokens;
    p.pages = p.ring_tokens ? plan.ring_pages(limits) : limits.total_pages();
  }
  return plan;
}

KvPool::KvPool(Backend& backend, std::vector<KvLayerSpec> layers, const KvLimits& limits)
    : backend_(backend), layers_(std::move(layers)), limits_(limits), plan_(plan_kv(layers_, limits)) {
  std::vector<int32_t> index(layers_.size(), -1);
  for (const KvPlan::Layer& p : plan_.layers) {
    index[p.layer] = static_cast<int32_t>(k_.size());
    k_.push_back(backend.alloc(static_cast<size_t>(p.pages * p.k_page_bytes)));
    v_.push_back(backend.alloc(static_cast<size_t>(p.pages * p.v_page_bytes)));
  }
  edge_index_.assign(k_.size(), -1);
  for (const KvPlan::Edge& e : plan_.edges) {
    edge_index_[index[e.layer]] = static_cast<int32_t>(k_edge_.size());
    k_edge_.push_back(backend.alloc(static_cast<size_t>(e.k_bytes)));
    v_edge_.push_back(backend.alloc(static_cast<size_t>(e.v_bytes)));
  }
  for (const KvPlan::Recurrent& r : plan_.recurrent) {
    index[r.layer] = static_cast<int32_t>(states_.size());
    const auto take = [&](int64_t bytes) { return backend.alloc(static_cast<size_t>(bytes)); };
    states_.push_back({take(r.conv_base), take(r.conv_log), take(r.matrix_base), take(r.matrix_log)});
  }
  for (size_t i = 0; i < layers_.size(); ++i)
    owner_index_.push_back(index[layers_[i].from < 0 ? i : static_cast<size_t>(layers_[i].from)]);
}

RecurrentView KvPool::conv(int layer) const {
  const States& s = states_.at(static_cast<size_t>(owner_index_.at(layer)));
  const RecurrentSpec& spec = layers_[layer].recurrent;
  return {reinterpret_cast<float*>(s.conv_base.data()),
          reinterpret_cast<float*>(s.conv_log.data()),
          spec.conv_base(),
          spec.conv_entry(),
          log_entries(limits_),
          spec};
}
RecurrentView KvPool::matrix(int layer) const {
  const States& s = states_.at(static_cast<size_t>(owner_index_.at(layer)));
  const RecurrentSpec& spec = layers_[layer].recurrent;
  return {reinterpret_cast<float*>(s.matrix_base.data()),
          reinterpret_cast<float*>(s.matrix_log.data()),
          spec.matrix_base(),
          spec.matrix_entry(),
          log_entries(limits_),
          spec};
}

void KvPool::move(const SeqView& s, int32_t from, int32_t to) const {
  for (const KvPlan::Layer& p : plan_.layers) {
    const KvView kv = view(p.layer);
    const auto k = static_cast<size_t>(kv.spec.k_bytes()), v = static_cast<size_t>(kv.spec.v_bytes());
    for (int32_t h = 0; h < kv.spec.heads; ++h) {
      backend_.copy_within(kv.k_row(s, to, h), kv.k_row(s, from, h), k);
      backend_.copy_within(kv.v_row(s, to, h), kv.v_row(s, from, h), v);
      if (!kv.spec.protect.any()) continue;
      backend_.copy_within(kv.k_edge_row(s, to, h), kv.k_edge_row(s, from, h),
                           static_cast<size_t>(kv.spec.k_edge_bytes()));
      backend_.copy_within(kv.v_edge_row(s, to, h), kv.v_edge_row(s, from, h),
                           static_cast<size_t>(kv.spec.v_edge_bytes()));
    }
  }
}

void KvPool::copy_page(int32_t from, int32_t to) const {
  for (const KvPlan::Layer& p : plan_.layers) {
    if (p.ring_tokens) continue;
    const KvView kv = view(p.layer);
    if (p.k_page_bytes)
      backend_.copy_within(kv.k + to * p.k_page_bytes, kv.k + from * p.k_page_bytes,
                           static_cast<size_t>(p.k_page_bytes));
    if (p.v_page_bytes)
      backend_.copy_within(kv.v + to * p.v_page_bytes, kv.v + from * p.v_page_bytes,
                           static_cast<size_t>(p.v_page_bytes));
  }
}

KvView KvPool::view(int layer) const {
  const int32_t i = owner_index_.at(layer);
  const KvPlan::Layer& p = plan_.layers[i];
  KvView v{k_[i].data(),  v_[i].data(), p.k_page_bytes,       p.v_page_bytes, limits_.page_tokens,
           p.ring_tokens, {},           layers_[p.layer].gain};
  v.spec = layers_[p.layer].kv;
  v.spec.window = layers_[layer].kv.window;
  if (const int32_t e = edge_index_[i]; e >= 0) {
    v.k_edge = k_edge_[e].data(), v.v_edge = v_edge_[e].data();
    v.edge_ring = plan_.edges[e].ring_tokens;
  }
  return v;
}

}  // namespace carat
