// float32 arrays as NumPy's .npy (format 1.0), written a piece at a time.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace carat {

class NpyWriter {
 public:
  NpyWriter(const std::string& path, const std::vector<int64_t>& shape);
  void write(std::span<const float> values);
  void commit();  // Error if the values written are not the shape's

 private:
  AtomicFile file_;
  int64_t left_ = 1;
};

}  // namespace carat
