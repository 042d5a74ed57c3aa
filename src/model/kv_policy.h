// Which format each cache gets. Global layers hold the long context and pay for it; the caches of sliding
// layers do not grow, so they stay precise longer.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"
#include "state/layout.h"

namespace carat {

struct KvLayerFormat {  // of one layer, whatever its kind has
  int32_t layer = 0;
  DType k = DType::f16, v = DType::f16;
};
struct KvFormats {
  DType k = DType::f16, v = DType::f16;                  // layers that see everything
  DType sliding_k = DType::f16, sliding_v = DType::f16;  // layers with a window
  // Where K = V, values and of keys only what their position rotates (KvSpec::pairs).
  bool single = false;
  std::vector<KvLayerFormat> layers = {};
  // Positions that layers which see everything keep in f16, too, where K or V has fewer than 8 bits a value.
  // Not those with a window: more bits for all of it (q8_0) take less than a second copy.
  KvProtect protect = {};
  std::string text() const;  // "q8_0/kv4, sliding q8_0/q8_0"
};
// What each layer keeps, for plan_kv.
std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, const KvFormats& formats);
// The same for KvPool, with what the model's weights add. Error if the backend cannot read it.
std::vector<KvLayerSpec> kv_layers(const Model& model, const Backend& backend, const KvFormats& formats);
// Whether some layer's keys can be rebuilt from its values.
bool has_single_copies(const ModelSpec& spec);

// Whether some layer's rows are kept a second time.
bool protects_rows(const std::vector<KvLayerSpec>& layers);

struct KvChoice {
  KvFormats formats;
  int64_t bytes = 0;  // of all caches
  std::string why;    // one sentence for people
};
// What a policy may choose beside types.
struct KvAllowed {
  bool single = false, protect = false;
  std::optional<KvProtect> fixed = {};  // protection that was asked for: every choice has it, and no other
};
KvAllowed allowed_by(const Backend& backend);  // what it reads
// Policies: "auto" takes the most precise of a ladder of measured pairs that fits into `budget` bytes;
// "precise" f16, "balanced" q8_0, "small" 4 bits and "smallest" 3-bit values, whatever the budget. Error for
// another name. (docs/lab/2026-11-22-kv-evidence.md)
KvChoice choose_kv(std::string_view policy, const ModelSpec& spec, const KvLimits& limits, int64_t budget,
                   const KvAllowed& allowed = {});
std::string kv_policies();  // their names

}  // namespace carat
