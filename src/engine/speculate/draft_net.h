// Drafters that are networks. Error from make_* if the network was not made for such a target; memory is
// taken when they are attached.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/speculate/drafter.h"
#include "model/drafters/dflash.h"
#include "model/drafters/gemma4_mtp.h"

namespace carat {

inline constexpr int32_t kMtpDepth = 8;

// Gemma 4's assistant: a chain of its own steps, or a tree of the best tokens of each ("mtp").
std::unique_ptr<Drafter> make_mtp_drafter(std::shared_ptr<const MtpNet> net, const ModelSpec& target,
                                          const MtpOptions& options = {});

struct DFlashOptions {
  DType cache = DType::f16;
  bool chain_seed = true;  // trees hold the whole chain of first choices
};
// DFlash: a block of tokens in one pass over the target's tapped layers ("dflash").
std::unique_ptr<Drafter> make_dflash_drafter(std::shared_ptr<const DFlashNet> net, const ModelSpec& target,
                                             const DFlashOptions& options = {});

struct ModelDrafterOptions {
  DType cache = DType::f16;
};
// A smaller model of the same vocabulary, with its own cache ("model").
std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<const Model> model, const ModelSpec& target,
                                            const ModelDrafterOptions& options = {});

// What their caches must hold beside a target's.
KvLimits dflash_cache_limits(KvLimits target, const DFlashSpec& spec);
KvLimits model_cache_limits(KvLimits target);

}  // namespace carat
