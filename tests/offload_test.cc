// Weights that stay with the host beside a GPU: which ones, and that answers stay what they are.
#include <doctest/doctest.h>

#include <cstring>

#include "apps/offload.h"
#include "core/strips.h"
#ifdef CARAT_EMULATED
#include "cuda/host_part.h"
#endif
#include "tests/backends.h"
#include "tests/hooked_backend.h"
#include "tests/op_cases.h"
#include "tests/step_runner.h"
#include "tests/tiny_model.h"

using namespace carat;
using namespace carat::test;

namespace {

constexpr int64_t kMuch = int64_t{1} << 60;

std::string refusal(const WeightSource& source, const OffloadFlags& flags, int64_t room, std::string& hint) {
  try {
    plan_offload(source, flags, room);
  } catch (const Error& e) {
    hint = e.hint();
    return e.what();
  }
  return {};
}

using Logits = std::vector<std::vector<float>>;

// A prompt in chunks, then single tokens: programs that run once, and recorded ones.
Logits logits_of(Backend& backend, const Model& model, size_t chunk, size_t prompt = 20) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < static_cast<int32_t>(prompt) + 5; ++i) ids.push_back((i * 37 + i / 5) % 200 + 3);
  StepRunner run(backend, model, {512, 1, 256, 16}, DType::f16);
  Logits out;
  for (size_t first = 0; first < ids.size();) {
    const size_t n = first < prompt ? std::min(chunk, prompt - first) : 1;
    run.step(std::span(ids).subspan(first, n));
    for (int32_t i = 0; i < run.wanted(); ++i)
      out.emplace_back(run.logits(i), run.logits(i) + model.spec.vocab);
    first += n;
  }
  return out;
}

struct Device {
  std::shared_ptr<Backend> backend;
  Model model;
};
Device split(const std::string& file, const OffloadFlags& flags, const std::shared_ptr<Backend>& host) {
  std::shared_ptr<WeightSource> source = open_source(file);
  CudaOptions c;
  c.host = host;
  c.host_keeps = plan_offload(*source, flags, kMuch).keeps;
  Device d{make_cuda_backend(0, c), {}};
  d.model = load_model(source, *d.backend);
  return d;
}

double distance(const Logits& a, const Logits& b) {
  double most = 0;
  for (size_t r = 0; r < a.size(); ++r)
    for (size_t i = 0; i < a[r].size(); ++i) most = std::max(most, std::abs(double{a[r][i]} - b[r][i]));
  return most;
}

}  // namespace

TEST_CASE("what does not fit stays with the host: tables, then experts, then layers") {
  for (const char* shape : {"tiny", "tiny-moe", "tiny-e", "tiny-hybrid-moe"}) {
    CAPTURE(shape);
    const auto source = open_source(tiny_model(shape));
    const Offload all = plan_offload(*source, {}, kMuch);
    CHECK(all.text.empty());
    CHECK(all.host == 0);
    CHECK(!all.keeps);
    int64_t room = all.device, fitted = 0;
    bool tables = false, experts = false, layers = false;
    for (;;) {  // a byte less than what is needed, again and again
      Offload o;
      try {
        o = plan_offload(*source, {}, --room);
      } catch (const Error& e) {
        CHECK(std::string_view(e.hint()).find("smaller model") != std::string_view::npos);
        break;
      }
      ++fitted;
      CHECK(o.device + o.come <= room);
      CHECK(o.host > 0);
      CHECK(o.text.starts_with("tables"));
      tables = true;
      experts |= o.text.find("experts of") != std::string::npos;
      layers |= o.text.find("of 1 ") == std::string::npos && o.text.find(" layers") != std::string::npos;
      int64_t kept = 0;
      for (const TensorInfo& t : source->tensors()) kept += o.keeps(t.tensor(), WeightUse::product) ? 1 : 0;
      CHECK((kept > 0) == (o.text != "tables"));
      const TensorInfo& table = source->get("token_embd.weight");
      CHECK(o.keeps(table.tensor(), WeightUse::rows));
      CHECK(!o.keeps(table.tensor(), WeightUse::product));  // the head
      room = o.device + o.come;
    }
    CHECK(fitted >= static_cast<int64_t>(2));
    CHECK(tables);
    CHECK(layers);
    CHECK(experts == (std::string_view(shape).find("moe") != std::string_view::npos));
  }
}

TEST_CASE("flags: llama.cpp's, and what is said where they do not fit") {
  const auto source = open_source(tiny_model("tiny-moe"));
  const auto kept = [&](const OffloadFlags& f) {
    const Offload o = plan_offload(*source, f, kMuch);
    std::vector<std::string> names;
    for (const TensorInfo& t : source->tensors())
      if (o.keeps && o.keeps(t.tensor(), WeightUse::product)) names.push_back(t.name);
    return names;
  };
  OffloadFlags f;
  f.cpu_moe = 1;
  for (const std::string& name : kept(f)) {
    CHECK(name.starts_with("blk.0."));
    CHECK(name.find("_exps.") != std::string::npos);
  }
  CHECK(kept(f).size() == 3);
  f.cpu_moe = 1 << 20;
  const size_t experts = kept(f).size();
  f = {}, f.tensors = {"_exps=CPU"};
  CHECK(kept(f).size() == experts);
  f = {}, f.gpu_layers = 99;
  CHECK(plan_offload(*source, f, kMuch).text.empty());
  f.gpu_layers = 1;
  for (const std::string& name : kept(f)) CHECK(name.starts_with("blk."));
  const size_t most = kept(f).size();
  CHECK(most > 0);
  f.gpu_layers = 0;
  CHECK(kept(f).size() > most + 1);
  for (const char* bad : {"_exps", "_exps=CUDA0", "=CPU", "(=CPU"}) {
    f = {}, f.tensors = {bad};
    std::string hint;
    CHECK(!refusal(*source, f, kMuch, hint).empty());
  }
  const int64_t all = plan_offload(*source, {}, kMuch).device;
  std::string hint;
  f = {}, f.gpu_layers = 99;
  CHECK(refusal(*source, f, all - all / 8, hint).find("the weights take") == 0);
  CHECK(hint.find("would fit") != std::string::npos);
}

TEST_CASE("weights with the host: the same answers, however a prompt is cut") {
  if (cuda_devices().empty()) return;
  const std::shared_ptr<Backend> host = make_cpu_backend(2, "");
  for (const std::string shape : {"tiny-moe", "tiny-e", "tiny-hybrid"}) {
    CAPTURE(shape);
    const std::string file = tiny_model(shape.c_str());
    const std::shared_ptr<WeightSource> source = open_source(file);
    const auto whole = make_cuda_backend(0);
    const Logits want = logits_of(*whole, load_model(source, *whole), 64);
    OffloadFlags products, part, all;
    products.tensors = {R"(attn_(q|k|v|output)\.|ffn_down\.=CPU)"};  // without activation functions
    part.cpu_moe = 1, part.gpu_layers = 2;
    all.gpu_layers = 0;
    for (const OffloadFlags& flags : {products, part, all}) {
      const Device d = split(file, flags, host);
      const Logits got = logits_of(*d.backend, d.model, 64);
      CHECK(distance(got, want) == 0);
      CHECK(logits_of(*d.backend, d.model, 7) == got);
    }
  }
}

TEST_CASE("many rows: the host's weights come to the device, and rows stay what they are") {
  if (cuda_devices().empty()) return;
  const auto host = std::make_shared<HookedBackend>(make_cpu_backend(2, ""));
  int steps = 0;
  host->before_step = [&] { ++steps; };
  OffloadFlags all;
  all.gpu_layers = 0;
  const Device d = split(tiny_model("tiny-moe"), all, host);
  const Logits few = logits_of(*d.backend, d.model, 60, 130);
  const int products = std::exchange(steps, 0) / 8;  // of a step, and its rows that are looked up
  CHECK(logits_of(*d.backend, d.model, 130, 130) == few);
  CHECK(steps - 5 * products == 1);
}

TEST_CASE("steps whose kernels are started one by one have the bits of recorded ones") {
  if (cuda_devices().empty()) return;
  for (const char* shape : {"tiny", "tiny-moe"}) {
    CAPTURE(shape);
    Logits all[2];
    for (const bool graphs : {true, false}) {
      CudaOptions c;
      c.graphs = graphs;
      const auto backend = make_cuda_backend(0, c);
      all[graphs] = logits_of(*backend, load_model(open_source(tiny_model(shape)), *backend), 8);
    }
    CHECK(all[0] == all[1]);
  }
}

TEST_CASE("weights of every format that comes to the device") {
  if (cuda_devices().empty()) return;
  const auto host = std::make_shared<HookedBackend>(make_cpu_backend(2, ""));
  int steps = 0;
  host->before_step = [&] { ++steps; };
  CudaOptions kept;
  kept.host = host;
  kept.host_keeps = [](const Tensor&, WeightUse) { return true; };
  const std::shared_ptr<Backend> split = make_cuda_backend(0, kept), whole = make_cuda_backend(0);
  const auto run = [](Backend& backend, DType type, int32_t outputs, int32_t cols, int32_t rows) {
    CaseRun c(backend, 7);
    c.step({{0, rows}});
    const Tensor x = c.input(rows, cols, rows).t, y = c.output(rows, outputs), z = c.output(rows, outputs);
    const Tensor w = c.weight(type, outputs, cols).t, other = c.weight(type, outputs, cols).t;
    c.push(MatmulArgs{.y = y, .x = x, .w = w, .bias = {}, .mul = {}});
    c.push(GateUpArgs{.y = z, .x = x, .gate = w, .up = other, .act = Act::gelu_tanh});
    c.expect("product", y, rows), c.expect("gated", z, rows);
    CHECK(c.run() == "");
    std::vector<std::vector<std::byte>> out;
    for (const Region& r : c.regions()) out.push_back(c.bytes(r));
    return out;
  };
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    if (pack_shape(type).lines == 0) continue;  // the host keeps them as files have them
    CAPTURE(std::string(info(type).name));
    const int32_t cols = info(type).elems == 32 ? 416 : info(type).elems == 64 ? 448 : 512;
    const auto want = run(*whole, type, 72, cols, 256);
    CHECK(run(*split, type, 72, cols, 256) == want);
    CHECK(std::exchange(steps, 0) == 0);
    CHECK(run(*split, type, 72, cols, 60) == run(*whole, type, 72, cols, 60));
    CHECK(std::exchange(steps, 0) == 2);
#ifndef CARAT_EMULATED  // in several pieces
    CHECK(run(*split, type, 9000, 8192, 256) == run(*whole, type, 9000, 8192, 256));
#endif
  }
}

#ifdef CARAT_EMULATED  // elsewhere it takes luck: the device's addresses and the host's are of one space
TEST_CASE("addresses of a weight that is gone are nobody's") {
  cuda::HostPart part(
      make_cpu_backend(2, ""), [](const Tensor&, WeightUse) { return true; }, false);
  std::vector<std::byte> file(row_bytes(DType::q8_0, 256) * 40);
  const Tensor weight = make_tensor(file.data(), DType::q8_0, 40, 256);
  for (const WeightUse use : {WeightUse::product, WeightUse::rows}) {
    Buffer first, second;
    const Tensor t = part.place(weight, use, first), again = part.place(weight, use, second);
    first = {};
    CHECK(part.has(again));
    second = {};
    CHECK_FALSE(part.has(t));
    CHECK_FALSE(part.has(again));
  }
}
#endif

TEST_CASE("a host that fails, fails the step, and not the one after it") {
  if (cuda_devices().empty()) return;
  const auto host = std::make_shared<HookedBackend>();
  OffloadFlags flags;
  flags.gpu_layers = 1;
  const Device d = split(tiny_model("tiny"), flags, host);
  StepRunner run(*d.backend, d.model, {256, 1, 64, 16}, DType::f16);
  const std::vector<int32_t> ids = {5, 9, 7};
  std::vector<float> before;
  for (int i = 0; i < 5; ++i) {
    int calls = 0;
    if (i == 3)  // recorded by now; not the rows that are looked up, but a product
      host->before_step = [&] {
        if (++calls == 3) throw Error("the host is ill");
      };
    const auto step = [&] {
      run.run({{0, ids}});
      return std::vector<float>(run.logits(2), run.logits(2) + d.model.spec.vocab);
    };
    if (i == 3) {
      CHECK_THROWS_WITH_AS(step(), "the host is ill", Error);
    } else {
      const std::vector<float> now = step();
      CHECK((before.empty() || now == before));
      before = now;
    }
    host->before_step = {};
    run.sequence(0).commit(0);
  }
}
