// GGUF v2 and v3 (docs/formats.md section 1): parsing with every check, and opening of single and split
// files.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/files/source.h"

namespace carat {

// One file. Tensor data points into the bytes that were parsed.
struct GgufFile {
  uint32_t version = 0;
  Metadata meta;
  std::vector<TensorInfo> tensors;
};

// Throws Error on anything inconsistent; allocates a small multiple of bytes.size() at most. name: for
// messages.
GgufFile parse_gguf(std::span<const std::byte> bytes, std::string_view name);

// The first keys of a file by its first bytes, as far as they go: enough to know what it is without reading a
// vocabulary. Error if it is not GGUF.
Metadata gguf_first_keys(std::span<const std::byte> head, std::string_view name);

std::unique_ptr<WeightSource> open_gguf(const std::string& path);

// "PREFIX-00001-of-00003.gguf": the name of part `no` (from 0) of `count`.
std::string gguf_part_path(std::string_view prefix, int64_t no, int64_t count);

// A name as it may be shown: all but printable ASCII is escaped, long names are cut.
std::string printable(std::string_view name);

}  // namespace carat
