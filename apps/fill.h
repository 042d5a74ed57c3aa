// Contexts of noise: for times and memory at depths that nobody wants to wait for.
#pragma once
#include "core/backend.h"
#include "state/sequence.h"

namespace carat {

// Takes an empty sequence to `n` positions whose K and V are noise of a norm's size, in every layer that owns
// a cache; all their memory is written. Error for layers that keep a state.
void fill_sequence(Backend& backend, const KvPool& kv, Sequence& sequence, int32_t n);

// Memory of this process that is in RAM.
int64_t resident_bytes();

}  // namespace carat
