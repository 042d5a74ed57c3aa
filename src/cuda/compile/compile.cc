// Programs turned into launches: one operation after the other.
#include "cuda/compile/builder.h"
#include "cuda/links.h"

namespace carat::cuda {

std::unique_ptr<CudaExecutable> Builder::build() {
  for (const OpRecord& op : program_.ops()) {
    check_op(op);
    op_ = &op;
    if (!host_.computes(op)) {
      measure(op);
      continue;
    }
    if (!exe_->host) exe_->host = std::make_unique<HostOps>(host_);
    exe_->host->measure(op);
    room(first_operand(op), op.rows);
  }
  if (exe_->host) exe_->host->allocate();
  int64_t unpacked = 0;
  for (const AttentionArgs& a : unpacked_)
    Scratch::need(unpacked, unpacked_bytes(a, unpacked_tiles(a.kv.spec.window, exe_->max_rows)));
  exe_->scratch = room_(static_cast<size_t>(scratch_.end() + aligned(unpacked)));
  scratch_.memory = exe_->scratch->data();
  for (size_t i = 0; i < program_.ops().size(); ++i) {
    if (static_cast<std::ptrdiff_t>(i) < done_) continue;
    if (mixes(i))
      mix(i);
    else if (branches(i))
      branch(i);
    else
      add(i);
  }
  return std::move(exe_);
}

void Builder::add(size_t i) {
  const OpRecord& op = program_.ops()[i];
  index_ = static_cast<int32_t>(i);
  alone_ = false;
  for (const Streamed::Weight& w : streamed_.weights)
    if (w.op == index_) bring(w);
  if (host_.computes(op)) {
    push([f = exe_->host->add(op)](const Context& c) { f(c.launcher.stream); });
    return scratch_.writes(first_operand(op));
  }
  switch (op.op) {
#define X(name) \
  case Op::name: return add(op.as<name##Args>(), op.rows);
    CARAT_OPS(X)
#undef X
  }
}

void Builder::bring(const Streamed::Weight& w) {
  alone_ = true;
  exe_->weights = streamed_.memory;
  push([streamed = streamed_.memory, w](const Context& c) { bring_weight(c.launcher, w, *streamed); });
}

void Builder::add(const EmbedArgs& a, RowSet rows) {
  if (a.soft) exe_->embedded.push_back({a.y, rows});
  push([=](const Context& c) { embed(c, a, rows); });
  scratch_.writes(a.y);
}

void Builder::add(const GatherArgs& a, RowSet) {
  push([=](const Context& c) { gather(c, a); });
  scratch_.writes(a.y);
}

void Builder::add(const RefineArgs& a, RowSet rows) {
  const Rounded out = scratch_.slot(0, a.y);
  push([=](const Context& c) { refine(c, a, out, rows); });
  scratch_.writes(a.y);
  scratch_.holds(a.y, RowSet::refined, 0);
}

void Builder::add(const RouteArgs& a, RowSet rows) {
  push([=](const Context& c) { route(c, a, rows); });
  scratch_.writes(a.weights), scratch_.writes(a.experts);
}

void Builder::add(const TopArgs& a, RowSet rows) {
  push([=](const Context& c) { top(c, a, rows); });
}

void Builder::add(const ShareArgs& a, RowSet rows) {
  if (a.parts == 1) return;
  auto* links = static_cast<Links*>(a.exchange->links.get());
  require(links != nullptr, "devices that do not reach each other");
  require(row_bytes(a.y.type, 1) == 4, "columns that are not of four bytes");
  require(static_cast<uint32_t>(a.number) + 1 < kMostShares, "more shares than a step has numbers");
  exe_->exchange = a.exchange;
  if (fits_boxes(a)) {
    const int32_t turn = boxes_++ % 2;
    push([=](const Context& c) { share_boxes(c, a, links->of(a.part), links->boxes(a.part, turn), rows); });
    return scratch_.writes(a.y);
  }
  const int64_t bytes = int64_t{4} * a.gives[a.part].cols * a.y.rows;
  ShareBefore before;
  for (int32_t p = 0; p < a.parts && bytes > 0; ++p) {
    if (p == a.part || !(a.takes >> p & 1) || links->direct(a.part, p)) continue;
    links->reserve(a.part, static_cast<size_t>(bytes));
    before.number[p] = std::exchange(fetched_[p], static_cast<uint32_t>(a.number) + 1);
  }
  push([=](const Context& c) { share(c, a, links->of(a.part), before, rows); });
  scratch_.writes(a.y);
}

std::unique_ptr<CudaExecutable> compile_program(const Program& program, const StepState* state,
                                                const DeviceProps& device, HostPart& host, const Room& room) {
  const Streamed streamed = stream_weights(program, host);
  auto exe = Builder(streamed, device, host, room).build();
  exe->state = state;
  exe->step = Memory(sizeof(DevStep));
  return exe;
}

}  // namespace carat::cuda
