// A model as the drafter of itself: what it proposes is what the model says next, at every depth, whatever
// was accepted before and however the prompt came.
#include <doctest/doctest.h>

#include <random>

#include "engine/speculate/draft_net.h"
#include "tests/backends.h"
#include "tests/goldens.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Live {
  std::unique_ptr<Sequence> sequence;
  std::unique_ptr<DraftSession> session;
  History history;
  std::vector<Token> text;
  int32_t pos = 0;
};

struct Setup {
  Setup() : backend(make_cpu_backend(1, "")), goldens("gemma4_dense") {
    model = std::make_shared<Model>(load_golden(golden_dir("gemma4_dense"), *backend));
    ids = goldens.get("input_ids").i;
    const std::vector<int32_t> more = goldens.get("greedy_ids").i;
    prompt = static_cast<int32_t>(ids.size());
    ids.insert(ids.end(), more.begin(), more.end());
    const KvLimits limits{256, 3, 64, 16};
    kv = std::make_unique<KvPool>(*backend, kv_layers(model->spec, DType::f32, DType::f32), limits);
    pages = std::make_unique<PagePool>(limits, kv->plan());
    drafter = make_model_drafter(model, model->spec, {.cache = DType::f32});
    drafter->attach({backend, model, kv.get()});
  }
  std::unique_ptr<Live> open() {
    auto l = std::make_unique<Live>();
    l->sequence = std::make_unique<Sequence>(*pages);
    l->session = drafter->open(*l->sequence, {});
    return l;
  }
  void commit(Live& l, std::span<const Token> tokens) const {
    const std::vector<const float*> hidden(tokens.size(), nullptr);
    l.session->committed({l.pos, tokens, hidden, {}});
    l.pos += static_cast<int32_t>(tokens.size());
  }
  // The next n tokens of the reference's text.
  void advance(Live& l, int32_t n) const { commit(l, std::span(ids).subspan(static_cast<size_t>(l.pos), n)); }
  DraftAsk ask(Live& l, int32_t depth) const {
    return {l.session.get(), &l.history, ids[static_cast<size_t>(l.pos)], l.pos, depth, depth, 0, {}};
  }
  std::vector<Token> next(const Live& l, int32_t n) const {
    return {ids.begin() + l.pos + 1, ids.begin() + l.pos + 1 + n};
  }
  std::shared_ptr<Backend> backend;
  Goldens goldens;
  std::shared_ptr<Model> model;
  std::vector<int32_t> ids;
  int32_t prompt = 0;
  std::unique_ptr<KvPool> kv;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<Drafter> drafter;
};

}  // namespace

TEST_CASE("a model drafts its own continuation after every kind of round") {
  Setup s;
  const auto a = s.open(), b = s.open();
  s.advance(*a, s.prompt);
  for (int32_t left = s.prompt; left > 0; left -= 7) s.advance(*b, std::min(left, 7));
  std::mt19937 rng(2);
  while (a->pos + 20 < static_cast<int32_t>(s.ids.size())) {
    const auto depth = static_cast<int32_t>(1 + rng() % 6);
    std::vector<DraftAsk> asks = {s.ask(*a, depth), s.ask(*b, 3)};
    s.drafter->propose(asks);
    CHECK(asks[0].out.token == s.next(*a, depth));
    CHECK(asks[1].out.token == s.next(*b, 3));
    s.advance(
        *a, static_cast<int32_t>(1 + rng() % (static_cast<uint32_t>(depth) + 1)));  // partly or all accepted
    if (b->pos + 20 < static_cast<int32_t>(s.ids.size())) s.advance(*b, 1);
  }
}

TEST_CASE("what was drafted and came out differently is forgotten") {
  Setup s;
  const auto a = s.open();
  s.advance(*a, s.prompt);
  std::vector<DraftAsk> asks = {s.ask(*a, 5)};
  s.drafter->propose(asks);
  REQUIRE(asks[0].out.token.size() == 5);
  // The anchor stands, the target says something else behind it, and then goes on.
  const Token other = (s.ids[static_cast<size_t>(a->pos) + 1] + 1) % 512;
  const std::vector<Token> rows = {s.ids[static_cast<size_t>(a->pos)], other};
  s.commit(*a, rows);
  DraftAsk again = s.ask(*a, 4);
  again.anchor = 5;
  s.drafter->propose({&again, 1});
  // A fresh session that read the same says the same.
  const auto fresh = s.open();
  s.advance(*fresh, s.prompt);
  s.commit(*fresh, rows);
  DraftAsk same = s.ask(*fresh, 4);
  same.anchor = 5;
  s.drafter->propose({&same, 1});
  REQUIRE(again.out.token.size() == 4);
  CHECK(again.out.token == same.out.token);
  CHECK(again.out.confidence == same.out.confidence);
}

TEST_CASE("a drafter of another vocabulary is refused") {
  Setup s;
  ModelSpec other = s.model->spec;
  other.vocab = 1000;
  CHECK_THROWS_WITH_AS(make_model_drafter(s.model, other), doctest::Contains("vocabulary"), Error);
}
