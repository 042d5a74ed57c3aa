// The table of storage formats, and Tensor: a view of rows in one of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace carat {

// One row = one format; nothing else enumerates formats. `ggml` is the type id in GGUF files (formats.md
// section 2).
//   name      elems bytes family     ggml
#define CARAT_DTYPES(X)              \
  X(f32, 1, 4, plain, 0)             \
  X(f16, 1, 2, plain, 1)             \
  X(bf16, 1, 2, plain, 30)           \
  X(f64, 1, 8, plain, 28)            \
  X(i8, 1, 1, plain, 24)             \
  X(i16, 1, 2, plain, 25)            \
  X(i32, 1, 4, plain, 26)            \
  X(i64, 1, 8, plain, 27)            \
  X(q4_0, 32, 18, block, 2)          \
  X(q4_1, 32, 20, block, 3)          \
  X(q5_0, 32, 22, block, 6)          \
  X(q5_1, 32, 24, block, 7)          \
  X(q8_0, 32, 34, block, 8)          \
  X(q2_k, 256, 84, block, 10)        \
  X(q3_k, 256, 110, block, 11)       \
  X(q4_k, 256, 144, block, 12)       \
  X(q5_k, 256, 176, block, 13)       \
  X(q6_k, 256, 210, block, 14)       \
  X(iq2_xxs, 256, 66, block, 16)     \
  X(iq2_xs, 256, 74, block, 17)      \
  X(iq2_s, 256, 82, block, 22)       \
  X(iq3_xxs, 256, 98, block, 18)     \
  X(iq3_s, 256, 110, block, 21)      \
  X(iq4_nl, 32, 18, block, 20)       \
  X(iq4_xs, 256, 136, block, 23)     \
  X(mxfp4, 32, 17, block, 39)        \
  X(nvfp4, 64, 36, block, 40)        \
  X(fp8, 1, 1, cache, 0xffff)        \
  X(kv4, 32, 18, cache, 0xffff)      \
  X(tq4, 32, 16, cache, 0xffff)      \
  X(tq3, 64, 24, cache, 0xffff)      \
  X(tq3_0, 64, 28, cache, 0xffff)    \
  X(tbq4, 64, 32, cache, 0xffff)     \
  X(tbq3, 64, 24, cache, 0xffff)     \
  X(fp8_a8, 1, 1, cache, 0xffff)     \
  X(mxfp4_a8, 32, 17, cache, 0xffff) \
  X(nvfp4_a8, 64, 36, cache, 0xffff)

// cache: rows of a KV cache only (core/kv_codec.h), never weights; but fp8 is both, and the last three are
// weights alone: fp8, mxfp4 and nvfp4 whose products round activations to e4m3, too (docs/numerics.md).
enum class Family : uint8_t { plain, block, cache };
enum class DType : uint8_t {
#define X(name, elems, bytes, family, ggml) name,
  CARAT_DTYPES(X)
#undef X
};

struct DTypeInfo {
  std::string_view name;
  uint16_t elems, bytes;  // per block; 1 element for plain types
  Family family;
  uint16_t ggml;
};
inline constexpr DTypeInfo kDTypes[] = {
#define X(name, elems, bytes, family, ggml) {#name, elems, bytes, Family::family, ggml},
    CARAT_DTYPES(X)
#undef X
};
inline constexpr uint16_t kNotInFiles = 0xffff;
inline constexpr int kDTypeCount = sizeof(kDTypes) / sizeof(kDTypes[0]);

constexpr const DTypeInfo& info(DType t) { return kDTypes[static_cast<size_t>(t)]; }
constexpr std::optional<DType> dtype_of_ggml(uint32_t id) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kDTypes[i].ggml == id && id != kNotInFiles) return static_cast<DType>(i);
  return std::nullopt;
}
constexpr std::optional<DType> dtype_of_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}
// Whether products with such weights round activations to e4m3, and the type whose bytes they have.
constexpr DType stored_as(DType t) {
  switch (t) {
    case DType::fp8_a8: return DType::fp8;
    case DType::mxfp4_a8: return DType::mxfp4;
    case DType::nvfp4_a8: return DType::nvfp4;
    default: return t;
  }
}
constexpr bool rounds_to_e4m3(DType t) { return stored_as(t) != t; }
// f16 scales that a row of a cache format has besides its blocks.
constexpr int64_t row_scales(DType t, int64_t cols) {
  switch (t) {
    case DType::fp8:
    case DType::fp8_a8:
    case DType::tq4:
    case DType::tq3: return 1;
    case DType::tbq4:
    case DType::tbq3: return (cols + 255) / 256;
    default: return 0;
  }
}
// Bytes of `cols` elements; cols must be a multiple of the block, and a whole row in the cache formats.
constexpr int64_t row_bytes(DType t, int64_t cols) {
  return cols / info(t).elems * info(t).bytes + 2 * row_scales(t, cols);
}

// Non-owning view of a row-major matrix, or of `slices` of them (experts). Plain data, passed by value.
// `cols` is the contiguous dimension along which blocks run.
struct Tensor {
  std::byte* data = nullptr;
  int32_t rows = 0, cols = 0, slices = 1;
  DType type = DType::f32;
  uint8_t packing = 0;      // 0: the documented layout; else a backend's private repack of the same type
  int64_t pitch = 0;        // bytes from one row to the next
  int64_t slice_pitch = 0;  // bytes from one slice to the next

  bool valid() const { return data != nullptr; }
  template <class T>
  T* row(int64_t r) const {
    return reinterpret_cast<T*>(data + r * pitch);
  }
  Tensor slice(int64_t s) const {
    Tensor t = *this;
    t.data = data + s * slice_pitch;
    t.slices = 1;
    return t;
  }
  // Columns [first, first + n) of every row; first must be a block boundary.
  Tensor columns(int32_t first, int32_t n) const {
    Tensor t = *this;
    t.data = data + row_bytes(type, first);
    t.cols = n;
    return t;
  }
  Tensor row_range(int32_t first, int32_t n) const {
    Tensor t = *this;
    t.data = data + int64_t{first} * pitch;
    t.rows = n;
    return t;
  }
};

// A dense tensor over existing bytes.
inline Tensor make_tensor(void* data, DType type, int32_t rows, int32_t cols, int32_t slices = 1) {
  const int64_t pitch = row_bytes(type, cols);
  return {static_cast<std::byte*>(data), rows, cols, slices, type, 0, pitch, pitch * rows};
}

}  // namespace carat
