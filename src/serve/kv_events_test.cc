#include "serve/kv_events.h"

#include <doctest/doctest.h>

#include <numeric>

#include "base/error.h"

using namespace carat;

namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[c & 15];
  }
  return out;
}
std::string hex_text(const std::string& text) { return hex(text); }

PrefixChanges stored() {
  PrefixRun run{0, {11, 12}, std::vector<int32_t>(128)};
  std::iota(run.tokens.begin(), run.tokens.end(), 100);
  return {false, {}, {run}};
}

}  // namespace

// What msgpack 1.0.3 and msgspec write for the same events.
TEST_CASE("batches are the bytes that vLLM's subscribers decode") {
  const std::string array = hex(encode_kv_events(stored(), 64, true, 1.5));
  CHECK(array.starts_with("93cb3ff80000000000009198ab" + hex_text("BlockStored") + "920b0cc0dc00806465"));
  CHECK(
      array.ends_with("cce3"
                      "40"
                      "c0"
                      "a3" +
                      hex_text("GPU") +
                      "c0"
                      "00"));
  const std::string map = hex(encode_kv_events(stored(), 64, false, 1.5));
  CHECK(map.starts_with("93cb3ff80000000000009188a4" + hex_text("type") + "ab" + hex_text("BlockStored") +
                        "ac" + hex_text("block_hashes") + "920b0cb1" + hex_text("parent_block_hash") +
                        "c0a9" + hex_text("token_ids") + "dc00806465"));
  const PrefixChanges other{true, {uint64_t{1} << 63, 70000}, {{9, {10}, std::vector<int32_t>(64, 5)}}};
  CHECK(hex(encode_kv_events(other, 64, true, 0))
            .starts_with("93cb00000000000000009391b0" + hex_text("AllBlocksCleared") + "93ac" +
                         hex_text("BlockRemoved") + "92cf8000000000000000ce00011170a3" + hex_text("GPU") +
                         "98ab" + hex_text("BlockStored") + "910a09dc0040"));
}

TEST_CASE("topics have three parts") {
  CHECK(kv_event_topic("10.0.0.7", 8080, "gemma") == "kv@10.0.0.7:8080@gemma");
  CHECK(kv_event_topic("::1", 80, "a@b") == "kv@::1:80@a_b");
}

TEST_CASE("an address that cannot be had is an error with a hint") {
  CHECK_THROWS_AS(KvEvents({"tcp://256.0.0.1:1", "", "kv@a:1@b"}, 64), Error);
  CHECK_THROWS_AS(KvEvents({"nonsense", "", "kv@a:1@b"}, 64), Error);
}
