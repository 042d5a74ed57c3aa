// Quantized Hugging Face checkpoints: which tensors belong together, and what they become (docs/formats.md
// section 10). What counts are the tensors that are there; config.json tells what they cannot.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/safetensors.h"

namespace carat {

struct QuantConfig {
  std::string method;  // "" if neither file says
  std::string format;
  int64_t group = 0;                           // 0: not said
  int64_t block_rows = 128, block_cols = 128;  // of FP8 with a scale per block
  std::vector<std::string> ignore;
};
// config: the text of config.json; modelopt: that of hf_quant_config.json, or empty. Error that names a
// scheme which cannot be read.
QuantConfig read_quant_config(std::string_view config, std::string_view modelopt, std::string_view path);

// One matrix (or a stack of them) that is stored as several tensors, by what stands behind its name.
struct QuantModule {
  std::string base;  // without ".weight"
  std::map<std::string, SafeTensor, std::less<>> parts;
  const SafeTensor* find(std::string_view part) const {
    const auto it = parts.find(part);
    return it == parts.end() ? nullptr : &it->second;
  }
};
struct QuantSplit {
  std::vector<QuantModule> modules;
  std::vector<SafeTensor> plain;
  size_t passed_over = 0;  // scales of activations and of caches: ours need none
};
// Error that names a scheme which cannot be read, by the tensors that it has.
QuantSplit split_quantized(std::span<const SafeTensor> tensors, std::string_view path);

// A matrix in a type of ours. Its values are those of the rows times `factor`.
struct Repacked {
  DType type = DType::f32;
  int64_t rows = 0, cols = 0;
  float factor = 1;
  bool has_factor = false;
  float divisor = 0;   // that the file has instead of a factor: factor = 1 / divisor
  std::string scheme;  // "NVFP4", ... for people
  std::vector<std::byte> bytes;
};
// Bit for bit the values that the files mean; types of ours that cannot hold them become floats that can.
// The module's matrices, one for each slice of a stack.
std::vector<Repacked> repack(const QuantModule& module, const QuantConfig& config, std::string_view path);

// All values, rounded once as the producers' own readers do (a block's scale meets the factor first).
void decode(const Repacked& m, float* values);

// f32, f16 or bf16 rows that hold the values exactly, the smallest of them. row: fills a row.
Repacked pack_floats(int64_t rows, int64_t cols, const std::function<void(int64_t, float*)>& row);

// Integer codes times a scale per row and group of columns.
struct IntegerMatrix {
  int64_t rows = 0, cols = 0, group = 0;
  int low = 0, high = 0;                                  // all codes are among them
  std::function<void(int64_t row, int16_t* codes)> read;  // cols codes
  std::function<float(int64_t row, int64_t group)> scale;
};
// q4_0, q5_0 or q8_0 where codes and scales fit them, else floats.
Repacked pack_integers(const IntegerMatrix& m);

}  // namespace carat
