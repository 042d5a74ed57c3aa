#include "model/kv_policy.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

using enum DType;

// Every step down costs more than the one before, in the order measured on carat-demo and carat-demo-moe:
// keys are the sensitive side, so values give way first; sliding caches cost most and hardly matter for size
// at long contexts, so they give way last. Protected positions take half of the price for a few MiB.
struct Step {
  KvFormats formats;
  std::string_view policy;  // that names it
};
constexpr KvProtect kProtect{4, 128};
KvFormats protect(KvFormats f) {
  f.protect = kProtect;
  return f;
}
constexpr size_t kSteps = 10;
const Step kLadder[kSteps] = {
    {{f16, f16, f16, f16}, "precise"},     {{q8_0, q8_0, q8_0, q8_0}, "balanced"},
    {{q8_0, kv4, q8_0, q8_0}, ""},         {protect({kv4, kv4, q8_0, q8_0}), ""},
    {{kv4, kv4, q8_0, q8_0}, "small"},     {protect({kv4, tq3, q8_0, q8_0}), ""},
    {protect({tq3, tq3, q8_0, q8_0}), ""}, {{kv4, tq3, q8_0, q8_0}, "smallest"},
    {{tq3, tq3, q8_0, q8_0}, ""},          {{tq3, tq3, kv4, kv4}, ""},
};

bool single_copy(const LayerSpec& l) { return l.k_is_v && l.rope_pairs > 0 && 2 * l.rope_pairs < l.head_dim; }

bool fits_heads(const KvFormats& f, const ModelSpec& spec) {
  return std::all_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& l) {
    const DType k = l.window ? f.sliding_k : f.k, v = l.window ? f.sliding_v : f.v;
    return l.head_dim % info(k).elems == 0 && l.head_dim % info(v).elems == 0;
  });
}

double mib(int64_t n) { return static_cast<double>(n) / (1 << 20); }

KvChoice at_step(size_t i, const ModelSpec& spec, const KvLimits& limits, const KvAllowed& allowed) {
  KvChoice c;
  c.formats = kLadder[i].formats;
  c.formats.single = allowed.single && has_single_copies(spec);
  if (allowed.fixed) c.formats.protect = *allowed.fixed;
  const std::vector<KvLayerSpec> layers = kv_layers(spec, c.formats);
  if (!protects_rows(layers)) c.formats.protect = {};
  c.bytes = plan_kv(layers, limits).bytes();
  return c;
}

}  // namespace

std::string KvFormats::text() const {
  std::string s = fmt::format("{}/{}{}", info(k).name, info(v).name, single ? " in one copy" : "");
  if (k != sliding_k || v != sliding_v)
    s += fmt::format(", sliding {}/{}", info(sliding_k).name, info(sliding_v).name);
  for (const KvLayerFormat& l : layers)
    s += fmt::format(", layer {} {}/{}", l.layer, info(l.k).name, info(l.v).name);
  if (protect.any())
    s += fmt::format(", f16 for the {}{}{}", protect.sinks ? fmt::format("first {}", protect.sinks) : "",
                     protect.sinks && protect.recent ? " and " : "",
                     protect.recent ? fmt::format("last {}", protect.recent) : "");
  return s;
}

std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, const KvFormats& f) {
  for (const KvLayerFormat& l : f.layers)
    if (l.layer < 0 || l.layer >= static_cast<int32_t>(spec.layers.size()) ||
        spec.layers[static_cast<size_t>(l.layer)].kv_from != l.layer)
      throw Error(fmt::format("layer {} has no cache of its own", l.layer),
                  fmt::format("the model has {} layers; inspect --plan --json lists those with caches",
                              spec.layers.size()));
  std::vector<KvLayerSpec> out = kv_layers(spec, f.k, f.v);
  for (size_t i = 0; i < out.size(); ++i) {
    // A layer that reads another's cache has its formats.
    const int32_t owner = spec.layers[i].kv_from;
    if (owner < 0) continue;
    const LayerSpec& l = spec.layers[static_cast<size_t>(owner)];
    if (l.window > 0) out[i].kv.k = f.sliding_k, out[i].kv.v = f.sliding_v;
    for (const KvLayerFormat& own : f.layers)
      if (own.layer == owner) out[i].kv.k = own.k, out[i].kv.v = own.v;
    KvSpec& kv = out[i].kv;
    if (f.single && single_copy(l)) kv.pairs = l.rope_pairs;
    if (l.window == 0 && (kv.k_bytes() < kv.key_dim() || kv.v_bytes() < kv.dim)) kv.protect = f.protect;
  }
  return out;
}

std::vector<KvLayerSpec> kv_layers(const Model& model, const Backend& backend, const KvFormats& f) {
  std::vector<KvLayerSpec> out = kv_layers(model.spec, f);
  if (protects_rows(out) && !backend.protects_rows())
    throw Error(fmt::format("{} cannot keep some positions of a cache in f16", backend.info().name),
                "leave out --kv-sinks and --kv-recent, or give keys and values 8 bits (-ctk q8_0 -ctv q8_0)");
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].kv.pairs == 0) continue;
    if (!backend.reads_single_copies())
      throw Error(fmt::format("{} cannot read caches with one copy of K = V", backend.info().name),
                  "leave out --kv-single");
    out[i].gain = model.weights->key_gain(out[i].from);
    CARAT_CHECK(out[i].gain, "layer {} has no gain", i);
  }
  return out;
}

bool protects_rows(const std::vector<KvLayerSpec>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const auto& l) { return l.kv.protect.any(); });
}

KvAllowed allowed_by(const Backend& b) { return {b.reads_single_copies(), b.protects_rows()}; }

bool has_single_copies(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), single_copy);
}

std::string kv_policies() { return "auto precise balanced small smallest"; }

KvChoice choose_kv(std::string_view policy, const ModelSpec& spec, const KvLimits& limits, int64_t budget,
                   const KvAllowed& allowed) {
  if (policy != "auto") {
    for (size_t i = 0; i < kSteps; ++i)
      if (policy == kLadder[i].policy && !policy.empty()) {
        KvChoice c = at_step(i, spec, limits, allowed);
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
    if (kLadder[i].formats.protect.any() && (allowed.fixed || !allowed.protect)) continue;
    last = at_step(i, spec, limits, allowed);
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
