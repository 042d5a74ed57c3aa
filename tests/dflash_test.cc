// DFlash against the training code's network (tests/data/dflash): every mask, on every backend and
// instruction set, from every dialect; and as a drafter.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/speculate/draft_net.h"
#include "engine/speculate/draft_tree.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/renamed_file.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"

using namespace carat;
using namespace carat::test;

namespace {

constexpr double kTolerance = 2e-4;
constexpr Token kAnchor = 77;
constexpr int32_t kContext = 40;

std::string dflash_dir() { return std::string(CARAT_TEST_DATA) + "/dflash"; }

// The reference's tensors; Goldens reads by directory name.
GoldenTensor reference(const std::string& name) { return Goldens("../dflash").get(name); }

std::shared_ptr<WeightSource> source_with(const std::map<std::string, MetaValue>& keys) {
  return std::make_shared<Patched>(std::shared_ptr<WeightSource>(open_source(dflash_dir())), keys);
}

// Context features, then one block: logits of slots 1 and on.
std::vector<float> run_block(Backend& backend, const Model& target, const DFlashNet& net, int32_t chunk) {
  const GoldenTensor features = reference("features");
  const int32_t block = net.spec().block;
  const KvLimits limits{kContext + block, 1, std::max(chunk, block), 8};
  const KvPool kv(backend, kv_layers(net.spec(), DType::f32), limits);
  PagePool pages(limits, kv.plan());
  Sequence sequence(pages);
  Arena arena(backend);
  StepState state;
  std::vector<int32_t> token, pos, seq, out;
  SeqView view{};
  const auto submit = [&](const Program& p) {
    const auto executable = backend.compile(p, &state);
    view = sequence.view();
    state = {};
    state.n_rows = static_cast<int32_t>(token.size()), state.n_out = static_cast<int32_t>(out.size());
    state.token = token.data(), state.pos = pos.data(), state.seq = seq.data(), state.out_row = out.data();
    state.seqs = &view;
    backend.submit(*executable);
    backend.wait();
  };
  const auto width = static_cast<size_t>(features.shape[1]);
  for (int32_t first = 0; first < kContext; first += chunk) {
    const int32_t n = std::min(chunk, kContext - first);
    Program p;
    arena.reset();
    const Tensor in = net.build_context(p, arena, kv, n);
    token.assign(static_cast<size_t>(n), 0), seq.assign(static_cast<size_t>(n), 0), pos.clear(), out.clear();
    REQUIRE(sequence.append(n));
    for (int32_t i = 0; i < n; ++i) {
      pos.push_back(first + i);
      std::copy_n(&features.f[static_cast<size_t>(first + i) * width], width, in.row<float>(i));
    }
    submit(p);
    sequence.commit(n);
  }
  Program p;
  arena.reset();
  const Tensor logits = net.build_block(p, arena, target, kv, block, block - 1);
  token.assign(static_cast<size_t>(block), net.spec().mask_token), token[0] = kAnchor;
  seq.assign(static_cast<size_t>(block), 0), pos.clear(), out.clear();
  REQUIRE(sequence.append(block));
  for (int32_t i = 0; i < block; ++i) pos.push_back(kContext + i);
  for (int32_t i = 1; i < block; ++i) out.push_back(i);
  submit(p);
  std::vector<float> y;
  for (int32_t i = 0; i + 1 < block; ++i)
    y.insert(y.end(), logits.row<float>(i), logits.row<float>(i) + logits.cols);
  return y;
}

double max_diff(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double d = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(double{a[i]} - b[i]);
    d = e <= d ? d : e;
  }
  return d;
}

// A drafter over the golden target, with sessions that know the reference's context.
struct Drafting {
  explicit Drafting(const std::string& file = dflash_dir(), DType cache = DType::f32) {
    backend = make_cpu_backend(1, "");
    target = std::make_shared<Model>(load_golden(golden_dir("gemma4_dense"), *backend));
    const KvLimits limits{256, 5, 64, 16};
    kv = std::make_unique<KvPool>(*backend, carat::kv_layers(target->spec, DType::f32, DType::f32), limits);
    pages = std::make_unique<PagePool>(limits, kv->plan());
    drafter = make_dflash_drafter(
        std::make_shared<DFlashNet>(std::shared_ptr<WeightSource>(open_source(file)), *backend), target->spec,
        {.cache = cache, .chain_seed = true});
    drafter->attach({backend, target, kv.get()});
    features = reference("features").f;
  }
  struct Live {
    std::unique_ptr<Sequence> sequence;
    std::unique_ptr<DraftSession> session;
    History history;
    int32_t pos = 0, reused = 0;
  };
  // With so many rows before the reference's that another request has run.
  std::unique_ptr<Live> open(int32_t reused = 0) {
    auto l = std::make_unique<Live>();
    l->sequence = std::make_unique<Sequence>(*pages);
    l->session = drafter->open(*l->sequence, {});
    l->pos = l->reused = reused;
    const std::vector<Token> tokens(static_cast<size_t>(reused), 9);
    if (reused > 0) l->session->committed({0, tokens, {}, {}});
    return l;
  }
  // n more rows of the reference's features.
  void commit(Live& l, int32_t n) const {
    const size_t dim = static_cast<size_t>(target->spec.dim), m = drafter->taps().size();
    std::vector<const float*> taps;
    for (size_t i = 0; i < static_cast<size_t>(n) * m; ++i)
      taps.push_back(&features[(static_cast<size_t>(l.pos - l.reused) * m + i) * dim]);
    const std::vector<Token> tokens(static_cast<size_t>(n), 9);
    const std::vector<const float*> hidden(static_cast<size_t>(n), nullptr);
    l.session->committed({l.pos, tokens, hidden, taps});
    l.pos += n;
  }
  DraftAsk ask(Live& l, int32_t depth, int32_t nodes = 0, float p_min = 0) const {
    return {l.session.get(), &l.history, kAnchor, l.pos, depth, std::max(nodes, depth), p_min, {}};
  }
  std::shared_ptr<Backend> backend;
  std::shared_ptr<Model> target;
  std::unique_ptr<KvPool> kv;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<Drafter> drafter;
  std::vector<float> features;
};

std::vector<Token> best_of(const std::vector<float>& logits, size_t vocab) {
  std::vector<Token> out;
  for (auto row = logits.begin(); row != logits.end(); row += static_cast<ptrdiff_t>(vocab))
    out.push_back(static_cast<Token>(std::max_element(row, row + static_cast<ptrdiff_t>(vocab)) - row));
  return out;
}

}  // namespace

TEST_CASE("blocks under every mask are the reference's") {
  struct Mask {
    std::string name;
    std::map<std::string, MetaValue> keys;
  };
  const Mask masks[] = {{"logits.window", {}},
                        {"logits.trained", {{"dflash.attention.sliding_window", int64_t{4096}}}},
                        {"logits.both_ways", {{"dflash.attention.causal", false}}},
                        {"logits.causal", {{"dflash.attention.causal", true}}}};
  for (const NamedBackend& b : all_backends(1)) {
    CAPTURE(b.name);
    const Model target = load_golden(golden_dir("gemma4_dense"), *b.backend);
    for (const Mask& mask : masks) {
      CAPTURE(mask.name);
      const DFlashNet net(source_with(mask.keys), *b.backend);
      net.check_target(target.spec);
      const GoldenTensor want = reference(mask.name);
      for (const int32_t chunk : {7, kContext}) {
        const double d = max_diff(run_block(*b.backend, target, net, chunk), want.f);
        CHECK(d <= kTolerance * want.max_abs());
        if (chunk == 7)
          MESSAGE(mask.name << " on " << b.name << ": differs by " << d << " of " << want.max_abs());
      }
    }
  }
}

TEST_CASE(
    "proposals are the block's first choices, whatever the chunks, the neighbours and the rounds before") {
  const GoldenTensor want = reference("logits.window");
  const std::vector<Token> best = best_of(want.f, static_cast<size_t>(want.shape[1]));
  Drafting d;
  CHECK(d.drafter->max_depth() == 7);
  CHECK(std::vector<int32_t>(d.drafter->taps().begin(), d.drafter->taps().end()) ==
        std::vector<int32_t>{1, 3, 5});
  const auto a = d.open(), b = d.open(), c = d.open();
  d.commit(*a, kContext);
  for (int i = 0; i < 8; ++i) d.commit(*b, 5);
  d.commit(*c, 30);
  std::vector<DraftAsk> asks = {d.ask(*c, 7), d.ask(*a, 7), d.ask(*b, 3)};
  d.drafter->propose(asks);
  CHECK(asks[1].out.token == best);
  CHECK(asks[1].out.parent.empty());
  CHECK(asks[2].out.token == std::vector<Token>(best.begin(), best.begin() + 3));
  for (size_t i = 0; i < 3; ++i) CHECK(asks[2].out.confidence[i] == asks[1].out.confidence[i]);
  const Proposal whole = asks[1].out;
  // Rounds at other lengths leave nothing behind.
  d.commit(*c, 4);
  std::vector<DraftAsk> other = {d.ask(*c, 7)};
  d.drafter->propose(other);
  d.commit(*c, 6);
  asks = {d.ask(*c, 7)};
  d.drafter->propose(asks);
  CHECK(asks[0].out.token == whole.token);
  CHECK(asks[0].out.confidence == whole.confidence);
  // p_min cuts.
  size_t keep = 0;
  while (keep < 7 && whole.confidence[keep] >= 0.02F) ++keep;
  asks = {d.ask(*a, 7, 0, 0.02F)};
  d.drafter->propose(asks);
  CHECK(asks[0].out.token ==
        std::vector<Token>(whole.token.begin(), whole.token.begin() + static_cast<ptrdiff_t>(keep)));
  // What others have read before it, a common system prompt, does not silence it: it drafts from the rest.
  const auto late = d.open(60);
  d.commit(*late, kContext);
  asks = {d.ask(*late, 7)};
  d.drafter->propose(asks);
  CHECK(asks[0].out.token == whole.token);
  CHECK(asks[0].out.confidence == whole.confidence);
  // A session that misses rows in the middle has nothing to say.
  const auto hole = d.open();
  d.commit(*hole, 10);
  hole->pos = 20;
  d.commit(*hole, 5);
  asks = {d.ask(*hole, 7)};
  d.drafter->propose(asks);
  CHECK(asks[0].out.empty());
}

TEST_CASE("trees hold the chain and the most probable marginals around it") {
  Drafting d;
  const auto a = d.open();
  d.commit(*a, kContext);
  std::vector<DraftAsk> asks = {d.ask(*a, 7, 20)};
  d.drafter->propose(asks);
  const Proposal& p = asks[0].out;
  REQUIRE(p.token.size() == 20);
  REQUIRE(p.parent.size() == 20);
  const GoldenTensor want = reference("logits.window");
  const std::vector<Token> best = best_of(want.f, static_cast<size_t>(want.shape[1]));
  for (int32_t i = 0; i < 7; ++i) {
    CHECK(p.token[static_cast<size_t>(i)] == best[static_cast<size_t>(i)]);
    CHECK(p.parent_of(i) == i - 1);
  }
  for (int32_t i = 7; i < 20; ++i) CHECK(p.parent_of(i) < i);
}

TEST_CASE("dialects and conversion: the same block") {
  const std::string gguf = test_directory() + "/dflash.gguf";
  convert({.in = dflash_dir(), .out = gguf, .type = "bf16", .threads = 2});
  const std::string lucebox = renamed_file(
      gguf, {.arch = "gemma4-dflash-draft",
             .prefix = "gemma4-dflash-draft",
             .tensors = {{"fc.weight", "dflash.fc.weight"},
                         {"enc.output_norm.weight", "dflash.hidden_norm.weight"}},
             .keys = {{"dflash.block_size", "gemma4-dflash-draft.dflash.block_size"},
                      {"tokenizer.ggml.mask_token_id", "gemma4-dflash-draft.dflash.mask_token_id"},
                      {"dflash.target_layers", ""}},
             .add = {{"gemma4-dflash-draft.dflash.target_layer_ids", std::vector<int64_t>{1, 3, 5}},
                     {"gemma4-dflash-draft.dflash.n_target_layers", int64_t{7}}}});
  const auto propose = [](const std::string& file) {
    Drafting d(file);
    CHECK(std::vector<int32_t>(d.drafter->taps().begin(), d.drafter->taps().end()) ==
          std::vector<int32_t>{1, 3, 5});
    const auto a = d.open();
    d.commit(*a, kContext);
    std::vector<DraftAsk> asks = {d.ask(*a, 7)};
    d.drafter->propose(asks);
    return asks[0].out;
  };
  const Proposal direct = propose(dflash_dir());
  for (const std::string& file : {gguf, lucebox}) {
    CAPTURE(file);
    const Proposal p = propose(file);
    CHECK(p.token == direct.token);
    CHECK(p.confidence == direct.confidence);
  }
  const std::string q8 = test_directory() + "/dflash-q8.gguf";
  convert({.in = dflash_dir(), .out = q8, .type = "q8_0", .threads = 2});
  CHECK(propose(q8).token.size() == 7);
}

TEST_CASE("masks, default taps and budgets") {
  CHECK_FALSE(dflash_both_ways(true, std::nullopt));
  CHECK(dflash_both_ways(false, std::nullopt));
  CHECK_FALSE(dflash_both_ways(false, true));
  CHECK(dflash_both_ways(true, false));
  CHECK(default_taps(60, 6) == std::vector<int32_t>{1, 12, 23, 35, 46, 57});  // as published for 31B
  CHECK(default_taps(30, 6) == std::vector<int32_t>{1, 6, 11, 17, 22, 27});   // and for 26B
  CHECK(default_taps(64, 5) == std::vector<int32_t>{1, 16, 31, 46, 61});      // and for Qwen3.6 27B
  // A budget of 32 rows is one of 16: the trained block is no longer.
  CHECK(dflash_drafts(1, 16) == 0);
  CHECK(dflash_drafts(8, 16) == 7);
  CHECK(dflash_drafts(16, 16) == 15);
  CHECK(dflash_drafts(32, 16) == 15);
}

TEST_CASE("a drafter for another model is refused") {
  const auto backend = make_ref_backend();
  const DFlashNet net(std::shared_ptr<WeightSource>(open_source(dflash_dir())), *backend);
  ModelSpec target = load_golden(golden_dir("gemma4_dense"), *backend).spec;
  net.check_target(target);
  ModelSpec shallow = target;
  shallow.layers.resize(5);
  CHECK_THROWS_WITH_AS(net.check_target(shallow), doctest::Contains("layer 5 of a model with 5"), Error);
  target.dim = 128;
  CHECK_THROWS_WITH_AS(net.check_target(target), doctest::Contains("64 wide, the model 128"), Error);
  CHECK_THROWS_WITH_AS(find_family("dflash"), doctest::Contains("drafter"), Error);
}
