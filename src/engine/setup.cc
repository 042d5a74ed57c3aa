#include "engine/setup.h"

#include <algorithm>

#include "base/log.h"
#include "engine/prefix/prefix_cache.h"

namespace carat {
namespace {

constexpr int32_t kDefaultContext = 8192;
// Of backends whose products have a form of their own for few rows, this many are in it.
constexpr int32_t kMostVerifyRows = 32;
constexpr int32_t kMostByPlan = 64, kLikelyByPlan = 4;
// What a sequence has for itself where caches hold fewer tokens than all contexts together.
constexpr int32_t kLeastOwnTokens = 2048;

// As many sequences as half of the memory that is free holds, each with its whole context; or, where more run
// with kLeastOwnTokens each, so many, and as many tokens for all together as fit (EngineConfig::kv_tokens).
void choose_sequences(EngineConfig& c, const ModelSpec& spec, bool speculates, int64_t free) {
  const auto fits = [&](int32_t n, int64_t tokens) {
    EngineConfig with = c;
    with.sequences = n, with.kv_tokens = tokens;
    return plan_kv(kv_layers(spec, formats_of(with)), limits_of(with, speculates)).bytes() <= free / 2;
  };
  const auto most = [&](int64_t all, int64_t each) {
    int32_t n = 1;
    while (n < kMostByPlan && fits(n + 1, all + (n + 1) * each)) ++n;
    return n;
  };
  const int64_t own = std::min(c.context, kLeastOwnTokens);
  const int32_t whole = most(c.kv_tokens, 0), shared = c.kv_tokens > 0 ? whole : most(0, own);
  c.sequences = std::max(whole, shared);
  if (shared <= whole) return;
  int64_t low = shared * own, high = int64_t{shared} * c.context;  // low fits
  while (high - low > 64) {
    const int64_t mid = (low + high) / 2;
    (fits(shared, mid) ? low : high) = mid;
  }
  c.kv_tokens = std::max<int64_t>(low, c.context);
}

}  // namespace

std::string beyond_training(int32_t context, const ModelSpec& spec) {
  return fmt::format(
      "a context of {} is {:.1f} times the {} positions the model was trained for: what it makes of texts so "
      "long nobody has measured",
      context, static_cast<double>(context) / spec.context, spec.context);
}

EngineConfig resolve(EngineConfig c, const ModelSpec& spec, bool speculates, const DeviceInfo& device,
                     const KvAllowed& allowed) {
  if (c.context < 0 || c.sequences < 0 || c.prefill_chunk < 1 || c.kv_tokens < 0)
    throw Error(
        fmt::format("context {}, {} sequences, prefill chunk {}", c.context, c.sequences, c.prefill_chunk),
        "all of them must be positive");
  if (c.context == 0)
    c.context = spec.context > 0 ? std::min(spec.context, kDefaultContext) : kDefaultContext;
  if (spec.context > 0 && c.context > spec.context) log_warn("{}", beyond_training(c.context, spec));
  c.prefill_chunk = std::min(c.prefill_chunk, c.context);
  if (c.kv_tokens > 0 && c.kv_tokens < c.context)
    log_warn("--kv-tokens {} is less than one context: caches hold {} tokens", c.kv_tokens, c.context);
  c.spec.max_rows = std::clamp(c.spec.max_rows, 1, kMostVerifyRows);
  const bool by_plan = c.sequences == 0;
  if (by_plan) c.sequences = kLikelyByPlan;
  if (!c.kv_policy.empty()) {
    // An eighth stays free for the scratch of steps and for whoever else runs.
    const KvChoice choice =
        choose_kv(c.kv_policy, spec, limits_of(c, speculates), device.mem_free / 8 * 7,
                  {allowed.single && c.single_copy.value_or(false), allowed.protect, c.kv_protect});
    log_info("{}", choice.why);
    c.cache_k = choice.formats.k, c.cache_v = choice.formats.v;
    c.sliding_k = choice.formats.sliding_k, c.sliding_v = choice.formats.sliding_v;
    c.single_copy = choice.formats.single, c.kv_protect = choice.formats.protect;
  }
  if (c.kv_protect && c.kv_protect->any() && !protects_rows(kv_layers(spec, formats_of(c)))) {
    if (c.kv_policy.empty())
      log_warn(
          "--kv-sinks and --kv-recent change nothing: no layer that sees everything has less than 8 bits");
    c.kv_protect.reset();
  }
  if (by_plan) choose_sequences(c, spec, speculates, device.mem_free);
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
  if (c.kv_tokens > 0) {
    const int64_t asked = (c.kv_tokens + l.page_tokens - 1) / l.page_tokens;
    l.pages = static_cast<int32_t>(std::clamp(asked, l.pages_per_sequence(), l.total_pages()));
    l.ring_pages = l.pages;
  }
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
          c.kv_layers,
          c.kv_protect.value_or(KvProtect{})};
}

}  // namespace carat
