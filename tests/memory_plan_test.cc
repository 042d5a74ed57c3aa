// label: slow
// Memory equals the plan: what a model takes of the CPU's memory behind a full context, against what
// `inspect --plan` says before it is loaded.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <utility>

#include "apps/fill.h"
#include "apps/step_memory.h"
#include "engine/setup.h"
#include "model/stepper.h"
#include "tests/goldens.h"
#include "tests/tiny_model.h"

using namespace carat;
using namespace carat::test;

namespace {

// Memory of this process that is in RAM and no file's.
int64_t anonymous_bytes() {
  std::ifstream in("/proc/self/smaps_rollup");
  int64_t kib = 0;
  for (std::string word; in >> word;)
    if (word == "Anonymous:") in >> kib;
  return kib << 10;
}

// Of a model with a full context, a step of its largest size and one of a row.
int64_t taken(const std::string& file, const KvFormats& formats, const KvLimits& limits) {
  const int64_t before = anonymous_bytes();
  const std::shared_ptr<Backend> backend = make_cpu_backend(2, "");
  const auto model = std::make_shared<const Model>(load_model(open_source(file), *backend));
  Stepper stepper(backend, model, limits, formats);
  Sequence sequence(stepper.pages());
  fill_sequence(*backend, stepper.kv(), sequence, limits.context - 1 - limits.step_rows);
  const std::vector<int32_t> tokens(static_cast<size_t>(limits.step_rows), 5);
  for (const int32_t rows : {limits.step_rows, 1}) {
    REQUIRE(sequence.append(rows));
    const Stepper::Part part{&sequence, std::span(tokens).first(static_cast<size_t>(rows))};
    stepper.run({&part, 1});
    sequence.commit(rows);
  }
  return anonymous_bytes() - before;
}

}  // namespace

TEST_CASE("a full context takes no more than two in a hundred above its plan, and no less than three below") {
  const std::string file = tiny_model("tiny-moe");
  const std::pair<const char*, int32_t> cases[] = {
      {"f16", 32768}, {"f16", 262144}, {"q8_0", 524288}, {"kv4", 1048576}};
  for (const auto& [cache, context] : cases) {
    CAPTURE(std::string(cache));
    CAPTURE(context);
    KvFormats formats;
    formats.k = formats.v = formats.sliding_k = formats.sliding_v = *dtype_of_name(cache);
    KvLimits limits;
    limits.context = context, limits.step_rows = context > 100'000 ? 64 : 256;  // rows read a whole context
    const StepMemory steps = plan_steps(file, formats, limits, 2, "");
    const auto source = open_source(file);
    const ModelSpec spec = find_family(source->meta().get_string("general.architecture")).read_spec(*source);
    const int64_t caches = plan_kv(kv_layers(spec, formats), limits).bytes(),
                  planned = steps.weights + steps.steps + caches;
    const int64_t measured = taken(file, formats, limits);
    MESSAGE("measured ", measured >> 10, " KiB, planned ", planned >> 10, " KiB: caches ", caches >> 10,
            ", weights ", steps.weights >> 10, ", steps ", steps.steps >> 10);
    constexpr int64_t kBlocks = 2 << 20;  // the OS gives memory in blocks of this
    CHECK(measured <= planned * 102 / 100 + kBlocks);
    CHECK(measured >= planned * 97 / 100 - kBlocks);  // not all of a step's memory is touched
  }
}
