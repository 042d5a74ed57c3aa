#include "tools/forge.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "core/codec.h"
#include "tools/forge_fill.h"
#include "tools/forge_vocab.h"
#include "tools/parallel.h"
#include "tools/type_mix.h"
#include "tools/vocab.h"

namespace carat {
namespace {

constexpr int64_t kPiece = int64_t{1} << 18;  // elements that one seed fills; part of the file's definition
constexpr int64_t kSlab = 256 * kPiece;       // elements made and written at a time

// E-series Q4_K_M files in circulation: 70 Q5_K and 53 Q6_K (docs/formats.md section 8) are these.
DType e_series_type(std::string_view name, DType type) {
  if (type != DType::q4_k) return type;
  if (name.ends_with("inp_gate.weight") || name.ends_with(".proj.weight")) return DType::q5_k;
  if (name.ends_with("attn_v.weight")) return DType::q6_k;
  return type;
}

DType kept_type(std::string_view name) {
  if (name == "masked_embd_ordering") return DType::i32;
  return name == "per_layer_model_proj.weight" ? DType::bf16 : DType::f32;
}

// Tokens far apart in one cluster: every token once.
void fill_ordering(int64_t n, std::byte* out) {
  int64_t stride = n / 2 + 1;
  while (std::gcd(stride, n) != 1) ++stride;
  for (int64_t i = 0; i < n; ++i) {
    const auto token = static_cast<int32_t>(i * stride % n);
    std::memcpy(out + i * 4, &token, 4);
  }
}

void fill_vector(const ShapeTensor& t, std::byte* out, uint64_t seed) {
  auto* y = reinterpret_cast<float*>(out);
  const int64_t n = t.shape[0];
  for (int64_t i = 0; i < n; ++i) {
    // a quarter of the pairs turns (gemma4.md section 2.4.1)
    y[i] = t.name == "rope_freqs.weight"
               ? (i < n / 4 ? 1.0F : 1e30F)
               : t.mean + t.spread *
                              (2 * static_cast<float>(uniform_noise(seed, static_cast<uint64_t>(i), 0)) - 1);
  }
}

uint64_t piece_seed(uint64_t seed, size_t tensor, int64_t piece) {
  const auto r = philox4x32({static_cast<uint32_t>(tensor), static_cast<uint32_t>(piece), 0x464f5247, 0},
                            static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return uint64_t{r[0]} << 32 | r[1];
}

}  // namespace

ForgePlan plan_forge(const ForgeOptions& options) {
  const Recipe* recipe = find_recipe(options.type);
  if (!recipe)
    throw Error(fmt::format("unknown type '{}'", options.type), "known types: " + all_recipe_names());
  const ModelShape& shape = find_shape(options.shape);
  ForgePlan plan;
  plan.sources = shape_tensors(shape);
  plan.parameters = parameter_count(plan.sources);
  MixModel model{.layers = shape.layers, .query_group = shape.heads / shape.kv_sliding};
  for (const ShapeTensor& t : plan.sources) model.values += t.name.ends_with(".attn_v.weight");
  TypeMix mix(*recipe, model);
  for (const ShapeTensor& t : plan.sources) {
    DType type = mix.type_of(t.name, t.shape).value_or(kept_type(t.name));
    if (shape.per_layer && recipe->name == "q4_k_m")
      type = fitting_type(e_series_type(t.name, type), t.shape.back());
    const GgufTensor& out = plan.tensors.emplace_back(GgufTensor{t.name, type, t.shape});
    plan.tensor_bytes += out.bytes();
    ++plan.histogram[type];
  }
  return plan;
}

size_t forge(const ForgeOptions& options,
             const std::function<void(double, double, std::string_view)>& progress) {
  const ForgePlan plan = plan_forge(options);
  const ModelShape& shape = find_shape(options.shape);
  Metadata meta = shape_metadata(shape);
  meta.set("general.file_type", int64_t{find_recipe(options.type)->file_type});
  meta.set("general.quantization_version", int64_t{2});
  if (!shape.is_drafter())
    tokenizer_to_metadata(forge_vocabulary(shape.vocab), meta);  // a drafter's is its target's
  GgufWriter writer(options.out, meta, plan.tensors);
  const int threads = tool_threads(options.threads);
  std::vector<std::byte> slab;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const GgufTensor& t = plan.tensors[i];
    const ShapeTensor& source = plan.sources[i];
    if (t.shape.size() == 1) {
      slab.resize(t.bytes());
      if (t.type == DType::i32)
        fill_ordering(t.shape[0], slab.data());
      else
        fill_vector(source, slab.data(), piece_seed(options.seed, i, 0));
      writer.write(slab.data(), slab.size());
      continue;
    }
    int64_t n = 1;
    for (const int64_t d : t.shape) n *= d;
    for (int64_t first = 0; first < n; first += kSlab) {
      const int64_t part = std::min(kSlab, n - first);
      slab.resize(static_cast<size_t>(row_bytes(t.type, part)));
      parallel_for(threads, (part + kPiece - 1) / kPiece, [&](int64_t p) {
        const int64_t from = p * kPiece;
        fill_random(t.type, slab.data() + row_bytes(t.type, from), std::min(kPiece, part - from),
                    source.spread, piece_seed(options.seed, i, first / kPiece + p));
      });
      writer.write(slab.data(), slab.size());
      if (progress)
        progress(static_cast<double>(writer.written()), static_cast<double>(writer.total_bytes()), t.name);
    }
  }
  writer.finish();
  return writer.total_bytes();
}

}  // namespace carat
