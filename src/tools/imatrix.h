// Column weights for quantization (docs/formats.md section 7), from the GGUF form or the older .dat.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace carat {

class Imatrix {
 public:
  static Imatrix load(const std::string& path);
  // Weights of the columns of one slice of a tensor; empty if the file does not know the tensor. Error if the
  // file knows it with another size.
  std::span<const float> find(const std::string& tensor, int64_t slice, int64_t slices, int64_t cols) const;
  size_t entries() const { return weights_.size(); }
  const std::string& dataset() const { return dataset_; }
  int64_t chunks() const { return chunks_; }

 private:
  std::map<std::string, std::vector<float>> weights_;  // [slices][cols]
  std::string dataset_;
  int64_t chunks_ = 0;
};

}  // namespace carat
