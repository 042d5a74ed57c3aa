#include "model/files/source.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "model/files/gguf.h"
#include "model/files/safetensors.h"
#include "model/files/what_it_is.h"

namespace carat {
namespace {

template <class T>
const T& get_as(const Metadata& meta, std::string_view key, std::string_view type) {
  const MetaValue* v = meta.find(key);
  if (!v) {
    throw Error(fmt::format("metadata key '{}' is missing", key),
                "the file may be of another model, or made by an old converter; convert it again");
  }
  if (const T* t = std::get_if<T>(v)) return *t;
  throw Error(fmt::format("metadata key '{}' is not {}", key, type));
}

// The projector among a file's neighbours, of the most exact type that their names tell; empty: none.
std::string projector_beside(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr std::string_view kTypes[] = {"bf16", "f32", "f16", "q8_0"};
  std::string best;
  size_t best_rank = 0;
  std::error_code ec;
  const fs::path parent = fs::path(path).parent_path();
  for (fs::directory_iterator i(parent.empty() ? "." : parent, ec), end; !ec && i != end; i.increment(ec)) {
    std::string name = i->path().filename().string();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (name.find("mmproj") == name.npos || !name.ends_with(".gguf")) continue;
    size_t rank = 0;
    while (rank < std::size(kTypes) && name.find(kTypes[rank]) == name.npos) ++rank;
    const std::string full = i->path().string();
    if (best.empty() || rank < best_rank || (rank == best_rank && full < best)) best = full, best_rank = rank;
  }
  return best;
}

// Of an array that says for each layer what others say once. Zeros stand for layers without the thing.
template <class T>
std::optional<T> same_value(const MetaValue& v) {
  const auto* all = std::get_if<std::vector<T>>(&v);
  if (!all || all->empty()) return std::nullopt;
  T value = 0;
  for (const T x : *all) {
    if (x == 0) continue;
    if (value != 0 && x != value) return std::nullopt;
    value = x;
  }
  return value;
}

}  // namespace

const MetaValue* Metadata::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}
int64_t Metadata::get_int(std::string_view key) const {
  if (const MetaValue* v = find(key))
    if (const auto one = same_value<int64_t>(*v)) return *one;
  return get_as<int64_t>(*this, key, "an integer, or an array of one and the same");
}
double Metadata::get_float(std::string_view key) const {
  if (const MetaValue* v = find(key)) {
    if (const auto* i = std::get_if<int64_t>(v)) return static_cast<double>(*i);
    if (const auto one = same_value<double>(*v)) return *one;
  }
  return get_as<double>(*this, key, "a number");
}
const std::string& Metadata::get_string(std::string_view key) const {
  return get_as<std::string>(*this, key, "a string");
}
int64_t Metadata::get_int_or(std::string_view key, int64_t value) const {
  return find(key) ? get_int(key) : value;
}
double Metadata::get_float_or(std::string_view key, double value) const {
  return find(key) ? get_float(key) : value;
}
bool Metadata::get_bool_or(std::string_view key, bool value) const {
  return find(key) ? get_as<bool>(*this, key, "a bool") : value;
}
std::string Metadata::get_string_or(std::string_view key, std::string_view value) const {
  return find(key) ? get_string(key) : std::string(value);
}
std::vector<int64_t> Metadata::get_ints_per_layer(std::string_view key, size_t n) const {
  const MetaValue* v = find(key);
  std::vector<int64_t> out;
  if (v && std::holds_alternative<std::vector<int64_t>>(*v)) {
    out = std::get<std::vector<int64_t>>(*v);
  } else if (v && std::holds_alternative<std::vector<bool>>(*v)) {
    const auto& bits = std::get<std::vector<bool>>(*v);
    out.assign(bits.begin(), bits.end());
  } else {
    return std::vector<int64_t>(n, get_as<int64_t>(*this, key, "an integer or an array of integers"));
  }
  if (out.size() != n) {
    throw Error(fmt::format("metadata key '{}' has {} entries, {} were expected", key, out.size(), n));
  }
  return out;
}
const std::vector<std::string>* Metadata::find_strings(std::string_view key) const {
  const MetaValue* v = find(key);
  return v ? std::get_if<std::vector<std::string>>(v) : nullptr;
}

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

Tensor TensorInfo::tensor() const {
  int64_t cols = 1, rows = 1, slices = 1;
  const size_t n = shape.size();
  if (n >= 1) cols = shape[n - 1];
  if (n >= 2) rows = shape[n - 2];
  for (size_t i = 0; i + 2 < n; ++i) slices *= shape[i];
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (cols > kMax || rows > kMax || slices > kMax) {
    throw Error(fmt::format("tensor '{}' has a dimension above 2^31", name));
  }
  return make_tensor(const_cast<std::byte*>(data), type, static_cast<int32_t>(rows),
                     static_cast<int32_t>(cols), static_cast<int32_t>(slices));
}

const TensorInfo* WeightSource::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}
const TensorInfo& WeightSource::get(std::string_view name) const {
  if (const TensorInfo* t = find(name)) return *t;
  throw Error(fmt::format("tensor '{}' is missing in '{}'", name, path_),
              "the file is incomplete or of another model");
}
size_t WeightSource::total_bytes() const {
  size_t n = 0;
  for (const TensorInfo& t : tensors_) n += t.bytes;
  return n;
}
void WeightSource::index() {
  by_name_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!by_name_.emplace(tensors_[i].name, i).second) {
      throw Error(fmt::format("'{}' has two tensors named '{}'", path_, tensors_[i].name));
    }
  }
}

std::unique_ptr<WeightSource> open_source(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) return open_safetensors(path);
  if (path.ends_with(".safetensors") && std::filesystem::exists(path, ec)) {
    throw Error(fmt::format("'{}' is one safetensors file", path),
                "give the directory that holds it with its config.json");
  }
  if (!std::filesystem::exists(path, ec)) refuse_missing(path);
  return open_gguf(path);
}

std::unique_ptr<WeightSource> open_towers(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) return open_hf_towers(path);
  std::unique_ptr<WeightSource> file = open_source(path);
  if (file->meta().get_string_or("general.architecture", "") == "clip") return file;
  const std::string beside = projector_beside(path);
  return beside.empty() ? nullptr : open_gguf(beside);
}

}  // namespace carat
