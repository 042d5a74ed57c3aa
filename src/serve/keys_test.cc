#include "serve/keys.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "serve/config.h"

using namespace carat;

namespace {

struct KeyFile {
  std::string path =
      (std::filesystem::temp_directory_path() / ("keys-" + std::to_string(::getpid()))).string();
  explicit KeyFile(const std::string& text) { write(text); }
  ~KeyFile() { std::filesystem::remove(path); }
  void write(const std::string& text) const { std::ofstream(path) << text; }
};

std::string name(KeyRing& ring, const char* key) {
  const auto client = ring.client_of(key);
  return client ? client->name : "";
}

}  // namespace

TEST_CASE("keys are trimmed, and a list without keys is no open door") {
  CHECK(read_api_keys(" x1, good\t,", "") == std::vector<std::string>{"x1", "good"});
  CHECK(read_api_keys("", "").empty());
  CHECK_THROWS_AS(read_api_keys(",", ""), Error);
  CHECK_THROWS_AS(read_api_keys("  ", ""), Error);
}

TEST_CASE("named keys come from a file that is read again when it changes") {
  const KeyFile file("# team\nanna  secret-1\nsecret-2 # without a name\n");
  KeyRing ring({"fixed"}, file.path, 0);
  CHECK(ring.needed());
  CHECK(name(ring, "fixed") == "key 1");
  CHECK(name(ring, "secret-1") == "anna");
  CHECK(name(ring, "secret-2") == "line 3");
  CHECK_FALSE(ring.client_of("secret"));
  CHECK_FALSE(ring.client_of(""));
  CHECK_FALSE(ring.client_of("anna"));
  file.write("bert secret-3\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  CHECK(name(ring, "secret-3") == "bert");
  CHECK_FALSE(ring.client_of("secret-1"));
  file.write("a b c\n");  // a mistake changes nothing
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  CHECK(name(ring, "secret-3") == "bert");
  CHECK_THROWS_AS(KeyRing({}, file.path, 0), Error);
}

TEST_CASE("a rate is each client's own") {
  KeyRing ring({}, "", 3);
  for (int i = 0; i < 3; ++i) CHECK(ring.wait_of("a") == 0);
  const double wait = ring.wait_of("a");
  CHECK(wait > 15);
  CHECK(wait <= 20);
  CHECK(ring.wait_of("b") == 0);
  KeyRing open({}, "", 0);
  for (int i = 0; i < 1000; ++i) CHECK(open.wait_of("a") == 0);
}

TEST_CASE("salts tell clients and their own salts apart") {
  CHECK(KeyRing::salt_of("a", "") == KeyRing::salt_of("a", ""));
  CHECK(KeyRing::salt_of("a", "") != KeyRing::salt_of("b", ""));
  CHECK(KeyRing::salt_of("a", "x") != KeyRing::salt_of("a", ""));
  CHECK(KeyRing::salt_of("ab", "c") != KeyRing::salt_of("a", "bc"));
  KeyRing ring({"one", "two"}, "", 0);
  CHECK(ring.client_of("one")->secret == ring.client_of("one")->secret);
  CHECK(ring.client_of("one")->secret != ring.client_of("two")->secret);
}
