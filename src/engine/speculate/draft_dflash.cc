// The DFlash drafter: tapped features of committed rows become keys and values of its own cache, which holds
// context only; a block's rows are appended behind it, used once and dropped.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "engine/speculate/draft_logits.h"
#include "engine/speculate/draft_net.h"

namespace carat {
namespace {

constexpr int32_t kContextRows = kDFlashStepRows;  // features projected in one run; blocks are no longer
constexpr int32_t kPendingRows = 256;              // features kept as they are until somebody asks
constexpr int32_t kBlockRows = 64;    // rows of a run over several sequences' blocks, at least one block
constexpr int32_t kSlotChoices = 16;  // of a slot, in trees

class DFlashSession : public DraftSession {
 public:
  DFlashSession(PagePool& pages, size_t taps, size_t dim, const bool& rests)
      : sequence(pages), taps_(taps), dim_(dim), rests_(rests) {}
  void committed(const CommittedRows& rows) override;
  int32_t pending() const { return static_cast<int32_t>(features_.size() / (taps_ * dim_)); }
  int32_t end() const { return base_ + sequence.committed() + pending(); }
  // Of a position of the target in the drafter's own cache: attention knows only how far apart two rows are.
  int32_t place(int32_t pos) const { return pos - base_; }
  const float* feature(int32_t i) const { return &features_[static_cast<size_t>(i) * taps_ * dim_]; }
  void projected(int32_t n) {
    features_.erase(features_.begin(), features_.begin() + static_cast<ptrdiff_t>(n * taps_ * dim_));
  }
  SeqView view() const { return sequence.view(); }

  Sequence sequence;  // in the drafter's own caches
  std::function<void(DFlashSession&)> project;

 private:
  const size_t taps_, dim_;
  const bool& rests_;            // nobody will ask soon
  std::vector<float> features_;  // of committed rows that have no keys and values yet
  int32_t base_ = 0;             // rows at the beginning that others have run: it drafts without them
  bool complete_ = true;         // no row is missing behind them
  friend class DFlashDrafter;
};

void DFlashSession::committed(const CommittedRows& rows) {
  const size_t n = rows.token.size();
  if (rows.pos == 0 && end() == 0 && rows.taps.empty()) {
    base_ = static_cast<int32_t>(n);
    return;
  }
  if (rests_ && sequence.committed() == 0) {
    base_ = end() + static_cast<int32_t>(n);
    features_.clear();
    return;
  }
  // A row whose features never came leaves a hole; nothing sensible can be drafted behind it.
  complete_ = complete_ && rows.pos == end() && rows.taps.size() == n * taps_;
  if (!complete_) return;
  for (const float* tap : rows.taps) features_.insert(features_.end(), tap, tap + dim_);
  if (pending() >= kPendingRows) project(*this);
}

class DFlashDrafter : public Drafter {
 public:
  DFlashDrafter(std::shared_ptr<const DFlashNet> net, const ModelSpec& target, const DFlashOptions& options)
      : net_(std::move(net)), options_(options), taps_(net_->taps(target)) {
    net_->check_target(target);
  }
  ~DFlashDrafter() override {
    if (target_.backend) target_.backend->wait();
  }

  std::string_view name() const override { return "dflash"; }
  std::span<const int32_t> taps() const override { return taps_; }
  int32_t max_depth() const override { return net_->spec().drafts(); }
  bool makes_trees() const override { return true; }
  void attach(const DraftTarget& target) override;
  bool rehearse(int32_t depth) override;
  void rest(bool now) override { rests_ = now; }
  int64_t memory_bytes() const override { return arena_.bytes() + (kv_ ? kv_->plan().bytes() : 0); }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override;
  void propose(std::span<DraftAsk> asks) override;

 private:
  struct Bucket {
    Program program;
    Tensor features;
    DraftLogits logits;
    std::unique_ptr<Executable> executable;
  };
  using Sessions = std::span<DFlashSession* const>;

  Bucket& context_bucket(int32_t rows);
  Bucket& block_bucket(int32_t rows, int32_t out_rows);
  void begin_step();
  void add_row(const DFlashSession& s, Token token, int32_t pos, bool first);
  void submit(Bucket& b);
  void project(Sessions sessions);
  void draft(std::span<DraftAsk*> asks);
  void answer(std::span<DraftAsk> asks);
  Proposal proposal(DraftAsk& ask, const DraftLogits& logits, int32_t first, int32_t slots);

  const std::shared_ptr<const DFlashNet> net_;
  const DFlashOptions options_;
  const std::vector<int32_t> taps_;
  DraftTarget target_;
  std::unique_ptr<KvPool> kv_;
  std::unique_ptr<PagePool> pages_;
  Arena arena_;
  StepState state_;
  HostRows host_;       // results of the last pass
  bool rests_ = false;  // nobody asks: nothing is read along where nothing was read yet
  std::vector<int32_t> token_, pos_, seq_, out_row_;
  std::vector<SeqView> views_;
  std::map<int32_t, std::unique_ptr<Bucket>> contexts_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<Bucket>> blocks_;
};

int32_t power_of_two(int32_t n) {
  int32_t p = 1;
  while (p < n) p *= 2;
  return p;
}

void DFlashDrafter::attach(const DraftTarget& target) {
  contexts_.clear(), blocks_.clear();
  target_ = target;
  const KvLimits limits = dflash_cache_limits(target.kv->limits(), net_->spec());
  kv_ = std::make_unique<KvPool>(*target_.backend, kv_layers(net_->spec(), options_.cache), limits);
  pages_ = std::make_unique<PagePool>(limits, kv_->plan());
  arena_ = Arena(*target_.backend);
  host_ = HostRows(*target_.backend);
  context_bucket(kContextRows);
  block_bucket(net_->spec().block, net_->spec().drafts());
}

std::unique_ptr<DraftSession> DFlashDrafter::open(const Sequence&, const SampleParams&) {
  auto s =
      std::make_unique<DFlashSession>(*pages_, taps_.size(), static_cast<size_t>(net_->spec().dim), rests_);
  s->project = [this](DFlashSession& session) {
    DFlashSession* one = &session;
    project({&one, 1});
  };
  return s;
}

DFlashDrafter::Bucket& DFlashDrafter::context_bucket(int32_t rows) {
  std::unique_ptr<Bucket>& b = contexts_[power_of_two(rows)];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    arena_.reset();
    made->features = net_->build_context(made->program, arena_, *kv_, power_of_two(rows));
    made->executable = target_.backend->compile(made->program, &state_);
    b = std::move(made);
  }
  return *b;
}

DFlashDrafter::Bucket& DFlashDrafter::block_bucket(int32_t rows, int32_t out_rows) {
  out_rows = std::min(rows, power_of_two(out_rows));
  std::unique_ptr<Bucket>& b = blocks_[{rows, out_rows}];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    arena_.reset();
    const Tensor logits = net_->build_block(made->program, arena_, *target_.model, *kv_, rows, out_rows);
    made->logits = DraftLogits(made->program, arena_, *target_.backend, logits, RowSet::out);
    made->executable = target_.backend->compile(made->program, &state_);
    b = std::move(made);
  }
  return *b;
}

void DFlashDrafter::begin_step() {
  token_.clear(), pos_.clear(), seq_.clear(), out_row_.clear(), views_.clear();
}

void DFlashDrafter::add_row(const DFlashSession& s, Token token, int32_t pos, bool first) {
  if (first) views_.push_back(s.view());
  token_.push_back(token), pos_.push_back(pos), seq_.push_back(static_cast<int32_t>(views_.size()) - 1);
}

void DFlashDrafter::submit(Bucket& b) {
  state_ = {};
  state_.n_rows = static_cast<int32_t>(token_.size()), state_.n_out = static_cast<int32_t>(out_row_.size());
  state_.token = token_.data(), state_.pos = pos_.data(), state_.seq = seq_.data();
  state_.out_row = out_row_.data(), state_.seqs = views_.data();
  host_.forget();
  target_.backend->submit(*b.executable);
  target_.backend->wait();
}

// Everything that is pending becomes keys and values, several sessions' rows in one run.
void DFlashDrafter::project(Sessions sessions) {
  for (;;) {
    begin_step();
    std::vector<int32_t> taken(sessions.size(), 0);
    for (size_t i = 0; i < sessions.size(); ++i) {
      DFlashSession& s = *sessions[i];
      const int32_t n = std::min(s.pending(), kContextRows - static_cast<int32_t>(token_.size()));
      if (n <= 0) continue;
      if (!s.sequence.append(n)) {  // cannot be, since the target's context is no longer
        s.complete_ = false;
        continue;
      }
      taken[i] = n;
      for (int32_t r = 0; r < n; ++r) add_row(s, 0, s.sequence.committed() + r, r == 0);
    }
    if (token_.empty()) return;
    Bucket& b = context_bucket(static_cast<int32_t>(token_.size()));
    std::vector<const float*> features;
    for (size_t i = 0; i < sessions.size(); ++i)
      for (int32_t r = 0; r < taken[i]; ++r) features.push_back(sessions[i]->feature(r));
    put_rows(*target_.backend, b.features, features);
    submit(b);
    for (size_t i = 0; i < sessions.size(); ++i) {
      if (taken[i] == 0) continue;
      sessions[i]->sequence.commit(taken[i]);
      sessions[i]->projected(taken[i]);
    }
  }
}

Proposal DFlashDrafter::proposal(DraftAsk& ask, const DraftLogits& logits, int32_t first, int32_t slots) {
  if (ask.max_nodes <= ask.max_depth) {
    for (int32_t i = 0; i < slots && logits.extend(host_, first + i, ask);) ++i;
    return std::move(ask.out);
  }
  std::vector<std::vector<Candidate>> choices;
  for (int32_t i = 0; i < slots; ++i) {
    const int32_t most = std::min(kSlotChoices, ask.max_nodes);
    const bool keyed = ask.rule == DraftRule::keyed && ask.sample;
    choices.push_back(keyed ? logits.keyed(host_, first + i, most, *ask.sample, int64_t{ask.pos} + 1 + i)
                            : logits.best(host_, first + i, most));
    if (choices.back().empty() || choices.back()[0].p < ask.p_min) {
      choices.pop_back();
      break;
    }
  }
  return tree_of_marginals(choices, ask.max_nodes, options_.chain_seed);
}

// Blocks of several sequences in one run. The whole trained block is run, fewer slots would be another
// network; logits are computed for the slots that were asked for.
void DFlashDrafter::draft(std::span<DraftAsk*> asks) {
  const DFlashSpec& spec = net_->spec();
  begin_step();
  std::vector<int32_t> slots;
  for (DraftAsk* a : asks) {
    auto& s = *static_cast<DFlashSession*>(a->session);
    const bool room = s.sequence.append(spec.block);
    CARAT_CHECK(room, "{} rows behind {}", spec.block, s.sequence.committed());
    const int32_t want = std::min(a->max_depth, spec.drafts());
    slots.push_back(want);
    for (int32_t i = 0; i < spec.block; ++i) {
      const int32_t slot = i - (spec.from_anchor ? 0 : 1);  // of the token it predicts
      if (slot >= 0 && slot < want) out_row_.push_back(static_cast<int32_t>(token_.size()));
      add_row(s, i == 0 ? a->anchor : spec.mask_token, s.place(a->pos) + i, i == 0);
    }
  }
  Bucket& b = block_bucket(static_cast<int32_t>(token_.size()), static_cast<int32_t>(out_row_.size()));
  submit(b);
  int32_t first = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    static_cast<DFlashSession*>(asks[i]->session)->sequence.commit(0);
    asks[i]->out = proposal(*asks[i], b.logits, first, slots[i]);
    first += slots[i];
  }
}

void DFlashDrafter::propose(std::span<DraftAsk> asks) {
  rests_ = false;
  answer(asks);
}

bool DFlashDrafter::rehearse(int32_t depth) {
  if (pages_->free_slots() == 0) return false;
  DFlashSession nobody(*pages_, taps_.size(), static_cast<size_t>(net_->spec().dim), rests_);
  nobody.features_.assign(taps_.size() * static_cast<size_t>(net_->spec().dim), 0.0F);
  DraftAsk ask;
  ask.session = &nobody;
  ask.pos = nobody.end();
  ask.max_depth = ask.max_nodes = std::min(depth, max_depth());
  answer({&ask, 1});
  return true;
}

void DFlashDrafter::answer(std::span<DraftAsk> asks) {
  std::vector<DFlashSession*> sessions;
  std::vector<DraftAsk*> ready;
  for (DraftAsk& a : asks) {
    a.out = {};
    auto* s = static_cast<DFlashSession*>(a.session);
    if (a.max_depth <= 0 || !s->complete_ || s->end() != a.pos) continue;
    sessions.push_back(s);
    ready.push_back(&a);
  }
  project(sessions);
  const auto per_run = static_cast<size_t>(std::max(1, kBlockRows / net_->spec().block));
  for (size_t i = 0; i < ready.size(); i += per_run)
    draft(std::span(ready).subspan(i, std::min(per_run, ready.size() - i)));
}

}  // namespace

std::unique_ptr<Drafter> make_dflash_drafter(std::shared_ptr<const DFlashNet> net, const ModelSpec& target,
                                             const DFlashOptions& options) {
  return std::make_unique<DFlashDrafter>(std::move(net), target, options);
}

KvLimits dflash_cache_limits(KvLimits l, const DFlashSpec& spec) {
  l.pages = l.ring_pages = 0;
  l.context += spec.block;
  l.step_rows = kContextRows;
  return l;
}

}  // namespace carat
