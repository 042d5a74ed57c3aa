#include "model/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file_kind.h"
#include "model/files/gguf.h"

namespace carat {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;

[[noreturn]] void fail_file(std::string_view name, const std::string& what) {
  throw Error(fmt::format("'{}' {}", name, what), "the file is damaged or was cut short; download it again");
}

// Bits, since types below a byte exist. 0: unknown.
int bits_of(std::string_view dtype) {
  static const std::map<std::string_view, int> kBits = {
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8},
      {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"F64", 64},    {"I64", 64}, {"U64", 64}, {"C64", 64}};
  const auto it = kBits.find(dtype);
  return it == kBits.end() ? 0 : it->second;
}

struct Entry {
  SafeTensor tensor;
  std::vector<uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// The header has one fixed form, so it is read event by event: nothing else is accepted and no tree is built.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::string why;

  bool null() override { return reject("a null"); }
  bool boolean(bool) override { return reject("a bool"); }
  bool number_float(double, const std::string&) override { return reject("a fraction"); }
  bool binary(binary_t&) override { return reject("binary data"); }
  bool number_integer(int64_t) override { return reject("a negative number"); }
  bool number_unsigned(uint64_t v) override {
    if (!in_array_) return reject("a number");
    if (field_ == "data_offsets") {
      if (entries.back().offsets.size() == 2) return reject("three data_offsets");
      entries.back().offsets.push_back(v);
    } else {
      if (v > (uint64_t{1} << 60) || entries.back().tensor.shape.size() == 8)
        return reject("an absurd shape");
      entries.back().tensor.shape.push_back(static_cast<int64_t>(v));
    }
    return true;
  }
  bool string(std::string& s) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || in_array_ || field_ != "dtype") return reject("a string");
    entries.back().tensor.dtype = s;
    entries.back().has_dtype = true;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ >= 2 || in_array_ || (depth_ == 1 && !keyed_)) return reject("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    field_.clear();
    return true;
  }
  bool start_array(size_t) override {
    Entry* e = depth_ == 2 && !in_metadata_ && !in_array_ ? &entries.back() : nullptr;
    if (!e || (field_ != "shape" && field_ != "data_offsets")) return reject("an array");
    bool& seen = field_ == "shape" ? e->has_shape : e->has_offsets;
    if (seen) return reject("a repeated field");
    seen = in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool key(std::string& s) override {
    keyed_ = true;
    if (depth_ == 2) {
      if (!in_metadata_ && s != "dtype" && s != "shape" && s != "data_offsets")
        return reject("the field '" + printable(s) + "'");
      field_ = s;
      return true;
    }
    in_metadata_ = s == "__metadata__";
    if (in_metadata_) return true;
    if (!names_.insert(s).second) return reject("the tensor '" + printable(s) + "' twice");
    entries.emplace_back().tensor.name = s;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (why.empty()) why = fmt::format("is not JSON at its byte {}", position);
    return false;
  }

 private:
  bool reject(const std::string& what) {
    why = fmt::format("holds {} where none belongs", what);
    return false;
  }
  std::set<std::string> names_;
  std::string field_;
  int depth_ = 0;
  bool in_array_ = false, in_metadata_ = false, keyed_ = false;
};

// Sizes and the tensor's place in the buffer; offsets must continue where the tensor before ended.
void check_entry(const Entry& e, uint64_t expected, uint64_t buffer, std::string_view name) {
  const SafeTensor& t = e.tensor;
  const std::string shown = printable(t.name);
  if (!e.has_dtype || !e.has_shape || e.offsets.size() != 2) {
    fail_file(name, fmt::format("has a tensor '{}' without dtype, shape or data_offsets", shown));
  }
  const int bits = bits_of(t.dtype);
  if (bits == 0)
    fail_file(name, fmt::format("has a tensor '{}' of the unknown type '{}'", shown, printable(t.dtype)));
  uint64_t elements = 1;
  for (const int64_t d : t.shape) {
    const auto n = static_cast<uint64_t>(d);
    if (n != 0 && elements > (uint64_t{1} << 56) / n) {
      fail_file(name, fmt::format("has a tensor '{}' of impossible size", shown));
    }
    elements *= n;
  }
  const uint64_t begin = e.offsets[0], end = e.offsets[1], total = elements * static_cast<uint64_t>(bits);
  if (begin != expected) {
    fail_file(name, fmt::format("has {} before tensor '{}': it begins at {}, the one before ends at {}",
                                begin < expected ? "an overlap" : "a hole", shown, begin, expected));
  }
  if (end < begin || end > buffer) {
    fail_file(name,
              fmt::format("ends inside tensor '{}': it ends at {}, {} bytes are there", shown, end, buffer));
  }
  if (total % 8 != 0 || end - begin != total / 8) {
    fail_file(name,
              fmt::format("gives tensor '{}' {} bytes, its shape needs {}", shown, end - begin, total / 8));
  }
}

}  // namespace

std::vector<SafeTensor> parse_safetensors(std::span<const std::byte> file, std::string_view name) {
  if (const FileKind* kind = foreign_kind(file); kind && kind->is != kSafetensorsFile)
    throw Error(fmt::format("'{}' is {}, not a safetensors file", name, kind->is), std::string(kind->hint));
  if (file.size() < 8) fail_file(name, "is too short for a safetensors file");
  uint64_t n = 0;
  std::memcpy(&n, file.data(), 8);
  if (n > kMaxHeader) fail_file(name, fmt::format("claims a header of {} bytes", n));
  if (n > file.size() - 8) fail_file(name, fmt::format("ends inside its header of {} bytes", n));
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  if (n == 0 || text[0] != '{') fail_file(name, "is not a safetensors file: its header is not JSON");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + n, &reader)) {
    fail_file(name, "has a bad header: it " + (reader.why.empty() ? "is not JSON" : reader.why));
  }
  std::vector<Entry>& entries = reader.entries;
  const auto order = [](const Entry& e) {  // empty tensors share their offset with the one behind
    return e.offsets.size() == 2 ? std::pair(e.offsets[0], e.offsets[1])
                                 : std::pair<uint64_t, uint64_t>(0, 0);
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const Entry& a, const Entry& b) { return order(a) < order(b); });
  const std::span<const std::byte> buffer = file.subspan(8 + n);
  uint64_t expected = 0;
  std::vector<SafeTensor> tensors;
  tensors.reserve(entries.size());
  for (Entry& e : entries) {
    check_entry(e, expected, buffer.size(), name);
    expected = e.offsets[1];
    e.tensor.data = buffer.data() + e.offsets[0];
    e.tensor.bytes = e.offsets[1] - e.offsets[0];
    tensors.push_back(std::move(e.tensor));
  }
  if (expected != buffer.size()) {
    fail_file(name, fmt::format("has {} bytes behind its last tensor", buffer.size() - expected));
  }
  return tensors;
}

std::map<std::string, std::string> parse_shard_index(std::string_view json, std::string_view name) {
  const nlohmann::json doc = nlohmann::json::parse(json, nullptr, false);
  if (!doc.is_object() || !doc.contains("weight_map") || !doc["weight_map"].is_object() ||
      doc["weight_map"].empty()) {
    fail_file(name, "is not a shard index: it has no 'weight_map'");
  }
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : doc["weight_map"].items()) {
    if (!file.is_string()) fail_file(name, fmt::format("gives no file for tensor '{}'", printable(tensor)));
    const auto& s = file.get_ref<const std::string&>();
    if (s.empty() || s[0] == '.' || s.find('/') != s.npos || s.find('\0') != s.npos ||
        !s.ends_with(".safetensors")) {
      throw Error(fmt::format("'{}' names the shard '{}', which is not a .safetensors file beside it", name,
                              printable(s)),
                  "shards must stand in the model's own directory");
    }
    map.emplace(tensor, s);
  }
  return map;
}

}  // namespace carat
