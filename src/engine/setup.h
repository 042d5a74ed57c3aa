// What an engine of a configuration allocates for caches, known before a model is loaded: the engine and the
// memory plan ask here.
#pragma once
#include "engine/engine.h"
#include "model/kv_policy.h"

namespace carat {

// The configuration with defaults and the policy's choice filled in, and checked. speculates: whether
// drafters will run. Policies count on what is free on the device; allowed: what it reads.
EngineConfig resolve(EngineConfig config, const ModelSpec& spec, bool speculates, const DeviceInfo& device,
                     const KvAllowed& allowed);
// What users are told where a context is longer than the model was trained for; it works.
std::string beyond_training(int32_t context, const ModelSpec& spec);
// Of a resolved configuration.
KvLimits limits_of(const EngineConfig& config, bool speculates);
// The same with pages for texts that nobody works on (EngineConfig::prefix_cache_bytes).
KvLimits pool_limits(const EngineConfig& config, const ModelSpec& spec, bool speculates);
KvFormats formats_of(const EngineConfig& config);

}  // namespace carat
