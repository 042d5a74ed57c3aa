// The head's cache holds a pair for every position of the sequence but the last: the token at p + 1 beside
// the target's hidden state at p, stored at p. Pairs of committed rows wait until there are enough of them,
// or until somebody asks for drafts: then they, and the anchor's, run in one pass, whose last row begins the
// chain. What the chain adds, with the head's own hidden states, is dropped again. A beginning that was read
// for somebody else comes without hidden states: the head's cache begins behind it, at its own position 0,
// since attention knows only how far apart two rows are.
#include "engine/speculate/draft_nextn.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "engine/speculate/draft_logits.h"

namespace carat {
namespace {

constexpr int32_t kMaxNextnRows = 64;  // of a program run

class NextnDrafter;

class NextnSession : public DraftSession {
 public:
  NextnSession(NextnDrafter& drafter, PagePool& pages, int32_t dim)
      : sequence(pages), drafter_(drafter), dim_(dim) {}
  void committed(const CommittedRows& rows) override;

  struct Pair {
    Token token = 0;
    std::vector<float> hidden;
  };

  Sequence sequence;          // of pairs
  std::vector<Pair> waiting;  // behind it
  std::vector<float> last;    // hidden state at position `end` - 1
  int32_t base = 0;           // rows at the beginning that others have run
  int32_t end = 0;            // committed positions of the target
  bool lost = false;          // it missed a row: no drafts

  int32_t pairs() const { return sequence.committed() + static_cast<int32_t>(waiting.size()); }
  int32_t place(int32_t pos) const { return pos - base; }  // of the target's position in the head's cache

 private:
  NextnDrafter& drafter_;
  int32_t dim_;
};

class NextnDrafter : public Drafter {
 public:
  NextnDrafter(std::unique_ptr<NextnHead> head, const ModelSpec& target, const NextnDrafterOptions& options)
      : head_(std::move(head)), options_(options), dim_(target.dim) {}
  ~NextnDrafter() override {
    if (target_.backend) target_.backend->wait();
  }

  std::string_view name() const override { return "mtp"; }
  bool wants_hidden() const override { return true; }
  int32_t max_depth() const override { return kNextnDepth; }
  void attach(const DraftTarget& target) override;
  int64_t memory_bytes() const override { return arena_.bytes() + (kv_ ? kv_->plan().bytes() : 0); }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    return std::make_unique<NextnSession>(*this, *pages_, dim_);
  }
  void propose(std::span<DraftAsk> asks) override;
  bool rehearse(int32_t depth) override;

  // Runs what waits, and keeps it.
  void absorb(NextnSession& s);

 private:
  struct Row {
    NextnSession* session;
    int32_t pos;
    Token token;
    const float* hidden;
    bool wanted;
  };
  struct Chain {  // one ask's
    size_t ask;
    Token token;
    std::vector<float> hidden;
  };
  struct Bucket {
    Program program;
    NextnHead::Io io;
    DraftLogits logits;
    std::unique_ptr<Executable> executable;
  };

  Bucket& bucket(int32_t rows, int32_t wanted);
  // The wanted rows' results are at row i of the bucket's outputs, in order.
  const Bucket& run(std::span<const Row> rows);
  void grow(const Bucket& b, int32_t row, std::span<DraftAsk> asks, size_t ask, std::vector<Chain>& chains);
  bool ready(const DraftAsk& ask) const;
  void begin(std::span<DraftAsk> asks, std::vector<Chain>& chains);
  void go_on(std::span<DraftAsk> asks, std::vector<Chain>& chains);

  const std::unique_ptr<NextnHead> head_;
  const NextnDrafterOptions options_;
  const int32_t dim_;
  DraftTarget target_;
  std::unique_ptr<KvPool> kv_;
  std::unique_ptr<PagePool> pages_;
  Arena arena_;
  StepState state_;
  HostRows host_;  // results of the last pass
  std::vector<int32_t> token_, pos_, seq_, out_row_;
  std::vector<SeqView> views_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<Bucket>> buckets_;
};

NextnSession& session_of(const DraftAsk& ask) { return *static_cast<NextnSession*>(ask.session); }

void NextnSession::committed(const CommittedRows& rows) {
  if (rows.pos == 0 && end == 0 && rows.hidden.empty()) {
    base = end = static_cast<int32_t>(rows.token.size());
    return;
  }
  for (size_t i = 0; i < rows.token.size(); ++i) {
    const int32_t pos = rows.pos + static_cast<int32_t>(i);
    const float* hidden = i < rows.hidden.size() ? rows.hidden[i] : nullptr;
    const int32_t at = place(pos);
    if (!hidden || pos != end || (at > 0 && at - 1 > pairs())) lost = true;
    if (lost) return;
    if (at > 0 && at - 1 == pairs()) waiting.push_back({rows.token[i], last});
    last.assign(hidden, hidden + dim_);
    end = pos + 1;
    if (waiting.size() >= kMaxNextnRows) drafter_.absorb(*this);
  }
}

void NextnDrafter::attach(const DraftTarget& target) {
  target_ = target;
  buckets_.clear();  // of an engine before this one: their memory goes with its arena
  const KvLimits limits = nextn_cache_limits(target.kv->limits());
  kv_ = std::make_unique<KvPool>(*target.backend, std::vector{head_->cache(options_.cache, options_.cache)},
                                 limits);
  pages_ = std::make_unique<PagePool>(limits, kv_->plan());
  arena_ = Arena(*target.backend);
  host_ = HostRows(*target.backend);
  bucket(kMaxNextnRows, limits.sequences), bucket(1, 1);
}

NextnDrafter::Bucket& NextnDrafter::bucket(int32_t rows, int32_t wanted) {
  const auto power = [](int32_t n) {
    int32_t p = 1;
    while (p < n) p *= 2;
    return p;
  };
  const int32_t n = power(rows), outs = std::min(n, power(wanted));
  std::unique_ptr<Bucket>& b = buckets_[{n, outs}];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    made->io = head_->build(made->program, arena_, *kv_, n, outs);
    made->logits = DraftLogits(made->program, arena_, *target_.backend, made->io.logits, RowSet::out);
    made->executable = target_.backend->compile(made->program, &state_);
    b = std::move(made);
  }
  return *b;
}

const NextnDrafter::Bucket& NextnDrafter::run(std::span<const Row> rows) {
  token_.clear(), pos_.clear(), seq_.clear(), out_row_.clear(), views_.clear();
  std::vector<const float*> hidden;
  for (size_t i = 0; i < rows.size(); ++i) {
    hidden.push_back(rows[i].hidden);
    if (i == 0 || rows[i].session != rows[i - 1].session) views_.push_back(rows[i].session->sequence.view());
    if (rows[i].wanted) out_row_.push_back(static_cast<int32_t>(i));
    token_.push_back(rows[i].token);
    pos_.push_back(rows[i].pos);
    seq_.push_back(static_cast<int32_t>(views_.size()) - 1);
  }
  // A pass that only fills the cache still has the bucket's one wanted row, which nobody reads.
  if (out_row_.empty()) out_row_.push_back(static_cast<int32_t>(rows.size()) - 1);
  const auto n = static_cast<int32_t>(rows.size()), wanted = static_cast<int32_t>(out_row_.size());
  Bucket& b = bucket(n, wanted);
  put_rows(*target_.backend, b.io.hidden_in, hidden);
  state_ = {n, wanted, token_.data(), pos_.data(), seq_.data(), out_row_.data(), views_.data()};
  host_.forget();
  target_.backend->submit(*b.executable);
  target_.backend->wait();
  return b;
}

// Adds the row's token to its ask's chain, which goes on if it may.
void NextnDrafter::grow(const Bucket& b, int32_t row, std::span<DraftAsk> asks, size_t ask,
                        std::vector<Chain>& chains) {
  DraftAsk& a = asks[ask];
  if (!b.logits.extend(host_, row, a)) return;
  Token& token = a.out.token.back();
  token = head_->token_at(token);
  if (static_cast<int32_t>(a.out.token.size()) >= std::min(a.max_depth, kNextnDepth)) return;
  const float* h = host_.row_of<float>(b.io.hidden, row, state_.n_out);
  chains.push_back({ask, token, {h, h + dim_}});
}

void NextnDrafter::absorb(NextnSession& s) {
  for (size_t first = 0; first < s.waiting.size(); first += kMaxNextnRows) {
    const size_t n = std::min<size_t>(kMaxNextnRows, s.waiting.size() - first);
    const int32_t base = s.sequence.committed();
    if (!s.sequence.append(static_cast<int32_t>(n))) {
      s.lost = true;
      break;
    }
    std::vector<Row> rows;
    for (size_t i = 0; i < n; ++i) {
      const NextnSession::Pair& p = s.waiting[first + i];
      rows.push_back({&s, base + static_cast<int32_t>(i), p.token, p.hidden.data(), false});
    }
    run(rows);
    s.sequence.commit(static_cast<int32_t>(n));
  }
  s.waiting.clear();
}

// It knows the hidden state before the anchor.
bool NextnDrafter::ready(const DraftAsk& ask) const {
  const NextnSession& s = session_of(ask);
  return ask.max_depth > 0 && !s.lost && s.end > s.base && s.end == ask.pos &&
         s.pairs() >= s.place(ask.pos) - 1;
}

// What waits and the anchors, in as few passes as they fit: the first drafts.
void NextnDrafter::begin(std::span<DraftAsk> asks, std::vector<Chain>& chains) {
  std::vector<Row> rows;
  std::vector<size_t> of;
  const auto flush = [&] {
    if (rows.empty()) return;
    const Bucket& b = run(rows);
    for (size_t i = 0; i < of.size(); ++i) {
      NextnSession& s = session_of(asks[of[i]]);
      s.sequence.commit(static_cast<int32_t>(s.waiting.size()) + 1);
      s.waiting.clear();
      grow(b, static_cast<int32_t>(i), asks, of[i], chains);
    }
    rows.clear(), of.clear();
  };
  for (size_t a = 0; a < asks.size(); ++a) {
    asks[a].out = {};
    if (!ready(asks[a])) continue;
    NextnSession& s = session_of(asks[a]);
    const int32_t place = s.place(asks[a].pos);
    if (s.sequence.committed() >= place) s.sequence.rewind(place - 1);  // asked again
    const auto n = static_cast<int32_t>(s.waiting.size()) + 1;
    if (static_cast<int32_t>(rows.size()) + n > kMaxNextnRows) flush();
    const int32_t base = s.sequence.committed();
    if (!s.sequence.append(n)) continue;
    for (int32_t i = 0; i + 1 < n; ++i) {
      const NextnSession::Pair& p = s.waiting[static_cast<size_t>(i)];
      rows.push_back({&s, base + i, p.token, p.hidden.data(), false});
    }
    rows.push_back({&s, base + n - 1, asks[a].anchor, s.last.data(), true});
    of.push_back(a);
  }
  flush();
}

// Every chain's next draft.
void NextnDrafter::go_on(std::span<DraftAsk> asks, std::vector<Chain>& chains) {
  std::vector<Row> rows;
  std::vector<Chain> next;
  std::erase_if(chains, [&](const Chain& c) { return !session_of(asks[c.ask]).sequence.append(1); });
  for (const Chain& c : chains) {
    NextnSession& s = session_of(asks[c.ask]);
    const auto depth = static_cast<int32_t>(asks[c.ask].out.token.size());
    rows.push_back({&s, s.place(asks[c.ask].pos) - 1 + depth, c.token, c.hidden.data(), true});
  }
  for (size_t first = 0; first < rows.size(); first += kMaxNextnRows) {
    const size_t n = std::min<size_t>(kMaxNextnRows, rows.size() - first);
    const Bucket& b = run(std::span(rows).subspan(first, n));
    for (size_t i = 0; i < n; ++i) grow(b, static_cast<int32_t>(i), asks, chains[first + i].ask, next);
  }
  chains.swap(next);
}

void NextnDrafter::propose(std::span<DraftAsk> asks) {
  std::vector<Chain> chains;
  begin(asks, chains);
  while (!chains.empty()) go_on(asks, chains);
  for (const DraftAsk& a : asks) session_of(a).sequence.commit(0);
}

// Behind one pair of nobody's.
bool NextnDrafter::rehearse(int32_t depth) {
  if (pages_->free_slots() == 0) return false;
  NextnSession nobody(*this, *pages_, dim_);
  const std::vector<float> nothing(static_cast<size_t>(dim_), 0.0F);
  const Token token = 0;
  const float* hidden = nothing.data();
  nobody.committed({0, {&token, 1}, {&hidden, 1}, {}});
  DraftAsk ask;
  ask.session = &nobody;
  ask.pos = nobody.end;
  ask.max_depth = ask.max_nodes = depth;
  propose({&ask, 1});
  return !ask.out.empty();
}

}  // namespace

std::unique_ptr<Drafter> make_nextn_drafter(std::unique_ptr<NextnHead> head, const ModelSpec& target,
                                            const NextnDrafterOptions& options) {
  return std::make_unique<NextnDrafter>(std::move(head), target, options);
}

std::unique_ptr<Drafter> make_own_drafter(const Model& model, Backend& backend, const NextnOptions& head,
                                          const NextnDrafterOptions& options) {
  if (!model.family->nextn) return nullptr;
  std::unique_ptr<NextnHead> own = model.family->nextn(model, backend, head);
  return own ? make_nextn_drafter(std::move(own), model.spec, options) : nullptr;
}

KvLimits nextn_cache_limits(KvLimits l) {
  l.pages = l.ring_pages = 0;
  l.step_rows = kMaxNextnRows + kNextnDepth;
  l.draft_rows = 0;
  return l;
}

}  // namespace carat
