#include "model/kv_policy.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

using enum DType;

// Every step down costs more than the one before, in the order measured on carat-demo: keys are the
// sensitive side, so values give way first; sliding caches hardly matter for size at long contexts.
struct Step {
  KvFormats formats;
  std::string_view policy;  // that names it
};
constexpr size_t kSteps = 6;
const Step kLadder[kSteps] = {
    {{f16, f16, f16, f16}, "precise"}, {{q8_0, q8_0, q8_0, q8_0}, "balanced"}, {{q8_0, kv4, q8_0, q8_0}, ""},
    {{kv4, kv4, q8_0, q8_0}, "small"}, {{kv4, tq3, q8_0, q8_0}, "smallest"},   {{tq3, tq3, kv4, kv4}, ""},
};

bool fits_heads(const KvFormats& f, const ModelSpec& spec) {
  return std::all_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& l) {
    const DType k = l.window ? f.sliding_k : f.k, v = l.window ? f.sliding_v : f.v;
    return l.head_dim % info(k).elems == 0 && l.head_dim % info(v).elems == 0;
  });
}

double mib(int64_t n) { return static_cast<double>(n) / (1 << 20); }

KvChoice at_step(size_t i, const ModelSpec& spec, const KvLimits& limits) {
  KvChoice c;
  c.formats = kLadder[i].formats;
  c.bytes = plan_kv(kv_layers(spec, c.formats), limits).bytes();
  return c;
}

}  // namespace

std::string KvFormats::text() const {
  const std::string all = fmt::format("{}/{}", info(k).name, info(v).name);
  if (k == sliding_k && v == sliding_v) return all;
  return fmt::format("{}, sliding {}/{}", all, info(sliding_k).name, info(sliding_v).name);
}

std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, const KvFormats& f) {
  std::vector<KvLayerSpec> out = kv_layers(spec, f.k, f.v);
  for (size_t i = 0; i < out.size(); ++i) {
    // A layer that reads another's cache has its formats.
    const int32_t owner = spec.layers[i].kv_from;
    if (owner >= 0 && spec.layers[static_cast<size_t>(owner)].window > 0)
      out[i].kv.k = f.sliding_k, out[i].kv.v = f.sliding_v;
  }
  return out;
}

std::string kv_policies() { return "auto precise balanced small smallest"; }

KvChoice choose_kv(std::string_view policy, const ModelSpec& spec, const KvLimits& limits, int64_t budget) {
  if (policy != "auto") {
    for (size_t i = 0; i < kSteps; ++i)
      if (policy == kLadder[i].policy && !policy.empty()) {
        KvChoice c = at_step(i, spec, limits);
        c.why = fmt::format("caches {}: {:.0f} MiB, as --kv-policy {} says", c.formats.text(), mib(c.bytes),
                            policy);
        return c;
      }
    throw Error(fmt::format("unknown KV policy '{}'", policy), "choose one of " + kv_policies());
  }
  KvChoice last;
  std::string passed;  // what did not fit
  for (size_t i = 0; i < kSteps; ++i) {
    if (!fits_heads(kLadder[i].formats, spec)) continue;
    last = at_step(i, spec, limits);
    if (last.bytes <= budget) {
      last.why = fmt::format("caches {}: {:.0f} MiB of the {:.0f} MiB that are free{}", last.formats.text(),
                             mib(last.bytes), mib(budget), passed.empty() ? "" : "; " + passed);
      return last;
    }
    passed = fmt::format("{} would take {:.0f} MiB", last.formats.text(), mib(last.bytes));
  }
  last.why = fmt::format("caches {}: {:.0f} MiB, the smallest there is, but only {:.0f} MiB are free",
                         last.formats.text(), mib(last.bytes), mib(budget));
  return last;
}

}  // namespace carat
