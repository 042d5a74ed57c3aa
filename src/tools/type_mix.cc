#include "tools/type_mix.h"

#include <charconv>

#include "base/error.h"
#include "core/codec.h"

namespace carat {
namespace {

constexpr Recipe kRecipes[] = {
    {"f32", DType::f32, 0},          {"f16", DType::f16, 1},          {"bf16", DType::bf16, 32},
    {"q8_0", DType::q8_0, 7},        {"q4_0", DType::q4_0, 2},        {"q4_1", DType::q4_1, 3},
    {"q5_0", DType::q5_0, 8},        {"q5_1", DType::q5_1, 9},        {"q2_k", DType::q2_k, 10},
    {"q3_k_s", DType::q3_k, 11},     {"q4_k_s", DType::q4_k, 14},     {"q4_k_m", DType::q4_k, 15},
    {"q5_k_s", DType::q5_k, 16},     {"q5_k_m", DType::q5_k, 17},     {"q6_k", DType::q6_k, 18},
    {"iq2_xxs", DType::iq2_xxs, 19}, {"iq2_xs", DType::iq2_xs, 20},   {"iq2_s", DType::iq2_s, 28},
    {"iq3_xxs", DType::iq3_xxs, 23}, {"iq3_s", DType::iq3_s, 26},     {"iq4_nl", DType::iq4_nl, 25},
    {"iq4_xs", DType::iq4_xs, 30},   {"mxfp4_moe", DType::mxfp4, 38}, {"nvfp4", DType::nvfp4, 39},
};

bool float_type(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

bool never_quantized(std::string_view name) {
  if (!name.ends_with("weight") || name.ends_with("_norm.weight")) return true;
  for (const std::string_view part :
       {"ffn_gate_inp", "ssm_conv1d", "per_layer_model_proj", "altup", "laurel", "rope_freqs", "masked_embd"})
    if (name.find(part) != name.npos) return true;
  return false;
}

template <class F>
std::string names_of(F wanted) {
  std::string names;
  for (const Recipe& r : kRecipes)
    if (wanted(r)) names += fmt::format("{}{}", names.empty() ? "" : " ", r.name);
  return names;
}

}  // namespace

const Recipe* find_recipe(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  for (const Recipe& r : kRecipes)
    if (r.name == lower) return &r;
  return nullptr;
}

std::string recipe_names() {
  return names_of([](const Recipe& r) { return can_encode(r.base); });
}
std::string all_recipe_names() {
  return names_of([](const Recipe&) { return true; });
}

int layer_of(std::string_view name) {
  int layer = -1;
  if (!name.starts_with("blk.")) return -1;
  std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

DType fitting_type(DType type, int64_t cols) {
  if (cols % info(type).elems == 0) return type;
  switch (type) {
    case DType::q4_k: type = DType::q5_0; break;
    case DType::q5_k: type = DType::q5_1; break;
    case DType::q6_k: type = DType::q8_0; break;
    case DType::q2_k:
    case DType::q3_k: type = DType::q4_0; break;
    default: type = info(type).elems == 256 ? DType::iq4_nl : DType::f16; break;
  }
  return cols % info(type).elems == 0 ? type : DType::f16;
}

DType TypeMix::wanted(std::string_view name, bool experts) {
  const std::string_view r = recipe_.name;
  const DType base = recipe_.base;
  const bool k_m = r == "q4_k_m" || r == "q5_k_m";
  if (r == "mxfp4_moe") return experts ? DType::mxfp4 : DType::q8_0;
  if (name == "output.weight" || (name == "token_embd.weight" && !model_.has_output)) {
    return base == DType::q8_0 ? base : DType::q6_k;
  }
  const int layer = layer_of(name);
  const bool small_iq = base == DType::iq4_xs || base == DType::iq4_nl;
  if (name.find("attn_v.weight") != name.npos) {
    const int i = value_index_++;
    if (k_m && more(i, model_.values)) return DType::q6_k;
    if (r == "q4_k_s" && i < 4) return DType::q5_k;
    if (small_iq && model_.query_group >= 4) return DType::q5_k;
  }
  if (name.find("ffn_down") != name.npos) {
    if (k_m && more(layer, model_.layers)) return DType::q6_k;
    if (r == "q4_k_s" && layer < model_.layers / 8) return DType::q5_k;
    if (small_iq && !model_.has_imatrix && layer < model_.layers / 8) return DType::q5_k;
  }
  return base;
}

std::optional<DType> TypeMix::type_of(std::string_view name, const std::vector<int64_t>& shape) {
  if (shape.size() < 2 || (never_quantized(name) && recipe_.base != DType::f32)) return std::nullopt;
  if (float_type(recipe_.base)) return recipe_.base;
  return fitting_type(wanted(name, shape.size() == 3), shape.back());
}

}  // namespace carat
