#include "cuda/host_part.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "core/operands.h"
#include "core/strips.h"
#include "cuda/executable.h"
#include "cuda/quant/packed.h"

namespace carat::cuda {
namespace {

size_t row_size(const Tensor& t) { return static_cast<size_t>(row_bytes(t.type, t.cols)); }
int64_t room_of(const Tensor& t) {
  return (static_cast<int64_t>(row_size(t)) * t.rows * t.slices + 255) / 256 * 256;
}

void copy_rows(const Tensor& to, const Tensor& from, Stream s) {
  const size_t bytes = row_size(to), rows = static_cast<size_t>(to.rows);
  const auto pitch = [&](const Tensor& t) { return static_cast<size_t>(t.pitch); };
  if (pitch(to) == bytes && pitch(from) == bytes)
    copy_async(to.data, from.data, bytes * rows, s);
  else
    copy_rows_async(to.data, pitch(to), from.data, pitch(from), bytes, rows, s);
}

// Those a weight can be, and that the host computes.
std::vector<const Tensor*> weights_of(const OpRecord& op) {
  switch (op.op) {
    case Op::Embed: return {&op.as<EmbedArgs>().table};
    case Op::Matmul: return {&op.as<MatmulArgs>().w};
    case Op::GateUp: return {&op.as<GateUpArgs>().gate, &op.as<GateUpArgs>().up};
    case Op::SliceMatmul: return {&op.as<SliceMatmulArgs>().w};
    case Op::Experts: {
      const auto& a = op.as<ExpertsArgs>();
      return {&a.gate, &a.up, &a.down};
    }
    default: return {};
  }
}

}  // namespace

HostPart::~HostPart() = default;

Tensor HostPart::place(const Tensor& file, WeightUse use, Buffer& owner) {
  auto own = std::make_shared<Buffer>();
  const Tensor t = backend_->place_weight(file, use, *own);
  const bool copied = own->data() != nullptr;  // else the file's own bytes
  std::byte* const p = copied ? own->data() : const_cast<std::byte*>(t.data);
  const size_t n =
      copied ? own->size() : static_cast<size_t>(t.slice_pitch * (t.slices - 1) + t.pitch * t.rows);
  auto hold = copied ? std::make_shared<Hold>() : nullptr;
  const auto at = placed_->insert({p, {p + n, hold}});
  owner =
      Buffer(p, n, [placed = placed_, at, hold = std::move(hold), own = std::move(own)](std::byte*) mutable {
        placed->erase(at);        // the next to get these addresses may be the device
        if (hold) hold->reset();  // before the memory goes
        own.reset();
      });
  return t;
}

// Weights lie one behind the other in few pieces of memory: pages are pinned piece by piece.
void HostPart::pin_placed() {
  constexpr uintptr_t kPage = 4096;
  std::vector<std::shared_ptr<Hold>> held;
  uintptr_t begin = 0, end = 0;
  const auto close = [&] {
    if (held.empty()) return;
    const auto pages = std::make_shared<Pages>(reinterpret_cast<std::byte*>(begin), end - begin);
    for (const auto& h : held) *h = pages;
    held.clear();
  };
  for (auto& [p, placed] : *placed_) {
    if (std::exchange(placed.asked, true)) continue;
    std::shared_ptr<Hold> hold = placed.pages.lock();
    if (!hold) continue;
    const auto from = reinterpret_cast<uintptr_t>(p) / kPage * kPage,
               to = (reinterpret_cast<uintptr_t>(placed.end) + kPage - 1) / kPage * kPage;
    if (!held.empty() && from > end) close();
    if (held.empty()) begin = from;
    end = to;
    held.push_back(std::move(hold));
  }
  close();
}

bool HostPart::sends(const Tensor& t) {
  if (!sends_ || t.packing != kPackedStrips || !packs(t.type) || !has(t)) return false;
  Placed& placed = std::prev(placed_->upper_bound(t.data))->second;
  if (!placed.asked) pin_placed();
  const std::shared_ptr<Hold> hold = placed.pages.lock();
  return hold && *hold && (*hold)->p;
}

std::shared_ptr<Memory> HostPart::room(size_t bytes) {
  if (!room_ || room_->size() < bytes) {
    room_.reset();
    room_ = std::make_shared<Memory>(bytes);
  }
  return room_;
}

bool HostPart::has(const Tensor& t) const {
  const auto after = placed_->upper_bound(t.data);
  return t.valid() && after != placed_->begin() && t.data < std::prev(after)->second.end;
}

bool HostPart::computes(const OpRecord& op) const {
  const std::vector<const Tensor*> weights = weights_of(op);
  const auto here = std::count_if(weights.begin(), weights.end(), [&](const Tensor* t) { return has(*t); });
  if (here == 0) return false;
  if (here == static_cast<std::ptrdiff_t>(weights.size())) return true;
  throw Error(fmt::format("{} (layer {}): some of its weights are on the device, some on the host",
                          kOpNames[static_cast<size_t>(op.op)], op.layer),
              "name gate, up and down together in --override-tensor");
}

std::shared_ptr<Pinned> HostPart::memory(size_t bytes) {
  if (!memory_ || memory_->size() < bytes) memory_ = std::make_shared<Pinned>(bytes);
  return memory_;
}

void HostPart::rethrow() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void HostOps::measure(const OpRecord& op) {
  int64_t bytes = 0;
  each_operand(op, [&](const char*, const Tensor& t) {
    if (t.valid() && !part_.has(t)) bytes += room_of(t);
  });
  if (op.op == Op::Embed)
    kept_ += bytes;
  else
    shared_ = std::max(shared_, bytes);
}

void HostOps::allocate() { memory_ = part_.memory(static_cast<size_t>(kept_ + shared_)); }

std::function<void(Stream)> HostOps::add(const OpRecord& op) {
  const bool lookup = op.op == Op::Embed;
  auto made = std::make_unique<HostOp>();
  made->part = &part_;
  OpRecord twin = op;
  std::byte* at = memory_->data() + (lookup ? next_ : kept_);
  bool first = true;
  each_operand(twin, [&](const char*, Tensor& t) {
    const bool result = std::exchange(first, false);
    if (!t.valid() || part_.has(t)) return;
    Tensor host = make_tensor(at, t.type, t.rows, t.cols, t.slices);
    if (result)
      made->out = {t, host};
    else if (t.data == made->out.device.data)  // added to in place
      host = made->out.host;
    if (!result) made->in.push_back({t, host});
    at += room_of(t);
    t = host;
  });
  if (lookup) next_ = at - memory_->data();
  Program program;
  program.push(twin);
  made->program = part_.backend()->compile(program, &state_);
  HostOp* const one = made.get();
  ops_.push_back(std::move(made));
  if (lookup) {
    lookups_.push_back(one);
    return [one](Stream s) { copy_rows(one->out.device, one->out.host, s); };
  }
  return [one](Stream s) {
    for (const Copy& c : one->in) copy_rows(c.host, c.device, s);
    call_host_async(call, one, s);
    copy_rows(one->out.device, one->out.host, s);
  };
}

void HostOps::begin(const StepState& step) {
  state_ = {};
  state_.n_rows = step.n_rows, state_.n_out = step.n_out;
  if (step.token) token_.assign(step.token, step.token + step.n_rows), state_.token = token_.data();
  if (step.out_row)
    out_row_.assign(step.out_row, step.out_row + step.n_out), state_.out_row = out_row_.data();
  state_.soft = step.soft;
  for (HostOp* op : lookups_) {
    part_.backend()->submit(*op->program);
    part_.backend()->wait();
  }
  state_.soft = nullptr;
}

void HostOps::call(void* argument) {
  auto& op = *static_cast<HostOp*>(argument);
  try {
    op.part->backend()->submit(*op.program);
    op.part->backend()->wait();
  } catch (...) {
    op.part->failed(std::current_exception());
  }
}

}  // namespace carat::cuda
