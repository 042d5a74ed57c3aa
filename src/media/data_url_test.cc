#include "media/data_url.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"

using namespace carat;

namespace {

std::string text(const std::vector<uint8_t>& b) { return {b.begin(), b.end()}; }

}  // namespace

TEST_CASE("base64: RFC 4648's vectors, with padding and without") {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [plain, coded] : vectors) {
    CHECK(text(decode_base64(coded)) == plain);
    CHECK(encode_base64(decode_base64(coded)) == coded);
    std::string bare = coded;
    while (!bare.empty() && bare.back() == '=') bare.pop_back();
    CHECK(text(decode_base64(bare)) == plain);
  }
  CHECK(text(decode_base64("Zm9v\r\n Ym\tFy\n")) == "foobar");
  CHECK(decode_base64("-_-_") == decode_base64("+/+/"));
  std::vector<uint8_t> all(256);
  std::string coded;
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int i = 0; i < 256; ++i) all[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 255; i += 3) {
    const int word = all[i] << 16 | all[i + 1] << 8 | all[i + 2];
    for (const int shift : {18, 12, 6, 0}) coded += digits[word >> shift & 63];
  }
  CHECK(decode_base64(coded + "/w==") == all);
  CHECK(encode_base64(all) == coded + "/w==");
}

TEST_CASE("base64: all else is an error") {
  CHECK_THROWS_WITH(decode_base64("Zm9v!"), "no base64: byte 33 at 4");
  CHECK_THROWS_WITH(decode_base64("Zg==Zg=="), "no base64: byte 90 at 4");
  for (const char* cut : {"Z", "Zm9vY", "Zg=", "Zm8==", "Zg===", "Zm9v="})
    CHECK_THROWS_WITH(decode_base64(cut), doctest::Contains("base64 ends in the middle"));
  CHECK_THROWS_WITH(decode_base64("Zm9vYmFy", 5), "the file has more than the 5 bytes that are allowed");
  CHECK(decode_base64("Zm9vYmFy", 6).size() == 6);
}

TEST_CASE("data: URLs") {
  CHECK(text(file_of_request("data:image/png;base64,Zm9v")) == "foo");
  CHECK(text(file_of_request("DATA:;charset=x;BASE64,Zm9v")) == "foo");
  CHECK(text(file_of_request("Zm9v")) == "foo");
  CHECK_THROWS_WITH(file_of_request("data:image/svg+xml,%3Csvg"), "the data: URL holds no base64");
  CHECK_THROWS_WITH(file_of_request("data:image/png;base64"), "the data: URL holds no base64");
  CHECK_THROWS_WITH(file_of_request("https://example.org/a.png"), "'https:' addresses are not loaded");
  CHECK_THROWS_WITH(file_of_request("file:///etc/passwd"), "'file:' addresses are not loaded");
}
