#include "tools/load_as.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "core/codec.h"
#include "tools/parallel.h"
#include "tools/quantize_rules.h"
#include "tools/type_mix.h"

namespace carat {
namespace {

constexpr std::string_view kMatrices[] = {
    "attn_q",       "attn_k",           "attn_v",         "attn_output",   "ffn_gate", "ffn_up",
    "ffn_down",     "ffn_gate_exps",    "ffn_up_exps",    "ffn_down_exps", "inp_gate", "proj",
    "ffn_up_shexp", "ffn_gate_up_exps", "ffn_gate_shexp", "ffn_down_shexp"};

bool is_float(DType t) { return t == DType::bf16 || t == DType::f16 || t == DType::f32; }

// Whether the tensor is one of the matrices of the first `layers` layers.
bool is_matrix(const TensorInfo& t, int64_t layers) {
  if (t.shape.size() < 2 || !t.name.ends_with(".weight")) return false;
  const std::string_view name = std::string_view(t.name).substr(0, t.name.size() - 7);
  if (name == "per_layer_model_proj") return true;
  const int layer = layer_of(name);
  if (layer < 0 || layer >= layers) return false;
  return std::find(std::begin(kMatrices), std::end(kMatrices), name.substr(name.rfind('.') + 1)) !=
         std::end(kMatrices);
}
// Without the layers of a drafting head.
int64_t layers_of(const Metadata& meta) {
  const std::string arch = meta.get_string_or("general.architecture", "");
  return meta.get_int_or(arch + ".block_count", 0) - meta.get_int_or(arch + ".nextn_predict_layers", 0);
}

class Fp8Source : public WeightSource {
 public:
  Fp8Source(std::shared_ptr<WeightSource> from, int threads,
            const std::function<void(double, std::string_view)>& progress)
      : from_(std::move(from)), threads_(tool_threads(threads)) {
    path_ = from_->path(), format_ = from_->format(), meta_ = from_->meta(), skipped_ = from_->skipped();
    layers_ = layers_of(meta_);
    tensors_.assign(from_->tensors().begin(), from_->tensors().end());
    size_t done = 0;
    for (TensorInfo& t : tensors_) {
      if (progress) progress(static_cast<double>(done++) / static_cast<double>(tensors_.size()), t.name);
      if (wanted(t)) encode(t);
    }
    if (bytes_.empty())
      throw Error(fmt::format("'{}' has no weights of 16 or 32 bits to load as fp8", path_),
                  "leave --load-as out: the file is quantized already");
    meta_.set("general.quantization", std::string("FP8 (row scales), made while loading"));
    index();
  }

 private:
  bool wanted(const TensorInfo& t) const { return is_float(t.type) && is_matrix(t, layers_); }

  // Scales are the checkpoint's floats and must be f16 here, too: where they are beyond it, the nearest.
  static float row_scale(const float* x, int64_t n, const CheckpointFloat& f) {
    const float s = f16_to_f32(f32_to_f16(fp8_scale(largest(x, n), f)));
    return s > 0 ? s : 0x1p-24f;
  }

  void encode(TensorInfo& t) {
    const int64_t cols = t.shape.back(), rows = t.elements() / cols;
    const int64_t pitch = row_bytes(DType::fp8, cols), from_pitch = row_bytes(t.type, cols);
    std::vector<std::byte>& out = bytes_.emplace_back(static_cast<size_t>(rows * pitch));
    const CheckpointFloat f{t.type};
    const int64_t step = 64;
    parallel_for(threads_, (rows + step - 1) / step, [&](int64_t piece) {
      std::vector<float> x(static_cast<size_t>(cols));
      for (int64_t r = piece * step; r < std::min(rows, (piece + 1) * step); ++r) {
        decode_row(t.type, t.data + r * from_pitch, x.data(), cols);
        if (!std::isfinite(largest(x.data(), cols)))
          throw Error(fmt::format("'{}' holds a value that is not finite", t.name),
                      "the weights are damaged");
        const float s = row_scale(x.data(), cols, f);
        std::byte* to = out.data() + r * pitch;
        fp8_codes(x.data(), cols, s, f, reinterpret_cast<uint8_t*>(to));
        const uint16_t h = f32_to_f16(s);
        std::memcpy(to + cols, &h, 2);
      }
    });
    release_mapped(t.data, t.bytes);
    t.type = DType::fp8, t.data = out.data(), t.bytes = out.size();
  }

  std::shared_ptr<WeightSource> from_;  // what is not encoded lies there
  std::vector<std::vector<std::byte>> bytes_;
  int threads_;
  int64_t layers_ = 0;
};

class Fp8Activations : public WeightSource {
 public:
  explicit Fp8Activations(std::shared_ptr<WeightSource> from) : from_(std::move(from)) {
    path_ = from_->path(), format_ = from_->format(), meta_ = from_->meta(), skipped_ = from_->skipped();
    tensors_.assign(from_->tensors().begin(), from_->tensors().end());
    bool rows = false, blocks = false;
    for (TensorInfo& t : tensors_) {
      if (t.type == DType::fp8) t.type = DType::fp8_a8, rows = true;
      const bool four = t.type == DType::mxfp4 || t.type == DType::nvfp4;
      if (!four || !is_matrix(t, layers_of(meta_))) continue;
      t.type = t.type == DType::mxfp4 ? DType::mxfp4_a8 : DType::nvfp4_a8, blocks = true;
    }
    if (!rows && !blocks)
      throw Error(
          fmt::format("'{}' has no weights in FP8, MXFP4 or NVFP4, whose activations could be rounded to FP8",
                      path_),
          "leave --activations out, or add --load-as fp8 where weights have 16 bits");
    meta_.set("general.activations", std::string(!blocks ? "FP8 (row scales)"
                                                 : !rows ? "FP8 (scales of 32 columns)"
                                                         : "FP8 (scales of rows and of 32 columns)"));
    index();
  }

 private:
  std::shared_ptr<WeightSource> from_;
};

}  // namespace

std::shared_ptr<WeightSource> round_activations(std::shared_ptr<WeightSource> source) {
  return std::make_shared<Fp8Activations>(std::move(source));
}
std::shared_ptr<WeightSource> load_as_fp8(std::shared_ptr<WeightSource> source, int threads,
                                          const std::function<void(double, std::string_view)>& progress) {
  return std::make_shared<Fp8Source>(std::move(source), threads, progress);
}

}  // namespace carat
