// What carat load sends and counts, against a real server of a tiny model.
#include <doctest/doctest.h>

#include "apps/load_client.h"
#include "apps/server_address.h"
#include "base/error.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

LoadOptions of(const TestServer& s) {
  LoadOptions o;
  o.url = fmt::format("127.0.0.1:{}", s.server->port());
  o.model = served_model(server_address(o.url), "");
  o.vocab = s.model->spec.vocab;
  o.input = 20, o.output = 6, o.streams = 3, o.requests = 7;
  return o;
}

}  // namespace

TEST_CASE("every request of a load is counted, with its tokens and times") {
  const TestServer s;
  LoadOptions o = of(s);
  CHECK(o.model == "tiny");
  int32_t ticks = 0;
  const LoadResult r = run_load(o, [&](int32_t done) { ticks = done; });
  CHECK(ticks == 7);
  REQUIRE(r.samples.size() == 7);
  for (const LoadSample& sample : r.samples) {
    CHECK(sample.error == "");
    CHECK(sample.prompt == 20);
    CHECK(sample.output == 6);
    CHECK(sample.itl.size() <= 5);
    CHECK(sample.ttft > 0);
    CHECK(sample.e2el >= sample.ttft);
    CHECK(r.seconds * 1e3 >= sample.e2el);
  }
}

TEST_CASE("prompts of a load share what they should, and nothing else") {
  const TestServer s;
  LoadOptions o = of(s);
  o.streams = 1, o.input = 16;
  run_load(o, [](int32_t) {});
  const uint64_t alone = s.engine.stats().prefix.hits;
  CHECK(alone < 16);
  o.shared = 192;
  run_load(o, [](int32_t) {});
  CHECK(s.engine.stats().prefix.hits - alone >= 6 * 128);
}

TEST_CASE("arrivals at random are spread, whatever streams are free") {
  const TestServer s;
  LoadOptions o = of(s);
  o.requests = 6, o.streams = 6, o.rate = 20;
  CHECK(run_load(o, [](int32_t) {}).seconds > 0.05);  // five gaps of 50 ms on average, drawn from the seed
}

TEST_CASE("what is refused is said in the server's words") {
  const TestServer s;
  LoadOptions o = of(s);
  o.input = 4000;
  std::string what;
  try {
    run_load(o, [](int32_t) {});
  } catch (const Error& e) {
    what = e.what();
  }
  CHECK(what.find("no request was answered: ") == 0);
  CHECK(what.find("context") != std::string::npos);
  CHECK_THROWS_AS(served_model(server_address("http://127.0.0.1:1"), ""), Error);
  const ServerAddress a = server_address("example.org:8080/base/v1/");
  CHECK(a.host == "http://example.org:8080");
  CHECK(a.base == "/base");
}
