// Schemes of quantized checkpoints that tests/data/checkpoints does not hold, and what is refused.
#include "model/files/hf_quant.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>

#include "base/error.h"
#include "core/codec.h"
#include "core/kv_codec.h"
#include "model/files/hf_stacks.h"

using namespace carat;

namespace {

// Tensors in memory, with the bytes they stand on.
class Tensors {
 public:
  template <class T>
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
           const std::vector<T>& v) {
    const auto* p = reinterpret_cast<const std::byte*>(v.data());
    bytes_.emplace_back(p, p + v.size() * sizeof(T));
    list_.push_back({name, dtype, std::move(shape), bytes_.back().data(), bytes_.back().size()});
  }
  std::span<const SafeTensor> list() const { return list_; }

 private:
  std::deque<std::vector<std::byte>> bytes_;
  std::vector<SafeTensor> list_;
};

struct Read {
  DType type;
  std::vector<float> values;
};
Read read(const Tensors& t, const std::string& config = "{}", const std::string& modelopt = "") {
  const QuantSplit split = split_quantized(t.list(), "dir");
  REQUIRE(split.modules.size() == 1);
  CHECK(split.plain.empty());
  Read out{};
  for (const Repacked& r : repack(split.modules[0], read_quant_config(config, modelopt, "dir"), "dir")) {
    out.type = r.type;
    const size_t at = out.values.size();
    out.values.resize(at + static_cast<size_t>(r.rows * r.cols));
    decode(r, out.values.data() + at);
  }
  return out;
}

std::mt19937 rng(37);
int below(int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); }
uint8_t finite_e4m3() {
  for (;;)
    if (const auto b = static_cast<uint8_t>(below(256)); (b & 127) != 127) return b;
}
uint16_t half(float f) { return f32_to_f16(f); }
uint16_t brain(float f) { return f32_to_bf16(f); }

constexpr int kRows = 16, kCols = 128;

// Codes of n bits, GPTQ's way: down the rows of [in, out].
std::vector<uint32_t> down_words(const std::vector<int>& code, int in, int out, int n) {
  std::vector<uint32_t> w(static_cast<size_t>(in * n / 32 * out));
  for (int c = 0; c < in; ++c)
    for (int o = 0; o < out; ++o)
      w[static_cast<size_t>(c * n / 32 * out + o)] |=
          static_cast<uint32_t>(code[static_cast<size_t>(o * in + c)]) << (c * n % 32);
  return w;
}
std::vector<uint32_t> across_words(const std::vector<int>& code, int rows, int out, int n, bool awq) {
  constexpr int kPlace[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // nibble k of a word is output 8 w + kPlace[k]
  const int per = 32 / n;
  std::vector<uint32_t> w(static_cast<size_t>(rows * out / per));
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < out / per; ++i)
      for (int k = 0; k < per; ++k)
        w[static_cast<size_t>(r * out / per + i)] |=
            static_cast<uint32_t>(code[static_cast<size_t>(r * out + i * per + (awq ? kPlace[k] : k))])
            << (n * k);
  return w;
}

struct Gptq {
  Tensors t;
  std::vector<float> expected;
};
Gptq gptq(int n, int group, bool symmetric, bool act_order = false) {
  Gptq g;
  const int groups = kCols / group;
  std::vector<int> code, zero;
  std::vector<uint16_t> scale;
  std::vector<int32_t> index;
  for (int i = 0; i < kRows * kCols; ++i) code.push_back(below(1 << n));
  for (int i = 0; i < groups * kRows; ++i) {
    zero.push_back(symmetric ? (1 << (n - 1)) - 1 : below((1 << n) - 1));
    scale.push_back(half(0.001f * static_cast<float>(1 + below(100))));
  }
  for (int c = 0; c < kCols; ++c) index.push_back(act_order ? (c * 5 % kCols) / group : c / group);
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) {
      const auto at = static_cast<size_t>(c / group * kRows + r);
      g.expected.push_back(static_cast<float>(code[static_cast<size_t>(r * kCols + c)] - zero[at] - 1) *
                           f16_to_f32(scale[at]));
    }
  g.t.add("m.qweight", "I32", {kCols * n / 32, kRows}, down_words(code, kCols, kRows, n));
  g.t.add("m.qzeros", "I32", {groups, kRows * n / 32}, across_words(zero, groups, kRows, n, false));
  g.t.add("m.scales", "F16", {groups, kRows}, scale);
  g.t.add("m.g_idx", "I32", {kCols}, index);
  return g;
}

void check_refused(const std::string& part, const std::function<void()>& f) {
  CAPTURE(part);
  try {
    f();
    FAIL_CHECK("no error");
  } catch (const Error& e) {
    const std::string what = e.what();
    CAPTURE(what);
    CHECK(what.find(part) != what.npos);
    CHECK(!e.hint().empty());
  }
}

}  // namespace

TEST_CASE("GPTQ without act-order: symmetric as q4_0, others as q5_0 and q8_0") {
  const Gptq symmetric = gptq(4, 32, true), other = gptq(4, 64, false), eight = gptq(8, 128, true),
             two = gptq(2, 32, false);
  Read r = read(symmetric.t);
  CHECK(r.type == DType::q4_0);
  CHECK(r.values == symmetric.expected);
  r = read(other.t);
  CHECK(r.type == DType::q5_0);
  CHECK(r.values == other.expected);
  r = read(eight.t);
  CHECK(r.type == DType::q8_0);
  CHECK(r.values == eight.expected);
  CHECK(read(two.t).values == two.expected);
  check_refused("act-order", [] { read(gptq(4, 32, true, true).t); });
}

TEST_CASE("AWQ with one group for all columns") {
  std::vector<int> code, zero;
  std::vector<uint16_t> scale;
  for (int i = 0; i < kRows * kCols; ++i) code.push_back(below(16));
  for (int i = 0; i < kRows; ++i)
    zero.push_back(below(16)), scale.push_back(half(0.01f * static_cast<float>(1 + i)));
  Tensors t;
  t.add("m.qweight", "I32", {kCols, kRows / 8}, across_words(code, kCols, kRows, 4, true));
  t.add("m.qzeros", "I32", {1, kRows / 8}, across_words(zero, 1, kRows, 4, true));
  t.add("m.scales", "F16", {1, kRows}, scale);
  const Read r = read(t, R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": -1}})");
  size_t differ = 0;
  for (int o = 0; o < kRows; ++o)
    for (int c = 0; c < kCols; ++c)
      differ += r.values[static_cast<size_t>(o * kCols + c)] !=
                static_cast<float>(code[static_cast<size_t>(c * kRows + o)] - zero[static_cast<size_t>(o)]) *
                    f16_to_f32(scale[static_cast<size_t>(o)]);
  CHECK(differ == 0);
  CHECK(r.type == DType::q5_0);
}

TEST_CASE("FP8: one scale (static, ModelOpt), a scale a row, blocks with partial edges, MXFP8") {
  const int rows = 160, cols = 192;
  std::vector<uint8_t> w;
  for (int i = 0; i < rows * cols; ++i) w.push_back(finite_e4m3());
  const auto check = [&](const Tensors& t, DType type, auto scale, const std::string& config = "{}") {
    const Read r = read(t, config, config == "{}" ? R"({"quantization": {"quant_algo": "FP8"}})" : "");
    CHECK(r.type == type);
    size_t differ = 0;
    for (int i = 0; i < rows; ++i)
      for (int c = 0; c < cols; ++c) {
        const auto at = static_cast<size_t>(i * cols + c);
        differ += r.values[at] != e4m3_to_f32(w[at]) * scale(i, c);
      }
    CHECK(differ == 0);
  };
  Tensors one, scalar, row, f32_row, block, mx;
  for (Tensors* t : {&one, &scalar, &row, &f32_row, &block, &mx})
    t->add("m.weight", "F8_E4M3", {rows, cols}, w);
  const float s = 0.0123f;
  one.add("m.weight_scale", "BF16", {1}, std::vector{brain(s)});
  one.add("m.input_scale", "BF16", {1}, std::vector{brain(1)});
  check(one, DType::fp8, [&](int, int) { return bf16_to_f32(brain(s)); });
  scalar.add("m.weight_scale", "F32", {}, std::vector{s});
  scalar.add("m.input_scale", "F32", {}, std::vector{0.0f});
  check(scalar, DType::fp8, [&](int, int) { return s; });
  std::vector<uint16_t> of_rows;
  std::vector<float> exact_rows, of_blocks;
  for (int i = 0; i < rows; ++i)
    of_rows.push_back(brain(0.001f * static_cast<float>(i + 1))),
        exact_rows.push_back(0.00123f * static_cast<float>(i + 1));
  row.add("m.weight_scale", "BF16", {rows, 1}, of_rows);
  check(row, DType::fp8, [&](int i, int) { return bf16_to_f32(of_rows[static_cast<size_t>(i)]); });
  f32_row.add("m.weight_scale", "F32", {rows}, exact_rows);
  check(f32_row, DType::f32, [&](int i, int) { return exact_rows[static_cast<size_t>(i)]; });
  for (int i = 0; i < 4; ++i) of_blocks.push_back(0.011f * static_cast<float>(i + 1));
  block.add("m.weight_scale_inv", "F32", {2, 2}, of_blocks);
  check(
      block, DType::f32, [&](int i, int c) { return of_blocks[static_cast<size_t>(i / 128 * 2 + c / 128)]; },
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  std::vector<uint8_t> e8m0;
  for (int i = 0; i < rows * cols / 32; ++i) e8m0.push_back(static_cast<uint8_t>(100 + below(30)));
  mx.add("m.weight_scale", "U8", {rows, cols / 32}, e8m0);
  check(mx, DType::bf16,
        [&](int i, int c) { return std::ldexp(1.0f, e8m0[static_cast<size_t>(i * 6 + c / 32)] - 127); });
}

TEST_CASE("stacked experts: FP8 blocks, and NVFP4 with a global scale for each") {
  const int experts = 3, rows = 16, cols = 64;
  std::vector<uint8_t> w, packed, scale;
  for (int i = 0; i < experts * rows * cols; ++i) w.push_back(finite_e4m3());
  Tensors fp8;
  fp8.add("m.experts.down_proj", "F8_E4M3", {experts, rows, cols}, w);
  fp8.add("m.experts.down_proj_scale_inv", "F32", {experts, 1, 1}, std::vector{1.5f, 2.5f, 3.5f});
  Read r = read(fp8);
  size_t differ = 0;
  for (size_t i = 0; i < w.size(); ++i)
    differ += r.values[i] != e4m3_to_f32(w[i]) * (1.5f + static_cast<float>(i / (rows * cols)));
  CHECK(differ == 0);
  for (int i = 0; i < experts * rows * cols / 2; ++i) packed.push_back(static_cast<uint8_t>(below(256)));
  for (int i = 0; i < experts * rows * cols / 16; ++i) scale.push_back(finite_e4m3() & 127);
  Tensors fp4;
  fp4.add("m.experts.gate_up_proj.weight", "U8", {experts, rows, cols / 2}, packed);
  fp4.add("m.experts.gate_up_proj.weight_scale", "F8_E4M3", {experts, rows, cols / 16}, scale);
  fp4.add("m.experts.gate_up_proj.weight_scale_2", "F32", {experts}, std::vector{0.5f, 0.3f, 0.7f});
  r = read(fp4);
  CHECK(r.type == DType::nvfp4);
  constexpr float kE2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float s2[3] = {0.5f, 0.3f, 0.7f};
  differ = 0;
  for (size_t i = 0; i < r.values.size(); ++i) {
    const int code = packed[i / 2] >> (i % 2 * 4) & 15;
    const float x = (code & 8 ? -1.0f : 1.0f) * kE2m1[code & 7];
    differ += r.values[i] != x * (e4m3_to_f32(scale[i / 16]) * s2[i / (rows * cols)]);
  }
  CHECK(differ == 0);
}

TEST_CASE("packed codes that cross words, and scales that f16 cannot hold") {
  const int rows = 8, cols = 64;
  for (const int n : {3, 5, 6, 8}) {
    CAPTURE(n);
    std::vector<uint32_t> words(static_cast<size_t>(rows * cols * n / 32));
    std::vector<float> expected;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) {
        const int code = below(1 << n), at = c * n;
        uint32_t* p = &words[static_cast<size_t>(r * cols * n / 32 + at / 32)];
        p[0] |= static_cast<uint32_t>(code) << (at % 32);
        if (at % 32 + n > 32) p[1] |= static_cast<uint32_t>(code) >> (32 - at % 32);
        expected.push_back(static_cast<float>(code - (1 << (n - 1))) * 0x1p-20f);
      }
    for (const float scale : {0x1p-20f, 0x1p-30f}) {
      Tensors t;
      t.add("m.weight_packed", "I32", {rows, cols * n / 32}, words);
      t.add("m.weight_scale", "BF16", {rows, 1}, std::vector<uint16_t>(rows, brain(scale)));
      t.add("m.weight_shape", "I64", {2}, std::vector<int64_t>{rows, cols});
      const Read r = read(t);
      CHECK(r.type == (scale < 0x1p-24f ? DType::bf16
                       : n <= 3         ? DType::q4_0
                       : n == 5         ? DType::q5_0
                                        : DType::q8_0));
      std::vector<float> want = expected;
      for (float& v : want) v *= scale / 0x1p-20f;
      CHECK(r.values == want);
    }
  }
}

TEST_CASE("experts that come one by one, quantized or not, become stacks") {
  const std::vector<float> one{1, 2, 3, 4, 5, 6}, two{7, 8, 9, 10, 11, 12};
  std::vector<TensorInfo> list;
  for (const auto& [name, v] : {std::pair{"up.weight#1", &two}, {"up.weight#0", &one}}) {
    TensorInfo t;
    t.name = name, t.shape = {2, 3}, t.bytes = 24;
    t.data = reinterpret_cast<const std::byte*>(v->data());
    list.push_back(t);
  }
  std::deque<std::vector<std::byte>> owned;
  const auto own = [&](size_t n) { return owned.emplace_back(n).data(); };
  HfStacks stacks;
  for (int e = 0; e < 2; ++e) {
    Repacked r = pack_floats(2, 3, [&](int64_t row, float* x) { std::copy_n(one.data() + 3 * row, 3, x); });
    r.factor = 0.5f + static_cast<float>(e), r.has_factor = true, r.scheme = "S";
    stacks.add(fmt::format("down.weight#{}", e), std::move(r));
  }
  CHECK(stacks.summary() == "2 S as bf16");
  stacks.finish(list, own);
  REQUIRE(list.size() == 3);
  const auto get = [&](std::string_view name) {
    return *std::find_if(list.begin(), list.end(), [&](const TensorInfo& t) { return t.name == name; });
  };
  const TensorInfo up = get("up.weight"), scale = get("down.scale");
  CHECK(up.shape == std::vector<int64_t>{2, 2, 3});
  CHECK(std::memcmp(up.data, one.data(), 24) == 0);
  CHECK(std::memcmp(up.data + 24, two.data(), 24) == 0);
  CHECK(get("down.weight").type == DType::bf16);
  const float factors[2] = {0.5f, 1.5f};
  CHECK(scale.shape == std::vector<int64_t>{2});
  CHECK(std::memcmp(scale.data, factors, 8) == 0);
  HfStacks lacking;
  lacking.add("x.weight#1", pack_floats(1, 1, [](int64_t, float* x) { *x = 1; }));
  check_refused("lacks", [&] { lacking.finish(list, own); });
}

TEST_CASE("schemes that cannot be read are refused by name") {
  const auto config = [](const std::string& q) {
    return [q] { read_quant_config(R"({"quantization_config": )" + q + "}", "", "dir"); };
  };
  check_refused("bitsandbytes", config(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})"));
  check_refused("aqlm", config(R"({"quant_method": "aqlm"})"));
  check_refused("hqq", config(R"({"quant_method": "hqq"})"));
  check_refused("exl3", config(R"({"quant_method": "exl3"})"));
  check_refused("torchao", config(R"({"quant_method": "torchao"})"));
  check_refused("gemv", config(R"({"quant_method": "awq", "version": "gemv"})"));
  check_refused("GPTQ v2", config(R"({"quant_method": "gptq", "checkpoint_format": "gptq_v2"})"));
  check_refused("marlin", config(R"({"quant_method": "compressed-tensors", "format": "marlin-24"})"));
  check_refused("sparse", config(R"({"quant_method": "compressed-tensors", "format": "sparse-bitmask"})"));
  check_refused(
      "2-bit",
      config(
          R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 2}}}})"));
  check_refused("NVFP4_AWQ",
                [] { read_quant_config("{}", R"({"quantization": {"quant_algo": "NVFP4_AWQ"}})", "dir"); });
  for (const auto& [name, says] : {std::pair{"m.pre_quant_scale", "ModelOpt AWQ"},
                                   {"m.svdquant_lora_a", "SVDQuant"},
                                   {"m.weight.absmax", "bitsandbytes"},
                                   {"m.trellis", "EXL3"}}) {
    Tensors t;
    t.add(name, "F32", {1}, std::vector{1.0f});
    check_refused(says, [&] { split_quantized(t.list(), "dir"); });
  }
}

TEST_CASE("damaged quantized matrices") {
  const std::vector<uint8_t> w(64 * 64, 0x38);
  const auto with = [&](auto f) {
    Tensors t;
    f(t);
    return [t = std::make_shared<Tensors>(std::move(t))] { read(*t); };
  };
  check_refused("no weight_scale_inv", with([&](Tensors& t) { t.add("m.weight", "F8_E4M3", {64, 64}, w); }));
  check_refused("NaN", with([&](Tensors& t) {
                  std::vector<uint8_t> nan = w;
                  nan[77] = 0xff;
                  t.add("m.weight", "F8_E4M3", {64, 64}, nan);
                  t.add("m.weight_scale", "F32", {1}, std::vector{1.0f});
                }));
  check_refused("not finite", with([&](Tensors& t) {
                  t.add("m.weight", "F8_E4M3", {64, 64}, w);
                  t.add("m.weight_scale", "F32", {1}, std::vector{INFINITY});
                }));
  check_refused("shape", with([&](Tensors& t) {
                  t.add("m.weight", "F8_E4M3", {64, 64}, w);
                  t.add("m.weight_scale", "F32", {3, 5}, std::vector<float>(15, 1));
                }));
  check_refused("exactly one", with([&](Tensors& t) {
                  t.add("m.weight", "F8_E4M3", {64, 64}, w);
                  t.add("m.weight_packed", "U8", {64, 64}, w);
                  t.add("m.weight_scale", "F32", {1}, std::vector{1.0f});
                }));
  check_refused("global scale", with([&](Tensors& t) {
                  t.add("m.weight_packed", "U8", {64, 64}, w);
                  t.add("m.weight_scale", "F8_E4M3", {64, 8}, std::vector<uint8_t>(512, 0x38));
                  t.add("m.weight_global_scale", "F32", {1}, std::vector{0.0f});
                }));
  check_refused("idle bits", with([&](Tensors& t) {
                  t.add("m.weight_packed", "I32", {8, 7}, std::vector<int32_t>(56));
                  t.add("m.weight_scale", "BF16", {8, 1}, std::vector<uint16_t>(8, brain(1)));
                  t.add("m.weight_shape", "I64", {2}, std::vector<int64_t>{8, 20});
                }));
}
