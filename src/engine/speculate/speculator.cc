#include "engine/speculate/speculator.h"

#include <algorithm>
#include <chrono>

#include "engine/speculate/proposal.h"
#include "engine/speculate/speculator_impl.h"

namespace carat {
namespace {

// Share of all time that may be lost by asking a drafter that is not expected to pay: texts change.
constexpr double kLearn = 0.005;
constexpr double kKeepRate = 1 - 1.0 / 32;
constexpr size_t kMaxOpenProposals = 32;  // proposals per drafter whose truth is still open

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double Speculator::Impl::time() const { return config.clock ? config.clock() : now(); }

// ---- asking ----

// One pass of a drafter over the turns whose depth is not 0. What it says is kept until its truth is known.
void Speculator::Impl::ask(size_t d, std::span<Turn> turns, std::span<const int32_t> depth,
                           std::vector<Proposal>& out) {
  Known& k = known[d];
  std::vector<DraftAsk> asks;
  std::vector<size_t> who;
  int32_t deepest = 0;
  out.assign(turns.size(), {});
  for (size_t i = 0; i < turns.size(); ++i) {
    if (depth[i] <= 0) continue;
    DraftAsk a;
    a.session = turns[i].session->impl().guests[d].session.get();
    a.history = turns[i].history;
    a.anchor = turns[i].history->tokens().back();
    a.pos = turns[i].pos;
    a.max_depth = std::min(depth[i], k.drafter->max_depth());
    a.max_nodes = a.max_depth;
    if (k.drafter->makes_trees() && config.tree_nodes > a.max_depth)
      a.max_nodes = std::min(config.tree_nodes, config.max_rows - static_cast<int32_t>(turns.size()));
    a.max_nodes = std::max(a.max_nodes, a.max_depth);
    a.p_min = config.p_min;
    a.sample = &turns[i].session->impl().sample;
    a.rule = config.rejection ? DraftRule::sampled : config.rule;
    if (a.sample->temperature == 0) a.rule = DraftRule::best;
    a.forced = turns[i].forced;
    deepest = std::max(deepest, a.max_depth);
    asks.push_back(std::move(a));
    who.push_back(i);
  }
  if (asks.empty()) return;
  k.rests = false;
  const double began = time();
  k.drafter->propose(asks);
  const double seconds = time() - began;
  draft_seconds += seconds;
  const bool silent = std::all_of(asks.begin(), asks.end(), [](const DraftAsk& a) { return a.out.empty(); });
  const auto n = static_cast<int32_t>(asks.size());
  const double share = seconds / cost.level(), usual = k.cost.share(n, deepest);
  // Who was not asked for long may have to read first: no part of what a draft costs, but it is paid for.
  const bool cold = share > usual && k.asked + 1 < round;
  if (!k.cost.known() || !(silent || cold))
    k.cost.observe(n, deepest, share);
  else
    k.saved -= std::max(0.0, share - usual);
  k.asked = round;
  for (size_t j = 0; j < asks.size(); ++j) {
    make_sane(asks[j].out);
    if (synthetic()) asks[j].out.confidence.clear();  // dice do not know it
    out[who[j]] = std::move(asks[j].out);
    std::deque<Open>& open = turns[who[j]].session->impl().guests[d].open;
    if (out[who[j]].empty() || synthetic()) continue;
    if (open.size() == kMaxOpenProposals) open.pop_front();
    open.push_back({out[who[j]], turns[who[j]].history->tokens().size()});
    open.back().draft.law.clear();
  }
}

// Without a controller: every drafter in its order, as far as allowed; the first that says anything.
void Speculator::Impl::take_first(std::span<Turn> turns) {
  const auto n = static_cast<int32_t>(turns.size());
  const int32_t share = std::max(0, (config.max_rows - n) / n);
  for (size_t d = 0; d < known.size(); ++d) {
    std::vector<int32_t> depth;
    for (const Turn& t : turns) depth.push_back(t.draft.empty() ? std::min(room(t, n), share) : 0);
    std::vector<Proposal> out;
    ask(d, turns, depth, out);
    for (size_t i = 0; i < turns.size(); ++i) {
      if (out[i].empty()) continue;
      std::vector<bool> keep(out[i].token.size());
      std::fill_n(keep.begin(), std::min(keep.size(), static_cast<size_t>(share)), true);
      turns[i].draft = keep_nodes(out[i], keep);
      turns[i].drafter = static_cast<int32_t>(d);
    }
  }
}

// What a draft of that depth costs, without reading anybody's text. False: it cannot be known so.
bool Speculator::Impl::rehearse(size_t d, int32_t depth) {
  const double began = time();
  if (!known[d].drafter->rehearse(depth)) return false;
  known[d].cost.observe(1, depth, (time() - began) / cost.level());
  return true;
}

void Speculator::Impl::drop_short(std::span<Turn> turns) const {
  for (Turn& t : turns) {
    if (!t.draft.empty() && path_length(t.draft) < config.draft_min) t.draft = {};
    if (t.draft.empty()) t.drafter = -1;
  }
}

// ---- the interface ----

Speculator::Speculator(std::vector<std::shared_ptr<Drafter>> drafters, const SpecConfig& config)
    : impl_(std::make_unique<Impl>(config)) {
  for (const auto& d : drafters) {
    impl_->hidden = impl_->hidden || d->wants_hidden();
    impl_->taps.insert(impl_->taps.end(), d->taps().begin(), d->taps().end());
    impl_->known.push_back({d, {}, Acceptance{}, {}});
  }
  std::vector<int32_t>& taps = impl_->taps;
  std::sort(taps.begin(), taps.end());
  taps.erase(std::unique(taps.begin(), taps.end()), taps.end());
  for (Known& k : impl_->known)
    for (const int32_t layer : k.drafter->taps())
      k.taps.push_back(static_cast<size_t>(std::find(taps.begin(), taps.end(), layer) - taps.begin()));
}
Speculator::~Speculator() = default;

const SpecConfig& Speculator::config() const { return impl_->config; }
std::span<const int32_t> Speculator::taps() const { return impl_->taps; }
bool Speculator::wants_hidden() const { return impl_->hidden; }
bool Speculator::wants_forced() const {
  return std::any_of(impl_->known.begin(), impl_->known.end(),
                     [](const Known& k) { return k.drafter->wants_forced(); });
}
SpecStats Speculator::totals() const { return impl_->totals; }

std::string Speculator::names() const {
  std::string all;
  for (const Known& k : impl_->known) {
    if (!all.empty()) all += ',';
    all += k.drafter->name();
  }
  return all;
}

void Speculator::attach(const DraftTarget& target) {
  for (const Known& k : impl_->known) k.drafter->attach(target);
}
int64_t Speculator::memory_bytes() const {
  int64_t sum = 0;
  for (const Known& k : impl_->known) sum += k.drafter->memory_bytes();
  return sum;
}

std::unique_ptr<SpecSession> Speculator::open(const Sequence& target, const SampleParams& params) {
  auto s = std::make_unique<SpecSession::Impl>();
  s->known = &impl_->known;
  s->all_taps = impl_->taps.size();
  s->sample = params;
  for (const Known& k : impl_->known) s->guests.emplace_back(k.drafter->open(target, params), &k.acceptance);
  return std::make_unique<SpecSession>(std::move(s));
}

void Speculator::draft(std::span<Turn> turns) {
  ++impl_->round;
  impl_->draft_seconds = impl_->expected = 0;
  impl_->looking = false;
  for (Turn& t : turns) t.draft = {}, t.drafter = -1;
  if (turns.empty() || static_cast<int32_t>(turns.size()) >= impl_->config.max_rows) return;
  const double began = impl_->time();
  if (impl_->config.adaptive)
    impl_->choose(turns);
  else
    impl_->take_first(turns);
  impl_->drop_short(turns);
  impl_->draft_seconds = impl_->time() - began;
}

void Speculator::resume() {
  for (Known& k : impl_->known) k.rest(k.rests);
}

void Speculator::measured(int32_t rows, double seconds) { impl_->cost.observe(rows, seconds); }

bool Speculator::any_measured() const { return impl_->cost.any(); }

std::vector<int32_t> Speculator::profile_rows(int32_t sequences) const {
  std::vector<int32_t> rows;
  const int32_t most = std::max(impl_->config.max_rows, sequences);
  for (int32_t r = 1; r <= most; r += r < 4 ? 1 : r < 8 ? 2 : r < 16 ? 4 : r / 2) rows.push_back(r);
  if (rows.back() != most) rows.push_back(most);
  return rows;
}

void Speculator::rehearse() {
  for (size_t d = 0; d < impl_->known.size(); ++d) {
    // The first one reads its weights; some devices are slow for another one.
    if (!impl_->known[d].drafter->rehearse(1) || !impl_->known[d].drafter->rehearse(1)) continue;
    for (const int32_t depth : {1, kFirstDepth}) impl_->rehearse(d, depth);
    if (impl_->hopeless(d, 1, std::min(impl_->config.draft_max, impl_->config.max_rows - 1)))
      impl_->known[d].rest(true);
  }
}

void Speculator::verified(std::span<const Turn> turns, const StepFacts& facts) {
  Impl& s = *impl_;
  const auto n = turns.size();
  if (!facts.prompt && n > 0) {
    s.cost.observe(facts.rows, facts.verify_seconds + facts.host_seconds);
    if (s.rates.size() <= n) s.rates.resize(n + 1);
    Rate& r = s.rates[n];
    r.tokens = kKeepRate * r.tokens + static_cast<double>(n) + s.expected;
    const double time = s.cost.ratio(facts.rows) + s.draft_seconds / s.cost.level();
    r.time = kKeepRate * r.time + time;
    for (Known& k : s.known) k.saved += kLearn * time;
    s.saved = static_cast<size_t>(facts.rows) == n ? 0 : s.saved + kLearn * time;
  }
  SpecStats round;
  for (const Turn& t : turns) {
    SpecSession::Impl& session = t.session->impl();
    SpecStats own;
    s.count(t, facts, own);
    session.stats.add(own);
    own.draft_seconds = own.verify_seconds = own.sample_seconds = 0;
    round.add(own);
    for (Guest& guest : session.guests) guest.acceptance.fade();
    if (s.synthetic() && t.drafter >= 0)  // only what was verified has a truth
      session.guests[static_cast<size_t>(t.drafter)].open = {
          Open{t.draft, t.history->tokens().size() - static_cast<size_t>(t.emitted)}};
    s.resolve(session, t.history->tokens());
    if (s.synthetic())
      for (Guest& guest : session.guests) guest.open.clear();
  }
  round.draft_seconds = s.draft_seconds;
  round.verify_seconds = facts.verify_seconds;
  round.sample_seconds = facts.sample_seconds;
  s.totals.add(round);
}

SpecSession::SpecSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SpecSession::~SpecSession() = default;
const SpecStats& SpecSession::stats() const { return impl_->stats; }

void SpecSession::committed(const CommittedRows& rows) {
  std::vector<const float*> taps;
  for (size_t d = 0; d < impl_->guests.size(); ++d) {
    const Known& k = (*impl_->known)[d];
    CommittedRows own = rows;
    own.taps = {};
    if (!k.taps.empty() && !rows.taps.empty()) {
      taps.clear();
      for (size_t row = 0; row < rows.token.size(); ++row)
        for (const size_t at : k.taps) taps.push_back(rows.taps[row * impl_->all_taps + at]);
      own.taps = taps;
    }
    impl_->guests[d].session->committed(own);
  }
}

}  // namespace carat
