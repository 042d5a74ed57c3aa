// Drafts from the model's own head (NextnHead in model/model.h): a chain, each step from the token and the
// hidden state of the one before ("mtp").
#pragma once
#include <cstdint>
#include <memory>

#include "engine/speculate/drafter.h"

namespace carat {

inline constexpr int32_t kNextnDepth = 8;

struct NextnDrafterOptions {
  DType cache = DType::f16;
};
// Memory is taken when it is attached.
std::unique_ptr<Drafter> make_nextn_drafter(std::unique_ptr<NextnHead> head, const ModelSpec& target,
                                            const NextnDrafterOptions& options = {});

// The same from a loaded model; null if its family or its file has no such head.
std::unique_ptr<Drafter> make_own_drafter(const Model& model, Backend& backend, const NextnOptions& head = {},
                                          const NextnDrafterOptions& options = {});

// What its cache must hold beside the target's.
KvLimits nextn_cache_limits(KvLimits target);

}  // namespace carat
