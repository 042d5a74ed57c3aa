#include "tools/imatrix.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "model/files/gguf.h"

namespace carat {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(fmt::format("'{}' {}", path, what),
              "an imatrix is a GGUF file of type 'imatrix', or the older .dat");
}

const float* floats(const TensorInfo& t, const std::string& path) {
  if (t.type != DType::f32) fail(path, fmt::format("has a tensor '{}' that is not f32", printable(t.name)));
  return reinterpret_cast<const float*>(t.data);
}

class DatReader {
 public:
  DatReader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}
  int32_t count(size_t least) {
    int32_t n = 0;
    take(&n, 4);
    if (n < 0 || static_cast<size_t>(n) * least > left()) fail(path_, "is cut short or no imatrix");
    return n;
  }
  void take(void* to, size_t n) {
    if (n > left()) fail(path_, "is cut short or no imatrix");
    std::memcpy(to, bytes_.data() + at_, n);
    at_ += n;
  }
  std::string text() {
    std::string s(static_cast<size_t>(count(1)), '\0');
    take(s.data(), s.size());
    return s;
  }
  size_t left() const { return bytes_.size() - at_; }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  size_t at_ = 0;
};

// A weight that is not a positive number would poison a least-squares fit.
void check_weights(const std::vector<float>& w, const std::string& name, const std::string& path) {
  for (const float v : w)
    if (!std::isfinite(v) || v < 0) fail(path, fmt::format("has a bad weight for '{}'", printable(name)));
}

}  // namespace

Imatrix Imatrix::load(const std::string& path) {
  const MappedFile file(path);
  Imatrix out;
  if (file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0) {
    const GgufFile gguf = parse_gguf(file.bytes(), path);
    if (gguf.meta.get_string_or("general.type", "") != "imatrix")
      fail(path, "is a GGUF file of another kind");
    out.chunks_ = gguf.meta.get_int_or("imatrix.chunk_count", 0);
    if (const auto* sets = gguf.meta.find_strings("imatrix.datasets"); sets && !sets->empty())
      out.dataset_ = sets->front();
    std::map<std::string, const TensorInfo*> by_name;
    for (const TensorInfo& t : gguf.tensors) by_name[t.name] = &t;
    constexpr std::string_view kSums = ".in_sum2";
    for (const auto& [name, sums] : by_name) {
      if (!name.ends_with(kSums)) continue;
      const std::string tensor = name.substr(0, name.size() - kSums.size());
      const auto it = by_name.find(tensor + ".counts");
      if (it == by_name.end()) fail(path, fmt::format("has no counts for '{}'", printable(tensor)));
      const int64_t cols = sums->shape.empty() ? 1 : sums->shape.back(), slices = sums->elements() / cols;
      if (it->second->elements() != slices)
        fail(path, fmt::format("has wrong counts for '{}'", printable(tensor)));
      const float *s = floats(*sums, path), *n = floats(*it->second, path);
      std::vector<float>& w = out.weights_[tensor];
      for (int64_t i = 0; i < sums->elements(); ++i) w.push_back(n[i / cols] > 0 ? s[i] / n[i / cols] : 1.0F);
      check_weights(w, tensor, path);
    }
    return out;
  }
  DatReader in(file.bytes(), path);
  for (int32_t left = in.count(12); left > 0; --left) {
    const std::string name = in.text();
    int32_t calls = 0;
    in.take(&calls, 4);
    std::vector<float> w(static_cast<size_t>(in.count(4)));
    in.take(w.data(), w.size() * 4);
    for (float& v : w) v = calls > 0 ? v / static_cast<float>(calls) : 1.0F;
    check_weights(w, name, path);
    out.weights_[name] = std::move(w);
  }
  if (in.left() >= 8) {
    int32_t chunks = 0;
    in.take(&chunks, 4);
    out.chunks_ = chunks;
    out.dataset_ = in.text();
  }
  return out;
}

std::span<const float> Imatrix::find(const std::string& tensor, int64_t slice, int64_t slices,
                                     int64_t cols) const {
  const auto it = weights_.find(tensor);
  if (it == weights_.end()) return {};
  const auto n = static_cast<int64_t>(it->second.size());
  if (n != cols && n != cols * slices) {
    throw Error(fmt::format("the imatrix has {} weights for '{}', which has {} columns", n, tensor, cols),
                "it was made for another model");
  }
  return std::span(it->second)
      .subspan(static_cast<size_t>(n == cols ? 0 : slice * cols), static_cast<size_t>(cols));
}

}  // namespace carat
