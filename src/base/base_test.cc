#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"

using namespace carat;
namespace fs = std::filesystem;

TEST_CASE("philox4x32-10 known answers (Random123 kat_vectors)") {
  CHECK(philox4x32({0, 0, 0, 0}, 0, 0) ==
        std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t f = 0xffffffff;
  CHECK(philox4x32({f, f, f, f}, f, f) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("AtomicFile leaves the old file or the new one, never a part") {
  const fs::path dir = fs::temp_directory_path() / fmt::format("carat-base-test-{}", ::getpid());
  fs::create_directories(dir);
  const std::string path = (dir / "x").string();
  {
    AtomicFile f(path);
    f.write("one");
    f.commit();
  }
  {
    AtomicFile f(path);
    f.write("tw");
  }  // not committed
  CHECK(read_file(path) == "one");
  CHECK(std::distance(fs::directory_iterator(dir), {}) == 1);
  CHECK(MappedFile(path).bytes().size() == 3);
  CHECK_THROWS_AS(MappedFile(dir.string()), Error);
  CHECK_THROWS_AS(MappedFile((dir / "none").string()), Error);
  CHECK_THROWS_AS(AtomicFile((dir / "no" / "x").string()), Error);
  CHECK_THROWS_AS(read_file(path, 2), Error);
  fs::remove_all(dir);
}
