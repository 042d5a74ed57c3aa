// The model's own drafting head against the reference: logits and hidden states of every pair, chains, and
// rounds of greedy speculation. Tolerances: tests/data/goldens.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/codec.h"
#include "engine/speculate/draft_nextn.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/step_runner.h"

using namespace carat;
using namespace carat::test;

namespace {

double max_diff(const float* a, const float* b, size_t n) {
  double d = 0;
  for (size_t i = 0; i < n; ++i) {
    const double e = std::abs(double{a[i]} - b[i]);
    d = e <= d ? d : e;
  }
  return d;
}

struct Target {
  Target(const std::string& name, std::shared_ptr<Backend> b)
      : backend(std::move(b)),
        model(std::make_shared<Model>(load_golden(golden_dir(name), *backend))),
        kv(*backend, kv_layers(model->spec, DType::f32, DType::f32), {256, 2, 64, 16}),
        pages(kv.limits(), kv.plan()) {}
  std::unique_ptr<NextnHead> head(const NextnOptions& o = {}) const {
    auto h = model->family->nextn(*model, *backend, o);
    REQUIRE(h);
    return h;
  }
  std::unique_ptr<Drafter> drafter(const NextnOptions& o = {}) const {
    auto d = make_nextn_drafter(head(o), model->spec, {DType::f32});
    d->attach({backend, model, &kv});
    return d;
  }
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
  KvPool kv;
  PagePool pages;
};

// Tells a session of the first n tokens, `chunk` at a time, with the reference's hidden states; `reused`
// positions stand before them.
void tell(DraftSession& s, const std::vector<int32_t>& seq, const GoldenTensor& hidden, int32_t from,
          int32_t n, int32_t chunk, int32_t reused = 0) {
  const auto dim = static_cast<size_t>(hidden.shape[1]);
  for (int32_t first = from; first < n; first += chunk) {
    const int32_t end = std::min(n, first + chunk);
    std::vector<const float*> rows;
    for (int32_t i = first; i < end; ++i) rows.push_back(&hidden.f[static_cast<size_t>(i) * dim]);
    s.committed({reused + first, std::span(seq).subspan(first, static_cast<size_t>(end - first)), rows, {}});
  }
}

Proposal ask(Drafter& d, DraftSession& s, int32_t anchor, int32_t pos, int32_t depth) {
  DraftAsk a;
  a.session = &s, a.anchor = anchor, a.pos = pos, a.max_depth = a.max_nodes = depth;
  d.propose({&a, 1});
  return a.out;
}

}  // namespace

TEST_CASE("every pair's logits, hidden state and cache are the reference's, in one pass or row by row") {
  for (const NamedBackend& b : all_backends()) {
    CAPTURE(b.name);
    const auto backend = std::shared_ptr<Backend>(std::shared_ptr<void>{}, b.backend.get());
    const Target t("qwen3_5", backend);
    const Goldens g("qwen3_5", "goldens_mtp.safetensors");
    const std::vector<int32_t> seq = g.get("seq").i;
    const GoldenTensor hidden = g.get("hidden"), logits = g.get("mtp_logits"), out = g.get("mtp_hidden");
    const auto head = t.head();
    const auto n = static_cast<int32_t>(seq.size()) - 1, dim = t.model->spec.dim, vocab = t.model->spec.vocab;
    for (const int32_t rows : {1, 9, n}) {
      CAPTURE(rows);
      KvPool kv(*backend, {head->cache(DType::f32, DType::f32)}, {256, 1, n, 16});
      PagePool pages(kv.limits(), kv.plan());
      Sequence s(pages);
      Arena arena(*backend);
      Program p;
      StepState state;
      const NextnHead::Io io = head->build(p, arena, kv, rows, rows);
      const auto exe = backend->compile(p, &state);
      for (int32_t first = 0; first < n; first += rows) {
        const int32_t m = std::min(rows, n - first);
        std::vector<int32_t> pos, ids(static_cast<size_t>(m), 0), all;
        REQUIRE(s.append(m));
        for (int32_t i = 0; i < m; ++i) {
          pos.push_back(first + i), all.push_back(i);
          backend->copy(io.hidden_in.row<float>(i), &hidden.f[size_t(first + i) * dim], size_t(dim) * 4);
        }
        const SeqView view = s.view();
        state = {m, m, &seq[static_cast<size_t>(first) + 1], pos.data(), ids.data(), all.data(), &view};
        backend->submit(*exe);
        backend->wait();
        s.commit(m);
        for (int32_t i = 0; i < m; ++i) {
          const size_t at = static_cast<size_t>(first + i);
          CHECK(max_diff(io.logits.row<float>(i), &logits.f[at * vocab], vocab) <= 2e-3);
          CHECK(max_diff(io.hidden.row<float>(i), &out.f[at * dim], dim) <= 2e-4 * out.max_abs());
        }
      }
      // Values do not depend on the position: keys do, by a rotation.
      const GoldenTensor v = g.get("mtp_kv.v");
      const KvView cache = kv.view(0);
      for (int32_t h = 0; h < cache.spec.heads; ++h)
        for (int32_t i = 0; i < n; ++i)
          CHECK(max_diff(reinterpret_cast<const float*>(cache.v_row(s.view(), i, h)),
                         &v.f[(size_t(h) * n + i) * cache.spec.dim], cache.spec.dim) <= 2e-4 * v.max_abs());
    }
  }
}

TEST_CASE("chains are the reference's, whatever the chunks of the prompt") {
  for (const char* name : {"qwen3_5", "qwen3_5_moe"}) {
    const Goldens g(name, "goldens_mtp.safetensors");
    const std::vector<int32_t> seq = g.get("seq").i, len = g.get("chain_len").i, ids = g.get("chain_ids").i;
    const GoldenTensor hidden = g.get("hidden");
    for (const NamedBackend& b : all_backends()) {
      CAPTURE(name);
      CAPTURE(b.name);
      const Target t(name, std::shared_ptr<Backend>(std::shared_ptr<void>{}, b.backend.get()));
      const auto d = t.drafter();
      Sequence target(const_cast<PagePool&>(t.pages));
      for (const int32_t chunk : {1, 7, 64, 1000}) {
        CAPTURE(chunk);
        for (size_t c = 0; c < len.size(); ++c) {
          const auto s = d->open(target, {});
          // Known: len tokens; the last of them is the anchor.
          tell(*s, seq, hidden, 0, len[c] - 1, chunk);
          const Proposal p = ask(*d, *s, seq[static_cast<size_t>(len[c]) - 1], len[c] - 1, 3);
          CHECK(p.token == std::vector<int32_t>(&ids[c * 3], &ids[c * 3] + 3));
          CHECK(p.confidence.size() == 3);
          // Asked again, the same answer.
          CHECK(ask(*d, *s, seq[static_cast<size_t>(len[c]) - 1], len[c] - 1, 3).token == p.token);
          // Behind what was read for somebody else, a common system prompt, it drafts from the rest.
          const auto late = d->open(target, {});
          late->committed({0, std::vector<Token>(60, 9), {}, {}});
          tell(*late, seq, hidden, 0, len[c] - 1, chunk, 60);
          CHECK(ask(*d, *late, seq[static_cast<size_t>(len[c]) - 1], 60 + len[c] - 1, 3).token == p.token);
        }
      }
    }
  }
}

TEST_CASE("rounds of greedy speculation draft what the reference drafts") {
  for (const char* name : {"qwen3_5", "qwen3_5_moe"})
    for (const int32_t depth : {1, 3}) {
      CAPTURE(name);
      CAPTURE(depth);
      const Goldens g(name, "goldens_mtp.safetensors");
      const std::vector<int32_t> seq = g.get("seq").i, start = g.get(fmt::format("spec{}_start", depth)).i;
      const std::vector<int32_t> drafts = g.get(fmt::format("spec{}_drafts", depth)).i;
      const GoldenTensor hidden = g.get("hidden");
      const Target t(name, make_ref_backend());
      const auto d = t.drafter();
      Sequence target(const_cast<PagePool&>(t.pages));
      const auto s = d->open(target, {});
      int32_t told = 0;
      for (size_t r = 0; r < start.size(); ++r) {
        CAPTURE(r);
        tell(*s, seq, hidden, told, start[r] - 1, 16);
        told = start[r] - 1;
        CHECK(d->rehearse(depth));  // for nobody: nobody's drafts change
        const Proposal p = ask(*d, *s, seq[static_cast<size_t>(told)], told, depth);
        CHECK(p.token == std::vector<int32_t>(&drafts[r * depth], &drafts[r * depth] + depth));
      }
    }
}

TEST_CASE("several sequences draft together what each drafts alone; a reduced head drafts among its rows") {
  const Target t("qwen3_5", make_ref_backend());
  const Goldens g("qwen3_5", "goldens_mtp.safetensors");
  const std::vector<int32_t> seq = g.get("seq").i;
  const GoldenTensor hidden = g.get("hidden");
  const auto d = t.drafter();
  Sequence a(const_cast<PagePool&>(t.pages)), b(const_cast<PagePool&>(t.pages));
  const auto alone = [&](int32_t n) {
    const auto s = d->open(a, {});
    tell(*s, seq, hidden, 0, n, 16);
    return ask(*d, *s, seq[static_cast<size_t>(n)], n, 4).token;
  };
  const auto want_a = alone(50), want_b = alone(77);
  const auto s = d->open(a, {}), u = d->open(b, {});
  tell(*s, seq, hidden, 0, 50, 64);
  tell(*u, seq, hidden, 0, 77, 7);
  DraftAsk asks[2];
  asks[0].session = s.get(), asks[0].anchor = seq[50], asks[0].pos = 50;
  asks[1].session = u.get(), asks[1].anchor = seq[77], asks[1].pos = 77;
  for (DraftAsk& q : asks) q.max_depth = q.max_nodes = 4;
  d->propose(asks);
  CHECK(asks[0].out.token == want_a);
  CHECK(asks[1].out.token == want_b);
  // A chain ends before what is too unlikely.
  asks[0].p_min = 1.1F;
  d->propose({asks, 1});
  CHECK(asks[0].out.empty());

  const auto small = t.drafter({.head_rows = 100});
  const auto v = small->open(a, {});
  tell(*v, seq, hidden, 0, 50, 64);
  const Proposal p = ask(*small, *v, seq[50], 50, 4);
  CHECK(p.token.size() == 4);
  for (const int32_t token : p.token) CHECK(token < 100);
}
