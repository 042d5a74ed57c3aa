#include "serve/api/json_reader.h"

#include <doctest/doctest.h>

#include <ctime>

using namespace carat;

TEST_CASE("bodies are read as the library reads them") {
  for (const char* text :
       {"{}", "[]", "null", "true", "-0", "1e3", "18446744073709551615", "-9223372036854775808", "1.10",
        "\"\\u00e9\"", R"({"b":1,"a":[{"c":null},2.5,"x"],"b":2})", R"({"a":{"z":1,"y":{"x":[]}}})",
        R"({"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"b":10,"a":11})"}) {
    CAPTURE(text);
    CHECK(read_json(text).dump() == Json::parse(text).dump());
  }
  for (const char* text : {"", "{", "[1,2", "{\"a\" 1}", "{\"a\":1,}", "nul", "\"\xff\"", "1e999", "{}x"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(read_json(text), Json::exception);
  }
}

TEST_CASE("many keys take linear time") {
  const auto seconds = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += "\"k" + std::to_string(i) + "\":0,";
    text += "\"end\":1}";
    const std::clock_t began = std::clock();  // of the processor: the machine may be busy
    CHECK(read_json(text).size() == static_cast<size_t>(keys) + 1);
    return static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  };
  CHECK(seconds(200'000) < 10);  // quadratic: minutes
}
