#include "model/files/gguf.h"

#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"

namespace carat {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they stand in memory");

constexpr uint64_t kMaxEntries = uint64_t{1}
                                 << 24;  // of an array; the largest in use are merges, half a million
constexpr size_t kMaxName = 63;          // bytes of a tensor name

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
constexpr size_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // at least

const char* removed_or_unsupported(uint32_t id) {
  switch (id) {
    case 4:
    case 5: return "a type (Q4_2, Q4_3) that was removed from the format";
    case 31:
    case 32:
    case 33:
    case 36:
    case 37:
    case 38: return "a repacked type that was removed from the format";
    case 9:
    case 15: return "an activation type (Q8_1, Q8_K) that no weight may have";
    case 19:
    case 29: return "IQ1_S or IQ1_M";
    case 34:
    case 35: return "a ternary type (TQ1_0, TQ2_0)";
    case 41:
    case 42: return "Q1_0 or Q2_0 (or a fork's own type)";
    default: return "an unknown type";
  }
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  GgufFile parse() {
    GgufFile file;
    file.version = header();
    const uint64_t n_tensors = read<uint64_t>(), n_keys = read<uint64_t>();
    check_count(n_tensors, 8 + 1 + 4 + 4 + 8, "tensors");
    check_count(n_keys, 8 + 1 + 4 + 1, "metadata keys");
    for (uint64_t i = 0; i < n_keys; ++i) read_pair(file.meta);
    file.tensors.reserve(n_tensors);
    std::vector<uint64_t> offsets;
    std::set<std::string, std::less<>> names;
    for (uint64_t i = 0; i < n_tensors; ++i) {
      read_tensor(file, offsets);
      if (!names.insert(file.tensors.back().name).second) {
        fail("has two tensors named '{}'", printable(file.tensors.back().name));
      }
    }
    place(file, offsets);
    return file;
  }

  Metadata first_keys() {
    Metadata meta;
    header();
    read<uint64_t>();
    uint64_t keys = read<uint64_t>();
    try {
      for (; keys > 0; --keys) read_pair(meta);
    } catch (const Error&) {  // the head ends inside a key
    }
    return meta;
  }

 private:
  template <class... T>
  [[noreturn]] void fail(fmt::format_string<T...> f, T&&... v) const {
    throw Error(fmt::format("'{}' {}", name_, fmt::format(f, std::forward<T>(v)...)),
                "the file is damaged or was cut short; download or convert it again");
  }
  size_t left() const { return bytes_.size() - at_; }
  void need(uint64_t n, const char* what) const {
    if (n > left()) fail("ends inside {} (at byte {} of {})", what, at_, bytes_.size());
  }
  template <class T>
  T read() {
    need(sizeof(T), "its header");
    T v;
    std::memcpy(&v, bytes_.data() + at_, sizeof v);
    at_ += sizeof v;
    return v;
  }
  std::string read_string(const char* what, uint64_t max) {
    const uint64_t n = read<uint64_t>();
    if (n > max) fail("has {} of {} bytes at byte {}; at most {} are allowed", what, n, at_ - 8, max);
    need(n, what);
    std::string s(reinterpret_cast<const char*>(bytes_.data() + at_), n);
    at_ += n;
    return s;
  }
  // Every entry takes at least `least` bytes, so the file's size bounds the count before anything is
  // allocated.
  void check_count(uint64_t n, size_t least, const char* what) const {
    if (n > left() / least) fail("claims {} {} in {} bytes", n, what, left());
  }

  uint32_t header() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      if (const FileKind* kind = foreign_kind(bytes_))
        throw Error(fmt::format("'{}' is {}, not a GGUF file", name_, kind->is), std::string(kind->hint));
      throw Error(fmt::format("'{}' is not a GGUF file", name_),
                  "a model is a .gguf file or a directory with config.json and *.safetensors");
    }
    at_ = 4;
    const uint32_t version = read<uint32_t>();
    if (version != 0 && (version & 0xffff) == 0) {
      throw Error(fmt::format("'{}' is a big-endian GGUF file", name_), "use a little-endian file");
    }
    if (version != 2 && version != 3) {
      throw Error(fmt::format("'{}' is GGUF version {}; 2 and 3 are known", name_, version),
                  version < 2 ? "convert the model again with a current tool" : "a newer carat may read it");
    }
    return version;
  }

  void read_pair(Metadata& meta) {
    const std::string key = read_string("a metadata key", 65535);
    if (key.empty()) fail("has an empty metadata key");
    if (meta.find(key)) fail("has two metadata keys '{}'", printable(key));
    const uint32_t type = read<uint32_t>();
    if (key == "general.alignment" && type != kU32) fail("has a 'general.alignment' that is not u32");
    meta.set(key, type == kArray ? read_array(key) : read_scalar(key, type));
  }

  int64_t read_int(const std::string& key, uint32_t type) {
    switch (type) {
      case kU8: return read<uint8_t>();
      case kI8: return read<int8_t>();
      case kU16: return read<uint16_t>();
      case kI16: return read<int16_t>();
      case kU32: return read<uint32_t>();
      case kI32: return read<int32_t>();
      case kI64: return read<int64_t>();
      default: break;
    }
    const uint64_t v = read<uint64_t>();
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail("has the value {} at key '{}', above 2^63", v, printable(key));
    }
    return static_cast<int64_t>(v);
  }
  double read_float(uint32_t type) { return type == kF32 ? double{read<float>()} : read<double>(); }
  bool read_bool(const std::string& key) {
    const uint8_t v = read<uint8_t>();
    if (v > 1) fail("has the value {} as bool at key '{}'", int{v}, printable(key));
    return v == 1;
  }
  static bool is_float(uint32_t type) { return type == kF32 || type == kF64; }

  MetaValue read_scalar(const std::string& key, uint32_t type) {
    if (type > kF64) fail("has the unknown value type {} at key '{}'", type, printable(key));
    if (type == kString) return read_string("a string", uint64_t{1} << 30);
    if (type == kBool) return read_bool(key);
    if (is_float(type)) return read_float(type);
    return read_int(key, type);
  }

  MetaValue read_array(const std::string& key) {
    const uint32_t type = read<uint32_t>();
    const uint64_t n = read<uint64_t>();
    if (type == kArray) fail("has an array of arrays at key '{}'", printable(key));
    if (type > kF64) fail("has an array of the unknown type {} at key '{}'", type, printable(key));
    if (n > kMaxEntries) fail("has an array of {} entries at key '{}'", n, printable(key));
    check_count(n, kValueBytes[type], "array entries");
    if (type == kString) {
      return fill<std::string>(n, [&] { return read_string("a string", uint64_t{1} << 30); });
    }
    if (type == kBool) return fill<bool>(n, [&] { return read_bool(key); });
    if (is_float(type)) return fill<double>(n, [&] { return read_float(type); });
    return fill<int64_t>(n, [&] { return read_int(key, type); });
  }
  template <class T, class F>
  static std::vector<T> fill(uint64_t n, F&& next) {
    std::vector<T> v;
    v.reserve(n);
    for (uint64_t i = 0; i < n; ++i) v.push_back(next());
    return v;
  }

  void read_tensor(GgufFile& file, std::vector<uint64_t>& offsets) {
    TensorInfo t;
    t.name = read_string("a tensor name", kMaxName);
    if (t.name.empty()) fail("has a tensor without a name");
    const std::string shown = printable(t.name);
    const uint32_t n_dims = read<uint32_t>();
    if (n_dims > 4) fail("has a tensor '{}' of {} dimensions", shown, n_dims);
    t.shape.resize(n_dims);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < n_dims; ++i) {  // stored fastest first
      const uint64_t d = read<uint64_t>();
      // 2^60 elements: the product stays below 2^63 bytes for every type
      if (d == 0 || d > (uint64_t{1} << 60) / elements) fail("has a tensor '{}' of impossible size", shown);
      elements *= d;
      t.shape[n_dims - 1 - i] = static_cast<int64_t>(d);
    }
    const uint32_t id = read<uint32_t>();
    const auto type = dtype_of_ggml(id);
    if (!type) {
      throw Error(
          fmt::format("'{}': tensor '{}' has {} (id {})", name_, shown, removed_or_unsupported(id), id),
          "use a file of another quantization");
    }
    t.type = *type;
    const uint64_t cols = n_dims ? static_cast<uint64_t>(t.shape.back()) : 1;
    const DTypeInfo& f = info(t.type);
    if (cols % f.elems != 0) {
      fail("has a tensor '{}' with rows of {} elements; {} needs a multiple of {}", shown, cols, f.name,
           f.elems);
    }
    const uint64_t blocks = elements / f.elems;
    if (blocks > bytes_.size() / f.bytes) fail("is too small for its tensor '{}'", shown);
    t.bytes = blocks * f.bytes;
    offsets.push_back(read<uint64_t>());
    file.tensors.push_back(std::move(t));
  }

  // Offsets must be what they would be if the tensors were written one after the other, each padded.
  void place(GgufFile& file, const std::vector<uint64_t>& offsets) {
    const int64_t alignment = file.meta.get_int_or("general.alignment", 32);
    if (alignment < 8 || !std::has_single_bit(static_cast<uint64_t>(alignment))) {
      fail("has the alignment {}, which is not a power of two of at least 8", alignment);
    }
    const uint64_t mask = static_cast<uint64_t>(alignment) - 1;
    const uint64_t base = (at_ + mask) & ~mask;
    uint64_t expected = 0;
    for (size_t i = 0; i < offsets.size(); ++i) {
      TensorInfo& t = file.tensors[i];
      if (offsets[i] != expected) {
        fail("has its tensor '{}' at offset {}, where {} was expected", printable(t.name), offsets[i],
             expected);
      }
      if (base > bytes_.size() || expected > bytes_.size() - base ||
          t.bytes > bytes_.size() - base - expected) {
        fail("ends inside tensor '{}': {} bytes are needed, {} are there", printable(t.name),
             base + expected + t.bytes, bytes_.size());
      }
      t.data = bytes_.data() + base + expected;
      expected += (t.bytes + mask) & ~mask;
    }
  }

  std::span<const std::byte> bytes_;
  std::string_view name_;
  size_t at_ = 0;
};

class GgufSource : public WeightSource {
 public:
  explicit GgufSource(const std::string& path) {
    path_ = path;
    GgufFile first = load(path);
    format_ = fmt::format("GGUF v{}", first.version);
    const int64_t count = first.meta.get_int_or("split.count", 1), no = first.meta.get_int_or("split.no", 0);
    tensors_ = std::move(first.tensors);
    meta_ = std::move(first.meta);  // a copy of a vocabulary takes tens of MB
    if (count != 1 || no != 0) load_parts(meta_, no, count);
    meta_.erase("split.");
    index();
  }

 private:
  GgufFile load(const std::string& path) {
    files_.emplace_back(path);
    return parse_gguf(files_.back().bytes(), path);
  }
  void load_parts(const Metadata& meta, int64_t no, int64_t count) {
    if (count < 1 || count > 65535 || no < 0 || no >= count) {
      throw Error(fmt::format("'{}' says it is part {} of {}", path_, no + 1, count));
    }
    const std::string end = gguf_part_path("", no, count);
    if (no != 0) {
      const std::string prefix = path_.ends_with(end) ? path_.substr(0, path_.size() - end.size()) : "PREFIX";
      throw Error(fmt::format("'{}' is part {} of {} of a split model", path_, no + 1, count),
                  fmt::format("open the first part, '{}'", gguf_part_path(prefix, 0, count)));
    }
    if (!path_.ends_with(end)) {
      throw Error(fmt::format("'{}' is the first of {} parts, but is not named '...{}'", path_, count, end),
                  "give the parts their original names");
    }
    const std::string prefix = path_.substr(0, path_.size() - end.size());
    for (int64_t i = 1; i < count; ++i) {
      const std::string part_path = gguf_part_path(prefix, i, count);
      GgufFile part = load(part_path);
      const int64_t part_no = part.meta.get_int_or("split.no", -1);
      const int64_t part_count = part.meta.get_int_or("split.count", -1);
      if (part_no != i || part_count != count) {
        throw Error(fmt::format("'{}' says it is part {} of {}, not {} of {}", part_path, part_no + 1,
                                part_count, i + 1, count),
                    "the parts are of different models");
      }
      std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(tensors_));
    }
    const auto found = static_cast<int64_t>(tensors_.size());
    if (const int64_t total = meta.get_int_or("split.tensors.count", found); total != found) {
      throw Error(fmt::format("'{}' announces {} tensors, its parts hold {}", path_, total, found),
                  "the parts are of different models");
    }
  }

  std::vector<MappedFile> files_;
};

}  // namespace

std::string printable(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, 80)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return name.size() > 80 ? out + "..." : out;
}

std::string gguf_part_path(std::string_view prefix, int64_t no, int64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, no + 1, count);
}

GgufFile parse_gguf(std::span<const std::byte> bytes, std::string_view name) {
  return Parser(bytes, name).parse();
}

Metadata gguf_first_keys(std::span<const std::byte> head, std::string_view name) {
  return Parser(head, name).first_keys();
}

std::unique_ptr<WeightSource> open_gguf(const std::string& path) {
  return std::make_unique<GgufSource>(path);
}

}  // namespace carat
