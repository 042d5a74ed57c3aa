// Any bytes as a safetensors file and as a shard index.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/files/hf_dialect.h"
#include "model/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const std::byte* end = bytes.data();
    for (const carat::SafeTensor& t : carat::parse_safetensors(bytes, "fuzz")) {
      if (t.data < end || t.data + t.bytes > bytes.data() + size) std::abort();  // in order, no overlap
      end = t.data + t.bytes;
      carat::gguf_tensor_name(t.name);
    }
  } catch (const carat::Error& e) {
    if (e.what()[0] == '\0') std::abort();
  }
  try {
    for (const auto& [tensor, file] :
         carat::parse_shard_index(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz")) {
      if (file.find('/') != file.npos || file.starts_with('.')) std::abort();
    }
  } catch (const carat::Error&) {}
  return 0;
}
