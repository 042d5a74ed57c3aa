// The engine with a small real model: the reference's continuation, no mixing between requests, and every way
// a request can end.
#include "engine/engine.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <future>
#include <limits>
#include <mutex>
#include <thread>

#include "tests/backends.h"
#include "tests/gate.h"
#include "tests/goldens.h"
#include "tests/hooked_backend.h"

using namespace carat;
using namespace carat::test;

namespace {

// What a request produced.
struct Result {
  std::vector<Token> tokens;
  std::vector<Logprobs> logprobs, prompt_logprobs;
  std::vector<int32_t> progress;
  Finish finish = Finish::none;
  std::string error;
};

class Client {
 public:
  // on_event runs on the engine's thread, before the result is seen by get().
  std::function<void(const Event&)> sink(std::function<void(const Event&)> on_event = {}) {
    return [state = state_, on_event](const Event& e) {
      if (on_event) on_event(e);
      const std::lock_guard lock(state->mutex);
      Result& r = state->result;
      CHECK(r.finish == Finish::none);  // nothing comes after the end
      r.tokens.insert(r.tokens.end(), e.tokens.begin(), e.tokens.end());
      r.logprobs.insert(r.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
      if (!e.prompt_logprobs.empty()) r.prompt_logprobs = e.prompt_logprobs;
      r.progress.push_back(e.prompt_done);
      r.finish = e.finish;
      r.error = e.error;
      state->changed.notify_all();
    };
  }
  Result get() {
    std::unique_lock lock(state_->mutex);
    const auto over = [&] { return state_->result.finish != Finish::none; };
    REQUIRE(state_->changed.wait_for(lock, std::chrono::seconds(60), over));
    return state_->result;
  }
  void wait_tokens(size_t n) {
    std::unique_lock lock(state_->mutex);
    const auto there = [&] { return state_->result.tokens.size() >= n; };
    REQUIRE(state_->changed.wait_for(lock, std::chrono::seconds(60), there));
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Result result;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

std::shared_ptr<const Model> dense(Backend& backend) {
  return std::make_shared<Model>(load_golden(golden_dir("gemma4_dense"), backend));
}

Result run(Engine& engine, Request request) {
  Client client;
  request.sink = client.sink();
  engine.submit(std::move(request));
  return client.get();
}

Request greedy(std::vector<Token> prompt, int32_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.sample.temperature = 0;
  r.max_tokens = max_tokens;
  return r;
}

struct Fixture {
  explicit Fixture(EngineConfig config = {.context = 160, .sequences = 4, .prefill_chunk = 32})
      : backend(std::make_shared<HookedBackend>()), model(dense(*backend)), engine(backend, model, config) {}
  std::shared_ptr<HookedBackend> backend;
  std::shared_ptr<const Model> model;
  Engine engine;
};

std::vector<Token> some_prompt(int n, int salt) {
  std::vector<Token> p;
  for (int i = 0; i < n; ++i) p.push_back((i * 37 + salt * 101 + 11) % 512);
  return p;
}

}  // namespace

TEST_CASE("greedy continuation equals the reference's at every chunk size and on every backend") {
  const Goldens g("gemma4_dense");
  const std::vector<Token> prompt = g.get("input_ids").i, want = g.get("greedy_ids").i;
  for (NamedBackend& b : all_backends()) {
    CAPTURE(b.name);
    const std::shared_ptr<Backend> backend = std::move(b.backend);
    const auto model = dense(*backend);
    for (const int32_t chunk : {1, 7, 64, 512}) {
      CAPTURE(chunk);
      Engine engine(backend, model,
                    {.context = 128,
                     .sequences = 1,
                     .prefill_chunk = chunk,
                     .cache_k = DType::f32,
                     .cache_v = DType::f32});
      const Result r = run(engine, greedy(prompt, static_cast<int32_t>(want.size())));
      CHECK(r.tokens == want);
      CHECK(r.finish == Finish::length);
      CHECK(r.progress[0] == 0);  // it left the queue
      CHECK(r.progress[1] == std::min<int32_t>(chunk, static_cast<int32_t>(prompt.size())));
      CHECK(r.progress.back() == static_cast<int32_t>(prompt.size()));
    }
  }
}

TEST_CASE("suppressed tokens of a model are never said, as if every request banned them") {
  Fixture f;
  const Request plain = greedy(some_prompt(20, 3), 24);
  const std::vector<Token> free = run(f.engine, plain).tokens;
  auto model = std::make_shared<Model>(load_golden(golden_dir("gemma4_dense"), *f.backend));
  model->suppressed = {free[0], free[5]};
  Engine engine(f.backend, std::shared_ptr<const Model>(model),
                {.context = 160, .sequences = 2, .prefill_chunk = 32});
  for (const float temperature : {0.0F, 1.0F}) {
    Request r = plain;
    r.sample.temperature = temperature;
    r.sample.top_k = 20;
    const std::vector<Token> got = run(engine, r).tokens;
    for (const Token t : model->suppressed) {
      CHECK(std::find(got.begin(), got.end(), t) == got.end());
      r.sample.logit_bias.emplace_back(t, -std::numeric_limits<float>::infinity());
    }
    CHECK(got == run(f.engine, r).tokens);
  }
}

TEST_CASE("requests together produce what they produce alone") {
  Fixture f;
  std::vector<Request> requests;
  for (int i = 0; i < 10; ++i) {
    Request r = greedy(some_prompt(1 + i * 13, i), 6 + i);
    if (i % 2) {
      r.sample = {.temperature = 1.2F, .top_k = i == 5 ? 0 : 40, .top_p = 0.95F, .seed = 1000u + i};
      r.sample.repeat_penalty = i == 3 ? 1.3F : 1;
    }
    if (i % 3 == 0) r.logprobs = 2;
    requests.push_back(r);
  }
  std::vector<Result> alone;
  for (const Request& r : requests) alone.push_back(run(f.engine, r));
  for (int round = 0; round < 3; ++round) {
    std::vector<Client> clients(requests.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < requests.size(); ++i)
      threads.emplace_back([&, i] {
        Request r = requests[i];
        r.sink = clients[i].sink();
        f.engine.submit(std::move(r));
      });
    for (std::thread& t : threads) t.join();
    for (size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      const Result r = clients[i].get();
      CHECK(r.tokens == alone[i].tokens);
      CHECK(r.finish == Finish::length);
      REQUIRE(r.logprobs.size() == alone[i].logprobs.size());
      for (size_t j = 0; j < r.logprobs.size(); ++j)
        CHECK(r.logprobs[j].chosen == alone[i].logprobs[j].chosen);
    }
  }
  const EngineStats s = f.engine.stats();
  CHECK(s.requests == 40);
  CHECK(s.running == 0);
  CHECK(s.waiting == 0);
  CHECK(s.kv_pages_used == 0);
  CHECK(s.generated_tokens == 4 * 105);
}

TEST_CASE("the seed decides, and only the seed") {
  Fixture f;
  Request r = greedy(some_prompt(20, 1), 24);
  r.sample = {.temperature = 1, .seed = 7};
  const auto first = run(f.engine, r).tokens;
  CHECK(first == run(f.engine, r).tokens);
  r.sample.seed = 8;
  CHECK(first != run(f.engine, r).tokens);
}

TEST_CASE("a stop token ends the request and comes last") {
  Fixture f;
  const Goldens g("gemma4_dense");
  const std::vector<Token> want = g.get("greedy_ids").i;
  Request r = greedy(g.get("input_ids").i, 32);
  size_t at = 5;
  while (std::find(want.begin(), want.begin() + static_cast<long>(at), want[at]) !=
         want.begin() + static_cast<long>(at))
    ++at;
  r.stop_tokens = {511, want[at]};
  const Result stopped = run(f.engine, r);
  CHECK(stopped.finish == Finish::stop);
  CHECK(stopped.tokens == std::vector<Token>(want.begin(), want.begin() + static_cast<long>(at) + 1));
  r.ignore_eos = true;
  CHECK(run(f.engine, r).tokens.size() == 32);
}

TEST_CASE("a full context ends with length") {
  Fixture f({.context = 40, .sequences = 2, .prefill_chunk = 16});
  // The last token picked needs no room of its own.
  for (const auto& [prompt, expected] : {std::pair{33, 8}, {40, 1}, {1, 40}}) {
    const Result r = run(f.engine, greedy(some_prompt(prompt, 2), -1));
    CHECK(r.tokens.size() == static_cast<size_t>(expected));
    CHECK(r.finish == Finish::length);
  }
}

TEST_CASE("log probabilities of the prompt and of what was picked") {
  Fixture f(
      {.context = 160, .sequences = 4, .prefill_chunk = 32, .cache_k = DType::f32, .cache_v = DType::f32});
  const Goldens g("gemma4_dense");
  const std::vector<Token> prompt = g.get("input_ids").i;
  const GoldenTensor logits = g.get("logits"), next = g.get("greedy_logits");
  Request r = greedy(prompt, 0);
  r.prompt_logprobs = true;
  r.logprobs = 3;
  const Result read = run(f.engine, r);
  CHECK(read.finish == Finish::length);
  CHECK(read.tokens.empty());
  REQUIRE(read.prompt_logprobs.size() == prompt.size() - 1);
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    const Logprobs want = logprobs({&logits.f[i * 512], 512}, prompt[i + 1], 3);
    CHECK(read.prompt_logprobs[i].chosen == doctest::Approx(want.chosen).epsilon(1e-3));
    REQUIRE(read.prompt_logprobs[i].top.size() == 3);
    CHECK(read.prompt_logprobs[i].top[0].token == want.top[0].token);
  }
  r.max_tokens = 4;
  const Result both = run(f.engine, r);
  CHECK(both.prompt_logprobs.size() == prompt.size() - 1);
  REQUIRE(both.logprobs.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(both.logprobs[i].top[0].token == both.tokens[i]);
    CHECK(both.logprobs[i].chosen ==
          doctest::Approx(logprobs({&next.f[i * 512], 512}, both.tokens[i], 0).chosen).epsilon(1e-3));
  }
}

TEST_CASE("cancelling: while running, while waiting, unknown, twice") {
  Fixture f({.context = 160, .sequences = 1, .prefill_chunk = 8});
  Client running, waiting, after;
  Request r = greedy(some_prompt(60, 1), -1);
  r.sink = running.sink();
  const uint64_t a = f.engine.submit(r);
  r.sink = waiting.sink();
  const uint64_t b = f.engine.submit(r);
  f.engine.cancel(b);
  CHECK(waiting.get().finish == Finish::cancelled);
  running.wait_tokens(3);
  f.engine.cancel(a);
  f.engine.cancel(a);
  f.engine.cancel(987654);
  const Result got = running.get();
  CHECK(got.finish == Finish::cancelled);
  CHECK(got.tokens.size() >= 3);
  CHECK(f.engine.stats().kv_pages_used == 0);
  CHECK(run(f.engine, greedy({5, 6, 7}, 3)).tokens.size() == 3);
}

TEST_CASE("cancelled inside the prompt") {
  Fixture f({.context = 160, .sequences = 1, .prefill_chunk = 4});
  Client client;
  Request r = greedy(some_prompt(120, 1), -1);
  std::atomic<uint64_t> id{0};
  std::promise<void> read;
  bool told = false;
  r.sink = client.sink([&](const Event& e) {
    if (e.prompt_done >= 8 && !std::exchange(told, true)) read.set_value();
  });
  id = f.engine.submit(r);
  read.get_future().wait();
  f.engine.cancel(id);
  const Result got = client.get();
  CHECK(got.finish == Finish::cancelled);
  CHECK(got.tokens.empty());
}

TEST_CASE("the engine's end cancels what runs and what waits") {
  Client a, b;
  {
    Fixture f({.context = 4000, .sequences = 1, .prefill_chunk = 8});
    Request r = greedy(some_prompt(10, 1), -1);
    r.sink = a.sink();
    f.engine.submit(r);
    r.sink = b.sink();
    f.engine.submit(r);
    a.wait_tokens(2);
  }
  CHECK(a.get().finish == Finish::cancelled);
  CHECK(b.get().finish == Finish::cancelled);
}

TEST_CASE("what is refused, and how") {
  Fixture f({.context = 32, .sequences = 1, .prefill_chunk = 8, .max_queue = 2});
  const auto refuses = [&](Request r, const char* why) {
    r.sink = [](const Event&) {};
    CHECK_THROWS_WITH_AS(f.engine.submit(r), doctest::Contains(why), Error);
  };
  refuses(greedy({}, 1), "empty");
  refuses(greedy(some_prompt(33, 0), 1), "33 tokens, the context holds 32");
  refuses(greedy({512}, 1), "vocabulary");
  refuses(greedy({-1}, 1), "vocabulary");
  refuses(greedy({1}, -2), "max_tokens");
  Request r = greedy({1}, 1);
  r.sample.top_p = 2;
  refuses(r, "top_p");
  r = greedy({1}, 1);
  r.sample.logit_bias = {{600, 1.0F}};
  refuses(r, "logit_bias");
  CHECK_THROWS_AS(Engine(f.backend, f.model, {.context = -1}), Error);
  CHECK_THROWS_AS(Engine(f.backend, f.model, {.sequences = -1}), Error);
}

TEST_CASE("a full queue refuses at once and recovers") {
  Fixture f({.context = 32, .sequences = 1, .prefill_chunk = 8, .max_queue = 2});
  Gate gate;
  f.backend->before_step = [&] { gate.pass(); };
  std::vector<Client> clients(3);
  Request r = greedy({1, 2}, 2);
  r.sink = clients[0].sink();
  f.engine.submit(r);
  gate.wait_until_held();
  for (int i = 1; i < 3; ++i) {
    r.sink = clients[i].sink();
    f.engine.submit(r);
  }
  CHECK(f.engine.stats().waiting == 2);
  CHECK_THROWS_AS(f.engine.submit(r), Unavailable);
  gate.open();
  for (Client& c : clients) CHECK(c.get().finish == Finish::length);
  CHECK(run(f.engine, greedy({1, 2}, 2)).tokens.size() == 2);
}

TEST_CASE("NaN logits fail their request and no other") {
  Fixture f;
  const std::vector<Token> alone = run(f.engine, greedy(some_prompt(9, 4), 12)).tokens;
  // Both enter in one step; only the first row wanted is spoilt, once.
  Gate gate;
  std::atomic<int> steps{0};
  f.backend->before_step = [&] {
    if (steps++ == 0) gate.pass();
  };
  f.backend->after_step = [&](const Tensor& logits) {
    if (steps == 4) logits.row<float>(0)[77] = std::numeric_limits<float>::quiet_NaN();
  };
  Client holder, bad, good;
  Request r = greedy({3}, 1);
  r.sink = holder.sink();
  f.engine.submit(r);
  gate.wait_until_held();
  r = greedy(some_prompt(9, 3), 12);
  r.sink = bad.sink();
  f.engine.submit(r);
  r = greedy(some_prompt(9, 4), 12);
  r.sink = good.sink();
  f.engine.submit(r);
  gate.open();
  const Result failed = bad.get();
  CHECK(failed.finish == Finish::error);
  CHECK(failed.error.find("NaN") != std::string::npos);
  CHECK(failed.tokens.size() == 2);
  CHECK(good.get().tokens == alone);
  CHECK(f.engine.stats().kv_pages_used == 0);
}

TEST_CASE("a failed step fails its requests; a failed device also all that follow") {
  Fixture f({.context = 64, .sequences = 1, .prefill_chunk = 8});
  f.backend->before_step = [] { throw Error("out of scratch"); };
  const Result r = run(f.engine, greedy({1, 2}, 4));
  CHECK(r.finish == Finish::error);
  CHECK(r.error == "out of scratch");
  f.backend->before_step = {};
  CHECK(run(f.engine, greedy({1, 2}, 4)).tokens.size() == 4);
  f.backend->before_step = [] { throw DeviceError("Matmul, layer 3: the device is gone"); };
  CHECK(run(f.engine, greedy({1, 2}, 4)).error.find("layer 3") != std::string::npos);
  Request again = greedy({1}, 1);
  again.sink = [](const Event&) {};
  CHECK_THROWS_AS(f.engine.submit(again), Unavailable);
}

TEST_CASE("a receiver that throws harms nobody") {
  Fixture f;
  Request r = greedy({1, 2}, 4);
  r.sink = [](const Event&) { throw std::runtime_error("receiver"); };
  f.engine.submit(r);
  CHECK(run(f.engine, greedy({1, 2}, 4)).tokens.size() == 4);
}

TEST_CASE("nobody waits for a long prompt to end") {
  Fixture f({.context = 400, .sequences = 2, .prefill_chunk = 4});
  Client quick, slow;
  std::atomic<int32_t> slow_read{0};
  int32_t read_when_quick_ended = -1;
  Gate gate;
  f.backend->before_step = [&] { gate.pass(); };
  Request r = greedy({1, 2, 3}, 20);
  r.sink = quick.sink([&](const Event& e) {
    if (e.finish != Finish::none) read_when_quick_ended = slow_read;
  });
  f.engine.submit(r);
  gate.wait_until_held();
  r = greedy(some_prompt(350, 1), 2);
  r.sink = slow.sink([&](const Event& e) { slow_read = e.prompt_done; });
  f.engine.submit(r);
  gate.open();
  CHECK(quick.get().tokens.size() == 20);
  CHECK(slow.get().tokens.size() == 2);
  CHECK(read_when_quick_ended > 0);
  CHECK(read_when_quick_ended < 100);
}

namespace {

// Everything is allowed, once `open`.
class SlowMask : public TokenMask {
 public:
  bool ready(std::chrono::microseconds patience) override {
    if (!open) std::this_thread::sleep_for(patience);
    return open;
  }
  std::span<const uint64_t> allowed() override { return words_; }
  void picked(Token) override {}
  std::vector<Token> forced(size_t) override { return {}; }
  std::atomic<bool> open{false};

 private:
  const std::vector<uint64_t> words_ = std::vector<uint64_t>(8, ~uint64_t{0});
};

}  // namespace

TEST_CASE("a mask that is late keeps its own request waiting and no other") {
  Fixture f;
  const auto alone = run(f.engine, greedy({1, 2, 3}, 20)).tokens;
  const auto mask = std::make_shared<SlowMask>(), never = std::make_shared<SlowMask>();
  Client late, gone;
  Request r = greedy({1, 2, 3}, 20);
  r.mask = mask;
  r.sink = late.sink();
  f.engine.submit(r);
  r = greedy({4, 5}, 20);
  r.mask = never;
  r.sink = gone.sink();
  const uint64_t id = f.engine.submit(r);
  CHECK(run(f.engine, greedy({1, 2, 3}, 20)).tokens == alone);
  CHECK(f.engine.stats().running == 2);
  f.engine.cancel(id);
  CHECK(gone.get().finish == Finish::cancelled);
  mask->open = true;
  const Result got = late.get();
  CHECK(got.tokens == alone);
  CHECK(got.finish == Finish::length);
}

TEST_CASE("a request whose mask is late may lose its pages meanwhile") {
  EngineConfig config{.context = 160, .sequences = 2, .kv_tokens = 192, .prefill_chunk = 32};  // three pages
  config.prefix_cache_bytes = 0;
  Fixture f(config);
  const auto alone = run(f.engine, greedy(some_prompt(30, 1), 60)).tokens;
  const auto other = run(f.engine, greedy(some_prompt(60, 2), 90)).tokens;
  const uint64_t before = f.engine.stats().preemptions;
  const auto mask = std::make_shared<SlowMask>(), gate = std::make_shared<SlowMask>();
  mask->open = true;
  Client first, late;
  Request r = greedy(some_prompt(60, 2), 90);
  r.mask = gate;  // until both are there
  r.sink = first.sink();
  f.engine.submit(r);
  r = greedy(some_prompt(30, 1), 60);
  r.mask = mask;
  r.sink = late.sink([&, n = size_t{0}](const Event& e) mutable {
    n += e.tokens.size();
    if (!e.tokens.empty() && n == 5) mask->open = false;  // not again while it is read again
  });
  f.engine.submit(r);
  gate->open = true;
  CHECK(first.get().tokens == other);
  CHECK(f.engine.stats().preemptions > before);
  mask->open = true;
  CHECK(late.get().tokens == alone);
}
