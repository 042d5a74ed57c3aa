// Writes a GGUF v3 file in one pass: header first, then the tensors' bytes in the announced order, in pieces
// of any size. The file appears under its name only when it is complete.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/files/source.h"

namespace carat {

struct GgufTensor {
  std::string name;
  DType type = DType::f32;
  std::vector<int64_t> shape;  // outermost first; rows must be whole blocks
  size_t bytes() const;
};

class GgufWriter {
 public:
  // Writes the header. Integers become u32 where they fit, else i32 or i64; numbers f32. Error if the disk
  // has not enough room for all of it, or if a name or shape could not be read back.
  GgufWriter(const std::string& path, const Metadata& meta, std::vector<GgufTensor> tensors);
  // The next bytes of the current tensor; they may not go beyond its end.
  void write(const void* data, size_t bytes);
  size_t total_bytes() const { return total_; }  // of the file
  size_t written() const { return written_; }    // of the tensors
  void finish();                                 // every tensor must be complete

 private:
  void put_pair(const std::string& key, const MetaValue& value);

  AtomicFile file_;
  std::vector<GgufTensor> tensors_;
  size_t current_ = 0, in_current_ = 0, total_ = 0, written_ = 0;
  std::string header_;
};

}  // namespace carat
