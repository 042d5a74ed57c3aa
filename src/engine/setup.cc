#include "engine/setup.h"

#include <algorithm>

#include "base/log.h"
#include "engine/prefix_cache.h"

namespace carat {
namespace {

constexpr int32_t kDefaultContext = 8192;
// Of backends whose products have a form of their own for few rows, this many are in it.
constexpr int32_t kMostVerifyRows = 32;

}  // namespace

EngineConfig resolve(EngineConfig c, const ModelSpec& spec, bool speculates, const DeviceInfo& device,
                     bool single_copies) {
  if (c.context < 0 || c.sequences < 1 || c.prefill_chunk < 1)
    throw Error(
        fmt::format("context {}, {} sequences, prefill chunk {}", c.context, c.sequences, c.prefill_chunk),
        "all of them must be positive");
  if (c.context == 0)
    c.context = spec.context > 0 ? std::min(spec.context, kDefaultContext) : kDefaultContext;
  if (spec.context > 0 && c.context > spec.context)
    log_warn("a context of {} is more than the {} positions the model was made for", c.context, spec.context);
  c.prefill_chunk = std::min(c.prefill_chunk, c.context);
  c.spec.max_rows = std::clamp(c.spec.max_rows, 1, kMostVerifyRows);
  if (!c.kv_policy.empty()) {
    // An eighth stays free for the scratch of steps and for whoever else runs.
    const KvChoice choice = choose_kv(c.kv_policy, spec, limits_of(c, speculates), device.mem_free / 8 * 7,
                                      single_copies && c.single_copy.value_or(false));
    log_info("{}", choice.why);
    c.cache_k = choice.formats.k, c.cache_v = choice.formats.v;
    c.sliding_k = choice.formats.sliding_k, c.sliding_v = choice.formats.sliding_v;
    c.single_copy = choice.formats.single;
  }
  if (c.prefix_cache_bytes < 0)
    c.prefix_cache_bytes = default_prefix_bytes(
        device, plan_kv(kv_layers(spec, formats_of(c)), limits_of(c, speculates)).bytes());
  return c;
}

KvLimits limits_of(const EngineConfig& c, bool speculates) {
  KvLimits l;
  l.context = c.context;
  l.sequences = c.sequences;
  l.step_rows = c.prefill_chunk + c.sequences + (speculates ? c.spec.max_rows : 0);
  l.draft_rows = speculates ? c.spec.max_rows : 0;
  return l;
}

KvLimits pool_limits(const EngineConfig& c, const ModelSpec& spec, bool speculates) {
  KvLimits l = limits_of(c, speculates);
  if (c.prefix_cache_bytes > 0)
    l.pages = static_cast<int32_t>(l.total_pages()) +
              prefix_pages(c.prefix_cache_bytes, plan_kv(kv_layers(spec, formats_of(c)), l), l);
  return l;
}

KvFormats formats_of(const EngineConfig& c) {
  return {c.cache_k,
          c.cache_v,
          c.sliding_k.value_or(c.cache_k),
          c.sliding_v.value_or(c.cache_v),
          c.single_copy.value_or(false),
          c.kv_layers};
}

}  // namespace carat
