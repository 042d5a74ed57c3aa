#include "apps/towers.h"

#include <algorithm>

#include "apps/progress.h"
#include "base/error.h"
#include "model/open_tower.h"

namespace carat {
namespace {

constexpr int32_t kBudgets[] = {70, 140, 280, 560, 1120};

bool hears(std::string_view tensor) { return tensor.starts_with("a.") || tensor.starts_with("mm.a."); }

}  // namespace

TowerFacts tower_facts(const WeightSource& towers) {
  TowerFacts f;
  f.path = towers.path();
  const Metadata& m = towers.meta();
  const auto number = [&](const char* key) { return m.get_int_or(fmt::format("clip.{}", key), 0); };
  for (const TensorInfo& t : towers.tensors()) {
    const bool sound = hears(t.name);
    if (!sound && !t.name.starts_with("v.") && !t.name.starts_with("mm.")) continue;
    (sound ? f.sound_parameters : f.parameters) += t.elements();
    (sound ? f.sound_bytes : f.bytes) += static_cast<int64_t>(t.bytes);
  }
  if (f.parameters > 0)
    f.pictures =
        m.get_string_or("clip.vision.projector_type", m.get_string_or("clip.projector_type", "unknown"));
  if (f.sound_parameters > 0) f.sound = m.get_string_or("clip.audio.projector_type", "unknown");
  f.layers = static_cast<int32_t>(number("vision.block_count"));
  f.dim = static_cast<int32_t>(number("vision.embedding_length"));
  f.patch = static_cast<int32_t>(number("vision.patch_size"));
  f.width = static_cast<int32_t>(number("vision.projection_dim"));
  const int64_t side =
      m.get_int_or("clip.vision.projector.scale_factor",
                   m.get_int_or("clip.vision.spatial_merge_size", f.pictures == "gemma4v" ? 3 : 2));
  f.group = static_cast<int32_t>(side * side);
  f.sound_layers = number("audio.block_count"), f.sound_dim = number("audio.embedding_length");
  return f;
}

std::optional<TowerFacts> tower_facts(const std::string& model) {
  try {
    if (const auto towers = open_towers(model)) return tower_facts(*towers);
  } catch (const Error&) {  // what is beside a model may be anything
  }
  return std::nullopt;
}

// As the towers' programs take it (families/*_vision.cc).
int64_t tower_work_bytes(const WeightSource& towers, int32_t rows) {
  const TowerFacts f = tower_facts(towers);
  const int64_t ffn = towers.meta().get_int_or("clip.vision.feed_forward_length", 0), d = f.dim;
  const bool gemma = f.pictures == "gemma4v";
  const bool limits = std::any_of(towers.tensors().begin(), towers.tensors().end(),
                                  [](const TensorInfo& t) { return t.name.ends_with(".input_min"); });
  int64_t columns = 3 * int64_t{f.patch} * f.patch + (gemma ? 9 : 8) * d + ffn;
  if (limits) columns += d + 2 * ffn;
  const int64_t of_row = gemma ? 2 * d + f.width : f.group * d + f.width;
  return 4 * encoder_rows(rows) * (f.group * columns + of_row);
}

int32_t largest_picture(bool in_one_step, int32_t step_rows) {
  if (!in_one_step) return std::end(kBudgets)[-1];
  const auto* it = std::upper_bound(std::begin(kBudgets) + 1, std::end(kBudgets), step_rows);
  return *std::prev(it);
}

std::string towers_text(const TowerFacts& f) {
  std::string out;
  if (!f.pictures.empty())
    out += fmt::format(
        "tower for pictures: {}, {} layers of {}, patches of {} x {}, {} of them a row of {}; {} parameters, "
        "{}, in {}\n",
        f.pictures, f.layers, f.dim, f.patch, f.patch, f.group, f.width, f.parameters,
        human_bytes(static_cast<double>(f.bytes)), f.path);
  if (!f.sound.empty())
    out += fmt::format("tower for sound: {}, {} layers of {}; {} parameters, {}, in {}\n", f.sound,
                       f.sound_layers, f.sound_dim, f.sound_parameters,
                       human_bytes(static_cast<double>(f.sound_bytes)), f.path);
  return out;
}

nlohmann::ordered_json towers_json(const TowerFacts& f) {
  nlohmann::ordered_json out = {{"path", f.path}};
  if (!f.pictures.empty())
    out["pictures"] = {{"kind", f.pictures},
                       {"layers", f.layers},
                       {"width", f.dim},
                       {"patch", f.patch},
                       {"patches_of_a_row", f.group},
                       {"row_width", f.width},
                       {"parameters", f.parameters},
                       {"bytes", f.bytes}};
  if (!f.sound.empty())
    out["sound"] = {{"kind", f.sound},
                    {"layers", f.sound_layers},
                    {"width", f.sound_dim},
                    {"parameters", f.sound_parameters},
                    {"bytes", f.sound_bytes}};
  return out;
}

}  // namespace carat
