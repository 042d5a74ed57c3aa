// Matrices that a checkpoint stores apart (one for each expert, quantized ones in parts), put together as the
// model reads them.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/files/hf_quant.h"

namespace carat {

class HfStacks {
 public:
  // Names end in "#E" for expert E of a stack.
  void add(const std::string& name, Repacked matrix);
  // Adds the stacks to the list, and their factors as NAME.scale. Tensors of the list that are named as
  // experts (unquantized ones) join them.
  void finish(std::vector<TensorInfo>& list, const std::function<std::byte*(size_t)>& own,
              bool fused = false);
  // "NVFP4: 21 matrices as nvfp4; ..."
  std::string summary() const;

 private:
  void fuse(const std::string& gate, const std::string& up, const std::string& both);
  std::map<std::string, std::map<int64_t, Repacked>> stacks_;  // -1: a matrix by itself
  std::map<std::string, size_t> counts_;
};

}  // namespace carat
