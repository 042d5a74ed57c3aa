#include "tests/lossless.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "engine/speculate/draft_ngram.h"
#include "tests/op_cases.h"

namespace carat::test {
namespace {

bool same(const std::vector<Logprobs>& a, const std::vector<Logprobs>& b) {
  const auto equal = [](const Logprobs& x, const Logprobs& y) {
    return x.chosen == y.chosen && std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(),
                                              [](const auto& s, const auto& t) {
                                                return s.token == t.token && s.logprob == t.logprob;
                                              });
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

uint64_t mix(uint64_t h, const float* p, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, p + i, 4);
    h = (h ^ bits) * 0x100000001b3;
  }
  return h;
}

class Guesser : public Drafter {
 public:
  Guesser(std::shared_ptr<const Oracle> oracle, GuessOptions o)
      : oracle_(std::move(oracle)), o_(std::move(o)) {}

  std::string_view name() const override { return "guesser"; }
  std::span<const int32_t> taps() const override { return o_.taps; }
  bool wants_hidden() const override { return o_.hidden; }
  int32_t max_depth() const override { return 12; }
  bool makes_trees() const override { return o_.guess == Guess::tree; }
  void attach(const DraftTarget& t) override { dim_ = static_cast<size_t>(t.model->spec.dim); }
  std::unique_ptr<DraftSession> open(const Sequence& target, const SampleParams&) override {
    return std::make_unique<Session>(*this, target);
  }
  void propose(std::span<DraftAsk> asks) override {
    for (DraftAsk& a : asks) {
      const std::span<const Token> all = a.history->tokens();
      const auto& heard = static_cast<const Session*>(a.session)->tokens;
      expect(a.max_depth > 0 && a.max_nodes >= a.max_depth && a.out.empty());
      expect(all.back() == a.anchor && static_cast<int32_t>(all.size()) == a.pos + 1);
      expect(std::equal(heard.begin(), heard.end(), all.begin(), all.end() - 1));
      a.out = guess(all, a.max_depth, a.max_nodes);
    }
  }

 private:
  struct Session : DraftSession {
    Session(Guesser& o, const Sequence& s) : owner(o), target(s) {}
    void committed(const CommittedRows& r) override {
      const size_t n = r.token.size(), taps = owner.o_.taps.size();
      owner.expect(n > 0 && r.pos == static_cast<int32_t>(tokens.size()));
      owner.expect(r.pos + static_cast<int32_t>(n) == target.committed());
      if (r.pos == 0 && r.hidden.empty() && r.taps.empty()) {  // read by another request
        tokens.assign(r.token.begin(), r.token.end());
        return;
      }
      owner.expect(r.hidden.size() == n && r.taps.size() == n * taps);
      for (size_t i = 0; i < n; ++i) {
        tokens.push_back(r.token[i]);
        owner.expect(!owner.o_.hidden || r.hidden[i]);
        if (!owner.o_.heard) continue;
        uint64_t bits = 0xcbf29ce484222325;
        if (owner.o_.hidden && r.hidden[i]) bits = mix(bits, r.hidden[i], owner.dim_);
        for (size_t t = 0; t < taps; ++t) bits = mix(bits, r.taps[i * taps + t], owner.dim_);
        owner.expect(owner.o_.heard->same(tokens, bits));
      }
    }
    Guesser& owner;
    const Sequence& target;
    std::vector<Token> tokens;
  };

  void expect(bool ok) {
    if (!ok && o_.broken) ++*o_.broken;
  }
  Token wrong() { return static_cast<Token>(random_() % oracle_->vocab); }

  // What the stream says behind `all`; nothing if no stream begins so.
  std::span<const Token> truth(std::span<const Token> all) const {
    for (const std::vector<Token>& s : oracle_->streams)
      if (s.size() > all.size() && std::equal(all.begin(), all.end(), s.begin()))
        return std::span(s).subspan(all.size());
    return {};
  }

  Proposal guess(std::span<const Token> all, int32_t depth, int32_t nodes) {
    Proposal p;
    if (o_.guess == Guess::listener) return p;
    std::span<const Token> next = truth(all);
    next = next.first(std::min(next.size(), static_cast<size_t>(depth)));
    if (o_.guess == Guess::tree) return tree(next, nodes);
    if (o_.guess == Guess::random)
      for (int32_t i = 0; i < depth; ++i) p.token.push_back(wrong());
    else
      p.token.assign(next.begin(), next.end());
    if (o_.guess == Guess::corrupted)
      for (Token& t : p.token)
        if (random_() % 4 == 0) t = wrong();
    return p;
  }

  // The stream's tokens, each behind its parent, with other children before and after it.
  Proposal tree(std::span<const Token> next, int32_t nodes) {
    Proposal p;
    int32_t at = -1;  // the last node of the stream's path
    size_t depth = 0;
    while (static_cast<int32_t>(p.token.size()) < nodes) {
      const auto size = static_cast<int32_t>(p.token.size());
      const bool right = depth < next.size() && random_() % 3 == 0;
      const int32_t any = static_cast<int32_t>(random_() % (static_cast<uint64_t>(size) + 1)) - 1;
      p.parent.push_back(right ? at : any);
      p.token.push_back(right ? next[depth++] : wrong());
      if (right) at = size;
    }
    return p;
  }

  std::shared_ptr<const Oracle> oracle_;
  GuessOptions o_;
  size_t dim_ = 0;
  Random random_{7};
};

Engine make_engine(const LosslessPlan& plan, int32_t sequences, const NamedDrafters& d) {
  size_t longest = 0;
  for (const auto& p : plan.prompts) longest = std::max(longest, p.size());
  EngineConfig c;
  c.context = static_cast<int32_t>(longest) + plan.max_tokens;
  c.sequences = sequences;
  c.prefill_chunk = 24;
  c.cache_k = plan.cache_k, c.cache_v = plan.cache_v;
  c.drafters = d.drafters;
  c.spec = d.config;
  return Engine(plan.backend, plan.model, c);
}

// Runs some of the requests beside each other, cancelling every second one at some point; what came must be
// the beginning of what plain decoding says.
std::string cancel_some(Engine& engine, const std::vector<Request>& requests,
                        const std::vector<Outcome>& plain) {
  struct Wish {
    std::atomic<uint64_t> id{0};
    std::atomic<size_t> came{0};
  };
  const size_t n = std::min<size_t>(requests.size(), 6);
  std::vector<Request> some(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(n));
  std::vector<std::shared_ptr<Wish>> wishes;
  for (size_t i = 0; i < n; ++i) {
    wishes.push_back(std::make_shared<Wish>());
    if (i % 2) continue;
    const size_t after = plain[i].tokens.size() * (i + 1) / (n + 2);
    some[i].sink = [&engine, wish = wishes[i], after](const Event& e) {
      if ((wish->came += e.tokens.size()) >= after && wish->id) engine.cancel(wish->id);
    };
  }
  const std::vector<Outcome> got = run_all(engine, some, [&](size_t i, uint64_t id) { wishes[i]->id = id; });
  for (size_t i = 0; i < n; ++i) {
    const auto& a = got[i].tokens;
    const auto& b = plain[i].tokens;
    if (a.size() > b.size() || !std::equal(a.begin(), a.end(), b.begin()) || (i % 2 && a.size() != b.size()))
      return fmt::format("request {} beside cancelled ones differs", i);
  }
  return {};
}

std::string describe(const Outcome& want, const Outcome& got) {
  if (got.finish == Finish::error) return "failed: " + got.error;
  const auto [a, b] =
      std::mismatch(want.tokens.begin(), want.tokens.end(), got.tokens.begin(), got.tokens.end());
  if (a != want.tokens.end() || b != got.tokens.end())
    return fmt::format("token {} of {} differs, {} came", a - want.tokens.begin(), want.tokens.size(),
                       got.tokens.size());
  return "log probabilities or the reason to end differ";
}

void add(LosslessCount& c, const std::vector<Outcome>& plain, const std::vector<Outcome>& got,
         const EngineStats& before, const EngineStats& after, int32_t batch) {
  const auto of = [](uint64_t from, uint64_t to) { return static_cast<int64_t>(to - from); };
  c.runs += static_cast<int64_t>(got.size());
  c.accepted += of(before.spec.accepted, after.spec.accepted);
  for (size_t i = 0; i < got.size(); ++i) {
    c.tokens += static_cast<int64_t>(got[i].tokens.size());
    c.different += !(got[i] == plain[i % plain.size()]);
  }
  if (batch == 1) return;
  c.steps += of(before.steps, after.steps);
  c.turns += of(before.spec.rounds + before.spec.plain, after.spec.rounds + after.spec.plain);
}

}  // namespace

bool Outcome::operator==(const Outcome& o) const {
  return tokens == o.tokens && finish == o.finish && error == o.error && same(logprobs, o.logprobs) &&
         same(prompt_logprobs, o.prompt_logprobs);
}

std::vector<Outcome> run_all(Engine& engine, const std::vector<Request>& requests,
                             const std::function<void(size_t, uint64_t)>& submitted) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Outcome> outcomes;
    size_t open = 0;
  };
  const auto state = std::make_shared<State>();
  state->outcomes.resize(requests.size());
  state->open = requests.size();
  for (size_t i = 0; i < requests.size(); ++i) {
    Request r = requests[i];
    r.sink = [state, i, also = r.sink](const Event& e) {
      if (also) also(e);
      const std::lock_guard lock(state->mutex);
      Outcome& o = state->outcomes[i];
      o.tokens.insert(o.tokens.end(), e.tokens.begin(), e.tokens.end());
      o.logprobs.insert(o.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
      if (!e.prompt_logprobs.empty()) o.prompt_logprobs = e.prompt_logprobs;
      o.finish = e.finish, o.error = e.error;
      if (e.finish == Finish::none) return;
      o.spec = e.spec;
      --state->open;
      state->changed.notify_all();
    };
    const uint64_t id = engine.submit(std::move(r));
    if (submitted) submitted(i, id);
  }
  std::unique_lock lock(state->mutex);
  state->changed.wait(lock, [&] { return state->open == 0; });
  return state->outcomes;
}

bool HeardRows::same(std::span<const Token> prefix, uint64_t bits) {
  return rows_.try_emplace({prefix.begin(), prefix.end()}, bits).first->second == bits;
}

std::shared_ptr<Drafter> make_guesser(std::shared_ptr<const Oracle> oracle, GuessOptions options) {
  return std::make_shared<Guesser>(std::move(oracle), std::move(options));
}

std::vector<NamedDrafters> all_drafters(const std::shared_ptr<const Oracle>& oracle,
                                        std::atomic<int>* broken) {
  SpecConfig fixed;
  fixed.adaptive = false;
  fixed.draft_max = 7;
  fixed.max_rows = 32;
  SpecConfig trees = fixed, adaptive;
  trees.tree_nodes = 24;
  NgramOptions n;
  n.key = 2, n.value = 6, n.mod_key = 2, n.mod_min = 1, n.mod_max = 8, n.mod_entries = 1 << 12;
  std::vector<NamedDrafters> all;
  const auto guesser = [&](Guess g) { return make_guesser(oracle, {.guess = g, .broken = broken}); };
  const auto ngram = [&](const char* name) { return std::shared_ptr<Drafter>(make_ngram(name, n)); };
  all.push_back({"oracle", {guesser(Guess::oracle)}, fixed});
  all.push_back({"corrupted oracle", {guesser(Guess::corrupted)}, fixed});
  all.push_back({"random", {guesser(Guess::random)}, fixed});
  all.push_back({"tree", {guesser(Guess::tree)}, trees});
  all.push_back({"tree chosen by cost", {guesser(Guess::tree)}, adaptive});
  for (const char* name : {"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"})
    all.push_back({name, {ngram(name)}, fixed});
  all.push_back({"suffix", {ngram("suffix")}, fixed});
  all.push_back({"suffix trees", {ngram("suffix")}, trees});
  all.push_back({"mixed", {guesser(Guess::corrupted), ngram("suffix"), guesser(Guess::tree)}, adaptive});
  return all;
}

std::vector<NamedParams> all_params(bool every_sampler) {
  SampleParams greedy, warm, cut, penalties;
  greedy.temperature = 0;
  warm.temperature = 0.7F;
  cut.top_k = 20, cut.top_p = 0.9F, cut.min_p = 0.02F;
  penalties.temperature = 0.8F;
  penalties.repeat_penalty = 1.2F, penalties.repeat_last_n = 30;
  penalties.presence_penalty = 0.4F, penalties.frequency_penalty = 0.3F;
  penalties.logit_bias = {{7, 2.0F}, {11, -3.0F}, {12, -std::numeric_limits<float>::infinity()}};
  SampleParams odd, mirostat, zipf;
  odd.top_n_sigma = 2, odd.typical_p = 0.9F, odd.xtc_probability = 0.5F, odd.xtc_threshold = 0.05F;
  odd.dynatemp_range = 0.5F, odd.dry_multiplier = 0.8F;
  mirostat.mirostat = 2, mirostat.mirostat_tau = 4, mirostat.mirostat_eta = 0.3F;
  zipf.mirostat = 1, zipf.mirostat_tau = 3;
  std::vector<NamedParams> all = {
      {"greedy", greedy}, {"T 0.7", warm}, {"T 1, top-k, top-p, min-p", cut}, {"penalties, bias", penalties}};
  if (!every_sampler) return all;
  all.push_back({"DRY, XTC, typical, top-n-sigma, dynamic temperature", odd});
  all.push_back({"Mirostat 1", zipf});
  all.push_back({"Mirostat 2", mirostat});
  return all;
}

std::string check_lossless(const LosslessPlan& plan) {
  for (const NamedParams& p : all_params(plan.every_sampler)) {
    std::vector<Request> requests;
    for (size_t i = 0; i < plan.prompts.size(); ++i) {
      Request r;
      r.prompt = plan.prompts[i];
      r.sample = p.params;
      r.sample.seed = 100 + i;
      r.max_tokens = plan.max_tokens;
      r.ignore_eos = true;
      r.logprobs = i % 2 ? 2 : -1;
      requests.push_back(r);
    }
    auto oracle = std::make_shared<Oracle>();
    oracle->vocab = static_cast<uint32_t>(plan.model->spec.vocab);
    std::vector<Outcome> plain;
    {
      Engine engine = make_engine(plan, plan.batches.front(), {});
      plain = run_all(engine, requests);
    }
    for (size_t i = 0; i < plain.size(); ++i) {
      std::vector<Token> s = requests[i].prompt;
      s.insert(s.end(), plain[i].tokens.begin(), plain[i].tokens.end());
      oracle->streams.push_back(std::move(s));
    }
    std::atomic<int> broken{0};
    for (const NamedDrafters& d : plan.drafters ? plan.drafters() : all_drafters(oracle, &broken))
      for (const int32_t batch : plan.batches) {
        const std::string where = fmt::format("{}, {}, batch {}", d.name, p.name, batch);
        Engine engine = make_engine(plan, batch, d);
        if (plan.cancels)
          if (const std::string wrong = cancel_some(engine, requests, plain); !wrong.empty())
            return where + ": " + wrong;
        std::vector<Request> full = requests;
        while (full.size() % static_cast<size_t>(batch)) full.push_back(full[full.size() - requests.size()]);
        const EngineStats before = engine.stats();
        const std::vector<Outcome> got = run_all(engine, full);
        if (broken) return where + ": a drafter was told nonsense";
        const SpecStats s = engine.stats().spec;
        if (plan.count) add(*plan.count, plain, got, before, engine.stats(), batch);
        for (size_t i = 0; i < got.size(); ++i)
          if (const Outcome& want = plain[i % plain.size()]; !(got[i] == want))
            return fmt::format("{}, prompt {}: {}", where, i, describe(want, got[i]));
        if (d.name == "oracle" && s.accepted_length() < 3)
          return fmt::format("{}: {} tokens a step", where, s.accepted_length());
      }
  }
  return {};
}

}  // namespace carat::test
