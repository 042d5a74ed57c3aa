// The MTP drafter: all sequences of a round step through the assistant together, a program run per depth.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "engine/speculate/draft_logits.h"
#include "engine/speculate/draft_net.h"

namespace carat {
namespace {

constexpr int32_t kMaxRows = 32;     // of a program run
constexpr int32_t kTreeWidth = 8;    // nodes that a tree's next level may grow from
constexpr int32_t kTreeChoices = 8;  // children of a node

class MtpSession : public DraftSession {
 public:
  explicit MtpSession(const Sequence& target) : target_(target) {}
  void committed(const CommittedRows& rows) override {
    end_ = rows.pos + static_cast<int32_t>(rows.token.size());
    const float* last = rows.hidden.empty() ? nullptr : rows.hidden.back();
    if (!last) return hidden_.clear();
    hidden_.assign(last, last + dim_of_target);
  }
  // Whether it knows the hidden state behind which position `pos` comes.
  bool ready(int32_t pos) const { return !hidden_.empty() && end_ == pos; }
  SeqView view() const { return target_.view(); }
  const std::vector<float>& hidden() const { return hidden_; }
  int32_t dim_of_target = 0;

 private:
  const Sequence& target_;
  std::vector<float> hidden_;  // after the target's final norm, at end_ - 1
  int32_t end_ = 0;
};

class MtpDrafter : public Drafter {
 public:
  MtpDrafter(std::shared_ptr<const MtpNet> net, const ModelSpec& target, const MtpOptions& options)
      : net_(std::move(net)), options_(options) {
    net_->check_target(target);
  }
  ~MtpDrafter() override {
    if (target_.backend) target_.backend->wait();
  }

  std::string_view name() const override { return "mtp"; }
  int32_t max_depth() const override { return kMtpDepth; }
  bool makes_trees() const override { return true; }
  void attach(const DraftTarget& target) override {
    buckets_.clear();
    target_ = target;
    arena_ = Arena(*target_.backend);
    host_ = HostRows(*target_.backend);
    bucket(kMaxRows), bucket(1);
  }
  bool rehearse(int32_t depth) override;
  int64_t memory_bytes() const override { return arena_.bytes(); }
  std::unique_ptr<DraftSession> open(const Sequence& target, const SampleParams&) override {
    auto s = std::make_unique<MtpSession>(target);
    s->dim_of_target = net_->spec().target_dim;
    return s;
  }
  void propose(std::span<DraftAsk> asks) override;

 private:
  // A row of the next program run: draft what follows `node` of an ask's tree.
  struct Row {
    size_t ask = 0;
    int32_t node = DraftTree::kAnchor;
    Token token = 0;
    const std::vector<float>* hidden = nullptr;
  };
  struct Grown {  // what a row's run gave
    std::vector<Candidate> choices;
    std::vector<float> hidden;
  };
  struct Bucket {
    Program program;
    MtpNet::Io io;
    DraftLogits logits;
    std::unique_ptr<Executable> executable;
  };

  Bucket& bucket(int32_t rows);
  std::vector<Candidate> chain_choice(const DraftLogits& logits, int32_t row, const int32_t* chosen,
                                      DraftAsk& ask);
  void submit(Bucket& b);
  void run(std::span<DraftAsk> asks, std::span<const Row> rows, std::span<Grown> out);
  std::vector<Row> next_level(std::span<const DraftAsk> asks, std::vector<DraftTree>& trees,
                              std::span<const Row> rows, std::span<Grown> grown, int32_t depth);

  const std::shared_ptr<const MtpNet> net_;
  const MtpOptions options_;
  DraftTarget target_;
  Arena arena_;
  StepState state_;
  HostRows host_;  // results of the last pass
  std::vector<int32_t> token_, pos_, seq_;
  std::vector<SeqView> views_;
  std::map<int32_t, std::unique_ptr<Bucket>> buckets_;
};

bool wants_tree(const DraftAsk& a) { return a.max_nodes > a.max_depth; }

MtpDrafter::Bucket& MtpDrafter::bucket(int32_t rows) {
  int32_t n = 1;
  while (n < rows) n *= 2;
  std::unique_ptr<Bucket>& b = buckets_[n];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    arena_.reset();
    made->io = net_->build(made->program, arena_, *target_.model, *target_.kv, n, options_);
    made->logits = DraftLogits(made->program, arena_, *target_.backend, made->io.logits, RowSet::all);
    made->executable = target_.backend->compile(made->program, &state_);
    b = std::move(made);
  }
  return *b;
}

// A chain's next token, which is also put into the ask's proposal; nothing if it ends.
std::vector<Candidate> MtpDrafter::chain_choice(const DraftLogits& logits, int32_t row, const int32_t* chosen,
                                                DraftAsk& ask) {
  const bool by_column = chosen && ask.rule == DraftRule::best;
  if (chosen && !by_column) {  // noise belongs to tokens, not to columns
    std::vector<float> all(static_cast<size_t>(net_->spec().net.vocab), -INFINITY);
    const std::span<const float> columns = logits.row(host_, row);
    for (size_t c = 0; c < columns.size(); ++c)
      all[static_cast<size_t>(net_->token_at(chosen, static_cast<int32_t>(c)))] = columns[c];
    if (!extend_chain(all, ask)) return {};
  } else if (!logits.extend(host_, row, ask)) {
    return {};
  }
  Token& token = ask.out.token.back();
  if (by_column) token = net_->token_at(chosen, token);
  return {{token, ask.out.confidence.back()}};
}

void MtpDrafter::submit(Bucket& b) {
  state_ = {};
  state_.n_rows = static_cast<int32_t>(token_.size());
  state_.token = token_.data(), state_.pos = pos_.data(), state_.seq = seq_.data(),
  state_.seqs = views_.data();
  host_.forget();
  target_.backend->submit(*b.executable);
  target_.backend->wait();
}

// Reads what stands at the first position of the caches, whosever it is, and says nothing about it.
bool MtpDrafter::rehearse(int32_t depth) {
  static constexpr int32_t kFirstPage = 0;
  Bucket& b = bucket(1);
  token_ = {0}, pos_ = {0}, seq_ = {0}, views_ = {SeqView{&kFirstPage, &kFirstPage, 0}};
  const std::vector<float> nothing(static_cast<size_t>(net_->spec().target_dim), 0.0F);
  for (int32_t i = 0; i < depth; ++i) {
    target_.backend->copy(b.io.hidden_in.row<float>(0), nothing.data(), nothing.size() * sizeof(float));
    submit(b);
    host_.row<float>(b.io.hidden, 0);
  }
  return true;
}

void MtpDrafter::run(std::span<DraftAsk> asks, std::span<const Row> rows, std::span<Grown> out) {
  Bucket& b = bucket(static_cast<int32_t>(rows.size()));
  token_.clear(), pos_.clear(), seq_.clear(), views_.clear();
  const auto dim = static_cast<size_t>(net_->spec().target_dim);
  std::vector<const float*> hidden;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    if (i == 0 || rows[i - 1].ask != r.ask)
      views_.push_back(static_cast<MtpSession*>(asks[r.ask].session)->view());
    token_.push_back(r.token);
    pos_.push_back(asks[r.ask].pos - 1);
    seq_.push_back(static_cast<int32_t>(views_.size()) - 1);
    hidden.push_back(r.hidden->data());
  }
  put_rows(*target_.backend, b.io.hidden_in, hidden);
  submit(b);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int32_t>(i);
    const int32_t* chosen =
        b.io.chosen.valid() ? host_.row_of<int32_t>(b.io.chosen, row, std::ssize(rows)) : nullptr;
    DraftAsk& ask = asks[rows[i].ask];
    if (wants_tree(ask)) {
      out[i].choices = b.logits.best(host_, row, std::min(kTreeChoices, ask.max_nodes));
      for (Candidate& c : out[i].choices) c.token = net_->token_at(chosen, c.token);
    } else {
      out[i].choices = chain_choice(b.logits, row, chosen, ask);
    }
    const float* h = host_.row_of<float>(b.io.hidden, row, std::ssize(rows));
    out[i].hidden.assign(h, h + dim);
  }
}

// Adds what the rows gave to the trees, and says which nodes grow on: of a chain its end, of a tree the most
// probable ones of the level.
std::vector<MtpDrafter::Row> MtpDrafter::next_level(std::span<const DraftAsk> asks,
                                                    std::vector<DraftTree>& trees, std::span<const Row> rows,
                                                    std::span<Grown> grown, int32_t depth) {
  std::vector<Row> next;
  for (size_t i = 0; i < rows.size();) {
    const size_t a = rows[i].ask;
    const DraftAsk& ask = asks[a];
    std::vector<Row> level;
    for (; i < rows.size() && rows[i].ask == a; ++i)
      for (const Candidate& c : grown[i].choices) {
        if (c.p < ask.p_min) break;
        level.push_back({a, trees[a].add(rows[i].node, c), c.token, &grown[i].hidden});
      }
    if (depth >= ask.max_depth) continue;
    const auto likelier = [&](const Row& x, const Row& y) {
      return trees[a].path(x.node) > trees[a].path(y.node);
    };
    std::stable_sort(level.begin(), level.end(), likelier);
    level.resize(std::min(level.size(), static_cast<size_t>(std::min(kTreeWidth, ask.max_nodes))));
    next.insert(next.end(), level.begin(), level.end());
  }
  return next;
}

void MtpDrafter::propose(std::span<DraftAsk> asks) {
  std::vector<DraftTree> trees(asks.size());
  std::vector<Row> rows;
  for (size_t a = 0; a < asks.size(); ++a) {
    asks[a].out = {};
    const auto* s = static_cast<const MtpSession*>(asks[a].session);
    if (asks[a].max_depth > 0 && s->ready(asks[a].pos))
      rows.push_back({a, DraftTree::kAnchor, asks[a].anchor, &s->hidden()});
  }
  std::vector<Grown> before, grown;  // rows point into the level before
  for (int32_t depth = 1; depth <= kMtpDepth && !rows.empty(); ++depth) {
    grown.assign(rows.size(), {});
    for (size_t first = 0; first < rows.size(); first += kMaxRows) {
      const size_t n = std::min<size_t>(kMaxRows, rows.size() - first);
      run(asks, std::span(rows).subspan(first, n), std::span(grown).subspan(first, n));
    }
    rows = next_level(asks, trees, rows, grown, depth);
    before.swap(grown);
  }
  for (size_t a = 0; a < asks.size(); ++a)
    if (wants_tree(asks[a])) asks[a].out = trees[a].best(asks[a].max_nodes);
}

}  // namespace

std::unique_ptr<Drafter> make_mtp_drafter(std::shared_ptr<const MtpNet> net, const ModelSpec& target,
                                          const MtpOptions& options) {
  return std::make_unique<MtpDrafter>(std::move(net), target, options);
}

}  // namespace carat
