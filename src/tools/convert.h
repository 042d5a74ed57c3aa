// A model file or directory into a GGUF file of another type.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "model/files/source.h"

namespace carat {

struct ConvertOptions {
  std::string in, out, type = "q4_k_m", imatrix = {};
  int threads = 0;
  bool towers = false;  // they alone, as an mmproj file; type: bf16, f16, f32 or q8_0, else as they are
};
struct ConvertResult {
  size_t tensors = 0, skipped = 0, bytes_in = 0, bytes_out = 0;
  bool has_tokenizer = false;
};
// progress: share done, name of the tensor.
ConvertResult convert(const ConvertOptions& options,
                      const std::function<void(double, double, std::string_view)>& progress = {});

}  // namespace carat
