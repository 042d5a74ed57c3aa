// label: plain
// With a drafter or without: the same tokens, the same log probabilities, the same end (docs/design.md,
// "Speculation"). The long form is lossless_full_test.cc.
#include <doctest/doctest.h>

#include <cmath>
#include <thread>

#include "core/kv_codec.h"
#include "engine/speculate/draft_nextn.h"
#include "engine/speculate/draft_ngram.h"
#include "model/stepper.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/lossless.h"
#include "tests/tiny_model.h"

using namespace carat;
using namespace carat::test;

namespace {

std::vector<Token> some_prompt(int n, int salt) {
  std::vector<Token> p;  // with repetitions, for those who look for them
  for (int i = 0; i < n; ++i) p.push_back((i % 17 * 37 + (i / 40) * 5 + salt * 101 + 11) % 512);
  return p;
}

struct Target {
  explicit Target(const std::string& golden, std::shared_ptr<Backend> b = make_ref_backend())
      : backend(std::move(b)), model(std::make_shared<Model>(load_golden(golden_dir(golden), *backend))) {}
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
};

std::shared_ptr<Backend> fast_backend() {
  std::vector<NamedBackend> cpu = cpu_backends(1);
  return cpu.empty() ? make_ref_backend() : std::move(cpu.back().backend);
}

NamedDrafters one(std::shared_ptr<Drafter> d, int32_t tree_nodes = 0) {
  NamedDrafters n{"", {std::move(d)}, {}};
  n.config.adaptive = false;
  n.config.draft_max = 7;
  n.config.max_rows = 32;
  n.config.tree_nodes = tree_nodes;
  return n;
}

EngineConfig config(const NamedDrafters& d, int32_t context = 160, int32_t sequences = 1) {
  EngineConfig c;
  c.context = context, c.sequences = sequences, c.prefill_chunk = 16;
  c.drafters = d.drafters, c.spec = d.config;
  return c;
}

Request sampled(std::vector<Token> prompt, int32_t max_tokens, uint64_t seed) {
  Request r;
  r.prompt = std::move(prompt);
  r.sample = {.temperature = 1, .top_k = 50, .seed = seed};
  r.max_tokens = max_tokens;
  return r;
}

Outcome run(Engine& engine, const Request& r) { return run_all(engine, {r})[0]; }

std::shared_ptr<Oracle> oracle_of(const Request& r, const Outcome& plain) {
  auto o = std::make_shared<Oracle>();
  o->vocab = 512;
  o->streams.push_back(r.prompt);
  o->streams[0].insert(o->streams[0].end(), plain.tokens.begin(), plain.tokens.end());
  return o;
}

}  // namespace

TEST_CASE("every drafter and way to sample gives the tokens of plain decoding") {
  const std::vector<std::vector<Token>> prompts{some_prompt(60, 1), some_prompt(9, 2), some_prompt(33, 3)};
  const Target moe("gemma4_moe", fast_backend()), e("gemma4_e", fast_backend());
  CHECK(check_lossless({moe.backend, moe.model, prompts, 24, {3}}) == "");
  CHECK(check_lossless({e.backend, e.model, prompts, 24, {3}}) == "");
  const Target hybrid("qwen3_5", fast_backend()), experts("qwen3_5_moe", fast_backend());
  CHECK(check_lossless({hybrid.backend, hybrid.model, prompts, 24, {1}}) == "");
  CHECK(check_lossless({experts.backend, experts.model, prompts, 24, {3}}) == "");
}

TEST_CASE("under every cache format, with one copy of K = V and protected rows, drafts change nothing") {
  const std::shared_ptr<Backend> backend = fast_backend();
  const auto model = std::make_shared<const Model>(load_model(open_source(tiny_model("tiny")), *backend));
  REQUIRE(has_single_copies(model->spec));
  const Request r = sampled(some_prompt(70, 6), 24, 5);
  for (const auto& [single, protect] : {std::pair{false, KvProtect{}}, {true, {}}, {false, {3, 9}}})
    for (const DType type : kv_formats()) {
      CAPTURE(info(type).name);
      CAPTURE(single);
      CAPTURE(protect.recent);
      if (protect.any() && row_bytes(type, 64) >= 64) continue;  // it protects nothing
      if (single && 2 * model->spec.layers.back().rope_pairs % info(type).elems != 0) continue;
      const auto outcome = [&](const NamedDrafters& d) {
        EngineConfig c = config(d);
        c.cache_k = c.cache_v = type, c.single_copy = single, c.kv_protect = protect;
        Engine engine(backend, model, c);
        return run(engine, r);
      };
      const Outcome plain = outcome({});
      REQUIRE(plain.tokens.size() == 24);
      std::atomic<int> broken{0};
      for (const Guess g : {Guess::corrupted, Guess::tree}) {
        const Outcome got = outcome(one(make_guesser(oracle_of(r, plain), {g, {}, false, nullptr, &broken}),
                                        g == Guess::tree ? 20 : 0));
        CHECK(got == plain);
        REQUIRE(got.spec);
        CHECK(got.spec->accepted > 5);
      }
      CHECK(broken == 0);
    }
}

TEST_CASE("drafters hear of every committed position the same bits, however it was decoded") {
  const Target t("gemma4_e");
  const auto layers = static_cast<int32_t>(t.model->spec.layers.size());
  HeardRows heard;
  std::atomic<int> broken{0};
  const Request r = sampled(some_prompt(40, 5), 40, 3);
  GuessOptions o{Guess::listener, {0, layers / 2, layers - 1}, true, &heard, &broken};
  Outcome plain;
  {
    Engine engine(t.backend, t.model, config(one(make_guesser(std::make_shared<Oracle>(), o))));
    plain = run(engine, r);
  }
  const size_t positions = heard.size();
  CHECK(positions == 40 + 39);
  const auto oracle = oracle_of(r, plain);
  for (const Guess g : {Guess::oracle, Guess::corrupted, Guess::tree}) {
    o.guess = g;
    Engine engine(t.backend, t.model, config(one(make_guesser(oracle, o), g == Guess::tree ? 20 : 0)));
    const Outcome got = run(engine, r);
    CHECK(got == plain);
    REQUIRE(got.spec);
    CHECK(got.spec->accepted > 10);
  }
  CHECK(heard.size() == positions);
  CHECK(broken == 0);
}

TEST_CASE("ends come where they come without drafts: stop token, max_tokens, context, log probabilities") {
  const Target t("gemma4_dense");
  Request r = sampled(some_prompt(20, 4), 50, 11);
  r.logprobs = 3;
  r.prompt_logprobs = true;
  const NamedDrafters none;
  const auto plain = [&](const Request& q, int32_t context) {
    Engine engine(t.backend, t.model, config(none, context));
    return run(engine, q);
  };
  const Outcome whole = plain(r, 160);
  REQUIRE(whole.tokens.size() == 50);
  const auto oracle = oracle_of(r, whole);
  std::vector<std::pair<Request, int32_t>> wishes;
  for (const int32_t n : {1, 2, 3, 8, 9, 10, 17})
    wishes.emplace_back(r, 160), wishes.back().first.max_tokens = n;
  for (const int32_t context : {20, 21, 22, 27, 28, 29, 40}) {
    wishes.emplace_back(r, context);
    wishes.back().first.max_tokens = -1;
  }
  for (const size_t at : {0, 1, 5, 6, 7, 20}) {
    wishes.emplace_back(r, 160);
    wishes.back().first.stop_tokens = {whole.tokens[at]};
    wishes.emplace_back(wishes.back());
    wishes.back().first.ignore_eos = true;
  }
  for (size_t i = 0; i < wishes.size(); ++i) {
    const auto& [request, context] = wishes[i];
    const Outcome want = plain(request, context);
    for (const Guess g : {Guess::oracle, Guess::corrupted, Guess::tree}) {
      CAPTURE(i);
      CAPTURE(static_cast<int>(g));
      Engine engine(t.backend, t.model,
                    config(one(make_guesser(oracle, {.guess = g}), g == Guess::tree ? 16 : 0), context));
      CHECK(run(engine, request) == want);
    }
  }
}

TEST_CASE("cancelled and started again") {
  for (const char* golden : {"gemma4_e", "qwen3_5"}) {
    CAPTURE(golden);
    const Target t(golden);
    const Request r = sampled(some_prompt(30, 6), 60, 5);
    Outcome plain;
    {
      Engine engine(t.backend, t.model, config({}));
      plain = run(engine, r);
    }
    const auto oracle = oracle_of(r, plain);
    Engine engine(t.backend, t.model, config(one(make_guesser(oracle, {.guess = Guess::corrupted})), 160, 2));
    for (const size_t after : {1, 9, 30}) {
      CAPTURE(after);
      Request doomed = r;
      std::atomic<uint64_t> id{0};
      std::atomic<size_t> came{0};
      doomed.sink = [&](const Event& e) {
        if ((came += e.tokens.size()) >= after && id) engine.cancel(id);
      };
      // The other one goes on beside it.
      std::atomic<bool> over{false};
      std::shared_ptr<const SpecStats> spec;
      std::vector<Token> tokens;
      doomed.sink = [&, sink = doomed.sink](const Event& e) {
        sink(e);
        tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
        if (e.finish == Finish::none) return;
        spec = e.spec;
        over = true;
      };
      id = engine.submit(doomed);
      CHECK(run(engine, r) == plain);
      while (!over) std::this_thread::yield();
      REQUIRE(tokens.size() <= plain.tokens.size());
      REQUIRE(spec);
      CHECK(1 + spec->plain + spec->rounds + spec->accepted == tokens.size());
      CHECK(std::equal(tokens.begin(), tokens.end(), plain.tokens.begin()));
      CHECK(run(engine, r) == plain);
    }
    CHECK(engine.stats().kv_pages_used == 0);
  }
}

TEST_CASE("the model's own head, at every depth, alone and mixed with others") {
  for (const char* golden : {"qwen3_5", "qwen3_5_moe"}) {
    const Target t(golden, fast_backend());
    uint64_t accepted = 0;
    for (const NamedParams& p : all_params()) {
      std::vector<Request> requests;
      for (int i = 0; i < 3; ++i) {
        requests.push_back(sampled(some_prompt(20 + 25 * i, i), 40, 7));
        requests.back().sample = p.params;
        requests.back().sample.seed = 50 + static_cast<uint64_t>(i);
      }
      Engine bare(t.backend, t.model, config({}, 160, 3));
      const std::vector<Outcome> plain = run_all(bare, requests);
      for (const int32_t depth : {1, 3, 4, 5})  // 5: mixed
        for (const int32_t batch : {depth % 2 ? 3 : 1}) {
          CAPTURE(golden);
          CAPTURE(p.name);
          CAPTURE(depth);
          CAPTURE(batch);
          NamedDrafters d =
              one(make_nextn_drafter(t.model->family->nextn(*t.model, *t.backend, {}), t.model->spec));
          d.config.draft_max = std::min(depth, 4);
          if (depth == 5) {
            d.drafters.push_back(std::shared_ptr<Drafter>(make_ngram("suffix", {})));
            d.config.tree_nodes = 12;
            d.config.adaptive = true;
          }
          Engine engine(t.backend, t.model, config(d, 160, batch));
          const std::vector<Outcome> got = run_all(engine, requests);
          for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == plain[i]);
          accepted += engine.stats().spec.accepted;
        }
    }
    CHECK(accepted > 0);  // of random weights: few
  }
}

// Two thirds of the vocabulary, others after every token.
class PathMask : public TokenMask {
 public:
  std::span<const uint64_t> allowed() override {
    words_.assign(8, 0);
    for (uint32_t t = 0; t < 512; ++t)
      if ((t + state_) % 3 != 0) words_[t / 64] |= uint64_t{1} << t % 64;
    return words_;
  }
  void picked(Token token) override {
    banned += (static_cast<uint32_t>(token) + state_) % 3 == 0;
    state_ = state_ * 31 + static_cast<uint32_t>(token) + 1;
    ready_ = false;
  }
  std::vector<Token> forced(size_t) override { return {}; }
  // Like a real one it stays ready, once it is, until a token is picked.
  bool ready(std::chrono::microseconds) override {
    return ready_ = ready_ || every_ == 0 || ++asked_ % every_ == 0;
  }
  int banned = 0;
  uint32_t every_ = 0;  // is late but for every so many calls

 private:
  uint32_t state_ = 1, asked_ = 0;
  bool ready_ = false;
  std::vector<uint64_t> words_;
};

TEST_CASE("a mask that follows the path: the same tokens, none of them banned") {
  const Target target("gemma4_dense", fast_backend());
  const auto masked = [](int salt, float temperature) {
    Request r = sampled(some_prompt(30, salt), 40, 5);
    r.sample.temperature = temperature;
    r.mask = std::make_shared<PathMask>();
    return r;
  };
  const auto banned = [](const Request& r) { return dynamic_cast<PathMask&>(*r.mask).banned; };
  for (const float temperature : {0.0F, 1.0F}) {
    const auto oracle = std::make_shared<Oracle>();
    oracle->vocab = 512;
    Engine plain(target.backend, target.model, config({}));
    std::vector<Outcome> expected;
    for (int salt = 0; salt < 2; ++salt) {
      const Request r = masked(salt, temperature);
      expected.push_back(run(plain, r));
      CHECK(banned(r) == 0);
      oracle->streams.push_back(r.prompt);
      std::vector<Token>& stream = oracle->streams.back();
      stream.insert(stream.end(), expected.back().tokens.begin(), expected.back().tokens.end());
      Request free = masked(salt, temperature);
      free.mask = nullptr;
      CHECK(run(plain, free).tokens != expected.back().tokens);
    }
    for (const Guess guess : {Guess::oracle, Guess::corrupted, Guess::tree}) {
      const NamedDrafters drafters =
          one(make_guesser(oracle, {.guess = guess}), guess == Guess::tree ? 12 : 0);
      Engine engine(target.backend, target.model, config(drafters));
      for (int salt = 0; salt < 2; ++salt) {
        const Request r = masked(salt, temperature);
        const Outcome o = run(engine, r);
        CHECK(o == expected[static_cast<size_t>(salt)]);
        CHECK(o.spec->accepted > 0);
        CHECK(banned(r) == 0);
      }
      // Masks that are late: the same tokens, whatever is in the middle of being picked.
      std::vector<Request> both;
      for (const uint32_t every : {2U, 3U, 7U, 50U}) {
        both.push_back(masked(static_cast<int>(every) % 2, temperature));
        dynamic_cast<PathMask&>(*both.back().mask).every_ = every;
      }
      const std::vector<Outcome> late = run_all(engine, both);
      for (size_t i = 0; i < both.size(); ++i) {
        CHECK(late[i] == expected[i == 0 || i == 3 ? 0 : 1]);
        CHECK(banned(both[i]) == 0);
      }
    }
  }
}

namespace {

// After every three free tokens four that are forced.
class FormMask : public TokenMask {
 public:
  std::span<const uint64_t> allowed() override {
    words_.assign(8, forces(at_) ? 0 : ~uint64_t{0});
    if (const Token t = form(at_); forces(at_)) words_[static_cast<size_t>(t) / 64] |= uint64_t{1} << t % 64;
    return words_;
  }
  void picked(Token token) override {
    wrong += forces(at_) && token != form(at_);
    ++at_;
  }
  std::vector<Token> forced(size_t most) override {
    std::vector<Token> out;
    for (int at = at_; forces(at) && out.size() < most; ++at) out.push_back(form(at));
    return out;
  }
  int wrong = 0;

 private:
  static bool forces(int at) { return at % 7 >= 3; }
  static Token form(int at) { return static_cast<Token>(40 + at % 7 * 13); }
  int at_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace

TEST_CASE("what a grammar forces is drafted, and is right") {
  const Target target("gemma4_dense", fast_backend());
  Request r = sampled(some_prompt(30, 3), 42, 5);
  const auto with_form = [&] {
    Request q = r;
    q.mask = std::make_shared<FormMask>();
    return q;
  };
  Engine plain(target.backend, target.model, config({}));
  const Outcome expected = run(plain, with_form());
  for (const bool adaptive : {false, true}) {
    NamedDrafters d = one(make_grammar_drafter());
    d.config.adaptive = adaptive;
    Engine engine(target.backend, target.model, config(d));
    const Request q = with_form();
    const Outcome got = run(engine, q);
    CHECK(got == expected);
    CHECK(dynamic_cast<FormMask&>(*q.mask).wrong == 0);
    REQUIRE(got.spec);
    CHECK(got.spec->accepted == got.spec->drafted);
    if (adaptive) continue;
    CHECK(got.spec->rounds == 6);
    CHECK(got.spec->accepted == 23);  // the last token is picked, not drafted
    REQUIRE(got.spec->shares.size() == 1);
    CHECK(got.spec->shares[0].drafter == "grammar");
    CHECK(got.spec->shares[0].accepted == 23);
    // Nothing is drafted for a request without a grammar.
    CHECK(run(engine, r).spec->rounds == 0);
  }
}

TEST_CASE("counters add up") {
  const Target t("gemma4_dense");
  const Request r = sampled(some_prompt(20, 4), 49, 11);
  Engine bare(t.backend, t.model, config({}));
  const Outcome plain = run(bare, r);
  CHECK(!plain.spec);
  Engine engine(t.backend, t.model, config(one(make_guesser(oracle_of(r, plain), {}))));
  const Outcome got = run(engine, r);
  REQUIRE(got.spec);
  const SpecStats& s = *got.spec;
  // One token comes from the prompt; then six rounds of 8.
  CHECK(s.rounds == 6);
  CHECK(s.plain == 0);
  CHECK(s.drafted == 42);
  CHECK(s.accepted == 42);
  for (size_t i = 0; i < 7; ++i) {
    CHECK(s.drafted_at[i] == 6);
    CHECK(s.accepted_at[i] == 6);
  }
  CHECK(s.accepted_length() == doctest::Approx(8));
  CHECK(s.verify_seconds > 0);
  CHECK(engine.stats().spec.accepted == 42);
  CHECK(engine.stats().steps == 2 + 6);
}

TEST_CASE("one request without drafts beside another with: the same tokens; what is rejected is told") {
  const Target t("gemma4_dense");
  Request r = sampled(some_prompt(20, 4), 49, 11);
  Engine bare(t.backend, t.model, config({}));
  const Outcome plain = run(bare, r);
  Engine engine(t.backend, t.model,
                config(one(make_guesser(oracle_of(r, plain), {.guess = Guess::corrupted})), 160, 2));
  Request alone = r;
  alone.speculate = false;
  const std::vector<Outcome> got = run_all(engine, {r, alone});
  CHECK(got[0] == plain);
  CHECK(got[1] == plain);
  CHECK(got[0].spec);
  CHECK(!got[1].spec);
  std::atomic<bool> over{false};
  uint64_t rejected = 0, wrong = 0;
  r.sink = [&](const Event& e) {
    rejected += e.rejected.size();
    wrong += !e.rejected.empty() && (e.tokens.empty() || e.rejected.front() == e.tokens.back());
    if (e.finish == Finish::none) return;
    // A chain is accepted up to where it is rejected, but for what lies behind the end.
    wrong +=
        e.spec->accepted + rejected > e.spec->drafted || e.spec->accepted + rejected + 8 < e.spec->drafted;
    over = true;
  };
  engine.submit(r);
  while (!over) std::this_thread::yield();
  CHECK(rejected > 0);
  CHECK(wrong == 0);
}

namespace {

// A drafter as bad as one can be.
class Bad : public Drafter {
 public:
  enum class How { throws, nonsense, refuses, deaf };
  explicit Bad(How how) : how_(how) {}
  std::string_view name() const override { return "bad"; }
  int32_t max_depth() const override { return 8; }
  bool makes_trees() const override { return true; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    if (how_ == How::refuses) throw Error("no room");
    struct Session : DraftSession {
      How how;
      int calls = 0;
      explicit Session(How h) : how(h) {}
      void committed(const CommittedRows&) override {
        if (how == How::deaf && ++calls == 3) throw Error("what?");
      }
    };
    return std::make_unique<Session>(how_);
  }
  void propose(std::span<DraftAsk> asks) override {
    if (how_ == How::throws) throw Error("no idea");
    for (DraftAsk& a : asks) {
      switch (++calls_ % 5) {
        case 0: a.out.token = {1, -5, 3}; break;
        case 1: a.out.token = {100000}; break;
        case 2: a.out = {{1, 2, 3}, {-1, 7, 0}, {}}; break;
        case 3: a.out = {{1, 2}, {-1, -2}, {}}; break;
        case 4: a.out.token.assign(500, 9); break;
      }
    }
  }

 private:
  How how_;
  int calls_ = 0;
};

}  // namespace

TEST_CASE("a bad drafter harms nobody") {
  const Target t("gemma4_dense");
  const Request r = sampled(some_prompt(20, 4), 30, 2);
  Engine bare(t.backend, t.model, config({}));
  const Outcome plain = run(bare, r);
  for (const auto how : {Bad::How::throws, Bad::How::nonsense, Bad::How::refuses, Bad::How::deaf}) {
    CAPTURE(static_cast<int>(how));
    for (const int32_t nodes : {0, 20}) {
      Engine engine(t.backend, t.model, config(one(std::make_shared<Bad>(how), nodes)));
      CHECK(run(engine, r) == plain);
    }
  }
}

TEST_CASE("more rows than a step verifies are cut, not refused") {
  const Target t("gemma4_dense");
  NamedDrafters d = one(std::make_shared<Bad>(Bad::How::nonsense), 500);
  d.config.max_rows = 1000;
  d.config.draft_max = 60;
  Engine engine(t.backend, t.model, config(d));
  CHECK(engine.config().spec.max_rows == 32);
  const Request r = sampled(some_prompt(20, 4), 30, 2);
  Engine bare(t.backend, t.model, config({}));
  CHECK(run(engine, r) == run(bare, r));
  CHECK(engine.stats().spec.drafted > engine.stats().spec.rounds * 2);
  CHECK(engine.stats().spec.drafted <= engine.stats().spec.rounds * 31);
}

TEST_CASE("the law of what is sampled under speculation") {
  // Two tokens from a fixed prompt, the second verified against a tree of guesses: their joint law, of 4 x 4.
  const Target t("gemma4_dense", fast_backend());
  const std::vector<Token> prompt = some_prompt(12, 8);
  SampleParams params;
  params.top_k = 4;
  params.temperature = 1.5F;
  std::map<std::pair<Token, Token>, double> law, seen;
  auto oracle = std::make_shared<Oracle>();
  oracle->vocab = 512;
  {
    Stepper stepper(t.backend, t.model, {64, 1, 16, 16}, DType::f16, DType::f16);
    Sequence s(stepper.pages());
    REQUIRE(s.append(12));
    const Stepper::Part all{&s, prompt};
    stepper.run({&all, 1});
    s.commit(12);
    const std::vector<float> first = distribution(stepper.logits(0), params, {});
    for (Token a = 0; a < 512; ++a) {
      if (first[a] == 0) continue;
      REQUIRE(s.append(1));
      const Stepper::Part next{&s, {&a, 1}};
      stepper.run({&next, 1});
      const std::vector<float> second = distribution(stepper.logits(0), params, {});
      Token best = 0;
      for (Token b = 0; b < 512; ++b) {
        if (second[b] > 0) law[{a, b}] = double{first[a]} * second[b];
        if (second[b] > second[best]) best = b;
      }
      s.commit(0);
      oracle->streams.push_back(prompt);
      oracle->streams.back().insert(oracle->streams.back().end(), {a, best, 1, 1});
    }
  }
  REQUIRE(law.size() == 16);
  constexpr int kDraws = 2000;
  EngineConfig c = config(one(make_guesser(oracle, {.guess = Guess::oracle})), 64, 8);
  c.max_queue = kDraws;
  Engine engine(t.backend, t.model, c);
  std::vector<Request> requests;
  for (int i = 0; i < kDraws; ++i) {
    Request r;
    r.prompt = prompt, r.sample = params, r.sample.seed = static_cast<uint64_t>(i) * 7919, r.max_tokens = 3;
    requests.push_back(r);
  }
  for (const Outcome& o : run_all(engine, requests)) ++seen[{o.tokens[0], o.tokens[1]}];
  double chi2 = 0;
  for (const auto& [pair, p] : law) {
    const double expected = p * kDraws, d = seen[pair] - expected;
    chi2 += d * d / expected;
  }
  CHECK(seen.size() == 16);
  CHECK(chi2 < 44.3);  // 15 degrees of freedom, one in ten thousand
  const SpecStats s = engine.stats().spec;
  CHECK(s.accepted_at[0] > kDraws / 5);
  CHECK(s.accepted_at[0] < kDraws);
}

TEST_CASE("one engine takes several settings of speculation in turn, each with what it has learnt") {
  const Target t("gemma4_dense", fast_backend());
  const Request request = sampled(some_prompt(40, 4), 40, 5);
  EngineConfig plain_config = config({});
  plain_config.context = 160;
  Outcome plain;
  {
    Engine engine(t.backend, t.model, plain_config);
    plain = run(engine, request);
  }
  NamedDrafters all = one(make_guesser(oracle_of(request, plain), {.hidden = true}));
  all.drafters.push_back(make_ngram("suffix", {}));
  Engine engine(t.backend, t.model, config(all));
  const auto oracle = std::make_shared<Speculator>(std::vector{all.drafters[0]}, all.config);
  const auto suffix = std::make_shared<Speculator>(std::vector{all.drafters[1]}, all.config);
  SpecConfig by_cost = all.config;
  by_cost.adaptive = true;
  const auto both = std::make_shared<Speculator>(all.drafters, by_cost);
  uint64_t rounds = 0;
  for (const auto& s : {oracle, {}, suffix, both, oracle}) {
    engine.speculate(s);
    const Outcome got = run(engine, request);
    CHECK(got == plain);
    CHECK(static_cast<bool>(got.spec) == static_cast<bool>(s));
    if (s != oracle) continue;
    CHECK(s->totals().rounds > rounds);
    rounds = s->totals().rounds;
  }
  SpecConfig wide = all.config;
  wide.max_rows = 64;
  CHECK_THROWS_AS(engine.speculate(std::make_shared<Speculator>(all.drafters, wide)), Error);
  Engine without(t.backend, t.model, plain_config);
  CHECK_THROWS_AS(without.speculate(oracle), Error);
}
