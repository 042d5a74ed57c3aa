// Instruction sets with the same bits: every case of the contract has the bytes that tests/data/isa_bytes.tsv
// says, which AVX2 wrote. A machine that has no AVX2 (64-bit Arm) is held to them, too.
//   isa_bytes_test -ns -tc="write*"   writes the file anew
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <span>

#include "tests/backends.h"
#include "tests/op_cases.h"

using namespace carat;
using namespace carat::test;

namespace {
constexpr const char* kFile = CARAT_TEST_DATA "/isa_bytes.tsv";

constexpr uint64_t kEmpty = 0xcbf29ce484222325;
// FNV-1a, 64 bits.
void add_bytes(uint64_t& hash, std::span<const std::byte> bytes) {
  for (std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3;
}

// The inputs are drawn from the case's name: another case changes nobody else's bytes.
std::string digest(Backend& backend, const OpCase& op) {
  uint64_t seed = kEmpty;
  add_bytes(seed, std::as_bytes(std::span(op.name)));
  CaseRun run(backend, seed);
  op.build(run);
  CHECK(run.run() == "");
  uint64_t hash = kEmpty;
  // Top's share is a sum over a whole row, a lane at a time: as many sums as the instruction set has lanes.
  for (const Region& r : run.regions())
    if (!op.name.starts_with("top") || r.tolerance.empty()) add_bytes(hash, run.bytes(r));
  return fmt::format("{:016x}", hash);
}

// every: of so many cases one.
std::map<std::string, std::string> digests_of(const char* isa, size_t every) {
  const auto backend = make_cpu_backend(1, isa);
  std::map<std::string, std::string> out;
  size_t index = 0;
  for (const OpCase& op : op_cases())
    if (index++ % every == 0) out[op.name] = digest(*backend, op);
  return out;
}

std::map<std::string, std::string> recorded() {
  std::map<std::string, std::string> out;
  std::ifstream in(kFile);
  for (std::string line; std::getline(in, line);) {
    const size_t tab = line.find('\t');
    if (tab != std::string::npos) out[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return out;
}
// Baseline and AMX have sums of their own (docs/numerics.md).
void holds(const char* isa) {
  const std::map<std::string, std::string> want = recorded();
  INFO("another case needs its bytes: run isa_bytes_test -ns -tc=\"write*\" where AVX2 is");
  CHECK(want.size() == op_cases().size());
  for (const NamedBackend& b : cpu_backends(1)) {
    if (b.name != std::string("cpu ") + isa) continue;
    for (const auto& [name, hash] : digests_of(isa, one_case_in())) {
      CAPTURE(name);
      const auto it = want.find(name);
      CHECK((it == want.end() ? "none" : it->second) == hash);
    }
  }
}
}  // namespace

// A case each: an emulator is slow, and they run side by side.
TEST_CASE("avx2 gives the recorded bytes") { holds("avx2"); }
TEST_CASE("avx512 gives the recorded bytes") { holds("avx512"); }
TEST_CASE("neon gives the recorded bytes") { holds("neon"); }
TEST_CASE("i8mm gives the recorded bytes") { holds("i8mm"); }

TEST_CASE("write the recorded bytes from AVX2" * doctest::skip()) {
  std::ofstream out(kFile);
  for (const auto& [name, hash] : digests_of("avx2", 1)) out << name << '\t' << hash << '\n';
}
