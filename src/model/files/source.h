// Where weights come from: a file's tensors and metadata, mapped, in GGUF's names and shapes whatever the
// file's dialect (a Hugging Face directory is translated on opening, so model code knows one dialect).
//
// Architectures "gemma4" and "gemma4-assistant": the keys of gemma4.md sections 3.2 and 4.4. What a
// translated directory adds or changes, so that it reads like a converted file:
// - tensors of one dimension or none are f32 (norms, scalars, router scales), whatever the checkpoint stores;
// - rope_freqs.weight f32 [global head_dim / 2]: 1 for rotated pairs, 1e30 for the rest (divisors of the
// frequency);
// - masked_embd_ordering is i32;
// - final_logit_softcapping 0 means none; attention.shared_kv_layers and embedding_length_per_layer_input may
// be 0;
// - gemma4-assistant.{use_ordered_embeddings (bool), n_centroids, centroid_top_k} for the clustered head.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/dtype.h"

namespace carat {

// GGUF's value types. Integers of any width are int64 (u64 above int64's range is rejected), floats are
// double.
using MetaValue = std::variant<bool, int64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

// Tokens that are never said.
inline constexpr const char* kSuppressKey = "tokenizer.ggml.suppress_tokens";

class Metadata {
 public:
  const MetaValue* find(std::string_view key) const;
  void set(std::string key, MetaValue value) { values_[std::move(key)] = std::move(value); }
  void erase(std::string_view prefix) {  // of keys
    std::erase_if(values_, [&](const auto& v) { return v.first.starts_with(prefix); });
  }
  const std::map<std::string, MetaValue, std::less<>>& all() const { return values_; }

  // get: Error that names the key if it is missing or of another type; get_or: the default if missing. An
  // array of one and the same number (and zeros) is that number.
  int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;  // takes integers too
  const std::string& get_string(std::string_view key) const;
  int64_t get_int_or(std::string_view key, int64_t value) const;
  double get_float_or(std::string_view key, double value) const;
  bool get_bool_or(std::string_view key, bool value) const;
  std::string get_string_or(std::string_view key, std::string_view value) const;
  // A scalar or an array of n: one value per layer.
  std::vector<int64_t> get_ints_per_layer(std::string_view key, size_t n) const;
  const std::vector<std::string>* find_strings(std::string_view key) const;

 private:
  std::map<std::string, MetaValue, std::less<>> values_;
};

struct TensorInfo {
  std::string name;  // GGUF name
  DType type = DType::f32;
  std::vector<int64_t>
      shape;  // outermost first (PyTorch order): [out, in] or [experts, out, in]; [] for a scalar
  const std::byte* data = nullptr;
  size_t bytes = 0;
  int64_t elements() const;
  Tensor tensor() const;  // 1-D: one row
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  const std::string& path() const { return path_; }
  std::string_view format() const { return format_; }  // "GGUF v3", "safetensors"
  const Metadata& meta() const { return meta_; }
  // What is wished in place of what the file says; before a model is made of it.
  void override_meta(std::string key, MetaValue value) { meta_.set(std::move(key), std::move(value)); }
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  const TensorInfo& get(std::string_view name) const;  // Error if missing
  size_t total_bytes() const;
  size_t skipped() const { return skipped_; }  // tensors passed over on purpose: vision and audio towers

 protected:
  void index();  // builds the name table; Error on a duplicate name
  std::string path_, format_;
  Metadata meta_;
  std::vector<TensorInfo> tensors_;
  size_t skipped_ = 0;

 private:
  std::map<std::string, size_t, std::less<>> by_name_;
};

// A .gguf file (the first of a split: its parts are found beside it) or a directory with config.json and
// *.safetensors. Validates everything before returning; any inconsistency is one Error with a hint.
std::unique_ptr<WeightSource> open_source(const std::string& path);
// The towers that belong to a model's directory or file, in the names and keys of llama.cpp's mmproj files
// (architecture "clip"): the directory's own, the file itself, or an mmproj*.gguf beside it; null: none.
std::unique_ptr<WeightSource> open_towers(const std::string& path);

}  // namespace carat
