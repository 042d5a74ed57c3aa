// Copies to shared memory that a warp asks for together, behind a gate: bulk copies of lane 0 where the
// device has them (9.0 and later), else 16 bytes by every lane at a time (cp.async).
#pragma once
#include "cuda/device/rt.h"

namespace carat::cuda {

// Addresses and bytes are multiples of 16; no bytes: no copy.
struct WarpCopy {
  SharedAddress to = 0;
  const void* from = nullptr;
  int bytes = 0;
};
// How often a gate is arrived at by so many ask_copies() in a turn.
CARAT_D int asks_arrive(int asks) { return bulk_copies() ? asks : 32 * asks; }
// Whether a lane has a part in what its warp asks for.
CARAT_D bool has_part(int lane) { return !bulk_copies() || lane == 0; }

CARAT_D void copy_by_lanes(const WarpCopy& c, int lane) {
  const auto* from = static_cast<const unsigned char*>(c.from);
#pragma unroll 1
  for (int i = 16 * lane; i < c.bytes; i += 16 * 32) copy16_async(c.to + i, from + i);
}
// By every lane that has_part().
CARAT_D void ask_copies(SharedAddress gate, int lane, const WarpCopy& a, const WarpCopy& b = {}) {
  if (bulk_copies()) {
    gate_arrive(gate, a.bytes + b.bytes);
    copy_bulk(a.to, a.from, a.bytes, gate);
    if (b.bytes) copy_bulk(b.to, b.from, b.bytes, gate);
  } else {
    copy_by_lanes(a, lane);
    copy_by_lanes(b, lane);
    arrive_after_copies(gate);
  }
}
// Of what a step reads once (evict_first()).
CARAT_D void ask_copy_once(SharedAddress gate, int lane, const WarpCopy& c) {
  if (bulk_copies()) {
    gate_arrive(gate, c.bytes);
    copy_bulk_once(c.to, c.from, c.bytes, gate);
  } else {
    const auto* from = static_cast<const unsigned char*>(c.from);
#pragma unroll 1
    for (int i = 16 * lane; i < c.bytes; i += 16 * 32) copy16_once(c.to + i, from + i);
    arrive_after_copies(gate);
  }
}

}  // namespace carat::cuda
