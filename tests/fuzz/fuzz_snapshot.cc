// Any bytes as a saved sequence (its checksum made right, or nothing behind it would be reached): an Error or
// a sequence that holds what the file says; never a read outside the file, never half a sequence.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "state/saved_sum.h"
#include "state/snapshot.h"
#include "tests/heap_backend.h"

using namespace carat;

namespace {

constexpr const char* kModel = "fuzz";

struct Target {
  std::string path =
      (std::filesystem::temp_directory_path() / ("fuzz-snapshot-" + std::to_string(::getpid())));
  test::HeapBackend backend;
  KvLimits limits{64, 1, 24, 16};
  KvPool pool{backend,
              {{{DType::f16, DType::q8_0, 2, 64, 40}, 0}, {{DType::f16, DType::q8_0, 1, 128, 0}, 1}},
              limits};
  PagePool pages{limits, pool.plan()};
  ~Target() { std::filesystem::remove(path); }
};

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Target t;
  std::string file(reinterpret_cast<const char*>(data), size);
  if (size >= 20) {
    SavedSum right;
    right.add(reinterpret_cast<const std::byte*>(data), size - 8);
    const uint64_t sum = right.value();
    std::memcpy(file.data() + size - 8, &sum, 8);
  }
  write(t.path, file);
  const auto attempt = [](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      if (e.what()[0] == '\0') std::abort();
    }
  };
  attempt([&] { saved_head(t.path); });
  attempt([&] { saved_tokens(t.path); });
  attempt([&] {
    Sequence s(t.pages);
    std::vector<int32_t> tokens;
    try {
      tokens = load_sequence(t.path, t.backend, t.pool, s, kModel);
    } catch (const Error&) {
      if (s.committed() != 0) std::abort();
      throw;
    }
    if (s.committed() != static_cast<int32_t>(tokens.size())) std::abort();
    // What was read is written again, and is the same.
    save_sequence(t.path + ".again", t.backend, t.pool, s, tokens, kModel);
    if (saved_tokens(t.path + ".again") != tokens) std::abort();
    std::filesystem::remove(t.path + ".again");
  });
  return 0;
}

// A seed in the first directory: what the program itself writes today.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::filesystem::path directory = (*arguments)[i];
    if (!std::filesystem::is_directory(directory)) continue;
    Target t;
    Sequence s(t.pages);
    std::vector<int32_t> tokens;
    for (int32_t at = 0; at < 5; ++at) {
      if (!s.append(1)) std::abort();
      s.commit(1);
      tokens.push_back(at * 7);
    }
    save_sequence(directory / "saved", t.backend, t.pool, s, tokens, kModel);
    break;
  }
  return 0;
}
