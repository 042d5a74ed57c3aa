// The schemes of quantized checkpoints, by their tensors (docs/formats.md section 10).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "core/codec.h"
#include "core/kv_codec.h"
#include "model/files/gguf.h"
#include "model/files/hf_quant.h"

namespace carat {
namespace {

uint8_t byte_at(const SafeTensor& t, int64_t i) { return static_cast<uint8_t>(t.data[i]); }
uint32_t word_at(const SafeTensor& t, int64_t i) {
  uint32_t v = 0;
  std::memcpy(&v, t.data + 4 * i, 4);
  return v;
}
int64_t elements(const SafeTensor& t) {
  int64_t n = 1;
  for (const int64_t d : t.shape) n *= d;
  return n;
}
bool e8m0(const SafeTensor& t) { return t.dtype == "U8" || t.dtype == "F8_E8M0"; }

class Reader {
 public:
  Reader(const QuantModule& m, const QuantConfig& config, std::string_view path)
      : m_(m), config_(config), path_(path) {}

  Repacked read() {
    const SafeTensor *packed = m_.find("weight_packed"), *weight = m_.find("weight");
    if ((packed != nullptr) + (weight != nullptr) + (m_.find("qweight") != nullptr) != 1)
      fail(fmt::format("has not exactly one of weight, weight_packed and qweight, but {}", parts()));
    if (m_.find("qweight")) return columns_of_words();
    if (packed && packed->dtype == "I32") return words();
    if (packed || weight->dtype == "U8" || weight->dtype == "F4") return fp4(packed ? *packed : *weight);
    if (weight->dtype == "F8_E4M3") return fp8(*weight);
    if (weight->dtype == "I8") return int8(*weight);
    fail(fmt::format("has scales, and weights of the type {}, which no readable scheme has", weight->dtype));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}': '{}' {}", path_, printable(m_.base), what),
                "the checkpoint is damaged, or of a scheme that cannot be read; the bf16 checkpoint or a "
                "GGUF file can be");
  }
  std::string parts() const {
    std::string s;
    for (const auto& [part, t] : m_.parts)
      s += fmt::format("{}{} ({})", s.empty() ? "" : ", ", part, t.dtype);
    return s;
  }
  [[noreturn]] void act_order() const {
    throw Error(
        fmt::format("'{}' is quantized with act-order ('{}' has groups of columns that are not "
                    "neighbours), which cannot be read",
                    path_, printable(m_.base)),
        "use a checkpoint made with desc_act = false (compressed-tensors: without actorder \"group\")");
  }
  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [part, t] : m_.parts)
      if (std::find(known.begin(), known.end(), part) == known.end())
        fail(fmt::format("has a '{}', which its scheme does not have", part));
  }
  const SafeTensor& part(std::string_view name) const {
    const SafeTensor* t = m_.find(name);
    if (!t) fail(fmt::format("has no {}", name));
    return *t;
  }
  void expect(const SafeTensor& t, std::vector<int64_t> shape) const {
    if (t.shape != shape) fail("has tensors whose shapes do not belong together");
  }
  void matrix(const SafeTensor& t) {
    if (t.shape.size() != 2 || t.shape[0] < 1 || t.shape[1] < 1)
      fail(fmt::format("is not a matrix, but {}", parts()));
    rows_ = t.shape[0], cols_ = t.shape[1];
  }
  void no_nan(const SafeTensor& t) const {
    if (std::any_of(t.data, t.data + t.bytes,
                    [](std::byte b) { return (b & std::byte{0x7f}) == std::byte{0x7f}; }))
      fail("holds a NaN");
  }
  float value(const SafeTensor& t, int64_t i) const {
    uint16_t h = 0;
    float f = 0;
    if (t.dtype == "F32")
      std::memcpy(&f, t.data + 4 * i, 4);
    else if (t.dtype == "BF16" || t.dtype == "F16")
      std::memcpy(&h, t.data + 2 * i, 2), f = t.dtype == "BF16" ? bf16_to_f32(h) : f16_to_f32(h);
    else if (t.dtype == "F8_E4M3")
      f = e4m3_to_f32(byte_at(t, i));
    else if (e8m0(t))
      f = byte_at(t, i) == 255 ? NAN : std::ldexp(1.0f, byte_at(t, i) - 127);
    else
      fail(fmt::format("has scales of the type {}", t.dtype));
    if (!std::isfinite(f)) fail("has a scale that is not finite");
    return f;
  }

  // Scales of a matrix: one, one a row, or one for each block of rows and columns.
  struct Scales {
    const SafeTensor* t = nullptr;
    int64_t row = 1, col = 1, across = 1;  // rows and columns that share one; scales in a row of them
  };
  Scales scales(const SafeTensor& t) const {
    const int64_t n = elements(t);
    if (n == 1) return {&t, rows_, cols_, 1};
    if (n == rows_ && (t.shape.size() == 1 || t.shape.back() == 1)) return {&t, 1, cols_, 1};
    if (t.shape.size() != 2) fail("has scales whose shape does not belong to the weights");
    const int64_t down = t.shape[0], across = t.shape[1];
    const auto parts = [](int64_t all, int64_t of) { return (all + of - 1) / of; };
    if (down == rows_ && across >= 1) {
      if (cols_ % across == 0) return {&t, 1, cols_ / across, across};
      if (config_.group > 0 && across == parts(cols_, config_.group)) return {&t, 1, config_.group, across};
    }
    if (down == parts(rows_, config_.block_rows) && across == parts(cols_, config_.block_cols))
      return {&t, config_.block_rows, config_.block_cols, across};
    fail("has scales whose shape does not belong to the weights");
  }
  float scale(const Scales& s, int64_t r, int64_t g) const { return value(*s.t, r / s.row * s.across + g); }

  Repacked done(Repacked r, std::string scheme) const {
    r.scheme = std::move(scheme);
    return r;
  }

  // ---- FP8 and INT8

  Repacked fp8(const SafeTensor& w) {
    only({"weight", "weight_scale", "weight_scale_inv"});
    matrix(w);
    no_nan(w);
    const SafeTensor* t = m_.find("weight_scale");
    if (!t)
      t = &part("weight_scale_inv");
    else if (m_.find("weight_scale_inv"))
      fail("has two scales");
    const Scales s = scales(*t);
    if (s.across == 1 && s.col >= cols_ && (s.row == 1 || s.row >= rows_)) {
      const bool one = s.row >= rows_;
      if (one || rows_fit_f16(s))
        return done(fp8_rows(w, s, one), one ? "FP8 (one scale)" : "FP8 (row scales)");
    }
    return done(pack_floats(rows_, cols_,
                            [&](int64_t r, float* x) {
                              for (int64_t c = 0; c < cols_; ++c)
                                x[c] = e4m3_to_f32(byte_at(w, r * cols_ + c)) * scale(s, r, c / s.col);
                            }),
                e8m0(*t)                      ? "MXFP8"
                : s.across == 1 && s.row == 1 ? "FP8 (row scales)"
                                              : "FP8 (block scales)");
  }
  bool rows_fit_f16(const Scales& s) const {
    for (int64_t r = 0; r < rows_; ++r) {
      const float f = scale(s, r, 0);
      if (f16_to_f32(f32_to_f16(f)) != f) return false;
    }
    return true;
  }
  Repacked fp8_rows(const SafeTensor& w, const Scales& s, bool one) const {
    Repacked out;
    out.type = DType::fp8;
    out.rows = rows_, out.cols = cols_;
    if (one) out.factor = scale(s, 0, 0), out.has_factor = true;
    const auto pitch = static_cast<size_t>(row_bytes(DType::fp8, cols_)), n = static_cast<size_t>(cols_);
    out.bytes.resize(pitch * static_cast<size_t>(rows_));
    for (int64_t r = 0; r < rows_; ++r) {
      std::byte* to = out.bytes.data() + static_cast<size_t>(r) * pitch;
      std::memcpy(to, w.data + r * cols_, n);
      const uint16_t h = f32_to_f16(one ? 1.0f : scale(s, r, 0));
      std::memcpy(to + n, &h, 2);
    }
    return out;
  }

  Repacked int8(const SafeTensor& w) {
    only({"weight", "weight_scale", "weight_zero_point"});
    matrix(w);
    const Scales s = scales(part("weight_scale"));
    const SafeTensor* z = m_.find("weight_zero_point");
    if (z && (z->dtype != "I8" || z->shape != s.t->shape)) fail("has zero points of another shape or type");
    IntegerMatrix m{rows_, cols_, s.col, -128, 127, {}, [&](int64_t r, int64_t g) { return scale(s, r, g); }};
    const auto zero = [&](int64_t r, int64_t c) {
      return z ? static_cast<int8_t>(byte_at(*z, r / s.row * s.across + c / s.col)) : 0;
    };
    if (z && std::any_of(z->data, z->data + z->bytes, [](std::byte b) { return b != std::byte{0}; }))
      m.low = -255, m.high = 255;
    m.read = [&](int64_t r, int16_t* q) {
      for (int64_t c = 0; c < cols_; ++c)
        q[c] = static_cast<int16_t>(static_cast<int8_t>(byte_at(w, r * cols_ + c)) - zero(r, c));
    };
    return done(pack_integers(m), "INT8");
  }

  // ---- four-bit floats

  Repacked fp4(const SafeTensor& w) {
    matrix(w);
    if (w.dtype != "F4") cols_ *= 2;
    const SafeTensor& s = part("weight_scale");
    if (e8m0(s)) return mxfp4(w, s);
    only({"weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale"});
    if (s.dtype != "F8_E4M3") fail(fmt::format("has four-bit weights with scales of the type {}", s.dtype));
    if (cols_ % 16) fail("has rows that are not whole groups of 16");
    expect(s, {rows_, cols_ / 16});
    no_nan(s);
    if (std::any_of(s.data, s.data + s.bytes,
                    [](std::byte b) { return (b & std::byte{0x80}) != std::byte{0}; }))
      fail("has a negative scale");
    Repacked out = cols_ % 64 == 0 ? nvfp4_blocks(w, s) : fp4_floats(w, s, 16);
    const SafeTensor *divides = m_.find("weight_global_scale"), *times = m_.find("weight_scale_2");
    if ((divides != nullptr) + (times != nullptr) != 1)
      fail("has not exactly one of weight_global_scale and weight_scale_2");
    const SafeTensor& global = divides ? *divides : *times;
    if (elements(global) != 1) fail("has more than one global scale");
    const float g = value(global, 0);
    if (g < 0 || (divides && !std::isfinite(1 / g))) fail("has a global scale that is not positive");
    out.factor = divides ? 1 / g : g;
    out.has_factor = true;
    out.divisor = divides ? g : 0;
    return done(std::move(out), divides ? "NVFP4" : "NVFP4 (ModelOpt)");
  }
  uint8_t nibble(const SafeTensor& w, int64_t r, int64_t c) const {
    return byte_at(w, (r * cols_ + c) / 2) >> (c % 2 * 4) & 15;
  }
  Repacked fp4_floats(const SafeTensor& w, const SafeTensor& s, int64_t group) const {
    static constexpr float kValues[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                          -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    return pack_floats(rows_, cols_, [&](int64_t r, float* x) {
      for (int64_t c = 0; c < cols_; ++c) x[c] = kValues[nibble(w, r, c)] * value(s, (r * cols_ + c) / group);
    });
  }
  Repacked blocks(DType type) const {
    Repacked out;
    out.type = type;
    out.rows = rows_, out.cols = cols_;
    out.bytes.resize(static_cast<size_t>(row_bytes(type, cols_) * rows_));
    return out;
  }
  // Columns c + i and c + half + i of a row in one byte.
  void fold(const SafeTensor& w, int64_t at, int half, std::byte* to) const {
    for (int i = 0; i < half; ++i) {
      const int64_t a = at + i, b = at + half + i;
      to[i] = static_cast<std::byte>((byte_at(w, a / 2) >> (a % 2 * 4) & 15) |
                                     (byte_at(w, b / 2) >> (b % 2 * 4) & 15) << 4);
    }
  }
  Repacked nvfp4_blocks(const SafeTensor& w, const SafeTensor& s) const {
    Repacked out = blocks(DType::nvfp4);
    std::byte* to = out.bytes.data();
    for (int64_t at = 0; at < rows_ * cols_; at += 64, to += 36) {
      std::memcpy(to, s.data + at / 16, 4);
      for (int g = 0; g < 4; ++g) fold(w, at + 16 * g, 8, to + 4 + 8 * g);
    }
    return out;
  }
  Repacked mxfp4(const SafeTensor& w, const SafeTensor& s) {
    only({"weight", "weight_packed", "weight_scale"});
    if (cols_ % 32) fail("has rows that are not whole groups of 32");
    expect(s, {rows_, cols_ / 32});
    for (size_t i = 0; i < s.bytes; ++i)
      if (s.data[i] == std::byte{255}) fail("has a scale that is a NaN");
    Repacked out = blocks(DType::mxfp4);
    std::byte* to = out.bytes.data();
    for (int64_t at = 0; at < rows_ * cols_; at += 32, to += 17) {
      to[0] = s.data[at / 32];
      fold(w, at, 16, to + 1);
    }
    return done(std::move(out), "MXFP4");
  }

  // ---- integers in words

  // n bits from bit `at` of a string of 32-bit words, of which the next is `step` further.
  static int bits(const SafeTensor& t, int64_t first, int64_t step, int64_t at, int n) {
    const int64_t word = at / 32;
    uint64_t v = word_at(t, first + word * step);
    if (at % 32 + n > 32) v |= uint64_t{word_at(t, first + (word + 1) * step)} << 32;
    return static_cast<int>(v >> (at % 32) & ((1u << n) - 1));
  }

  Repacked words() {
    only({"weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"});
    const SafeTensor &w = part("weight_packed"), &shape = part("weight_shape");
    matrix(w);
    const int64_t per_row = cols_;
    int64_t said[2] = {0, 0};
    if (shape.dtype != "I64" || elements(shape) != 2) fail("has a weight_shape that is not two numbers");
    std::memcpy(said, shape.data, 16);
    if (said[0] != rows_ || said[1] < 1 || said[1] > per_row * 32)
      fail("has a weight_shape of other weights");
    cols_ = said[1];
    int n = 0;
    for (int b = 2; b <= 8 && !n; ++b)
      if ((cols_ * b + 31) / 32 == per_row) n = b;
    if (!n) fail("packs its codes in an older way, with idle bits");
    const Scales s = scales(part("weight_scale"));
    if (const SafeTensor* index = m_.find("weight_g_idx")) check_order(*index, s.col);
    const int half = 1 << (n - 1);
    IntegerMatrix m{
        rows_, cols_, s.col, -half, half - 1, {}, [&](int64_t r, int64_t g) { return scale(s, r, g); }};
    std::vector<int16_t> zeros = zero_points(n, s.across, half);
    if (!zeros.empty()) {
      const auto [least, most] = std::minmax_element(zeros.begin(), zeros.end());
      m.low -= *most, m.high -= *least;
    }
    m.read = [&, zeros](int64_t r, int16_t* q) {
      for (int64_t c = 0; c < cols_; ++c)
        q[c] =
            static_cast<int16_t>(bits(w, r * per_row, 1, c * n, n) - half -
                                 (zeros.empty() ? 0 : zeros[static_cast<size_t>(r * s.across + c / s.col)]));
    };
    return done(pack_integers(m), fmt::format("W{}A16{}", n, zeros.empty() ? "" : " (zero points)"));
  }
  std::vector<int16_t> zero_points(int n, int64_t across, int half) const {
    const SafeTensor* z = m_.find("weight_zero_point");
    if (!z) return {};
    std::vector<int16_t> out(static_cast<size_t>(rows_ * across));
    const bool bytes = z->dtype == "I8";
    expect(*z, {bytes ? rows_ : (rows_ * n + 31) / 32, across});
    if (!bytes && z->dtype != "I32") fail("has zero points of another type");
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t g = 0; g < across; ++g)
        out[static_cast<size_t>(r * across + g)] = static_cast<int16_t>(
            bytes ? static_cast<int8_t>(byte_at(*z, r * across + g)) : bits(*z, g, across, r * n, n) - half);
    return out;
  }
  void check_order(const SafeTensor& index, int64_t group) const {
    if (index.dtype != "I32" || elements(index) != cols_) fail("has a group index of another shape");
    for (int64_t c = 0; c < cols_; ++c)
      if (static_cast<int64_t>(word_at(index, c)) != c / group) act_order();
  }

  // AWQ: words along the outputs, in an order of their own. GPTQ: words along the inputs; stored zero points
  // are one less.
  Repacked columns_of_words() {
    only({"qweight", "qzeros", "scales", "g_idx"});
    static constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const SafeTensor &w = part("qweight"), &z = part("qzeros"), &s = part("scales");
    if (w.dtype != "I32" || z.dtype != "I32") fail("has codes of another type");
    matrix(w);
    if (s.shape.size() != 2 || s.shape[0] < 1) fail("has scales that are not a matrix");
    const int64_t out = s.shape[1], groups = s.shape[0], down = rows_;
    const bool awq = cols_ != out;
    const SafeTensor* index = m_.find("g_idx");
    int64_t in = awq ? down : index ? elements(*index) : config_.group > 0 ? groups * config_.group : 0;
    if (!awq && !index && groups == 1 && config_.group <= 0)
      fail("has no g_idx and config.json no group_size");
    const int n = awq ? 4 : in > 0 ? static_cast<int>(down * 32 / in) : 0;
    if ((awq && cols_ * 8 != out) || (n != 2 && n != 4 && n != 8) || in % groups ||
        (!awq && down * 32 != in * n))
      fail("has tensors whose shapes do not belong together");
    expect(z, {groups, out * n / 32});
    rows_ = out, cols_ = in;
    const int64_t group = in / groups, across = out * n / 32;
    if (index) check_order(*index, group);
    const auto along = [&](const SafeTensor& t, int64_t row,
                           int64_t o) {  // AWQ's and both zero points' packing
      const int64_t at = o * n % 32 / n;
      return static_cast<int>(word_at(t, row * across + o * n / 32) >> (n * (awq ? kAwqNibble[at] : at)) &
                              ((1u << n) - 1));
    };
    const auto zero = [&](int64_t o, int64_t g) { return along(z, g, o) + (awq ? 0 : 1); };
    int least = 1 << n, most = 0;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t o = 0; o < out; ++o)
        least = std::min(least, zero(o, g)), most = std::max(most, zero(o, g));
    IntegerMatrix m{out,
                    in,
                    group,
                    -most,
                    (1 << n) - 1 - least,
                    {},
                    [&](int64_t o, int64_t g) { return value(s, g * out + o); }};
    m.read = [&](int64_t o, int16_t* q) {
      for (int64_t c = 0; c < in; ++c) {
        const int code = awq ? along(w, c, o) : bits(w, o, out, c * n, n);
        q[c] = static_cast<int16_t>(code - zero(o, c / group));
      }
    };
    return done(pack_integers(m), awq ? "AWQ" : fmt::format("GPTQ ({} bits)", n));
  }

  const QuantModule& m_;
  const QuantConfig& config_;
  std::string_view path_;
  int64_t rows_ = 0, cols_ = 0;
};

const SafeTensor* main_part(const QuantModule& m) {
  for (const char* name : {"weight", "weight_packed", "qweight"})
    if (const SafeTensor* t = m.find(name)) return t;
  return nullptr;
}

}  // namespace

std::vector<Repacked> repack(const QuantModule& module, const QuantConfig& config, std::string_view path) {
  std::vector<Repacked> out;
  const SafeTensor* main = main_part(module);
  if (!main || main->shape.size() != 3) {
    out.push_back(Reader(module, config, path).read());
    return out;
  }
  const int64_t slices = main->shape[0];
  for (int64_t e = 0; e < slices; ++e) {
    QuantModule one{fmt::format("{}[{}]", module.base, e), {}};
    for (auto [name, t] : module.parts) {
      if (!t.shape.empty() && t.shape[0] == slices && (elements(t) == slices || t.shape.size() == 3)) {
        t.bytes /= static_cast<size_t>(slices);
        t.data += static_cast<size_t>(e) * t.bytes;
        t.shape.erase(t.shape.begin());
      }
      one.parts.emplace(name, t);
    }
    out.push_back(Reader(one, config, path).read());
  }
  return out;
}

}  // namespace carat
