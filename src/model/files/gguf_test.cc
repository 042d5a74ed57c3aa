// GGUF: what a good file gives, and a table of bad ones.
#include "model/files/gguf.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/file.h"

using namespace carat;
namespace fs = std::filesystem;

namespace {

// Writes the bytes of a GGUF file field by field, so that every field can be wrong.
struct Raw {
  std::string bytes;
  template <class T>
  Raw& put(T v) {
    bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  Raw& u32(uint32_t v) { return put(v); }
  Raw& u64(uint64_t v) { return put(v); }
  Raw& str(std::string_view s) {
    put<uint64_t>(s.size());
    bytes += s;
    return *this;
  }
  Raw& head(uint32_t version, uint64_t tensors, uint64_t keys) {
    bytes += "GGUF";
    return u32(version).u64(tensors).u64(keys);
  }
  Raw& arch() { return str("general.architecture").u32(8).str("gemma4"); }
  Raw& tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    str(name).u32(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) u64(d);
    return u32(type).u64(offset);
  }
  Raw& pad(size_t to = 32) {
    while (bytes.size() % to) bytes += '\0';
    return *this;
  }
  Raw& data(size_t n) {
    pad();
    for (size_t i = 0; i < n; ++i) bytes += static_cast<char>(i);
    return *this;
  }
};

GgufFile parse(const std::string& s) { return parse_gguf(std::as_bytes(std::span(s)), "test.gguf"); }

Raw good(uint32_t version = 3) {
  Raw r;
  r.head(version, 3, 6).arch();
  r.str("a.f").u32(6).put(1.5F).str("a.flag").u32(7).put<uint8_t>(1);
  r.str("a.list").u32(9).u32(5).u64(3).put<int32_t>(1).put<int32_t>(-2).put<int32_t>(3);
  r.str("a.words").u32(9).u32(8).u64(2).str("x").str("");
  r.str("a.bits").u32(9).u32(7).u64(2).put<uint8_t>(0).put<uint8_t>(1);
  r.tensor("w", {32, 2}, 8, 0).tensor("n", {3}, 0, 96).tensor("e", {2, 3, 4}, 0, 128);
  return r.data(128 + 96);
}

struct TempDir {
  fs::path path = fs::temp_directory_path() / fmt::format("carat-gguf-test-{}", ::getpid());
  TempDir() { fs::create_directories(path); }
  ~TempDir() { fs::remove_all(path); }
  std::string write(std::string_view name, std::string_view bytes) const {
    AtomicFile f((path / name).string());
    f.write(bytes);
    f.commit();
    return (path / name).string();
  }
};

// One Error whose text a user can read.
void check_error(const std::string& label, const std::string& part, const std::function<void()>& f) {
  CAPTURE(label);
  try {
    f();
    FAIL_CHECK("no error");
  } catch (const Error& e) {
    const std::string what = e.what();
    CHECK(what.find(part) != std::string::npos);
    CHECK(what.size() > 10);
    CHECK(what.size() < 400);
    CAPTURE(what);
    for (const char c : what + e.hint()) CHECK((c >= ' ' && c <= '~'));
  }
}

}  // namespace

TEST_CASE("a good file reads as it was written, v2 and v3") {
  for (const uint32_t version : {2U, 3U}) {
    const std::string bytes = good(version).bytes;
    const GgufFile f = parse(bytes);
    CHECK(f.version == version);
    CHECK(f.meta.get_string("general.architecture") == "gemma4");
    CHECK(f.meta.get_float("a.f") == 1.5);
    CHECK(f.meta.get_bool_or("a.flag", false));
    CHECK(f.meta.get_ints_per_layer("a.list", 3) == std::vector<int64_t>{1, -2, 3});
    CHECK(f.meta.get_ints_per_layer("a.bits", 2) == std::vector<int64_t>{0, 1});
    CHECK(*f.meta.find_strings("a.words") == std::vector<std::string>{"x", ""});
    REQUIRE(f.tensors.size() == 3);
    CHECK(f.tensors[0].type == DType::q8_0);
    CHECK(f.tensors[0].shape == std::vector<int64_t>{2, 32});
    CHECK(f.tensors[0].bytes == 68);
    CHECK(f.tensors[1].data - f.tensors[0].data == 96);
    CHECK(static_cast<int>(f.tensors[1].data[0]) == 96);
    const Tensor e = f.tensors[2].tensor();
    CHECK(e.slices == 4);
    CHECK(e.rows == 3);
    CHECK(e.cols == 2);
    CHECK(e.slice_pitch == 24);
  }
}

TEST_CASE("metadata getters name the key that is missing or of another type") {
  const std::string bytes = good().bytes;
  const GgufFile f = parse(bytes);
  check_error("missing", "'no.key'", [&] { f.meta.get_int("no.key"); });
  check_error("type", "'a.f'", [&] { f.meta.get_int("a.f"); });
  check_error("type or", "'a.list'", [&] { f.meta.get_int_or("a.list", 1); });
  check_error("length", "'a.list'", [&] { f.meta.get_ints_per_layer("a.list", 4); });
  CHECK(f.meta.get_ints_per_layer("a.list", 3).size() == 3);
  CHECK(f.meta.get_int_or("no.key", 7) == 7);
}

TEST_CASE("a file cut anywhere is one error") {
  const std::string bytes = good().bytes;
  // what is behind the last tensor's data is padding; everything before is needed
  for (size_t i = 0; i < 64; ++i) {
    const size_t n = bytes.size() * i / 64;
    check_error(fmt::format("{} of {} bytes", n, bytes.size()), "test.gguf",
                [&] { parse(bytes.substr(0, n)); });
  }
  check_error("one byte short", "test.gguf", [&] { parse(bytes.substr(0, bytes.size() - 1)); });
}

TEST_CASE("hostile and inconsistent GGUF files") {
  struct Case {
    const char* label;
    const char* says;
    Raw raw;
  };
  const uint64_t huge = uint64_t{1} << 62, all = ~uint64_t{0};
  Raw magic = good();
  magic.bytes[0] = 'X';
  const Case cases[] = {
      {"wrong magic", "not a GGUF", magic},
      {"big-endian", "big-endian", Raw().head(0x03000000, 0, 0)},
      {"version 1", "version 1", Raw().head(1, 0, 0)},
      {"version 4", "version 4", Raw().head(4, 0, 0)},
      {"version 0", "version 0", Raw().head(0, 0, 0)},
      {"tensor count", "claims", Raw().head(3, all, 0)},
      {"key count", "claims", Raw().head(3, 0, huge).arch()},
      {"key length", "metadata key", Raw().head(3, 0, 1).u64(all).data(64)},
      {"key beyond the end", "ends inside", Raw().head(3, 0, 1).u64(60000).data(64)},
      {"empty key", "empty", Raw().head(3, 0, 1).str("").u32(4).u32(1)},
      {"twice the key", "two metadata keys", Raw().head(3, 0, 2).arch().arch()},
      {"value type", "value type 13", Raw().head(3, 0, 1).str("k").u32(13).u64(0)},
      {"string length", "string", Raw().head(3, 0, 1).str("k").u32(8).u64(all)},
      {"bool", "bool", Raw().head(3, 0, 1).str("k").u32(7).put<uint8_t>(2)},
      {"u64 above i64", "above", Raw().head(3, 0, 1).str("k").u32(10).u64(all)},
      {"nested array", "array of arrays",
       Raw().head(3, 0, 1).str("k").u32(9).u32(9).u64(1).u32(4).u64(1).u32(1)},
      {"array count", "array", Raw().head(3, 0, 1).str("k").u32(9).u32(0).u64(all)},
      {"array beyond the end", "claims", Raw().head(3, 0, 1).str("k").u32(9).u32(4).u64(100).u32(1)},
      {"strings beyond the end", "claims", Raw().head(3, 0, 1).str("k").u32(9).u32(8).u64(2).str("")},
      {"array type", "unknown type", Raw().head(3, 0, 1).str("k").u32(9).u32(99).u64(0)},
      {"alignment 0", "alignment", Raw().head(3, 0, 1).str("general.alignment").u32(4).u32(0)},
      {"alignment 4", "alignment", Raw().head(3, 0, 1).str("general.alignment").u32(4).u32(4)},
      {"alignment 3", "alignment", Raw().head(3, 0, 1).str("general.alignment").u32(4).u32(3)},
      {"alignment i32", "alignment", Raw().head(3, 0, 1).str("general.alignment").u32(5).u32(32)},
      {"alignment 2^31", "ends inside",
       Raw().head(3, 1, 1).str("general.alignment").u32(4).u32(1U << 31).tensor("w", {8}, 0, 0).data(32)},
      {"five dimensions", "dimensions", Raw().head(3, 1, 0).tensor("w", {1, 1, 1, 1, 1}, 0, 0).data(32)},
      {"2^32 dimensions", "dimensions", Raw().head(3, 1, 0).str("w").u32(~0U).u64(1).u32(0).u64(0).data(32)},
      {"zero dimension", "size", Raw().head(3, 1, 0).tensor("w", {32, 0}, 0, 0).data(32)},
      {"product overflows", "size", Raw().head(3, 1, 0).tensor("w", {huge, 8}, 0, 0).data(32)},
      {"product wraps to 0", "size",
       Raw().head(3, 1, 0).tensor("w", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0)},
      {"negative dimension", "size", Raw().head(3, 1, 0).tensor("w", {all}, 0, 0).data(32)},
      {"larger than the file", "too small", Raw().head(3, 1, 0).tensor("w", {1U << 30}, 0, 0).data(32)},
      {"ends inside", "ends inside tensor 'w'", Raw().head(3, 1, 0).tensor("w", {16}, 0, 0).data(63)},
      {"no name", "without a name", Raw().head(3, 1, 0).tensor("", {8}, 0, 0).data(32)},
      {"long name", "tensor name", Raw().head(3, 1, 0).tensor(std::string(64, 'a'), {8}, 0, 0).data(32)},
      {"twice the name", "two tensors",
       Raw().head(3, 2, 0).tensor("w", {8}, 0, 0).tensor("w", {8}, 0, 32).data(64)},
      {"overlap", "where 32 was expected",
       Raw().head(3, 2, 0).tensor("v", {8}, 0, 0).tensor("w", {8}, 0, 0).data(64)},
      {"hole", "where 32 was expected",
       Raw().head(3, 2, 0).tensor("v", {8}, 0, 0).tensor("w", {8}, 0, 64).data(96)},
      {"not padded", "where 32 was expected",
       Raw().head(3, 2, 0).tensor("v", {4}, 0, 0).tensor("w", {8}, 0, 16).data(96)},
      {"offset 2^64", "offset", Raw().head(3, 1, 0).tensor("w", {8}, 0, all).data(32)},
      {"partial block", "multiple of 32", Raw().head(3, 1, 0).tensor("w", {33}, 8, 0).data(64)},
      {"partial super-block", "multiple of 256", Raw().head(3, 1, 0).tensor("w", {704}, 12, 0).data(512)},
      {"unprintable names", "\\x1b", Raw().head(3, 1, 0).tensor("\x1b[2J\xff", {33}, 8, 0).data(64)},
  };
  for (const Case& c : cases) check_error(c.label, c.says, [&] { parse(c.raw.bytes); });
  for (const uint32_t type :
       {4U, 5U, 9U, 15U, 19U, 29U, 31U, 32U, 33U, 34U, 36U, 37U, 38U, 42U, 43U, 1000U, ~0U}) {
    Raw r;
    r.head(3, 1, 0).tensor("w", {256}, type, 0).data(2048);
    check_error(fmt::format("type {}", type), fmt::format("id {}", type), [&] { parse(r.bytes); });
  }
}

TEST_CASE("split files: all parts or one error") {
  const TempDir dir;
  const auto part = [](int no, int count, std::string_view tensor, int total) {
    Raw r;
    r.head(3, 1, no == 0 ? 4 : 3);
    if (no == 0) r.arch();
    r.str("split.no").u32(2).put<uint16_t>(static_cast<uint16_t>(no));
    r.str("split.count").u32(2).put<uint16_t>(static_cast<uint16_t>(count));
    r.str("split.tensors.count").u32(5).put<int32_t>(total);
    return r.tensor(tensor, {8}, 0, 0).data(32).bytes;
  };
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, "a", 2));
  check_error("part missing", "m-00002-of-00002.gguf", [&] { open_source(first); });
  const std::string second = dir.write("m-00002-of-00002.gguf", part(1, 2, "b", 2));
  const auto source = open_source(first);
  CHECK(source->tensors().size() == 2);
  CHECK(source->get("b").bytes == 32);
  CHECK(source->find("c") == nullptr);
  CHECK(source->total_bytes() == 64);
  CHECK(source->meta().find("split.count") == nullptr);
  check_error("no such tensor", "'c'", [&] { source->get("c"); });
  try {
    open_source(second);
    FAIL_CHECK("no error");
  } catch (const Error& e) {
    CHECK(e.hint().find("m-00001-of-00002.gguf") != std::string::npos);
  }
  dir.write("m-00002-of-00002.gguf", part(1, 3, "b", 2));
  check_error("other count", "part 2 of 3", [&] { open_source(first); });
  dir.write("m-00002-of-00002.gguf", part(0, 2, "b", 2));
  check_error("other number", "part 1 of 2", [&] { open_source(first); });
  dir.write("m-00002-of-00002.gguf", part(1, 2, "a", 2));
  check_error("same tensor", "two tensors", [&] { open_source(first); });
  dir.write("m-00002-of-00002.gguf", part(1, 2, "b", 2));
  dir.write("m-00001-of-00002.gguf", part(0, 2, "a", 3));
  check_error("tensors missing", "3 tensors", [&] { open_source(first); });
  check_error("renamed", "not named", [&] { open_source(dir.write("other.gguf", part(0, 2, "a", 2))); });
  check_error("count 0", "part 1 of 0", [&] { open_source(dir.write("zero.gguf", part(0, 0, "a", 1))); });
  check_error("empty file", "not a GGUF", [&] { open_source(dir.write("empty.gguf", "")); });
  check_error("no file", "none.gguf", [&] { open_source((dir.path / "none.gguf").string()); });
}
