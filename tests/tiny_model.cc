#include "tests/tiny_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "tools/forge.h"

namespace carat {
namespace {

struct Directory {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("carat-test-{}", ::getpid());
  Directory() { std::filesystem::create_directories(path); }
  ~Directory() {
    std::error_code ec;
    std::filesystem::remove_all(path, ec);
  }
};

}  // namespace

std::string test_directory() {
  static const Directory directory;
  return directory.path.string();
}

std::string tiny_model(std::string_view shape, std::string_view type, unsigned seed) {
  ForgeOptions options;
  options.shape = shape;
  options.type = type;
  options.seed = seed;
  options.out = fmt::format("{}/{}-{}-{}.gguf", test_directory(), shape, type, seed);
  if (!std::filesystem::exists(options.out)) forge(options);
  return options.out;
}

}  // namespace carat
