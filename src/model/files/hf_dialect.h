// Hugging Face's names and config.json, translated to GGUF's (gemma4.md sections 1.1, 3 and 4.4).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/source.h"

namespace carat {

// The GGUF name of a tensor. Empty: passed over on purpose (a vision or audio tower, a buffer). nullopt:
// unknown.
std::optional<std::string> gguf_tensor_name(std::string_view hf_name);
// The way back, in the names of published checkpoints behind "model."; empty: there is none.
std::string hf_tensor_name(std::string_view gguf_name);

// A checkpoint's tensors while a family's layout is turned into GGUF's.
struct HfTensors {
  std::vector<TensorInfo>& list;
  const Metadata& meta;
  std::function<std::byte*(size_t bytes)> own;  // memory that lives as long as the tensors
};
// The same for DFlash drafters.
std::optional<std::string> dflash_tensor_name(std::string_view hf_name);

// What config.json says, in GGUF's keys, and what the loader needs beside them. DFlash drafters become
// architecture "dflash" in llama.cpp's keys (docs/formats.md section 9).
struct HfModel {
  Metadata meta;
  bool tied_head = true;  // lm_head.weight, if stored, is a copy
  // Of the global layers' frequencies: 1, or 1e30 where nothing rotates; empty: the family has none.
  std::vector<float> rope_divisors;
  std::optional<std::string> (*tensor_name)(std::string_view) = gguf_tensor_name;
  void (*adapt)(HfTensors&) = nullptr;
};
// Both styles of config (per_layer_config, or global_head_dim and num_global_key_value_heads). Error with a
// hint on a model that is not known, on a missing or absurd value.
HfModel read_hf_config(std::string_view json, std::string_view name);

// The towers of such a directory, in llama.cpp's names and keys for mmproj files; nullopt: none that is
// known.
std::optional<HfModel> read_hf_towers(std::string_view json, std::string_view name);
std::optional<HfModel> read_qwen_tower(std::string_view json, std::string_view name);
// Parts of it: the tower for sound. Names behind "model."; its keys, where config.json has one.
std::optional<std::string> sound_tensor_name(std::string_view name);
void read_sound_config(std::string_view json, std::string_view name, Metadata& meta);
void adapt_sound(HfTensors& tensors);
// nullopt: not of the family of qwen36.h.
std::optional<HfModel> read_qwen_config(std::string_view json, std::string_view name);
// nullopt: not a DFlash drafter's.
std::optional<HfModel> read_dflash_config(std::string_view json, std::string_view name);

}  // namespace carat
