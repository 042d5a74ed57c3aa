#include "model/bind.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "core/codec.h"

namespace carat {
namespace {

bool is_float(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

// "blk.0.attn_q.weight" -> "blk.0.attn_q.scale"
std::string scale_name(const std::string& name) { return name.substr(0, name.rfind('.')) + ".scale"; }

constexpr const char* kHint =
    "the file is damaged, or made for another program: get it again or convert it again";

}  // namespace

Binder::Binder(const WeightSource& source, Backend& backend, const Progress& progress,
               std::vector<Buffer>& owners)
    : source_(source), backend_(backend), progress_(progress), owners_(owners) {
  total_ = std::max<double>(1, static_cast<double>(source.total_bytes()));
}

const TensorInfo& Binder::shaped(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorInfo& t = source_.get(name);
  // A vector of one is also written as a scalar.
  if (t.shape == shape || (t.shape.empty() && shape == std::vector<int64_t>{1})) return t;
  throw Error(fmt::format("tensor '{}' has the shape [{}], expected [{}]", name, fmt::join(t.shape, ", "),
                          fmt::join(shape, ", ")),
              kHint);
}

Tensor Binder::place(const TensorInfo& t, const Tensor& host, WeightUse use) {
  if (!is_float(t.type) && t.type != DType::fp8 && !rounds_to_e4m3(t.type) &&
      info(t.type).family != Family::block)
    throw Error(fmt::format("tensor '{}' is {}, which a weight cannot be", t.name, info(t.type).name), kHint);
  if (progress_) progress_(std::min(1.0, done_ / total_), t.name);
  Buffer owner;
  const Tensor placed = backend_.place_weight(host, use, owner);
  if (owner.size()) owners_.push_back(std::move(owner));
  done_ += static_cast<double>(row_bytes(host.type, host.cols)) * host.rows * host.slices;
  return placed;
}

Linear Binder::linear(const std::string& name, int64_t out, int64_t in, WeightUse use, bool scaled) {
  const TensorInfo& t = shaped(name, {out, in});
  Linear l;
  l.w = place(t, t.tensor(), use);
  if (scaled && has(scale_name(name))) l.scale = read(scale_name(name), 1)[0];
  return l;
}

Tensor Binder::experts(const std::string& name, int64_t experts, int64_t out, int64_t in, int64_t first,
                       int64_t n) {
  const TensorInfo& t = shaped(name, {experts, out, in});
  return place(t, t.tensor().row_range(static_cast<int32_t>(first), static_cast<int32_t>(n)),
               WeightUse::experts);
}

Linear Binder::interleaved(const std::string& name, int64_t out, int64_t in, int64_t period, int64_t first,
                           int64_t n) {
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < out; ++r)
    if (r % period >= first && r % period < first + n) rows.push_back(r);
  return picked(name, out, in, rows);
}

Linear Binder::picked(const std::string& name, int64_t out, int64_t in, std::span<const int64_t> rows) {
  const TensorInfo& t = shaped(name, {out, in});
  const Tensor all = t.tensor();
  const auto bytes = static_cast<size_t>(row_bytes(all.type, in));
  owners_.push_back(backend_.alloc(bytes * rows.size()));
  std::byte* to = owners_.back().data();
  for (const int64_t r : rows) {
    backend_.copy(to, all.row<std::byte>(r), bytes);
    to += bytes;
  }
  const Tensor copy_of = make_tensor(owners_.back().data(), all.type, static_cast<int32_t>(rows.size()),
                                     static_cast<int32_t>(in));
  const size_t copy = owners_.size() - 1;
  Linear l;
  l.w = place(t, copy_of, WeightUse::product);
  if (l.w.data != copy_of.data) owners_.erase(owners_.begin() + static_cast<ptrdiff_t>(copy));
  if (has(scale_name(name))) l.scale = read(scale_name(name), 1)[0];
  return l;
}

Linear Binder::flat(const std::string& name, int64_t out, int64_t in) {
  const TensorInfo& t = source_.get(name);
  if (t.shape.size() < 2 || t.shape[0] != out || t.elements() != out * in)
    throw Error(fmt::format("tensor '{}' has the shape [{}], expected [{}, ...] of {} values each", name,
                            fmt::join(t.shape, ", "), out, in),
                kHint);
  const Tensor host = make_tensor(const_cast<std::byte*>(t.data), t.type, static_cast<int32_t>(out),
                                  static_cast<int32_t>(in));
  return {place(t, host, WeightUse::product)};
}

std::vector<float> Binder::read_matrix(const std::string& name, int64_t rows, int64_t cols) const {
  const TensorInfo& t = shaped(name, {rows, cols});
  if (!is_float(t.type) && info(t.type).family != Family::block)
    throw Error(fmt::format("tensor '{}' is {}, expected numbers", name, info(t.type).name), kHint);
  std::vector<float> v(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r)
    decode_row(t.type, t.data + r * row_bytes(t.type, cols), v.data() + r * cols, cols);
  return v;
}

std::vector<float> Binder::read(const std::string& name, int64_t n) const {
  const TensorInfo& t = shaped(name, {n});
  if (!is_float(t.type))
    throw Error(fmt::format("tensor '{}' is {}, expected f32, f16 or bf16", name, info(t.type).name), kHint);
  std::vector<float> v(static_cast<size_t>(n));
  decode_row(t.type, t.data, v.data(), n);
  return v;
}

Tensor Binder::upload(const std::vector<float>& values) {
  owners_.push_back(backend_.alloc(values.size() * sizeof(float)));
  std::byte* p = owners_.back().data();
  backend_.copy(p, values.data(), values.size() * sizeof(float));
  return make_tensor(p, DType::f32, 1, static_cast<int32_t>(values.size()));
}

const int32_t* Binder::upload_ints(const std::vector<int32_t>& values) {
  owners_.push_back(backend_.alloc(values.size() * sizeof(int32_t)));
  std::byte* p = owners_.back().data();
  backend_.copy(p, values.data(), values.size() * sizeof(int32_t));
  return reinterpret_cast<const int32_t*>(p);
}

Tensor Binder::vector(const std::string& name, int64_t n) { return upload(read(name, n)); }

Tensor Binder::head_gains(const std::string& name, int64_t n, const RopeScaling& scaling, int64_t turned) {
  std::vector<float> gains = read(name, n);
  if (const double by = rope_magnitude(scaling); by != 1)
    for (size_t i = 0; i < static_cast<size_t>(turned); ++i)
      gains[i] = static_cast<float>(double{gains[i]} * by);
  return upload(gains);
}

Tensor Binder::optional_vector(const std::string& name, int64_t n) {
  return has(name) ? vector(name, n) : Tensor{};
}

}  // namespace carat
