// The controller in a simulated engine: acceptance curves and cost tables are given, time is virtual and
// noisy, and what it reaches is compared with every fixed depth.
#include "engine/speculate/speculator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/rng.h"

using namespace carat;

namespace {

constexpr int32_t kVocab = 1000;
Token truth(uint64_t sequence, size_t i) {
  return static_cast<Token>(uniform_noise(sequence, i, 77) * kVocab);
}

using Curve = std::function<double(size_t at, int32_t place)>;  // acceptance given the places before

struct Sim {
  double clock = 0;
  double busy = 1;   // what everything is slower by now
  double quiet = 0;  // the clock, had it never been busy
  double per_sequence = 0;
  size_t answer = 0;  // tokens of a request
  uint64_t seed = 0;
  void pass(double t) { clock += t * busy, quiet += t; }
};

struct SimSession : DraftSession {
  explicit SimSession(uint64_t n) : number(n) {}
  void committed(const CommittedRows&) override {}
  uint64_t number;
  size_t read = 0;
};

// Right as often as its curve says; a pass costs fixed + per_token * depth, and reading what it has not read
// before `reading` per token. If that costs something, it can rehearse.
class SimDrafter : public Drafter {
 public:
  SimDrafter(Sim& sim, std::string name, Curve curve, double fixed, double per_token, bool confident,
             double reading = 0)
      : sim_(sim),
        name_(std::move(name)),
        curve_(std::move(curve)),
        fixed_(fixed),
        per_token_(per_token),
        confident_(confident),
        reading_(reading) {}
  std::string_view name() const override { return name_; }
  int32_t max_depth() const override { return 32; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    return std::make_unique<SimSession>(opened_++);
  }
  bool rehearse(int32_t depth) override {
    if (reading_ > 0) sim_.pass(fixed_ + per_token_ * depth);
    return reading_ > 0;
  }
  void propose(std::span<DraftAsk> asks) override {
    int32_t deepest = 0;
    for (DraftAsk& ask : asks) {
      auto& session = *static_cast<SimSession*>(ask.session);
      const uint64_t number = session.number;
      const uint64_t luck = number + 1000 * sim_.seed;
      const size_t at = ask.history->tokens().size();
      sim_.pass(reading_ * static_cast<double>(at - std::exchange(session.read, at)));
      for (int32_t i = 0; i < ask.max_depth; ++i) {
        double p = curve_(number * sim_.answer + at, i);
        if (p <= 0) break;  // nothing to say
        // A drafter that knows itself: sometimes surer, sometimes less, right as often as it says.
        if (confident_)
          p += (uniform_noise(number + 100, at, static_cast<uint32_t>(i)) < 0.5 ? 1 : -1) * 0.8 *
               std::min(p, 1 - p);
        const bool right =
            uniform_noise(luck, at, static_cast<uint32_t>(i) + std::hash<std::string>()(name_) % 1000 * 64) <
            p;
        const Token t = truth(number, at + static_cast<size_t>(i));
        ask.out.token.push_back(right ? t : (t + 1) % kVocab);
        if (confident_) ask.out.confidence.push_back(static_cast<float>(p));
      }
      deepest = std::max(deepest, ask.max_depth);
    }
    const auto more = static_cast<double>(asks.size() - 1);
    sim_.pass((1 + more * sim_.per_sequence) * (fixed_ + per_token_ * deepest));
  }

 private:
  Sim& sim_;
  const std::string name_;
  const Curve curve_;
  const double fixed_, per_token_;
  const bool confident_;
  const double reading_;
  uint64_t opened_ = 0;
};

struct DrafterKind {
  std::string name;
  Curve curve;
  double fixed = 0, per_token = 0;
  bool confident = false;
  double reading = 0;
};
using Cost = std::function<double(int32_t rows)>;

struct World {
  std::vector<DrafterKind> drafters;
  Cost cost;
  int32_t sequences = 1;
  size_t tokens = 10000;  // per sequence
  double noise = 0.05;
  bool profiled = true;   // as the engine does at its start
  int32_t most_rows = 0;  // of a step; 0: sixteen a sequence
  double slow = 1;        // a neighbour makes steps so much slower, for dozens of them at a time
  uint64_t seed = 3;
  double per_sequence = 0;  // what a pass of the drafter costs for every sequence more, as a share of one
  size_t answer = 0;        // tokens of a request, after which the next one comes; 0: one request is all
};

struct Result {
  double speed = 0;  // tokens per unit of time
  SpecStats stats;
};

// One engine's life. depth < 0: the controller; 0: plain; else fixed.
Result live(const World& w, int32_t depth) {
  Sim sim;
  sim.per_sequence = w.per_sequence;
  sim.seed = w.seed;
  sim.answer = w.answer;
  std::vector<std::shared_ptr<Drafter>> drafters;
  for (const DrafterKind& k : w.drafters)
    drafters.push_back(
        std::make_shared<SimDrafter>(sim, k.name, k.curve, k.fixed, k.per_token, k.confident, k.reading));
  SpecConfig config;
  config.adaptive = depth < 0;
  config.draft_max = depth < 0 ? 15 : depth;
  config.max_rows = w.most_rows > 0 ? w.most_rows : w.sequences * 16;
  config.clock = [&] { return sim.clock; };
  Speculator speculator(drafters, config);
  PagePool pool(KvLimits{.context = 64, .sequences = w.sequences, .step_rows = 64});
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::unique_ptr<SpecSession>> sessions;
  std::vector<History> histories(static_cast<size_t>(w.sequences));
  std::vector<uint64_t> number(histories.size());  // of the request
  uint64_t opened = 0;
  const auto open = [&](size_t i) {
    sessions[i] = speculator.open(*sequences[i], {});
    number[i] = opened++;
    histories[i] = {};
    histories[i].add(truth(number[i], 0));
  };
  sessions.resize(histories.size());
  for (size_t i = 0; i < histories.size(); ++i) {
    sequences.push_back(std::make_unique<Sequence>(pool));
    open(i);
  }
  std::mt19937 random(static_cast<uint32_t>(w.seed));
  std::normal_distribution<double> normal(0, w.noise);
  if (w.profiled)
    for (int i = 0; i < 2; ++i)
      for (const int32_t rows : speculator.profile_rows(w.sequences))
        speculator.measured(rows, w.cost(rows) * std::exp(normal(random)));
  speculator.rehearse();
  sim.clock = sim.quiet = 0;
  double tokens = 0;
  std::uniform_real_distribution<double> dice;
  const double all = static_cast<double>(w.tokens) * w.sequences;
  while (tokens < all) {
    std::vector<Turn> turns(histories.size());
    for (size_t i = 0; i < turns.size(); ++i) {
      if (w.answer > 0 && histories[i].tokens().size() >= w.answer) open(i);
      turns[i].session = sessions[i].get();
      turns[i].history = &histories[i];
      turns[i].pos = static_cast<int32_t>(histories[i].tokens().size()) - 1;
      turns[i].room = 15;
    }
    if (depth != 0) speculator.draft(turns);
    int32_t rows = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
      rows += 1 + static_cast<int32_t>(turns[i].draft.token.size());
      const size_t at = histories[i].tokens().size();
      size_t a = 0;
      while (a < turns[i].draft.token.size() && turns[i].draft.token[a] == truth(number[i], at + a)) ++a;
      turns[i].emitted = static_cast<int32_t>(a) + 1;
      for (size_t j = 0; j <= a; ++j) histories[i].add(truth(number[i], at + j));
      tokens += static_cast<double>(a) + 1;
    }
    if (dice(random) < 1.0 / 30) sim.busy = sim.busy > 1 ? 1 : w.slow;
    const double seconds = w.cost(rows) * std::exp(normal(random));
    sim.pass(seconds);
    if (depth != 0) speculator.verified(turns, {rows, false, sim.busy * seconds, 0});
  }
  return {tokens / sim.quiet, speculator.totals()};
}

struct Verdict {
  double regret = 0, of_plain = 0;
  int32_t best = 0;
  double al = 0;
};

// Against the exact speeds of fixed depths of the only drafter.
Verdict judge(const World& w) {
  const Result ours = live(w, -1);
  const DrafterKind& d = w.drafters.front();
  double plain = 0, best = 0;
  int32_t best_depth = 0;
  for (int32_t depth = 0; depth <= 15; ++depth) {
    double time = 0;
    for (const size_t at : {size_t{0}, w.tokens - 1}) {  // first and second half
      double survival = 1, length = 1;
      for (int32_t i = 0; i < depth; ++i) length += survival *= d.curve(at, i);
      time += (w.cost(w.sequences * (depth + 1)) + (depth > 0 ? d.fixed + d.per_token * depth : 0)) / length;
    }
    const double speed = 2 * w.sequences / time;
    if (depth == 0) plain = speed;
    if (speed > best) best = speed, best_depth = depth;
  }
  return {1 - ours.speed / best, ours.speed / plain, best_depth, ours.stats.accepted_length()};
}

double dense(int32_t m) { return 1 + 0.03 * (m - 1); }
double cpu(int32_t m) { return 1 + 0.09 * (m - 1); }
// Measured: a kernel of four rows at a time.
double blocks(int32_t m) { return 1 + 0.05 * ((m - 1) % 4) / 3 + 0.58 * ((m - 1) / 4); }
double experts(int32_t m) { return 0.3 + 0.7 * 16 * (1 - std::pow(1 - 1.0 / 16, m)); }
// carat-demo on two cores with AMX, measured.
double demo(int32_t m) { return m == 1 ? 1 : 1.25 + 0.24 * (m - 2); }
// Eight rows of a kernel that is linear in rows, then one that is not.
double cliff(int32_t m) { return m <= 8 ? 1 + 0.21 * (m - 1) : 1.9 + 0.01 * (m - 16); }

Curve flat(double p) {
  return [p](size_t, int32_t) { return p; };
}

}  // namespace

TEST_CASE("the controller comes near the best fixed depth, and never falls behind plain decoding") {
  const std::pair<const char*, Cost> costs[] = {{"dense", dense}, {"cpu", cpu}, {"experts", experts}};
  double sum = 0, cells = 0;
  for (const auto& [name, cost] : costs)
    for (const int32_t sequences : {1, 2, 4})
      for (const double p : {0.0001, 0.2, 0.4, 0.6, 0.8, 0.95})
        for (const bool dear : {false, true}) {
          World w;
          w.cost = cost;
          w.sequences = sequences;
          w.drafters = {{"d", flat(p), 0, dear ? 0.06 : 0.0005, false}};
          const Verdict v = judge(w);
          INFO(std::string(name), ", ", sequences, " sequences, acceptance ", p,
               std::string(dear ? ", dear" : ", cheap"), ": regret ", v.regret, ", of plain ", v.of_plain,
               ", best fixed ", v.best, ", AL ", v.al);
          CHECK(v.regret <= 0.1);
          CHECK(v.of_plain >= 0.97);
          sum += v.regret, ++cells;
        }
  MESSAGE("mean regret ", sum / cells);
  CHECK(sum / cells <= 0.02);
}

TEST_CASE("sixteen sequences whose rows cost what they bring are left alone, and pay nothing for it") {
  for (const auto& [name, cost] :
       {std::pair<const char*, Cost>{"linear", [](int32_t m) { return 0.2 + 0.8 * m; }}, {"blocks", blocks}})
    for (const double slow : {1.0, 1.5})
      for (const double p : {0.2, 0.4, 0.6}) {
        World w;
        w.cost = cost;
        w.sequences = 16;
        w.most_rows = 32;
        w.slow = slow;
        w.tokens = 400;
        w.per_sequence = 0.1;
        w.drafters = {{"d", flat(p), 0, 0.06, false}};
        const Result ours = live(w, -1), plain = live(w, 0);
        const SpecStats& s = ours.stats;
        INFO(std::string(name), ", slow ", slow, ", acceptance ", p, ": ", ours.speed / plain.speed,
             ", drafting ", s.draft_seconds / s.verify_seconds, ", AL ", s.accepted_length());
        CHECK(ours.speed / plain.speed >= 0.98);
        CHECK(s.draft_seconds / s.verify_seconds < 0.01);
        CHECK(s.accepted_length() < 1.02);
      }
}

TEST_CASE("kernels that work in blocks of rows, and a machine that others use too") {
  double sum = 0, cells = 0;
  for (const double slow : {1.0, 1.5})
    for (const int32_t n : {1, 2, 4, 16})
      for (const double p : {0.3, 0.6, 0.75, 0.9})
        for (const bool dear : {false, true}) {
          World w;
          w.cost = blocks;
          w.sequences = n;
          w.most_rows = 32;
          w.slow = slow;
          w.tokens = 600;
          w.per_sequence = 0.1;
          w.drafters = {{"d", flat(p), 0, dear ? 0.06 : 0.0005, false}};
          const double of_plain = live(w, -1).speed / live(w, 0).speed;
          double best = 0, plain = 0;
          for (int32_t depth = 0; depth <= 15 && n * (depth + 1) <= 32; ++depth) {
            double survival = 1, length = 1;
            for (int32_t i = 0; i < depth; ++i) length += survival *= p;
            const double pass = (1 + (n - 1) * w.per_sequence) * w.drafters[0].per_token * depth;
            const double speed = length * n / (blocks(n * (depth + 1)) + pass);
            if (depth == 0) plain = speed;
            best = std::max(best, speed);
          }
          INFO("slow ", slow, ", ", n, " sequences, acceptance ", p, std::string(dear ? ", dear" : ", cheap"),
               ": ", of_plain, " of plain, best ", best / plain);
          CHECK(of_plain >= 0.97);
          CHECK(of_plain * plain / best >= 0.92);
          sum += of_plain * plain / best, ++cells;
        }
  MESSAGE("mean share of the best ", sum / cells);
  CHECK(sum / cells >= 0.97);
}

TEST_CASE("short answers, and an assistant that hardly pays: what others have shown holds for the next") {
  double sum = 0, cells = 0;
  for (const double p : {0.2, 0.35, 0.45, 0.55, 0.65, 0.8})
    for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
      World w;
      w.cost = demo;
      w.tokens = 640;
      w.answer = 64;
      w.seed = seed;
      w.drafters = {{"d", flat(p), 0.07, 0.17, false}};
      const Verdict v = judge(w);
      INFO("acceptance ", p, ": of plain ", v.of_plain, ", regret ", v.regret, ", AL ", v.al);
      CHECK(v.of_plain >= 0.97);
      CHECK(v.regret <= 0.08);
      sum += v.regret, ++cells;
    }
  MESSAGE("mean regret ", sum / cells);
  CHECK(sum / cells <= 0.015);
}

TEST_CASE("every other answer suits the drafter") {
  double sum = 0, cells = 0;
  for (const auto& [one, other] :
       {std::pair{0.8, 0.2}, std::pair{0.9, 0.4}, std::pair{0.7, 0.5}, std::pair{0.55, 0.35}})
    for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
      World w;
      w.cost = demo;
      w.tokens = 1280;
      w.answer = 64;
      w.seed = seed;
      const double a = one, b = other;
      w.drafters = {{"d", [a, b](size_t at, int32_t) { return at / 64 % 2 ? b : a; }, 0.07, 0.17, false}};
      const Verdict v = judge(w);
      CHECK(v.of_plain >= 0.97);
      sum += v.regret, ++cells;
    }
  MESSAGE("mean regret ", sum / cells);
  CHECK(sum / cells <= -0.02);  // no one depth suits both
}

TEST_CASE("a drafter as dear as the model is soon left alone, however right it is") {
  for (const size_t tokens : {600, 4000}) {
    World w;
    w.cost = cpu;
    w.tokens = tokens;
    w.drafters = {{"d", flat(0.99), 0, 1.0, false}};
    const Verdict v = judge(w);
    INFO(tokens, " tokens: ", v.of_plain);
    CHECK(v.of_plain >= 0.97);
  }
}

TEST_CASE("a model as dear as the model never reads a text for nothing") {
  for (const size_t tokens : {100, 600, 4000}) {
    World w;
    w.cost = cpu;
    w.tokens = tokens;
    w.drafters = {{"d", flat(0.99), 0, 1.0, false, 0.1}};
    const Verdict v = judge(w);
    INFO(tokens, " tokens: ", v.of_plain);
    CHECK(v.of_plain >= 0.98);
  }
}

TEST_CASE("a cost that is not even: eight rows dearer than sixteen") {
  for (const double p : {0.6, 0.8, 0.95}) {
    World w;
    w.cost = cliff;
    w.drafters = {{"d", flat(p), 0, 0.0005, false}};
    const Verdict v = judge(w);
    CAPTURE(p);
    CHECK(v.regret <= 0.04);
  }
}

TEST_CASE("without a profile the controller finds out by itself") {
  for (const double p : {0.0001, 0.8}) {
    World w;
    w.cost = cpu;
    w.profiled = false;
    w.drafters = {{"d", flat(p), 0, 0.05, false}};
    const Verdict v = judge(w);
    CHECK(v.regret <= 0.05);
    CHECK(v.of_plain >= 0.97);
  }
}

TEST_CASE("when the text changes half-way the controller follows") {
  for (const auto& [before, after] : {std::pair{0.9, 0.05}, std::pair{0.05, 0.9}, std::pair{0.6, 0.3}})
    for (const bool dear : {false, true}) {
      World w;
      w.cost = cpu;
      const double a = before, b = after;
      w.drafters = {
          {"d", [a, b](size_t at, int32_t) { return at < 5000 ? a : b; }, 0, dear ? 0.06 : 0.0005, false}};
      const Verdict v = judge(w);
      INFO(before, " then ", after, std::string(dear ? " dear" : " cheap"), ": regret ", v.regret);
      CHECK(v.regret <= 0.02);  // one depth for both halves is no hard rival
      CHECK(v.of_plain >= 0.97);
    }
}

TEST_CASE("a drafter's confidence is used: as good as the best fixed depth, which nobody knows beforehand") {
  double regret = 0;
  for (const uint64_t seed : {0, 1, 2, 3}) {
    World w;
    w.cost = cpu;
    w.seed = seed;
    w.drafters = {{"d", flat(0.6), 0, 0.01, true}};
    regret += judge(w).regret / 4;
  }
  MESSAGE("regret ", regret);
  CHECK(regret < 0.008);
}

TEST_CASE("of two drafters each is used where it is the better one") {
  // One repeats what was there and has nothing to say elsewhere, the other guesses everywhere.
  const Curve repeats = [](size_t at, int32_t) { return at / 500 % 2 ? 0.97 : 0.0; };
  World w;
  w.cost = dense;
  w.drafters = {{"guess", flat(0.6), 0, 0.08, false}};
  const double guess = live(w, -1).speed;
  w.drafters = {{"repeat", repeats, 0, 0.0005, false}};
  const double repeat = live(w, -1).speed;
  w.drafters = {{"guess", flat(0.6), 0, 0.08, false}, {"repeat", repeats, 0, 0.0005, false}};
  const double both = live(w, -1).speed;
  CHECK(both > 1.2 * guess);
  CHECK(both > 1.1 * repeat);
}

TEST_CASE("counters: unconditional acceptance falls with the place, conditional is what the drafter can do") {
  World w;
  w.cost = dense;
  w.drafters = {{"d", flat(0.7), 0, 0.0005, false}};
  const SpecStats s = live(w, 4).stats;
  CHECK(s.plain == 0);
  CHECK(s.drafted == 4 * s.rounds);
  CHECK(s.accepted == s.accepted_at[0] + s.accepted_at[1] + s.accepted_at[2] + s.accepted_at[3]);
  CHECK(s.accepted_length() == doctest::Approx(1 + 0.7 + 0.49 + 0.343 + 0.2401).epsilon(0.03));
  for (size_t i = 0; i < 4; ++i) {
    CHECK(static_cast<double>(s.accepted_at[i]) / static_cast<double>(s.rounds) ==
          doctest::Approx(std::pow(0.7, i + 1)).epsilon(0.06));
    CHECK(s.drafted_at[i] == s.rounds);
    CHECK(static_cast<double>(s.accepted_at[i]) / static_cast<double>(s.tried_at[i]) ==
          doctest::Approx(0.7).epsilon(0.05));
  }
  CHECK(s.draft_seconds > 0);
  CHECK(s.verify_seconds > s.draft_seconds);
}

TEST_CASE("the room of a turn and the rows of a step are kept") {
  Sim sim;
  for (const bool adaptive : {false, true}) {
    SpecConfig config;
    config.adaptive = adaptive;
    config.draft_max = 6;
    config.max_rows = 12;
    config.clock = [&] { return sim.clock; };
    std::vector<std::shared_ptr<Drafter>> drafters{
        std::make_shared<SimDrafter>(sim, "d", flat(0.99), 0, 0, false)};
    Speculator speculator(drafters, config);
    PagePool pool(KvLimits{.context = 64, .sequences = 3, .step_rows = 64});
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<std::unique_ptr<SpecSession>> sessions;
    std::vector<History> histories(3);
    for (size_t i = 0; i < 3; ++i) {
      sequences.push_back(std::make_unique<Sequence>(pool));
      sessions.push_back(speculator.open(*sequences.back(), {}));
      histories[i].add(truth(i, 0));
    }
    for (const int32_t rows : {3, 6, 12, 3, 6, 12}) speculator.measured(rows, 1);  // rows are free
    std::vector<Turn> turns(3);
    for (size_t i = 0; i < 3; ++i) {
      turns[i].session = sessions[i].get();
      turns[i].history = &histories[i];
      turns[i].room = i == 0 ? 2 : 15;
    }
    speculator.draft(turns);
    size_t rows = 3;
    for (const Turn& t : turns) rows += t.draft.token.size();
    CHECK(rows <= 12);
    CHECK(rows >= 6);
    CHECK(turns[0].draft.token.size() <= 2);
  }
}

TEST_CASE("synthetic acceptance: the given rates, the same for the same seed, and never by chance") {
  SpecConfig config;
  config.synthetic = {0.75F, 0.6F, 0.5F, 0.4F};
  int accepted[4] = {};
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round)
    for (int32_t depth = 1; depth <= 4; ++depth) {
      const int64_t pos = 8LL * round + depth;
      const bool right = synthetic_pick(config, 9, pos, depth, 5, 5, 100) == 5;
      CHECK(right == (synthetic_pick(config, 9, pos, depth, 5, 7, 100) == 5));
      if (!right) break;
      ++accepted[depth - 1];
    }
  for (size_t i = 0; i < 4; ++i)
    CHECK(accepted[i] / static_cast<double>(kRounds) == doctest::Approx(config.synthetic[i]).epsilon(0.02));
  CHECK(synthetic_pick(config, 9, 3, 5, 5, 5, 100) != 5);  // behind the last rate nothing is accepted
}
