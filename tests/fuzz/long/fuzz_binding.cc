// Bytes over a small whole model (chosen by the first byte): each six give a place in the file's head and
// what stands there instead. Metadata to specification to binding: an Error, or a model that can be planned.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "model/files/gguf.h"
#include "model/model.h"
#include "tests/heap_backend.h"
#include "tools/forge.h"

using namespace carat;

namespace {

struct Models {
  std::filesystem::path dir =
      std::filesystem::temp_directory_path() / ("fuzz-binding-" + std::to_string(::getpid()));
  std::vector<std::string> bytes;
  std::vector<size_t> head;  // up to the first tensor's data
  Models() {
    std::filesystem::create_directories(dir);
    for (const char* shape : {"tiny", "tiny-moe", "tiny-e", "tiny-hybrid"}) {
      ForgeOptions o;
      o.shape = shape;
      o.type = "q4_k_m";
      o.threads = 1;
      o.out = dir / shape;
      forge(o);
      bytes.push_back(read_file(o.out, size_t{64} << 20));
      const GgufFile file = parse_gguf(std::as_bytes(std::span(bytes.back())), "seed");
      const std::byte* first = file.tensors.front().data;
      for (const TensorInfo& t : file.tensors) first = std::min(first, t.data);
      head.push_back(static_cast<size_t>(first - std::as_bytes(std::span(bytes.back())).data()));
    }
  }
  ~Models() { std::filesystem::remove_all(dir); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Models models;
  static const auto backend = std::make_unique<test::HeapBackend>();
  if (size < 7 || size > 256) return 0;
  const size_t which = data[0] % models.bytes.size();
  std::string file = models.bytes[which];
  for (size_t i = 1; i + 6 <= size; i += 6) {
    uint32_t place = 0;
    std::memcpy(&place, data + i, 3);
    file[place % models.head[which]] = static_cast<char>(data[i + 3]);
    if (data[i + 4] & 1) file[(place + 1) % models.head[which]] = static_cast<char>(data[i + 5]);
  }
  const std::string path = models.dir / "input.gguf";
  std::ofstream(path, std::ios::binary) << file;
  try {
    const Model m = load_model(open_source(path), *backend);
    if (m.spec.layers.empty() || m.spec.dim <= 0) std::abort();
  } catch (const Error& e) {
    if (e.what()[0] == '\0') std::abort();
  }
  return 0;
}
