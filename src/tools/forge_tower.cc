#include "tools/forge_tower.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "model/files/gguf_writer.h"
#include "tools/forge_fill.h"
#include "tools/parallel.h"
#include "tools/shapes.h"
#include "tools/type_mix.h"

namespace carat {
namespace {

struct TowerShape {
  std::string_view name, title;
  int32_t layers, dim, heads, ffn, width;  // the last: of the text's model
  bool limits;                             // of products; without them the exit is standardized
  int32_t positions = 10240;
};
constexpr TowerShape kTowerShapes[] = {
    {"e2b-mmproj", "Gemma 4 E2B's eyes", 16, 768, 12, 3072, 1536, true},
    {"e4b-mmproj", "Gemma 4 E4B's eyes", 16, 768, 12, 3072, 2560, true},
    {"26b-a4b-mmproj", "Gemma 4 26B-A4B's eyes", 27, 1152, 16, 4304, 2816, false},
    {"31b-mmproj", "Gemma 4 31B's eyes", 27, 1152, 16, 4304, 5376, false},
    {"tiny-mmproj", "Tiny eyes", 2, 96, 2, 192, 256, true, 256},
};
constexpr int32_t kPatch = 16;

const TowerShape* find(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTowerShapes), std::end(kTowerShapes),
                                [&](const TowerShape& s) { return s.name == name; });
  return it == std::end(kTowerShapes) ? nullptr : it;
}

std::vector<ShapeTensor> tensors_of(const TowerShape& s) {
  std::vector<ShapeTensor> out;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
    out.push_back({name + ".weight", {rows, cols}, 0, 1 / std::sqrt(static_cast<float>(cols))});
    if (!s.limits || name.starts_with("mm.")) return;
    for (const auto& [limit, at] : {std::pair{".input_min", -30.0F}, std::pair{".input_max", 30.0F},
                                    std::pair{".output_min", -30.0F}, std::pair{".output_max", 30.0F}})
      out.push_back({name + limit, {1}, at, 0});
  };
  const auto vector = [&](const std::string& name, int64_t n, float mean) {
    out.push_back({name, {n}, mean, 0.1F * mean});
  };
  const int32_t head = s.dim / s.heads;
  out.push_back(
      {"v.patch_embd.weight", {s.dim, 3, kPatch, kPatch}, 0, 1 / std::sqrt(3.0F * kPatch * kPatch)});
  out.push_back({"v.position_embd.weight", {2, s.positions, s.dim}, 0, 0.1F});
  for (int32_t i = 0; i < s.layers; ++i) {
    const std::string blk = fmt::format("v.blk.{}.", i);
    vector(blk + "ln1.weight", s.dim, 1);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_out"}) matrix(blk + name, s.dim, s.dim);
    for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"})
      vector(blk + name, head, std::pow(static_cast<float>(head), -0.25F));
    vector(blk + "attn_post_norm.weight", s.dim, 0.4F);
    vector(blk + "ln2.weight", s.dim, 1);
    matrix(blk + "ffn_gate", s.ffn, s.dim), matrix(blk + "ffn_up", s.ffn, s.dim),
        matrix(blk + "ffn_down", s.dim, s.ffn);
    vector(blk + "ffn_post_norm.weight", s.dim, 0.4F);
  }
  if (!s.limits) out.push_back({"v.std_bias", {s.dim}, 0, 0.1F}), vector("v.std_scale", s.dim, 1);
  matrix("mm.input_projection", s.width, s.dim);
  return out;
}

Metadata metadata_of(const TowerShape& s) {
  Metadata m;
  m.set("general.architecture", std::string("clip"));
  m.set("general.name", fmt::format("{} (random weights)", s.title));
  m.set("clip.has_vision_encoder", true);
  m.set("clip.has_audio_encoder", false);
  m.set("clip.use_gelu", true);
  m.set("clip.vision.projector_type", std::string("gemma4v"));
  m.set("clip.vision.image_mean", std::vector<double>(3, 0));
  m.set("clip.vision.image_std", std::vector<double>(3, 1));
  const auto set = [&](const char* key, int64_t v) { m.set(fmt::format("clip.vision.{}", key), v); };
  set("image_size", 224), set("patch_size", kPatch), set("embedding_length", s.dim);
  set("feed_forward_length", s.ffn), set("block_count", s.layers), set("projection_dim", s.width);
  set("attention.head_count", s.heads), set("projector.scale_factor", 3);
  m.set("clip.vision.attention.layer_norm_epsilon", 1e-6);
  return m;
}

uint64_t seed_of(uint64_t seed, size_t tensor) {
  const auto r = philox4x32({static_cast<uint32_t>(tensor), 0, 0x544f5752, 0}, static_cast<uint32_t>(seed),
                            static_cast<uint32_t>(seed >> 32));
  return uint64_t{r[0]} << 32 | r[1];
}

const TowerShape& known(std::string_view name) {
  const TowerShape* s = find(name);
  if (!s) throw Error(fmt::format("unknown shape '{}'", name), "known towers: " + tower_shape_names());
  return *s;
}

std::vector<GgufTensor> typed(const std::vector<ShapeTensor>& sources, std::string_view type) {
  const Recipe* recipe = find_recipe(type);
  if (!recipe) throw Error(fmt::format("unknown type '{}'", type), "known types: " + all_recipe_names());
  const bool plain = info(recipe->base).family == Family::plain || recipe->base == DType::q8_0;
  const DType wanted = plain ? recipe->base : DType::bf16;
  std::vector<GgufTensor> out;
  for (const ShapeTensor& t : sources) {
    const bool product = t.shape.size() == 2;
    out.push_back({t.name, product ? fitting_type(wanted, t.shape[1]) : DType::f32, t.shape});
  }
  return out;
}

class ShapeOnly : public WeightSource {
 public:
  ShapeOnly(const TowerShape& s, std::string_view type) {
    path_ = s.name, format_ = "shape";
    meta_ = metadata_of(s);
    for (const GgufTensor& t : typed(tensors_of(s), type)) {
      TensorInfo i;
      i.name = t.name, i.type = t.type, i.shape = t.shape, i.bytes = t.bytes();
      tensors_.push_back(std::move(i));
    }
    index();
  }
};

std::vector<std::byte> values_of(const GgufTensor& t, const ShapeTensor& source, uint64_t seed) {
  std::vector<std::byte> out(t.bytes());
  if (t.shape.size() > 1) {
    int64_t n = 1;
    for (const int64_t d : t.shape) n *= d;
    fill_random(t.type, out.data(), n, source.spread, seed);
    return out;
  }
  auto* y = reinterpret_cast<float*>(out.data());
  for (int64_t i = 0; i < t.shape[0]; ++i)
    y[i] = source.mean +
           source.spread * (2 * static_cast<float>(uniform_noise(seed, static_cast<uint64_t>(i), 0)) - 1);
  return out;
}

}  // namespace

bool is_tower_shape(std::string_view name) { return find(name) != nullptr; }

std::string tower_shape_names() {
  std::string names;
  for (const TowerShape& s : kTowerShapes) names += fmt::format("{}{}", names.empty() ? "" : " ", s.name);
  return names;
}

std::unique_ptr<WeightSource> tower_shape(std::string_view shape, std::string_view type) {
  return std::make_unique<ShapeOnly>(known(shape), type);
}

size_t forge_tower(std::string_view shape, const std::string& out, std::string_view type, uint64_t seed,
                   int threads) {
  const TowerShape* s = &known(shape);
  const std::vector<ShapeTensor> sources = tensors_of(*s);
  const std::vector<GgufTensor> tensors = typed(sources, type);
  std::vector<std::vector<std::byte>> bytes(tensors.size());  // 1.2 GB at most
  parallel_for(tool_threads(threads), static_cast<int64_t>(tensors.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    bytes[at] = values_of(tensors[at], sources[at], seed_of(seed, at));
  });
  GgufWriter writer(out, metadata_of(*s), tensors);
  for (const std::vector<std::byte>& b : bytes) writer.write(b.data(), b.size());
  writer.finish();
  return writer.total_bytes();
}

}  // namespace carat
