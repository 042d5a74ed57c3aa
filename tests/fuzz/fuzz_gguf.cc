// Any bytes as a GGUF file: an Error or a consistent table of tensors, and no read outside the bytes.
#include <cstdlib>

#include "base/error.h"
#include "model/files/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const carat::GgufFile file = carat::parse_gguf(bytes, "fuzz");
    unsigned sum = 0;
    for (const carat::TensorInfo& t : file.tensors) {
      if (t.data < bytes.data() || t.data + t.bytes > bytes.data() + size) std::abort();
      for (size_t i = 0; i < t.bytes; ++i) sum += static_cast<unsigned>(t.data[i]);
      const carat::Tensor view = t.tensor();
      if (view.slice_pitch * view.slices != static_cast<int64_t>(t.bytes)) std::abort();
    }
    for (const auto& [key, value] : file.meta.all()) sum += static_cast<unsigned>(key.size() + value.index());
    volatile unsigned keep = sum;
    (void)keep;
  } catch (const carat::Error& e) {
    if (e.what()[0] == '\0') std::abort();
  }
  return 0;
}
