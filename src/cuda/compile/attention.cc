// Attention, and the preparation of queries and keys that a single row's has in it.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cuda/compile/builder.h"

namespace carat::cuda {

// Whether all that becomes of this preparation is the attention behind it, of a single row.
bool Builder::attends(const QkvPrepArgs& a) const {
  const auto i = static_cast<size_t>(index_);
  if (a.q.rows != 1 || !follow({Op::QkvPrep, Op::Attention}, i)) return false;
  const auto& ops = program_.ops();
  const auto& b = ops[i + 1].as<AttentionArgs>();
  const KvView &kv = a.kv, &same = b.kv;
  // Some blocks write y while others still read.
  for (const Tensor& t : {a.q, a.k, a.v})
    if (t.valid() && meet(b.y, t)) return false;
  return key_of(a.q, ops[i].rows) == key_of(b.q, ops[i].rows) && kv.k == same.k && kv.v == same.v &&
         kv.k_page_bytes == same.k_page_bytes && kv.v_page_bytes == same.v_page_bytes &&
         kv.page_tokens == same.page_tokens && kv.ring_tokens == same.ring_tokens && kv.spec == same.spec &&
         (ops[i].rows == RowSet::all || !a.k.valid()) && !read_behind(a.q, ops[i].rows, i + 2);
}

// Whether an operation from i on reads some of a row before it is written again. What operations write is
// their first operand; other results count as read.
bool Builder::read_behind(const Tensor& row, RowSet rows, size_t i) const {
  const std::byte *begin = row.data, *end = row.data + int64_t{row.cols} * 4;
  for (; i < program_.ops().size() && begin < end; ++i) {
    const OpRecord& op = program_.ops()[i];
    const Tensor y = first_operand(op);
    bool first = op.op != Op::QkvPrep, reads = false;  // which rewrites its first
    each_operand(op, [&](const char*, const Tensor& t) {
      if (!std::exchange(first, false) && t.valid())
        reads = reads || (t.data < end && begin < t.data + t.rows * t.pitch);
    });
    if (reads) return true;
    if (y.rows != 1 || (op.rows != rows && op.rows != RowSet::all)) continue;
    const std::byte* to = y.data + int64_t{y.cols} * 4;
    if (y.data <= begin && to > begin)
      begin = to;
    else if (y.data < end && to >= end)
      end = y.data;
  }
  return false;
}

void Builder::add(const QkvPrepArgs& a, RowSet rows) {
  scratch_.writes(a.q);
  if (attends(a)) {
    done_ = ++index_ + 1;
    return attend(program_.ops()[static_cast<size_t>(index_)].as<AttentionArgs>(), rows, a);
  }
  push([=](const Context& c) { qkv_prep(c, a, rows); });
}

void Builder::add(const AttentionArgs& a, RowSet rows) { attend(a, rows, {}); }

void Builder::attend(const AttentionArgs& a, RowSet rows, const std::optional<QkvPrepArgs>& prepares) {
  const Span span{a.kv.spec.window, a.both_ways || a.blocks};
  std::vector<Span>& spans = exe_->spans;
  auto it = std::find(spans.begin(), spans.end(), span);
  if (it == spans.end()) it = spans.insert(spans.end(), span);
  AttentionPlan plan{static_cast<int32_t>(it - spans.begin()), a.y.rows <= kSplitRows};
  op_ = nullptr;
  CARAT_CHECK(plan.span < kMaxSpans, "{} kinds of windows", plan.span + 1);
  if (unpacks(a)) {
    plan.unpacked = scratch_.at(scratch_.end());
    plan.tiles = exe_->tiles[plan.span] = unpacked_tiles(span.window, exe_->max_rows);
  }
  if (plan.split) exe_->split.push_back(a), exe_->split_span.push_back(plan.span);
  if (a.y.rows == 1 && folds_window(span.window))
    Scratch::need(exe_->left, partial_floats(a, 1, window_segments(span.window)));
  const bool round = attention_rounds(a, plan) && rounded_soon(a.y, rows) && scratch_.has_room(0, a.y);
  const Rounded r = round ? scratch_.slot(0, a.y) : Rounded{};
  push([=](const Context& c) { attention(c, a, plan, r, rows, prepares ? &*prepares : nullptr); });
  scratch_.writes(a.y);
  if (round) scratch_.holds(a.y, rows, 0);
}

}  // namespace carat::cuda
