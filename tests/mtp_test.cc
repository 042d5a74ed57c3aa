// The MTP assistant against the reference implementation: logits, hidden states, chosen clusters and chains
// of four, on every backend and instruction set of this machine; from every dialect; and as a drafter.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "engine/speculate/draft_net.h"
#include "model/drafters/gemma4_mtp.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/renamed_file.h"
#include "tests/step_runner.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"

using namespace carat;
using namespace carat::test;

namespace {

constexpr double kTolerance = 2e-4;  // of the goldens' 2e-3
constexpr const char* kWindowKey = "gemma4-assistant.attention.sliding_window";

double max_diff(const float* a, const float* b, size_t n) {
  double d = 0;
  for (size_t i = 0; i < n; ++i) {
    const double e = std::abs(double{a[i]} - b[i]);
    d = e <= d ? d : e;  // a NaN stays
  }
  return d;
}

// Rows of (token, hidden) through the assistant.
class MtpRunner {
 public:
  MtpRunner(Backend& backend, const MtpNet& net, const Model& target, const KvPool& kv, int32_t rows)
      : backend_(backend), net_(net), arena_(backend), rows_(rows) {
    io_ = net.build(program_, arena_, target, kv, rows, {});
    executable_ = backend.compile(program_, &state_);
  }
  void run(std::vector<int32_t> tokens, int32_t pos, const SeqView& view, const float* hidden) {
    const auto n = static_cast<int32_t>(tokens.size());
    const std::vector<int32_t> positions(tokens.size(), pos - 1), seqs(tokens.size(), 0);
    const auto dim = static_cast<size_t>(net_.spec().target_dim);
    for (int32_t i = 0; i < n; ++i) std::copy_n(hidden + i * dim, dim, io_.hidden_in.row<float>(i));
    state_ = {};
    state_.n_rows = n, state_.token = tokens.data(), state_.pos = positions.data();
    state_.seq = seqs.data(), state_.seqs = &view;
    backend_.submit(*executable_);
    backend_.wait();
  }
  // Of the whole vocabulary, as the reference has them: below all others where nothing was computed.
  std::vector<float> logits(int32_t row) const {
    const float* l = io_.logits.row<const float>(row);
    const float least = *std::min_element(l, l + io_.logits.cols) - 1;
    std::vector<float> out(static_cast<size_t>(net_.spec().net.vocab), least);
    for (int32_t c = 0; c < io_.logits.cols; ++c)
      out[static_cast<size_t>(
          net_.token_at(io_.chosen.valid() ? io_.chosen.row<const int32_t>(row) : nullptr, c))] = l[c];
    return out;
  }
  const MtpNet::Io& io() const { return io_; }

 private:
  Backend& backend_;
  const MtpNet& net_;
  Arena arena_;
  Program program_;
  StepState state_;
  MtpNet::Io io_;
  std::unique_ptr<Executable> executable_;
  int32_t rows_;
};

std::string target_of(const std::string& name) {
  return name == "gemma4_assistant" ? "gemma4_dense" : "gemma4_e";
}

// Keys seen by sliding layers: window - 1 as trained, window + 1 in the reference's chains.
std::shared_ptr<MtpNet> net_with_keys(const std::shared_ptr<WeightSource>& source, Backend& b, int64_t more) {
  const int64_t window = source->meta().get_int(kWindowKey);
  return std::make_shared<MtpNet>(
      std::make_shared<Patched>(source, std::map<std::string, MetaValue>{{kWindowKey, window + more}}), b);
}

struct Case {
  explicit Case(const std::string& n) : name(n), goldens(n) {
    seq = goldens.get("seq").i;
    chain_t = goldens.get("chain_t").i;
  }
  std::string name;
  Goldens goldens;
  std::vector<int32_t> seq, chain_t;
};

void check_chain(MtpRunner& run, const Case& c, size_t which, const StepRunner& target, const float* hidden) {
  const GoldenTensor ids = c.goldens.get("chain_ids"), logits = c.goldens.get("chain_logits"),
                     states = c.goldens.get("chain_hidden");
  const int32_t t = c.chain_t[which];
  const size_t vocab = static_cast<size_t>(logits.shape[2]), dim = static_cast<size_t>(states.shape[2]);
  int32_t token = c.seq[static_cast<size_t>(t)];
  std::vector<float> h(hidden, hidden + dim);
  for (size_t step = 0; step < 4; ++step) {
    CAPTURE(step);
    run.run({token}, t, target.view(0), h.data());
    const std::vector<float> got = run.logits(0);
    const size_t at = which * 4 + step;
    CHECK(max_diff(got.data(), &logits.f[at * vocab], vocab) <= kTolerance * logits.max_abs());
    const float* out = run.io().hidden.row<const float>(0);
    CHECK(max_diff(out, &states.f[at * dim], dim) <= kTolerance * states.max_abs());
    token = static_cast<int32_t>(std::max_element(got.begin(), got.end()) - got.begin());
    REQUIRE(token == ids.i[at]);
    h.assign(out, out + dim);
  }
}

void check_clusters(const MtpRunner& run, const Case& c, size_t t_index) {
  if (!c.goldens.has("one_step_centroid_ids")) return;
  const GoldenTensor want = c.goldens.get("one_step_centroid_ids");
  const auto k = static_cast<size_t>(want.shape[1]);
  const int32_t* got = run.io().chosen.row<const int32_t>(0);
  CHECK(std::equal(got, got + k, &want.i[t_index * k]));
}

void check_case(const std::string& name) {
  const Case c(name);
  const std::vector<int32_t> one_t = c.goldens.get("one_step_t").i;
  const GoldenTensor minus = c.goldens.get("one_step_logits.window_minus_1"),
                     wide = c.goldens.get("one_step_logits"), states = c.goldens.get("one_step_hidden");
  for (const NamedBackend& b : all_backends(1)) {
    CAPTURE(b.name);
    const Model target = load_golden(golden_dir(target_of(name)), *b.backend);
    const std::shared_ptr<WeightSource> source = open_source(golden_dir(name));
    const auto trained = net_with_keys(source, *b.backend, 0),
               reference = net_with_keys(source, *b.backend, 2);
    trained->check_target(target.spec);
    StepRunner run(*b.backend, target, {static_cast<int32_t>(c.seq.size()) + 8, 1, 8, 8}, DType::f32);
    MtpRunner as_trained(*b.backend, *trained, target, run.kv(), 1),
        as_reference(*b.backend, *reference, target, run.kv(), 1);
    const auto vocab = static_cast<size_t>(wide.shape[1]);
    double worst = 0;
    for (int32_t t = 1; t < static_cast<int32_t>(c.seq.size()); ++t) {
      run.step(std::span(&c.seq[static_cast<size_t>(t) - 1], 1), false);
      const auto one = std::find(one_t.begin(), one_t.end(), t) - one_t.begin();
      if (one < static_cast<ptrdiff_t>(one_t.size())) {
        as_reference.run({c.seq[static_cast<size_t>(t)]}, t, run.view(0), run.hidden(0));
        const auto i = static_cast<size_t>(one);
        worst = std::max(worst, max_diff(as_reference.logits(0).data(), &wide.f[i * vocab], vocab));
        const auto dim = static_cast<size_t>(states.shape[1]);
        CHECK(max_diff(as_reference.io().hidden.row<const float>(0), &states.f[i * dim], dim) <=
              kTolerance * states.max_abs());
        check_clusters(as_reference, c, i);
      }
      const auto which = std::find(c.chain_t.begin(), c.chain_t.end(), t) - c.chain_t.begin();
      if (which == static_cast<ptrdiff_t>(c.chain_t.size())) continue;
      CAPTURE(t);
      check_chain(as_reference, c, static_cast<size_t>(which), run, run.hidden(0));
      as_trained.run({c.seq[static_cast<size_t>(t)]}, t, run.view(0), run.hidden(0));
      CHECK(max_diff(as_trained.logits(0).data(), &minus.f[static_cast<size_t>(which) * vocab], vocab) <=
            kTolerance * minus.max_abs());
    }
    CHECK(worst <= kTolerance * wide.max_abs());
    MESSAGE(name << " on " << b.name << ": logits differ by " << worst << " of " << wide.max_abs());
  }
}

// As AtomicBot's converter names things.
std::string renamed(const std::string& file) {
  return renamed_file(file, {.arch = "gemma4_assistant",
                             .prefix = "gemma4_assistant",
                             .tensors = {{"nextn.pre_projection.weight", "mtp.pre_projection.weight"},
                                         {"nextn.post_projection.weight", "mtp.post_projection.weight"},
                                         {"masked_embd_centroids.weight", "mtp.centroids.weight"},
                                         {"masked_embd_ordering", "mtp.token_ordering.weight"}},
                             .keys = {},
                             .add = {}});
}

// As ik_llama.cpp's converter writes an assistant: other names, and the cluster of each token in place of the
// tokens of each cluster, as integers or as floats.
std::string cluster_of_each(const std::string& file, DType type) {
  const std::string named =
      renamed_file(file, {.arch = "gemma4_mtp",
                          .prefix = "gemma4_mtp",
                          .tensors = {{"nextn.pre_projection.weight", "mtp_pre_proj.weight"},
                                      {"nextn.post_projection.weight", "mtp_post_proj.weight"},
                                      {"masked_embd_centroids.weight", "mtp_centroids.weight"},
                                      {"masked_embd_ordering", "mtp_token_ordering.weight"}},
                          .keys = {{"gemma4-assistant.n_centroids", "gemma4_mtp.centroid_count"}},
                          .add = {}});
  const auto source = open_source(named);
  const TensorInfo& ordering = source->get("mtp_token_ordering.weight");
  const auto vocab = static_cast<size_t>(ordering.elements());
  const size_t size = vocab / static_cast<size_t>(source->get("mtp_centroids.weight").shape[0]);
  std::vector<std::byte> bytes(vocab * 4);
  for (size_t i = 0; i < vocab; ++i) {
    const auto token = static_cast<size_t>(reinterpret_cast<const int32_t*>(ordering.data)[i]);
    const auto cluster = static_cast<int32_t>(i / size);
    const auto real = static_cast<float>(cluster);
    std::memcpy(&bytes[token * 4], type == DType::f32 ? static_cast<const void*>(&real) : &cluster, 4);
  }
  std::vector<GgufTensor> tensors;
  for (const TensorInfo& t : source->tensors())
    tensors.push_back({t.name, &t == &ordering ? type : t.type, t.shape});
  const std::string out = fmt::format("{}.{}.gguf", named, type == DType::f32 ? "floats" : "integers");
  GgufWriter writer(out, source->meta(), tensors);
  for (const TensorInfo& t : source->tensors())
    &t == &ordering ? writer.write(bytes.data(), bytes.size()) : writer.write(t.data, t.bytes);
  writer.finish();
  return out;
}

// What the drafter proposes behind each of the golden's chain starts.
std::vector<Proposal> proposals(const std::string& file, const std::string& target_name, const Case& c,
                                int32_t depth, int32_t nodes, float p_min = 0) {
  const std::shared_ptr<Backend> backend = make_cpu_backend(1, "");
  const auto target = std::make_shared<Model>(load_golden(golden_dir(target_name), *backend));
  const auto net = std::make_shared<MtpNet>(std::shared_ptr<WeightSource>(open_source(file)), *backend);
  const auto drafter = make_mtp_drafter(net, target->spec);
  const auto n = static_cast<int32_t>(c.chain_t.size());
  StepRunner run(*backend, *target, {static_cast<int32_t>(c.seq.size()) + 8, n, 200, 8}, DType::f32);
  drafter->attach({backend, target, &run.kv()});
  std::vector<std::unique_ptr<DraftSession>> sessions;
  std::vector<History> histories(static_cast<size_t>(n));
  std::vector<DraftAsk> asks;
  for (int32_t i = 0; i < n; ++i) {  // a sequence each, cut at its start
    const int32_t t = c.chain_t[static_cast<size_t>(i)];
    const std::span<const int32_t> prompt = std::span(c.seq).first(static_cast<size_t>(t));
    run.step({{i, prompt}}, false);
    sessions.push_back(drafter->open(run.sequence(i), {}));
    std::vector<const float*> hidden(prompt.size(), nullptr);
    hidden.back() = run.hidden(0);
    sessions.back()->committed({0, prompt, hidden, {}});
    histories[static_cast<size_t>(i)].add_prompt(std::span(c.seq).first(static_cast<size_t>(t) + 1));
    asks.push_back({sessions.back().get(),
                    &histories[static_cast<size_t>(i)],
                    c.seq[static_cast<size_t>(t)],
                    t,
                    depth,
                    nodes,
                    p_min,
                    {}});
  }
  std::vector<Proposal> out;
  drafter->propose(asks);
  for (DraftAsk& a : asks) out.push_back(a.out);
  for (size_t i = 0; i < asks.size(); ++i) {  // alone, the same
    drafter->propose(std::span(asks).subspan(i, 1));
    CHECK(asks[i].out.token == out[i].token);
    CHECK(asks[i].out.parent == out[i].parent);
    CHECK(asks[i].out.confidence == out[i].confidence);
  }
  return out;
}

}  // namespace

TEST_CASE("assistant with a full head: steps and chains of the reference") { check_case("gemma4_assistant"); }
TEST_CASE("assistant with a clustered head: steps, clusters and chains of the reference") {
  check_case("gemma4_assistant_e");
}

TEST_CASE("the assistant drafts the same from every dialect and after conversion, and the last key counts") {
  for (const std::string name : {"gemma4_assistant", "gemma4_assistant_e"}) {
    CAPTURE(name);
    const Case c(name);
    const std::string gguf = fmt::format("{}/{}.gguf", test_directory(), name);
    convert({.in = golden_dir(name), .out = gguf, .type = "bf16", .threads = 2});
    const auto direct = proposals(golden_dir(name), target_of(name), c, 8, 8);
    for (const std::string& file : {gguf, renamed(gguf)}) {
      const auto other = proposals(file, target_of(name), c, 8, 8);
      for (size_t i = 0; i < direct.size(); ++i) {
        CHECK(other[i].token == direct[i].token);
        CHECK(other[i].confidence == direct[i].confidence);
      }
    }
    const std::string q8 = fmt::format("{}/{}-q8.gguf", test_directory(), name);
    convert({.in = golden_dir(name), .out = q8, .type = "q8_0", .threads = 2});
    const auto rough = proposals(q8, target_of(name), c, 1, 1);
    size_t same = 0;
    for (size_t i = 0; i < direct.size(); ++i) same += rough[i].token[0] == direct[i].token[0];
    CHECK(same + 2 >= direct.size());
    for (const Proposal& p : direct) {
      CHECK(p.token.size() == 8);
      CHECK(p.parent.empty());
    }
  }
}

TEST_CASE("a table of each token's cluster is the same clustered head") {
  const std::string name = "gemma4_assistant_e";
  const Case c(name);
  const std::string gguf = fmt::format("{}/{}-clusters.gguf", test_directory(), name);
  convert({.in = golden_dir(name), .out = gguf, .type = "bf16", .threads = 2});
  const auto direct = proposals(gguf, target_of(name), c, 8, 8);
  for (const DType type : {DType::i32, DType::f32}) {
    const std::string file = cluster_of_each(gguf, type);
    CHECK(read_mtp_spec(*open_source(file)).clusters > 0);
    const auto other = proposals(file, target_of(name), c, 8, 8);
    for (size_t i = 0; i < direct.size(); ++i) CHECK(other[i].token == direct[i].token);
  }
}

TEST_CASE("trees hold the chain's first token, grow with their budget and stop at p_min") {
  const Case c("gemma4_assistant");
  const auto chain = proposals(golden_dir("gemma4_assistant"), "gemma4_dense", c, 4, 4);
  const auto tree = proposals(golden_dir("gemma4_assistant"), "gemma4_dense", c, 4, 12);
  const auto sure = proposals(golden_dir("gemma4_assistant"), "gemma4_dense", c, 4, 4, 0.5F);
  bool branches = false;
  for (size_t i = 0; i < tree.size(); ++i) {
    CHECK(tree[i].token.size() == 12);
    REQUIRE(!tree[i].token.empty());
    CHECK(tree[i].token[0] == chain[i].token[0]);
    branches |= !tree[i].parent.empty();
    for (int32_t n = 0; n < static_cast<int32_t>(tree[i].token.size()); ++n) {
      CHECK(tree[i].parent_of(n) < n);
      int32_t depth = 1;
      for (int32_t p = tree[i].parent_of(n); p >= 0; p = tree[i].parent_of(p)) ++depth;
      CHECK(depth <= 4);
    }
    // the same chain, cut before the first token below one half
    size_t keep = 0;
    while (keep < 4 && chain[i].confidence[keep] >= 0.5F) ++keep;
    CHECK(sure[i].token ==
          std::vector<Token>(chain[i].token.begin(), chain[i].token.begin() + static_cast<ptrdiff_t>(keep)));
  }
  CHECK(branches);
}

TEST_CASE("an assistant for another model is refused by name") {
  const std::shared_ptr<Backend> backend = make_ref_backend();
  const auto net = std::make_shared<MtpNet>(
      std::shared_ptr<WeightSource>(open_source(golden_dir("gemma4_assistant"))), *backend);
  const Model other = load_golden(golden_dir("gemma4_e"), *backend);
  CHECK_THROWS_WITH_AS(make_mtp_drafter(net, other.spec), doctest::Contains("does not fit"), Error);
  ModelSpec wide = other.spec;
  wide.dim = 128;
  CHECK_THROWS_WITH_AS(make_mtp_drafter(net, wide), doctest::Contains("128"), Error);
}
