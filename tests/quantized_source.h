// A model with its matrices quantized in memory, for tests that need integer weights of a golden model.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "core/codec.h"
#include "model/files/source.h"

namespace carat::test {

class QuantizedSource : public WeightSource {
 public:
  // Matrices (and stacks) whose rows are whole blocks become `type`; the rest stays.
  QuantizedSource(std::shared_ptr<WeightSource> from, DType type) : from_(std::move(from)) {
    path_ = from_->path();
    format_ = "quantized in memory";
    meta_ = from_->meta();
    for (TensorInfo t : from_->tensors()) {
      const int64_t cols = t.shape.empty() ? 1 : t.shape.back();
      if (t.shape.size() >= 2 && cols % info(type).elems == 0) {
        const int64_t rows = t.elements() / cols;
        std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes(type, cols)));
        std::vector<float> x(static_cast<size_t>(cols));
        for (int64_t r = 0; r < rows; ++r) {
          decode_row(t.type, t.data + r * row_bytes(t.type, cols), x.data(), cols);
          encode_row(type, x.data(), bytes.data() + r * row_bytes(type, cols), cols);
        }
        owned_.push_back(std::move(bytes));
        t.type = type;
        t.data = owned_.back().data();
        t.bytes = owned_.back().size();
      }
      tensors_.push_back(t);
    }
    index();
  }

 private:
  std::shared_ptr<WeightSource> from_;
  std::vector<std::vector<std::byte>> owned_;
};

}  // namespace carat::test
