// What `carat run` relies on: one request waited for, on a device slower than the waiting's own clock.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "apps/generate.h"
#include "tests/hooked_backend.h"
#include "tests/tiny_model.h"

using namespace carat;

namespace {

struct Slow {
  explicit Slow(int ms) : backend(std::make_shared<test::HookedBackend>()) {
    backend->before_step = [ms] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    model = std::make_shared<Model>(load_model(open_source(tiny_model("tiny", "q8_0", 1)), *backend));
    engine = std::make_unique<Engine>(backend, model, EngineConfig{.context = 64, .sequences = 1});
  }
  Request request(int32_t n) const {
    Request r;
    r.prompt = {2, 10, 11, 12};
    r.sample.temperature = 0;
    r.max_tokens = n;
    return r;
  }
  std::shared_ptr<test::HookedBackend> backend;
  std::shared_ptr<const Model> model;
  std::unique_ptr<Engine> engine;
};

}  // namespace

TEST_CASE("a receiver hears events only, however slow the steps are") {
  Slow slow(120);
  int empty_after_tokens = 0, tokens = 0;
  const Generated g = generate(*slow.engine, slow.request(3), [&](const Event& e) {
    tokens += static_cast<int>(e.tokens.size());
    empty_after_tokens += tokens > 0 && e.tokens.empty() && e.finish == Finish::none;
  });
  CHECK(g.finish == Finish::length);
  CHECK(tokens == 3);
  CHECK(empty_after_tokens == 0);
}

TEST_CASE("the stop flag cancels between steps") {
  Slow slow(30);
  std::atomic<bool> stop{false};
  const Generated g = generate(
      *slow.engine, slow.request(50), [&](const Event& e) { stop = stop || !e.tokens.empty(); }, &stop);
  CHECK(g.finish == Finish::cancelled);
  CHECK(g.tokens.size() < 50);
}
