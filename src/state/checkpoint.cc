#include "state/checkpoint.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

// Positions whose protected rows whoever goes on at c.from or behind it reads: [0, sinks) and [recent, c.to).
struct EdgeParts {
  int32_t sinks, recent;
};
EdgeParts edge_parts(const KvProtect& p, const Checkpoint& c) {
  const int32_t recent = p.recent ? std::max(0, c.from - p.recent) : c.to;
  return {std::min(p.sinks, recent), recent};
}

// f over everything that a checkpoint holds, in its order. entry_of(i): which log entry is its i-th. On the
// device rings come in whole pages: few copies instead of one a head at either end. The rows beyond are never
// read.
template <class Entry, class F>
void each_part(const KvPool& pool, const Sequence& s, const Checkpoint& c, bool whole_pages, Entry&& entry_of,
               F&& f) {
  const SeqView seq = s.view();
  const int32_t page = whole_pages ? pool.limits().page_tokens : 1;
  const int32_t first = c.ring_first / page * page, end = (c.to + page - 1) / page * page;
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens) each_kv_run(pool.view(l.layer), seq, first, end, f);
  for (const KvPlan::Edge& e : pool.plan().edges) {
    const KvView v = pool.view(e.layer);
    const EdgeParts parts = edge_parts(v.spec.protect, c);
    each_edge_run(v, seq, 0, parts.sinks, f);
    each_edge_run(v, seq, parts.recent, c.to, f);
  }
  for (const KvPlan::Recurrent& r : pool.plan().recurrent)
    for (const RecurrentView& v : {pool.conv(r.layer), pool.matrix(r.layer)}) {
      f(reinterpret_cast<std::byte*>(v.base_of(seq)), static_cast<size_t>(v.base_floats) * sizeof(float));
      for (int32_t i = 0; i < c.logged; ++i)
        f(reinterpret_cast<std::byte*>(v.entry(seq, entry_of(i))),
          static_cast<size_t>(v.entry_floats) * sizeof(float));
    }
}

int64_t edge_bytes(const KvSpec& s) { return s.heads * (s.k_edge_bytes() + s.v_edge_bytes()); }

int32_t longest_window(const KvPool& pool) {
  int32_t window = 0;
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens) window = std::max(window, pool.view(l.layer).spec.window);
  return window;
}

}  // namespace

bool needs_checkpoint(const KvPlan& plan) {
  return !plan.recurrent.empty() || !plan.edges.empty() ||
         std::any_of(plan.layers.begin(), plan.layers.end(), [](const auto& l) { return l.ring_tokens > 0; });
}

int64_t checkpoint_bytes(const KvPool& pool, int32_t span) {
  int64_t bytes = 0;
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens)
      bytes += int64_t{longest_window(pool) + span} * (l.k_page_bytes + l.v_page_bytes) /
               pool.limits().page_tokens;
  for (const KvPlan::Edge& e : pool.plan().edges) {
    const KvSpec spec = pool.view(e.layer).spec;
    const KvProtect& p = spec.protect;
    bytes += int64_t{p.sinks + (p.recent ? p.recent + span : 0)} * edge_bytes(spec);
  }
  for (const KvPlan::Recurrent& r : pool.plan().recurrent) {
    const int32_t logged = pool.limits().draft_rows;
    bytes += (r.conv_base + r.matrix_base) / pool.limits().sequences;
    if (logged) bytes += (r.conv_log + r.matrix_log) / pool.limits().sequences / 2;
  }
  return bytes;
}

int32_t first_restart(const KvPool& pool, const Sequence& s) {
  if (!pool.plan().recurrent.empty()) return s.committed();
  int32_t from = 0;
  for (const KvPlan::Layer& l : pool.plan().layers) {
    if (!l.ring_tokens) continue;
    if (const int32_t first = s.first_in_ring(l.ring_tokens))
      from = std::max(from, first + longest_window(pool));
  }
  for (const KvPlan::Edge& e : pool.plan().edges)
    if (const int32_t recent = pool.view(e.layer).spec.protect.recent)
      from = std::max(from, s.first_protected(e.ring_tokens, recent));
  return std::min(from, s.committed());
}

size_t checkpoint_size(const KvPool& pool, const Checkpoint& c) {
  int64_t size = 0;
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens)
      size += int64_t{c.to - c.ring_first} * ((l.k_page_bytes + l.v_page_bytes) / pool.limits().page_tokens);
  for (const KvPlan::Edge& e : pool.plan().edges) {
    const KvSpec spec = pool.view(e.layer).spec;
    const EdgeParts parts = edge_parts(spec.protect, c);
    size += int64_t{parts.sinks + c.to - parts.recent} * edge_bytes(spec);
  }
  for (const KvPlan::Recurrent& r : pool.plan().recurrent)
    for (const RecurrentView& v : {pool.conv(r.layer), pool.matrix(r.layer)})
      size += (v.base_floats + c.logged * v.entry_floats) * int64_t{sizeof(float)};
  return static_cast<size_t>(size);
}

CheckpointMemory::CheckpointMemory(Backend& backend, int64_t bytes)
    : buffer_(backend.alloc(static_cast<size_t>(bytes / kBlock * kBlock))) {
  for (auto i = static_cast<int32_t>(bytes / kBlock); i-- > 0;) free_.push_back(i);
}

std::shared_ptr<const CheckpointMemory::Blocks> CheckpointMemory::take(int64_t bytes) {
  const int64_t n = (bytes + kBlock - 1) / kBlock;
  if (n > static_cast<int64_t>(free_.size())) return nullptr;
  std::vector<int32_t> blocks(free_.end() - n, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(n));
  return std::make_shared<const Blocks>(*this, std::move(blocks));
}

Checkpoint take_checkpoint(Backend& backend, const KvPool& pool, const Sequence& s, int32_t span,
                           CheckpointMemory* memory) {
  Checkpoint c;
  c.to = s.committed();
  c.from = std::max(first_restart(pool, s), c.to - span);
  c.ring_first = std::max(0, c.from - longest_window(pool));
  c.logged = static_cast<int32_t>(s.logged().size());
  const auto entry_of = [&](int32_t i) { return s.logged()[i]; };
  if (memory) {
    int64_t size = 0, at = 0;
    each_part(pool, s, c, true, entry_of,
              [&](const std::byte*, size_t n) { size += static_cast<int64_t>(n); });
    c.blocks = memory->take(size);
    if (!c.blocks) return c;
    each_part(pool, s, c, true, entry_of, [&](const std::byte* p, size_t n) {
      c.blocks->each_piece(at, static_cast<int64_t>(n), [&](std::byte* to, int64_t piece) {
        backend.copy_within(to, p, static_cast<size_t>(piece));
        p += piece;
      });
      at += static_cast<int64_t>(n);
    });
    return c;
  }
  const auto each = [&](auto&& f) { each_part(pool, s, c, false, entry_of, f); };
  size_t size = 0;
  each([&](const std::byte*, size_t n) { size += n; });
  c.bytes.resize(size);
  std::byte* at = c.bytes.data();
  each([&](const std::byte* p, size_t n) {
    backend.copy(at, p, n);
    at += n;
  });
  return c;
}

void restore_checkpoint(Backend& backend, const KvPool& pool, const Sequence& s, const Checkpoint& c) {
  CARAT_CHECK(s.committed() >= c.from && s.committed() <= c.to, "{} in {} to {}", s.committed(), c.from,
              c.to);
  const auto entry_of = [](int32_t i) { return i; };
  if (c.blocks) {
    int64_t from = 0;
    each_part(pool, s, c, true, entry_of, [&](std::byte* p, size_t n) {
      c.blocks->each_piece(from, static_cast<int64_t>(n), [&](const std::byte* piece_at, int64_t piece) {
        backend.copy_within(p, piece_at, static_cast<size_t>(piece));
        p += piece;
      });
      from += static_cast<int64_t>(n);
    });
    return;
  }
  const std::byte* at = c.bytes.data();
  const std::byte* const end = at + c.bytes.size();
  each_part(pool, s, c, false, entry_of, [&](std::byte* p, size_t n) {
    CARAT_CHECK(n <= static_cast<size_t>(end - at), "a checkpoint of {} bytes", c.bytes.size());
    backend.copy(p, at, n);
    at += n;
  });
  CARAT_CHECK(at == end, "a checkpoint of {} bytes", c.bytes.size());
}

}  // namespace carat
