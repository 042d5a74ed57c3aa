#include "state/snapshot.h"

#include <doctest/doctest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "tests/heap_backend.h"

using namespace carat;
using carat::test::HeapBackend;

namespace {

std::vector<KvLayerSpec> layers(DType k, DType v, KvProtect protect) {
  return {{{k, v, 2, 64, 40}, 0}, {{k, v, 1, 128, 0, 0, protect}, 1}, {{k, v, 2, 64, 40}, 0}};
}

// A pool with one sequence of n positions whose rows are random.
struct Filled {
  Filled(DType k, DType v, int32_t context, int32_t n, uint32_t seed, KvProtect protect = {})
      : limits{context, 1, 24, 16},
        pool(backend, layers(k, v, protect), limits),
        pages(limits, pool.plan()),
        sequence(pages) {
    std::mt19937 rng(seed);
    for (int32_t at = 0; at < n; ++at) {
      REQUIRE(sequence.append(1));
      sequence.commit(1);
      each(at, [&](std::byte* p, size_t bytes) {
        for (size_t i = 0; i < bytes; ++i) p[i] = static_cast<std::byte>(rng());
      });
      tokens.push_back(static_cast<int32_t>(rng() % 1000));
    }
  }
  template <class F>
  void each(int32_t pos, F f) {
    const SeqView view = sequence.view();
    for (const int layer : {0, 1}) {
      const KvView v = pool.view(layer);
      for (int32_t h = 0; h < v.spec.heads; ++h) {
        f(v.k_row(view, pos, h), static_cast<size_t>(v.spec.k_bytes()));
        f(v.v_row(view, pos, h), static_cast<size_t>(v.spec.v_bytes()));
        if (!v.spec.protect.covers(sequence.committed(), pos)) continue;
        f(v.k_edge_row(view, pos, h), static_cast<size_t>(v.spec.k_edge_bytes()));
        f(v.v_edge_row(view, pos, h), static_cast<size_t>(v.spec.v_edge_bytes()));
      }
    }
  }
  std::string window_bytes() {  // what positions from `from` on hold
    std::string all;
    for (int32_t p = std::max(0, sequence.committed() - 40); p < sequence.committed(); ++p)
      each(p, [&](std::byte* b, size_t n) { all.append(reinterpret_cast<char*>(b), n); });
    return all;
  }
  HeapBackend backend;
  KvLimits limits;
  KvPool pool;
  PagePool pages;
  Sequence sequence;
  std::vector<int32_t> tokens;
};

std::string path() { return (std::filesystem::temp_directory_path() / "carat_snapshot_test.kv").string(); }

std::string error_of(Filled& into, std::string_view model) {
  try {
    load_sequence(path(), into.backend, into.pool, into.sequence, model);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a saved sequence comes back byte for byte, into another context too") {
  for (const int32_t n : {0, 1, 39, 150}) {
    Filled a(DType::q8_0, DType::tq3, 200, n, 1), b(DType::q8_0, DType::tq3, 600, 0, 2);
    save_sequence(path(), a.backend, a.pool, a.sequence, a.tokens, "m");
    CHECK(load_sequence(path(), b.backend, b.pool, b.sequence, "m") == a.tokens);
    CHECK(b.sequence.committed() == n);
    CHECK(a.window_bytes() == b.window_bytes());
  }
  for (const int32_t n : {0, 1, 39, 150}) {
    CAPTURE(n);
    Filled a(DType::q8_0, DType::tq3, 200, n, 1, {4, 20}), b(DType::q8_0, DType::tq3, 600, 0, 2, {4, 20});
    save_sequence(path(), a.backend, a.pool, a.sequence, a.tokens, "m");
    CHECK(load_sequence(path(), b.backend, b.pool, b.sequence, "m") == a.tokens);
    CHECK(a.window_bytes() == b.window_bytes());
  }
  std::filesystem::remove(path());
}

TEST_CASE("what does not fit is refused with the reason, and leaves the sequence empty") {
  Filled a(DType::f16, DType::kv4, 200, 100, 1);
  save_sequence(path(), a.backend, a.pool, a.sequence, a.tokens, "m");
  Filled other(DType::f16, DType::tq4, 200, 0, 2), kept(DType::f16, DType::kv4, 200, 0, 2, {0, 7}),
      small(DType::f16, DType::kv4, 60, 0, 2), same(DType::f16, DType::kv4, 200, 0, 2);
  CHECK(error_of(same, "another").find("another model: m") != std::string::npos);
  CHECK(error_of(other, "m").find("V kv4") != std::string::npos);
  CHECK(error_of(kept, "m").find("another cache") != std::string::npos);
  CHECK(error_of(small, "m").find("100 tokens, the context is 60") != std::string::npos);
  const std::string good = read_file(path());
  const auto write = [](const std::string& s) { std::ofstream(path(), std::ios::binary) << s; };
  for (const size_t at : {size_t{30}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    write(bad);
    CHECK(error_of(same, "m").find("damaged") != std::string::npos);
    write(good.substr(0, at));
    CHECK(error_of(same, "m") != "");
  }
  std::string newer = good;
  newer[8] = 9;
  write(newer);
  CHECK(error_of(same, "m").find("version 9") != std::string::npos);
  write("");
  CHECK(error_of(same, "m").find("not a saved sequence") != std::string::npos);
  CHECK(same.sequence.committed() == 0);
  write(good);
  CHECK(error_of(same, "m") == "");
  std::filesystem::remove(path());
}

TEST_CASE("killed while it writes: the file that was there is whole, or the new one is") {
  Filled a(DType::f16, DType::f16, 4000, 3000, 1), b(DType::f16, DType::f16, 4000, 3000, 2);
  int old = 0, fresh = 0;
  for (int round = 0; round < 12; ++round) {
    save_sequence(path(), a.backend, a.pool, a.sequence, a.tokens, "m");
    const pid_t child = ::fork();
    if (child == 0) {
      save_sequence(path(), b.backend, b.pool, b.sequence, b.tokens, "m");
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(300 * round));
    ::kill(child, SIGKILL);
    int status;
    REQUIRE(::waitpid(child, &status, 0) == child);
    Filled c(DType::f16, DType::f16, 4000, 0, 3);
    const std::vector<int32_t> got = load_sequence(path(), c.backend, c.pool, c.sequence, "m");
    CHECK((got == a.tokens || got == b.tokens));
    CHECK(c.window_bytes() == (got == a.tokens ? a : b).window_bytes());
    (got == a.tokens ? old : fresh) += 1;
    std::filesystem::remove(fmt::format("{}.tmp.{}", path(), child));
  }
  CHECK(old > 0);
  std::filesystem::remove(path());
}
