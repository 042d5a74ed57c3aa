// One model on several devices: whatever is split and however, logits, caches and texts have the bytes that
// one device gives them.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "parts/parts.h"
#include "state/snapshot.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/hooked_backend.h"
#include "tests/lost_device.h"
#include "tests/step_runner.h"
#include "tests/tiny_model.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Kind {
  std::string name;
  std::function<std::shared_ptr<Backend>(int device)> make;
  int devices = kMaxParts;  // there are so many
  bool cuda = false, peers = false;
};
std::vector<Kind> kinds() {
  std::vector<Kind> all;
#ifndef CARAT_ONLY_CUDA
  all = {{"ref", [](int) { return std::shared_ptr<Backend>(make_ref_backend()); }},
         {"cpu", [](int) { return std::shared_ptr<Backend>(make_cpu_backend(1, "")); }}};
#endif
  const auto cuda = [](int device) { return std::shared_ptr<Backend>(make_cuda_backend(device)); };
  const auto there = static_cast<int>(cuda_devices().size());
  if (there > 1)
    for (const bool peers : {true, false})
      all.push_back({peers ? "cuda, peers" : "cuda, host", cuda, there, true, peers});
  return all;
}

// Seconds that a device waits for another: emulated ones share cores with whatever else runs.
#ifdef CARAT_EMULATED
constexpr double kPatience = 300;
#else
constexpr double kPatience = 20;
#endif

struct Ways {
  int devices;
  SplitMode mode;
  std::vector<double> shares = {};
};
std::vector<Ways> all_ways() {
#ifdef CARAT_EMULATED
  return {{2, SplitMode::tensor}, {3, SplitMode::tensor}, {2, SplitMode::layer}};
#else
  return {{1, SplitMode::tensor},         {2, SplitMode::tensor}, {4, SplitMode::tensor},
          {2, SplitMode::tensor, {3, 1}}, {2, SplitMode::layer},  {3, SplitMode::layer}};
#endif
}
std::string name_of(const Ways& w) {
  return fmt::format("{} devices, {}{}", w.devices, w.mode == SplitMode::layer ? "layer" : "tensor",
                     w.shares.empty() ? "" : ", uneven");
}

std::shared_ptr<Backend> group(const Kind& kind, const Ways& w, int32_t layers) {
  std::vector<std::shared_ptr<Backend>> devices;
  std::vector<int> numbers;
  for (int i = 0; i < w.devices; ++i) devices.push_back(kind.make(i)), numbers.push_back(i);
  PartsOptions o;
  o.mode = w.mode, o.shares = w.shares, o.layers = layers;
  o.first_layer =
      deal_layers(std::vector<int64_t>(static_cast<size_t>(layers), 1),
                  w.shares.empty() ? std::vector<double>(static_cast<size_t>(w.devices), 1) : w.shares);
  if (kind.cuda) {
    o.exchange = std::make_shared<Exchange>(w.devices);
    o.exchange->links = make_cuda_links(numbers, kind.peers, kPatience);
  }
  return make_parts(devices, o);
}

using Bytes = std::vector<std::byte>;
void add(Bytes& to, const void* p, size_t n) {
  const auto* b = static_cast<const std::byte*>(p);
  to.insert(to.end(), b, b + n);
}

// Everything that steps leave: logits, hidden states, outputs of layers, caches and states.
Bytes run_steps(Backend& backend, const Model& model, DType kv, int32_t prompt) {
  Bytes out;
  std::vector<int32_t> ids;
  const int32_t vocab = model.spec.vocab;
  for (int32_t i = 0; i < prompt + 12; ++i) ids.push_back((i * 37 + i / 5) % (vocab - 3) + 3);
  StepRunner run(backend, model, {256, 2, 64, 16, 8}, kv, true);
  const auto keep = [&](int32_t rows) {
    for (int32_t i = 0; i < run.wanted(); ++i) {
      add(out, run.logits(i), size_t(vocab) * 4);
      add(out, run.hidden(i), size_t(model.spec.dim) * 4);
    }
    for (size_t l = 0; l < model.spec.layers.size(); ++l)
      for (int32_t i = 0; i < rows; ++i) add(out, run.tap(i, l), size_t(model.spec.dim) * 4);
  };
  int32_t at = 0;
  for (int32_t n; at < prompt; at += n) {
    n = std::min(prompt - at, at == 0 ? 33 : 64);
    run.step(std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), at == 0);
    keep(n);
  }
  for (const int32_t n : {1, 1, 2, 7}) {  // the second one of a bucket is what devices record
    run.step(std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(n)));
    keep(n), at += n;
  }
  // Two sequences, one of them a tree of which a path is kept.
  const std::vector<int32_t> tree = {ids[1], ids[2], ids[3]}, parents = {-1, 0, 0};
  run.run({{0, tree, parents}, {1, std::span(ids).first(5)}});
  keep(8);
  const int32_t path[] = {0, 2};
  run.sequence(0).commit(path, run.kv());
  run.sequence(1).commit(5);
  run.step({{0, std::span(ids).first(1)}, {1, std::span(ids).subspan(5, 1)}});
  keep(2);
  for (size_t l = 0; l < model.spec.layers.size(); ++l) {
    const LayerSpec& spec = model.spec.layers[l];
    if (spec.recurrent.valid()) {
      const RecurrentView m = run.kv().matrix(static_cast<int>(l));
      const auto base = run.values(m.base_of(run.view(0)), static_cast<size_t>(m.base_floats));
      add(out, base.data(), base.size() * 4);
      continue;
    }
    if (spec.kv_from != static_cast<int>(l)) continue;
    const KvView v = run.kv().view(static_cast<int>(l));
    const int32_t end = run.sequence(0).committed();
    for (int32_t h = 0; h < v.spec.heads; ++h)
      for (int32_t p = std::max(0, end - 16); p < end; ++p) {
        const auto k = run.values(v.k_row(run.view(0), p, h), static_cast<size_t>(v.spec.k_bytes()));
        add(out, k.data(), k.size());
        const auto x = run.values(v.v_row(run.view(0), p, h), static_cast<size_t>(v.spec.v_bytes()));
        add(out, x.data(), x.size());
      }
  }
  return out;
}

// outputs: whether a device may have some outputs of every product. Of E2B and E4B it may not on GPUs, as the
// product refuses it there: uneven parts of their tables per layer have other bits.
void check_shape(const std::string& path, DType kv, int32_t prompt, bool outputs = true) {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    const auto one = kind.make(0);
    const Model whole = load_golden(path, *one);
    const Bytes want = run_steps(*one, whole, kv, prompt);
    for (const Ways& w : all_ways()) {
      if (w.devices > kind.devices || (kind.cuda && !outputs && w.mode == SplitMode::tensor)) continue;
      CAPTURE(name_of(w));
      const auto several = group(kind, w, static_cast<int32_t>(whole.spec.layers.size()));
      const Model model = load_golden(path, *several);
      const Bytes got = run_steps(*several, model, kv, prompt);
      REQUIRE(got.size() == want.size());
      const auto differs = std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin();
      CHECK(differs == static_cast<std::ptrdiff_t>(got.size()));
    }
  }
}

}  // namespace

#ifdef CARAT_EMULATED
constexpr int32_t kPrompt = 6;
#else
constexpr int32_t kPrompt = 40;
#endif
TEST_CASE("parts: a dense model") { check_shape(tiny_model("tiny"), DType::f16, kPrompt); }
#ifndef CARAT_EMULATED
TEST_CASE("parts: experts") { check_shape(tiny_model("tiny-moe"), DType::q8_0, 20); }
TEST_CASE("parts: shared caches and per-layer tables") {
  check_shape(tiny_model("tiny-e"), DType::f16, 20, false);
}
TEST_CASE("parts: recurrent layers") { check_shape(tiny_model("tiny-hybrid-moe"), DType::f16, 20); }
TEST_CASE("parts: the goldens' models") {
  for (const char* name : {"gemma4_dense", "qwen3_5"}) {
    CAPTURE(name);
    check_shape(golden_dir(name), DType::f16, 8);
  }
}
#endif

#ifndef CARAT_ONLY_CUDA
namespace {

Bytes logits_after(StepRunner& run, const Model& model, std::span<const int32_t> ids) {
  run.step(ids, false);
  Bytes out;
  add(out, run.logits(0), size_t(model.spec.vocab) * 4);
  return out;
}

std::string file_bytes(const std::string& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

TEST_CASE("a saved text does not know how many devices wrote it") {
  for (const char* shape : {"tiny", "tiny-hybrid-moe"}) {
    CAPTURE(shape);
    const Kind cpu = kinds()[1];
    std::vector<std::shared_ptr<Backend>> backends = {cpu.make(0), group(cpu, {2, SplitMode::tensor}, 4),
                                                      group(cpu, {3, SplitMode::layer}, 4)};
    std::vector<Model> models;
    for (const auto& b : backends) models.push_back(load_golden(tiny_model(shape), *b));
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 60; ++i) ids.push_back(i * 7 % 200 + 3);
    const KvLimits limits{256, 1, 64, 16};
    std::vector<Bytes> next;
    for (size_t from = 0; from < backends.size(); ++from) {
      StepRunner run(*backends[from], models[from], limits, DType::q8_0);
      run.step(std::span(ids).first(50), false);
      const std::string path = fmt::format("{}/{}-{}", test_directory(), shape, from);
      save_sequence(path, *backends[from], run.kv(), run.sequence(0), std::span(ids).first(50), "m");
      if (from) CHECK(file_bytes(path) == file_bytes(fmt::format("{}/{}-0", test_directory(), shape)));
      for (size_t to = 0; to < backends.size(); ++to) {
        StepRunner other(*backends[to], models[to], limits, DType::q8_0);
        other.prepare();
        CHECK(load_sequence(path, *backends[to], other.kv(), other.sequence(0), "m").size() == 50);
        next.push_back(logits_after(other, models[to], std::span(ids).subspan(50, 1)));
        CHECK(next.back() == next.front());
      }
    }
  }
}

TEST_CASE("share: runs, receivers alone, and no rows") {
  constexpr int32_t kCols = 7, kRows = 33;
  for (const int32_t rows : {0, 1, 33})
    for (const bool cpu : {false, true}) {
      CAPTURE(rows);
      CAPTURE(cpu);
      const Kind kind = kinds()[cpu ? 1 : 0];
      Exchange exchange(3);
      std::vector<std::shared_ptr<Backend>> devices;
      std::vector<Buffer> memory;
      std::vector<std::unique_ptr<Executable>> programs;
      StepState state;
      state.n_rows = rows;
      ShareArgs a;
      a.exchange = &exchange, a.parts = 3, a.takes = 0b101;
      a.gives[0] = {0, 2}, a.gives[1] = {2, 4};  // the last column is nobody's, the third part only takes
      for (int32_t d = 0; d < 3; ++d) {
        devices.push_back(kind.make(0));
        memory.push_back(devices.back()->alloc(kRows * kCols * 4));
        auto* y = reinterpret_cast<float*>(memory.back().data());
        for (int32_t i = 0; i < kRows * kCols; ++i) y[i] = static_cast<float>(1000 * d + i);
        a.at[d] = memory.back().data();
      }
      for (int32_t d = 0; d < 3; ++d) {
        a.part = d, a.y = make_tensor(a.at[d], DType::f32, kRows, kCols);
        Program p;
        p.push(a);
        programs.push_back(devices[size_t(d)]->compile(p, &state));
      }
      for (int round = 0; round < 3; ++round) {
        exchange.begin(3);
        std::vector<std::thread> threads;
        for (size_t d = 0; d < 3; ++d)
          threads.emplace_back([&, d] {
            devices[d]->submit(*programs[d]);
            devices[d]->wait();
          });
        for (std::thread& t : threads) t.join();
      }
      for (int32_t d = 0; d < 3; ++d)
        for (int32_t i = 0; i < kRows * kCols; ++i) {
          const int32_t col = i % kCols;
          const bool takes = d != 1 && i / kCols < rows;
          const int32_t from = takes && col < 2 ? 0 : takes && col < 6 ? 1 : d;
          CHECK(reinterpret_cast<const float*>(memory[size_t(d)].data())[i] ==
                static_cast<float>(1000 * from + i));
        }
    }
}

namespace {

// Counts what it is given to keep.
class CountingBackend : public HookedBackend {
 public:
  int64_t weights = 0;
  Tensor place_weight(const Tensor& t, WeightUse use, Buffer& owner) override {
    if (use != WeightUse::rows) weights += row_bytes(t.type, t.cols) * t.rows * t.slices;
    return HookedBackend::place_weight(t, use, owner);
  }
};

}  // namespace

TEST_CASE("every device has a part of the weights, and all of them have each once") {
  for (const char* shape : {"tiny", "tiny-moe"}) {
    int64_t whole = 0;
    for (const int n : {1, 2, 3})
      for (const SplitMode mode : {SplitMode::tensor, SplitMode::layer}) {
        CAPTURE(shape);
        CAPTURE(n);
        std::vector<std::shared_ptr<CountingBackend>> parts;
        std::vector<std::shared_ptr<Backend>> devices;
        for (int i = 0; i < n; ++i)
          devices.push_back(parts.emplace_back(std::make_shared<CountingBackend>()));
        PartsOptions o;
        o.mode = mode, o.layers = shape == std::string("tiny") ? 6 : 4;
        o.first_layer =
            deal_layers(std::vector<int64_t>(size_t(o.layers), 1), std::vector<double>(size_t(n), 1));
        const auto several = make_parts(devices, o);
        const Model model = load_golden(tiny_model(shape), *several);
        StepRunner run(*several, model, {64, 1, 16, 16});
        run.prepare();
        int64_t sum = 0, most = 0;
        for (const auto& p : parts) sum += p->weights, most = std::max(most, p->weights);
        if (n == 1) whole = sum;
        // Routers are everywhere.
        CHECK(sum >= whole);
        CHECK(static_cast<double>(sum) < 1.03 * static_cast<double>(whole));
        CHECK(static_cast<double>(most) < (n == 1 ? 1.01 : 0.9) * static_cast<double>(whole));
      }
  }
}

namespace {

// Fails in its third step.
class FailingBackend : public HookedBackend {
 public:
  FailingBackend() {
    before_step = [n = 0]() mutable {
      if (++n == 3) throw DeviceError("the device is gone");
    };
  }
};

}  // namespace

TEST_CASE("a device that fails ends the step of all, and the next one may run") {
  for (const SplitMode mode : {SplitMode::tensor, SplitMode::layer}) {
    PartsOptions o;
    o.mode = mode, o.layers = 4, o.first_layer = {0, 2};
    const auto several = make_parts({std::make_shared<FailingBackend>(), kinds()[0].make(0)}, o);
    const Model model = load_golden(tiny_model("tiny"), *several);
    StepRunner run(*several, model, {64, 1, 16, 16});
    const std::vector<int32_t> ids = {5, 6, 7};
    run.step(ids), run.step(ids);
    std::string said;
    try {
      run.step(ids);
    } catch (const DeviceError& e) {
      said = e.what();
    }
    CHECK(said == "the device is gone");
  }
}
#endif

#if defined(CARAT_ONLY_CUDA) && !defined(CARAT_EMULATED)
// The last one: nothing runs on that device afterwards.
TEST_CASE("a device whose context is lost ends the step of the other, too") {
  if (cuda_devices().size() < 2) return;
  PartsOptions o;
  o.mode = SplitMode::tensor;
  o.exchange = std::make_shared<Exchange>(2);
  o.exchange->links = make_cuda_links({0, 1}, true, 20);
  const auto second = std::make_shared<LostDevice>(1);
  const std::shared_ptr<Backend> several =
      make_parts({std::shared_ptr<Backend>(make_cuda_backend(0)), second}, o);
  const Model model = load_golden(tiny_model("tiny"), *several);
  StepRunner run(*several, model, {64, 1, 16, 16}, DType::f16);
  const std::vector<int32_t> ids = {5, 6, 7};
  run.step(ids), run.step(ids);
  second->lose();
  const auto began = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(run.step(ids), DeviceError);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(25));
}
#endif

TEST_CASE("layers are dealt by their bytes and the devices' shares") {
  CHECK(deal_layers({1, 1, 1, 1}, {1, 1}) == std::vector<int32_t>{0, 2});
  CHECK(deal_layers({1, 1, 1, 1}, {3, 1}) == std::vector<int32_t>{0, 3});
  CHECK(deal_layers({9, 1, 1, 1}, {1, 1}) == std::vector<int32_t>{0, 1});
  CHECK(deal_layers({1, 1}, {1, 1, 1}) == std::vector<int32_t>{0, 1, 1});
}
