#include "state/checkpoint.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

// f over everything that a checkpoint holds, in its order. entry_of(i): which log entry is its i-th.
template <class Entry, class F>
void each_part(const KvPool& pool, const Sequence& s, int32_t ring_first, int32_t end, int32_t logged,
               Entry&& entry_of, F&& f) {
  const SeqView seq{s.pages().data(), s.ring_slot()};
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens) each_kv_run(pool.view(l.layer), seq, ring_first, end, f);
  for (const KvPlan::Recurrent& r : pool.plan().recurrent)
    for (const RecurrentView& v : {pool.conv(r.layer), pool.matrix(r.layer)}) {
      f(reinterpret_cast<std::byte*>(v.base_of(seq)), static_cast<size_t>(v.base_floats) * sizeof(float));
      for (int32_t i = 0; i < logged; ++i)
        f(reinterpret_cast<std::byte*>(v.entry(seq, entry_of(i))),
          static_cast<size_t>(v.entry_floats) * sizeof(float));
    }
}

int32_t longest_window(const KvPool& pool) {
  int32_t window = 0;
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens) window = std::max(window, pool.view(l.layer).spec.window);
  return window;
}

}  // namespace

bool needs_checkpoint(const KvPlan& plan) {
  return !plan.recurrent.empty() ||
         std::any_of(plan.layers.begin(), plan.layers.end(), [](const auto& l) { return l.ring_tokens > 0; });
}

int64_t checkpoint_bytes(const KvPool& pool, int32_t span) {
  int64_t bytes = 0;
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens)
      bytes += int64_t{longest_window(pool) + span} * (l.k_page_bytes + l.v_page_bytes) /
               pool.limits().page_tokens;
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
  return std::min(from, s.committed());
}

size_t checkpoint_size(const KvPool& pool, int32_t ring_first, int32_t to, int32_t logged) {
  int64_t size = 0;
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens)
      size += int64_t{to - ring_first} * ((l.k_page_bytes + l.v_page_bytes) / pool.limits().page_tokens);
  for (const KvPlan::Recurrent& r : pool.plan().recurrent)
    for (const RecurrentView& v : {pool.conv(r.layer), pool.matrix(r.layer)})
      size += (v.base_floats + logged * v.entry_floats) * int64_t{sizeof(float)};
  return static_cast<size_t>(size);
}

Checkpoint take_checkpoint(Backend& backend, const KvPool& pool, const Sequence& s, int32_t span) {
  Checkpoint c;
  c.to = s.committed();
  c.from = std::max(first_restart(pool, s), c.to - span);
  c.ring_first = std::max(0, c.from - longest_window(pool));
  c.logged = static_cast<int32_t>(s.logged().size());
  const auto each = [&](auto&& f) {
    each_part(
        pool, s, c.ring_first, c.to, c.logged, [&](int32_t i) { return s.logged()[i]; }, f);
  };
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
  const std::byte* at = c.bytes.data();
  const std::byte* const end = at + c.bytes.size();
  each_part(
      pool, s, c.ring_first, c.to, c.logged, [](int32_t i) { return i; },
      [&](std::byte* p, size_t n) {
        CARAT_CHECK(n <= static_cast<size_t>(end - at), "a checkpoint of {} bytes", c.bytes.size());
        backend.copy(p, at, n);
        at += n;
      });
  CARAT_CHECK(at == end, "a checkpoint of {} bytes", c.bytes.size());
}

}  // namespace carat
