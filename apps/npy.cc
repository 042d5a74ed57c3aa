#include "apps/npy.h"

#include "base/error.h"

namespace carat {

NpyWriter::NpyWriter(const std::string& path, const std::vector<int64_t>& shape) : file_(path) {
  std::string dims;
  for (const int64_t n : shape) {
    dims += fmt::format("{}{}", dims.empty() ? "" : ", ", n);
    left_ *= n;
  }
  if (shape.size() == 1) dims += ',';  // as Python writes tuples
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", dims);
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  const auto n = static_cast<uint16_t>(header.size());
  file_.write(std::string("\x93NUMPY\x01\x00", 8));
  const unsigned char size[2] = {static_cast<unsigned char>(n & 255), static_cast<unsigned char>(n >> 8)};
  file_.write(size, 2);
  file_.write(header);
}

void NpyWriter::write(std::span<const float> values) {
  left_ -= static_cast<int64_t>(values.size());
  file_.write(values.data(), values.size_bytes());
}

void NpyWriter::commit() {
  CARAT_CHECK(left_ == 0, "{} values missing", left_);
  file_.commit();
}

}  // namespace carat
