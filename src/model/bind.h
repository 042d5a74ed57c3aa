// Binding a file's tensors to a model: every shape is checked and every failure names the tensor.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "model/model.h"

namespace carat {

// A weight matrix (or a stack of them) and the factor its products are multiplied with: NVFP4 files carry one
// beside the tensor (docs/formats.md section 4.2).
struct Linear {
  Tensor w;
  float scale = 1;
  bool valid() const { return w.valid(); }
};
class Binder {
 public:
  // Placed weights are kept alive by `owners`.
  Binder(const WeightSource& source, Backend& backend, const Progress& progress, std::vector<Buffer>& owners);

  bool has(const std::string& name) const { return source_.find(name) != nullptr; }
  // NAME.weight of shape [out, in], with NAME.scale if the file has one. scaled = false: that name means
  // something else.
  Linear linear(const std::string& name, int64_t out, int64_t in, WeightUse use = WeightUse::product,
                bool scaled = true);
  // NAME.weight of shape [experts, out, in]: rows [first, first + n) of every expert.
  Tensor experts(const std::string& name, int64_t experts, int64_t out, int64_t in, int64_t first, int64_t n);
  // Of the matrix NAME those rows r with first <= r % period < first + n, as a matrix of its own.
  Linear interleaved(const std::string& name, int64_t out, int64_t in, int64_t period, int64_t first,
                     int64_t n);
  // The rows of the matrix NAME in another order, or some of them.
  Linear picked(const std::string& name, int64_t out, int64_t in, std::span<const int64_t> rows);
  // NAME of a shape that begins with `out` and holds `in` values of each, as a matrix: a convolution over
  // patches that do not overlap.
  Linear flat(const std::string& name, int64_t out, int64_t in);
  // NAME of shape [rows, cols] as f32 on the host, whatever float type the file has.
  std::vector<float> read_matrix(const std::string& name, int64_t rows, int64_t cols) const;
  // f32 [1, n] on the device, whatever float type the file has. vector: Error if missing; optional: none if
  // missing.
  Tensor vector(const std::string& name, int64_t n);
  Tensor optional_vector(const std::string& name, int64_t n);
  // The gains of queries' or keys' norms, of which the first `turned` take rope_magnitude(scaling).
  Tensor head_gains(const std::string& name, int64_t n, const RopeScaling& scaling, int64_t turned);
  Tensor upload(const std::vector<float>& values);
  const int32_t* upload_ints(const std::vector<int32_t>& values);
  // The file's values, on the host.
  std::vector<float> read(const std::string& name, int64_t n) const;

 private:
  const TensorInfo& shaped(const std::string& name, const std::vector<int64_t>& shape) const;
  Tensor place(const TensorInfo& t, const Tensor& host, WeightUse use);

  const WeightSource& source_;
  Backend& backend_;
  const Progress& progress_;
  std::vector<Buffer>& owners_;
  double total_ = 1, done_ = 0;
};

}  // namespace carat
