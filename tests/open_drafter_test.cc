// Drafters from files, as `carat run -md` opens them: the kind is told from the file, and what does not fit
// is refused with a reason.
#include <doctest/doctest.h>

#include "apps/drafter.h"
#include "apps/inspect.h"
#include "base/error.h"
#include "engine/engine.h"
#include "model/stepper.h"
#include "tests/hooked_backend.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"
#include "tools/forge.h"

using namespace carat;
using carat::test::HookedBackend;

namespace {

Opened target(const char* shape) {
  OpenOptions o;
  o.model = tiny_model(shape);
  o.threads = 1;
  return open_model(o);
}

// Name, and what it proposes for a session that has read something: anything but nonsense.
std::string try_drafter(const std::string& file, const Opened& t) {
  const auto drafter = open_drafter({.file = file}, t);
  const KvLimits limits{256, 2, 64, 16};
  const KvPool kv(*t.backend, kv_layers(t.model->spec, DType::f16, DType::f16), limits);
  PagePool pages(limits, kv.plan());
  drafter->attach({t.backend, t.model, &kv});
  Sequence sequence(pages);
  REQUIRE(sequence.append(20));
  sequence.commit(20);
  const auto session = drafter->open(sequence, {});
  const std::vector<Token> tokens(20, 7);
  const auto dim = static_cast<size_t>(t.model->spec.dim);
  const std::vector<float> values(dim, 0.5F);
  const std::vector<const float*> hidden(20, values.data()), taps(20 * drafter->taps().size(), values.data());
  session->committed({0, tokens, hidden, taps});
  History history;
  history.add_prompt(tokens);
  history.add(9);
  DraftAsk ask{session.get(), &history, 9, 20, 3, 3, 0, {}};
  drafter->propose({&ask, 1});
  CHECK(ask.out.token.size() == 3);
  for (const Token token : ask.out.token) CHECK((token >= 0 && token < t.model->spec.vocab));
  for (const float p : ask.out.confidence) CHECK((p > 0 && p <= 1));
  CHECK(drafter->memory_bytes() > 0);
  return std::string(drafter->name());
}

}  // namespace

TEST_CASE("forged drafters of every kind open, draft and are described") {
  const Opened tiny = target("tiny"), tiny_e = target("tiny-e");
  CHECK(try_drafter(tiny_model("tiny-assistant"), tiny) == "mtp");
  CHECK(try_drafter(tiny_model("tiny-e-assistant"), tiny_e) == "mtp");
  CHECK(try_drafter(tiny_model("tiny-dflash"), tiny) == "dflash");
  CHECK(try_drafter(tiny_model("tiny-moe"), tiny) == "model");
  const auto summary = [](const char* shape) { return inspect_text(*open_source(tiny_model(shape))); };
  CHECK(summary("tiny-assistant").find("drafter (MTP) for models of width 256: 4 layers of 64") !=
        std::string::npos);
  CHECK(summary("tiny-e-assistant").find("768 tokens in 32 clusters, 8 computed") != std::string::npos);
  CHECK(summary("tiny-dflash").find("blocks of 16, 3 tapped layers") != std::string::npos);
  CHECK(summary("tiny").find("drafter") == std::string::npos);
  CHECK(plan_memory(*open_source(tiny_model("tiny-dflash")), {}).cache > 0);
  CHECK(plan_memory(*open_source(tiny_model("tiny-assistant")), {}).cache == 0);
}

namespace {

// Sums what is allocated in pieces smaller than an arena's: caches and states, where shapes are tiny.
class CountingBackend : public HookedBackend {
 public:
  Buffer alloc(size_t bytes) override {
    if (bytes < size_t{4} << 20) taken += static_cast<int64_t>(bytes);
    return HookedBackend::alloc(bytes);
  }
  int64_t taken = 0;
};

// The host cannot read its memory: what it wants is copied.
class FarBackend : public HookedBackend {
 public:
  bool host_memory() const override { return false; }
  void copy(void* dst, const void* src, size_t bytes) override {
    ++copies;
    HookedBackend::copy(dst, src, bytes);
  }
  int copies = 0;
};

struct PlanCase {
  const char *shape, *drafter, *spec;
  std::function<void(EngineConfig&)> set;
};

}  // namespace

TEST_CASE("what drafters need of many sequences comes and goes in as many copies as of one") {
  constexpr int32_t kSequences = 6, kDepth = 3;
  const auto far = std::make_shared<FarBackend>();
  Opened opened;
  opened.backend = far;
  opened.model = std::make_shared<Model>(load_model(open_source(tiny_model("tiny")), *far));
  const auto drafter = open_drafter({.file = tiny_model("tiny-assistant")}, opened);
  const KvLimits limits{256, kSequences, 64, 16};
  Stepper stepper(far, opened.model, limits, DType::f16, DType::f16);
  drafter->attach({far, opened.model, &stepper.kv()});
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Token> tokens;
  for (int32_t i = 0; i < kSequences; ++i) {
    sequences.push_back(std::make_unique<Sequence>(stepper.pages()));
    REQUIRE(sequences.back()->append(1));
    tokens.push_back(7 * i + 5);
  }
  std::vector<Stepper::Part> parts;
  for (size_t i = 0; i < sequences.size(); ++i)
    parts.push_back({sequences[i].get(), {&tokens[i], 1}, Stepper::Wanted::all});
  stepper.run(parts);
  // What the same step gives where the host reads memory in place.
  const Opened near = target("tiny");
  Stepper beside(near.backend, near.model, limits, DType::f16, DType::f16);
  std::vector<std::unique_ptr<Sequence>> others;
  for (size_t i = 0; i < sequences.size(); ++i) {
    others.push_back(std::make_unique<Sequence>(beside.pages()));
    REQUIRE(others.back()->append(1));
    parts[i].sequence = others.back().get();
  }
  beside.run(parts);
  far->copies = 0;
  std::vector<std::unique_ptr<DraftSession>> sessions;
  std::vector<History> histories(kSequences);
  std::vector<DraftAsk> asks;
  for (int32_t i = 0; i < kSequences; ++i) {
    const auto at = static_cast<size_t>(i);
    const float* hidden = stepper.hidden_of(i);
    REQUIRE(hidden);
    for (int32_t c = 0; c < opened.model->spec.dim; ++c)
      CHECK(hidden[c] == doctest::Approx(beside.hidden_of(i)[c]).epsilon(0.02));
    sequences[at]->commit(1);
    sessions.push_back(drafter->open(*sequences[at], {}));
    sessions.back()->committed({0, {&tokens[at], 1}, {&hidden, 1}, {}});
    histories[at].add_prompt({&tokens[at], 1});
    histories[at].add(9);
    asks.push_back({sessions.back().get(), &histories[at], 9, 1, kDepth, kDepth, 0, {}});
  }
  CHECK(far->copies == 1);
  far->copies = 0;
  drafter->propose(asks);
  CHECK(far->copies == 3 * kDepth);  // a pass: hidden states there and back, the best columns back
  std::vector<std::vector<Token>> together;
  for (const DraftAsk& a : asks) together.push_back(a.out.token);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].out = {};
    drafter->propose({&asks[i], 1});
    CHECK(asks[i].out.token == together[i]);
    CHECK(together[i].size() == kDepth);
  }
}

TEST_CASE("the memory plan is what an engine with the same flags allocates") {
  const PlanCase cases[] = {
      {"tiny", "", "", [](EngineConfig& c) { c.prefix_cache_bytes = 1 << 20; }},
      {"tiny", "", "suffix", [](EngineConfig& c) { c.cache_k = DType::q8_0, c.sliding_v = DType::kv4; }},
      {"tiny", "tiny-assistant", "", [](EngineConfig& c) { c.sequences = 3, c.prefill_chunk = 48; }},
      {"tiny", "tiny-dflash", "", [](EngineConfig& c) { c.kv_policy = "small"; }},
      {"tiny", "tiny-moe", "model,suffix", [](EngineConfig& c) { c.single_copy = true; }},
      {"tiny-e", "tiny-e-assistant", "auto", [](EngineConfig& c) { c.kv_policy = "auto"; }},
      {"tiny", "tiny-assistant", "",
       [](EngineConfig& c) {
         c.kv_policy = "small", c.kv_protect = KvProtect{4, 32}, c.sequences = 2;
       }},
      {"tiny-hybrid", "", "auto", [](EngineConfig& c) { c.sequences = 2; }},
  };
  for (const PlanCase& t : cases) {
    CAPTURE(t.shape);
    CAPTURE(t.drafter);
    Opened opened;
    const auto backend = std::make_shared<CountingBackend>();
    opened.backend = backend;
    opened.model = std::make_shared<Model>(load_model(open_source(tiny_model(t.shape)), *backend));
    PlanOptions plan;
    plan.engine.context = 512, plan.engine.sequences = 1, plan.engine.prefix_cache_bytes = 0;
    t.set(plan.engine);
    plan.spec.types = t.spec;
    if (*t.drafter) plan.spec.draft_model = tiny_model(t.drafter);
    plan.device = backend->info();
    const MemoryPlan planned = plan_memory(*opened.model->source, plan);
    EngineConfig config = plan.engine;
    set_up_speculation(plan.spec, opened, config);
    config.spec.adaptive = false;  // measures nothing
    backend->taken = 0;
    const Engine engine(backend, opened.model, config);
    CHECK(planned.cache > 0);
    CHECK(backend->taken == planned.cache + planned.drafter_cache + planned.prefixes);
    CHECK((planned.drafter_weights > 0) == (*t.drafter != 0));
  }
}

TEST_CASE("converted to fewer bits, a drafter still drafts") {
  const Opened tiny = target("tiny"), tiny_e = target("tiny-e");
  for (const char* shape : {"tiny-assistant", "tiny-e-assistant", "tiny-dflash"})
    for (const char* type : {"q8_0", "q4_k_m"}) {
      CAPTURE(shape);
      CAPTURE(type);
      const std::string out = test_directory() + "/" + shape + "-" + type + ".gguf";
      convert({.in = tiny_model(shape, "f32"), .out = out, .type = type, .threads = 2});
      try_drafter(out, std::string_view(shape) == "tiny-e-assistant" ? tiny_e : tiny);
    }
}

TEST_CASE("what does not fit is refused with a reason") {
  const Opened tiny = target("tiny"), tiny_e = target("tiny-e");
  const auto open = [](const char* shape, const Opened& t) { open_drafter({.file = tiny_model(shape)}, t); };
  CHECK_THROWS_WITH_AS(open("tiny-e-assistant", tiny), doctest::Contains("KV heads"), Error);
  CHECK_THROWS_WITH_AS(open("tiny-assistant", tiny_e), doctest::Contains("does not fit"), Error);
  OpenOptions alone;
  alone.model = tiny_model("tiny-assistant");
  CHECK_THROWS_WITH_AS(open_model(alone), doctest::Contains("cannot run alone"), Error);
}

TEST_CASE("forged shapes have the published numbers of parameters") {
  const auto millions = [](const char* shape) {
    return static_cast<double>(plan_forge({.shape = shape}).parameters) / 1e6;
  };
  CHECK(millions("e2b-assistant") == doctest::Approx(77.7).epsilon(0.001));
  CHECK(millions("e4b-assistant") == doctest::Approx(78.5).epsilon(0.001));
  CHECK(millions("26b-a4b-assistant") == doctest::Approx(419.7).epsilon(0.001));
  CHECK(millions("31b-assistant") == doctest::Approx(469.5).epsilon(0.001));
  CHECK(millions("31b-dflash") == doctest::Approx(1540).epsilon(0.01));
  CHECK(millions("qwen3.6-27b-dflash") == doctest::Approx(1730).epsilon(0.01));
  CHECK(millions("26b-a4b-dflash") == doctest::Approx(430).epsilon(0.01));
}
