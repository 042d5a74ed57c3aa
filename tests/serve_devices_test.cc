// label: slow
// A server whose model is split over two devices, one of which is lost in the middle of answers: these end
// with an error, what comes next is refused with a hint, /health says so, and the server ends when it is told
// to.
#include <doctest/doctest.h>

#include <chrono>

#include "tests/lost_device.h"
#include "tests/raw_client.h"
#include "tests/serve_fixture.h"
#include "tests/split_backends.h"

#ifdef CARAT_EMULATED
#include "cuda/emulate/faults.h"
#endif

using namespace carat;
using namespace carat::test;

namespace {

constexpr double kPatience = 300;  // of a device for the other: longer than any of these tests

struct Two {
  std::shared_ptr<Backend> both;
  std::function<void()> lose;  // the second one, in the middle of a step
  std::string says;            // of the requests that were under way
};

PartsOptions options(SplitMode mode) {
  PartsOptions o;
  o.mode = mode, o.layers = 4, o.first_layer = {0, 2};
  return o;
}

[[maybe_unused]] Two two_references(SplitMode mode) {
  const auto lost = std::make_shared<std::atomic<bool>>(false);
  const auto second = std::make_shared<HookedBackend>();
  second->before_step = [lost] {
    if (*lost) throw DeviceError("the device is gone");
  };
  return {make_parts({std::shared_ptr<Backend>(make_ref_backend()), second}, options(mode)),
          [lost] { *lost = true; }, "the device is gone"};
}

[[maybe_unused]] Two two_gpus(SplitMode mode, bool peers) {
#ifdef CARAT_EMULATED
  cuda::repair_devices();
  const std::shared_ptr<Backend> second = make_cuda_backend(1);
  const auto lose = [] { cuda::lose_device(1, 7); };
#else
  const auto second = std::make_shared<LostDevice>(1);
  const auto lose = [second] { second->lose(); };
#endif
  return {split_over(make_cuda_backend(0), second, options(mode), peers, kPatience), lose, "context is lost"};
}

using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Seconds that errors and the end may take; a share that is waited for takes kPatience.
constexpr double kSoon = 60;

void check_lost(const Two& two) {
  auto t = std::make_unique<TestServer>(EngineConfig{.context = 4096, .sequences = 2, .prefill_chunk = 64},
                                        ServeConfig{}, std::vector<std::string>{}, nullptr, two.both);
  t->backend->after_step = {};
  CHECK(t->get("/health").first == 200);
  const auto endless = [](bool stream) {
    return Json{{"messages", user("Hi")}, {"temperature", 0}, {"ignore_eos", true}, {"stream", stream}}
        .dump();
  };
  RawClient stream(t->server->port()), plain(t->server->port()), queued(t->server->port());
  stream.post("/v1/chat/completions", endless(true));
  plain.post("/v1/chat/completions", endless(false));
  while (t->engine.stats().running < 2) std::this_thread::yield();
  queued.post("/v1/chat/completions", endless(false));
  while (t->engine.stats().waiting == 0) std::this_thread::yield();
  stream.read_until("\"content\":");

  auto began = Clock::now();
  two.lose();
  const std::string cut = stream.read_until("\"generation_failed\"");
  CHECK(cut.find("\"error\"") != std::string::npos);
  CHECK(cut.find(two.says) != std::string::npos);
  CHECK(cut.find("[DONE]") == std::string::npos);
  CHECK(plain.read_until("\"error\"").starts_with("HTTP/1.1 500"));
  CHECK(queued.read_until("\"error\"").starts_with("HTTP/1.1 50"));
  CHECK(since(began) < kSoon);

  for (int i = 0; i < 3; ++i) {
    const auto [status, answer] = t->post("/v1/chat/completions", Json::parse(endless(false)));
    CHECK(status == 503);
    CHECK(answer["error"]["message"].get<std::string>().find("restart the server") != std::string::npos);
  }
  for (const char* path : {"/health", "/ready", "/live"}) {
    const auto [status, text] = t->get(path);
    CAPTURE(path);
    CHECK(status == 503);
    CHECK(text.find("device_error") != std::string::npos);
    CHECK(text.find("restart the server") != std::string::npos);
  }
  CHECK(t->get("/metrics").first == 200);
  CHECK(t->get("/v1/models").first == 200);
  began = Clock::now();
  t.reset();
  CHECK(since(began) < kSoon);
}

}  // namespace

#ifndef CARAT_ONLY_CUDA
TEST_CASE("a device that fails in the middle of answers") {
  for (const SplitMode mode : {SplitMode::tensor, SplitMode::layer}) check_lost(two_references(mode));
}
#endif

#ifdef CARAT_EMULATED
TEST_CASE("a GPU that is lost in the middle of answers") {
  for (const SplitMode mode : {SplitMode::tensor, SplitMode::layer})
    for (const bool peers : {true, false}) {
      CAPTURE(static_cast<int>(mode));
      CAPTURE(peers);
      check_lost(two_gpus(mode, peers));
    }
}
#else
// Once in a process: the context does not come again.
TEST_CASE("a GPU that is lost in the middle of answers" * doctest::skip(cuda_devices().size() < 2)) {
  check_lost(two_gpus(SplitMode::tensor, true));
}
#endif
