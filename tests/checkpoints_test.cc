// Quantized Hugging Face checkpoints (tests/data/checkpoints): decoded weights bit for bit, logits against
// the reference implementation's on every backend.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "core/codec.h"
#include "tests/goldens.h"
#include "tests/step_runner.h"

using namespace carat;
using namespace carat::test;
namespace fs = std::filesystem;

namespace {

struct Checkpoint {
  const char* name;
  double integers;  // relative difference of logits where activations are rounded; 0: they are not
};
// FP8 products keep activations in float. Products with integer weights round activations to eight bits,
// which costs what converting to q8_0 costs.
constexpr Checkpoint kCheckpoints[] = {
    {"fp8_dynamic", 0},       {"fp8_block", 0},     {"moe_fp8_dynamic", 0}, {"int8", 0.06},
    {"w4a16_g32", 0.06},      {"w4a16_asym", 0.06}, {"awq_g32", 0.06},      {"nvfp4", 0.06},
    {"modelopt_nvfp4", 0.06}, {"mxfp4", 0.06},      {"moe_nvfp4", 0.06},    {"moe_w4a16_g32", 0.2},
};

std::string directory(const std::string& name) {
  return std::string(CARAT_TEST_DATA) + "/checkpoints/" + name;
}

// The same weights as float32: what is left is the graph.
class FloatSource : public WeightSource {
 public:
  explicit FloatSource(std::unique_ptr<WeightSource> from) : from_(std::move(from)) {
    path_ = from_->path(), format_ = "floats", meta_ = from_->meta();
    for (TensorInfo t : from_->tensors()) {
      const Tensor all = t.tensor();
      if (t.shape.size() >= 2 && t.type != DType::i32) {
        const auto n = static_cast<size_t>(t.elements());
        owned_.emplace_back(n);
        for (int64_t r = 0; r < int64_t{all.rows} * all.slices; ++r)
          decode_row(t.type, t.data + r * all.pitch, owned_.back().data() + r * all.cols, all.cols);
        t.type = DType::f32;
        t.data = reinterpret_cast<const std::byte*>(owned_.back().data());
        t.bytes = n * 4;
      }
      tensors_.push_back(t);
    }
    index();
  }

 private:
  std::unique_ptr<WeightSource> from_;
  std::vector<std::vector<float>> owned_;
};

struct Difference {
  double largest = 0, relative = 0;  // relative: root mean square over that of the logits
};
Difference difference(std::shared_ptr<WeightSource> source, Backend& backend, const std::string& name,
                      int32_t chunk) {
  const Goldens goldens("../checkpoints/" + name);
  const std::vector<int32_t> ids = goldens.get("input_ids").i;
  const std::vector<float> expected = goldens.get("logits").f;
  const Model model = load_model(std::move(source), backend);
  KvLimits limits;
  limits.context = 64;
  limits.step_rows = chunk;
  StepRunner runner(backend, model, limits);
  const auto vocab = static_cast<size_t>(model.spec.vocab);
  Difference d;
  double squares = 0, all = 0;
  for (size_t at = 0; at < ids.size();) {
    const size_t n = std::min(ids.size() - at, static_cast<size_t>(chunk));
    runner.step(std::span(ids).subspan(at, n));
    for (size_t r = 0; r < n; ++r)
      for (size_t v = 0; v < vocab; ++v) {
        const double e = expected[(at + r) * vocab + v], x = runner.logits(static_cast<int32_t>(r))[v] - e;
        d.largest = std::max(d.largest, std::abs(x));
        squares += x * x, all += e * e;
      }
    at += n;
  }
  d.relative = std::sqrt(squares / all);
  return d;
}

}  // namespace

TEST_CASE("weights of quantized checkpoints are their producers' bit for bit") {
  for (const Checkpoint& c : kCheckpoints) {
    CAPTURE(c.name);
    const MappedFile file(directory(c.name) + "/decoded.safetensors");
    const auto expected = parse_safetensors(file.bytes(), c.name);
    CHECK(expected.size() >= 7);
    for (const SafeTensor& t : expected) {
      CAPTURE(t.name);
      const auto y = decode_checkpoint_tensor(directory(c.name), t.name);
      REQUIRE(y);
      REQUIRE(y->shape.size() == 2);
      const auto cols = static_cast<size_t>(y->shape[1]);
      REQUIRE(t.shape[1] == y->shape[1]);
      size_t differ = 0;
      for (size_t r = 0; r < static_cast<size_t>(t.shape[0]); ++r)
        for (size_t k = 0; k < cols; ++k) {
          float v = 0;
          std::memcpy(&v, t.data + (r * cols + k) * 4, 4);
          differ += v != y->values[(16 * r + 5) * cols + k];
        }
      CHECK(differ == 0);
    }
  }
}

TEST_CASE("logits of quantized checkpoints are the reference implementation's") {
  std::vector<std::pair<std::string, std::unique_ptr<Backend>>> backends;
  backends.emplace_back("ref", make_ref_backend());
  for (const char* isa : {"baseline", "avx2", "avx512", "amx"}) {
    try {
      backends.emplace_back(isa, make_cpu_backend(2, isa));
    } catch (const Error&) {  // this machine lacks it
    }
  }
  for (const Checkpoint& c : kCheckpoints) {
    CAPTURE(c.name);
    for (auto& [name, backend] : backends) {
      CAPTURE(name);
      const Difference stored =
          difference(open_source(directory(c.name)), *backend, c.name, name == "ref" ? 40 : 7);
      const Difference floats =
          difference(std::make_shared<FloatSource>(open_source(directory(c.name))), *backend, c.name, 40);
      MESSAGE(std::string(c.name) << " " << name << ": largest " << stored.largest << ", relative "
                                  << stored.relative << ", as floats " << floats.largest);
      CHECK(floats.largest < 2e-3);
      if (c.integers > 0)
        CHECK(stored.relative < c.integers);
      else
        CHECK(stored.largest < 2e-3);
    }
  }
}
