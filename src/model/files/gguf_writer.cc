#include "model/files/gguf_writer.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>

#include "base/error.h"
#include "model/files/gguf.h"

namespace carat {
namespace {

constexpr size_t kAlignment = 32;
constexpr size_t padded(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

template <class T>
void put(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
void put_string(std::string& out, std::string_view s) {
  put<uint64_t>(out, s.size());
  out += s;
}

// The narrowest of the types other readers expect: u32 for scalars, i32 in arrays, i64 for the rest.
enum : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kI64 = 11 };
bool fits_i32(int64_t v) {
  return v >= std::numeric_limits<int32_t>::min() && v <= std::numeric_limits<int32_t>::max();
}
uint32_t scalar_type(std::string_view key, int64_t v) {
  if (key.starts_with("general.sampling.") && fits_i32(v)) return kI32;
  if (v >= 0 && v <= std::numeric_limits<uint32_t>::max()) return kU32;
  return fits_i32(v) ? kI32 : kI64;
}
void put_int(std::string& out, uint32_t type, int64_t v) {
  if (type == kI64) {
    put<int64_t>(out, v);
  } else {
    put<uint32_t>(out, static_cast<uint32_t>(v));
  }
}

struct PutValue {
  std::string& out;
  const std::string& key;

  void operator()(bool v) const { put<uint32_t>(out, kBool), put<uint8_t>(out, v); }
  void operator()(int64_t v) const {
    const uint32_t type = scalar_type(key, v);
    put(out, type);
    put_int(out, type, v);
  }
  void operator()(double v) const { put<uint32_t>(out, kF32), put(out, static_cast<float>(v)); }
  void operator()(const std::string& v) const { put<uint32_t>(out, kString), put_string(out, v); }

  void array(uint32_t type, size_t n) const {
    put<uint32_t>(out, kArray);
    put(out, type);
    put<uint64_t>(out, n);
  }
  void operator()(const std::vector<bool>& v) const {
    array(kBool, v.size());
    for (const bool b : v) put<uint8_t>(out, b);
  }
  void operator()(const std::vector<int64_t>& v) const {
    const uint32_t type = std::all_of(v.begin(), v.end(), fits_i32) ? kI32 : kI64;
    array(type, v.size());
    for (const int64_t i : v) put_int(out, type, i);
  }
  void operator()(const std::vector<double>& v) const {
    array(kF32, v.size());
    for (const double d : v) put(out, static_cast<float>(d));
  }
  void operator()(const std::vector<std::string>& v) const {
    array(kString, v.size());
    for (const std::string& s : v) put_string(out, s);
  }
};

void check_room(const std::string& path, size_t bytes) {
  std::filesystem::path dir = std::filesystem::path(path).parent_path();
  if (dir.empty()) dir = ".";
  struct statvfs fs {};
  if (::statvfs(dir.c_str(), &fs) != 0) return;  // the first write will tell
  const uint64_t room = uint64_t{fs.f_bavail} * fs.f_frsize;
  if (fs.f_blocks == 0 || bytes <= room) return;  // some file systems report no sizes
  throw Error(fmt::format("'{}' needs {} MB, the disk has {} MB left", path, bytes >> 20, room >> 20),
              "free some space or write to another disk; nothing was written");
}

}  // namespace

size_t GgufTensor::bytes() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return static_cast<size_t>(row_bytes(type, n));
}

GgufWriter::GgufWriter(const std::string& path, const Metadata& meta, std::vector<GgufTensor> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  std::string& h = header_;
  h = "GGUF";
  put<uint32_t>(h, 3);
  put<uint64_t>(h, tensors_.size());
  put<uint64_t>(h, meta.all().size());
  for (const auto& [key, value] : meta.all()) put_pair(key, value);
  size_t offset = 0;
  std::set<std::string_view> names;
  for (const GgufTensor& t : tensors_) {
    if (t.name.empty() || t.name.size() > 63 || !names.insert(t.name).second || t.shape.size() > 4) {
      throw Error(
          fmt::format("a GGUF file cannot hold a tensor named '{}' beside the others", printable(t.name)));
    }
    const int64_t cols = t.shape.empty() ? 1 : t.shape.back();
    CARAT_CHECK(cols > 0 && cols % info(t.type).elems == 0, "{}: {} columns of {}", t.name, cols,
                info(t.type).name);
    put_string(h, t.name);
    put<uint32_t>(h, static_cast<uint32_t>(std::max<size_t>(t.shape.size(), 1)));
    if (t.shape.empty()) put<uint64_t>(h, 1);
    for (size_t i = t.shape.size(); i-- > 0;) put<uint64_t>(h, static_cast<uint64_t>(t.shape[i]));
    put<uint32_t>(h, info(t.type).ggml);
    put<uint64_t>(h, offset);
    offset += padded(t.bytes());
  }
  h.resize(padded(h.size()), '\0');
  total_ = h.size() + offset;
  check_room(path, total_);
  file_.write(h.data(), h.size());
  header_.clear();
  header_.shrink_to_fit();
}

void GgufWriter::put_pair(const std::string& key, const MetaValue& value) {
  put_string(header_, key);
  // the one alignment that is written
  std::visit(PutValue{header_, key}, key == "general.alignment" ? MetaValue{int64_t{kAlignment}} : value);
}

void GgufWriter::write(const void* data, size_t bytes) {
  if (bytes == 0) return;
  CARAT_CHECK(current_ < tensors_.size(), "all {} tensors are written", tensors_.size());
  const size_t size = tensors_[current_].bytes();
  CARAT_CHECK(in_current_ + bytes <= size, "{}: {} of {} bytes", tensors_[current_].name, in_current_ + bytes,
              size);
  file_.write(data, bytes);
  written_ += bytes;
  in_current_ += bytes;
  if (in_current_ < size) return;
  static constexpr char kZeros[kAlignment] = {};
  file_.write(kZeros, padded(size) - size);
  ++current_;
  in_current_ = 0;
}

void GgufWriter::finish() {
  CARAT_CHECK(current_ == tensors_.size(), "{} of {} tensors", current_, tensors_.size());
  file_.commit();
}

}  // namespace carat
