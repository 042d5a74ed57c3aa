// A small model as drafter: it reads along with the target and runs ahead of it; what was rejected is
// rewound.
#include <algorithm>

#include "base/error.h"
#include "engine/speculate/draft_net.h"
#include "engine/speculate/draft_tree.h"
#include "model/stepper.h"

namespace carat {
namespace {

constexpr int32_t kModelDepth = 16;
constexpr int32_t kChunk = 128;  // committed tokens that are read at once
constexpr int32_t kIdle = 256;   // commits since it was asked last, after which it no longer reads along

class ModelSession : public DraftSession {
 public:
  explicit ModelSession(PagePool& pages) : sequence(pages) {}
  void committed(const CommittedRows& rows) override {
    text.resize(std::min(text.size(), static_cast<size_t>(rows.pos)));
    text.insert(text.end(), rows.token.begin(), rows.token.end());
    // What was drafted and came true is read already.
    for (size_t i = static_cast<size_t>(rows.pos); i < text.size() && i < read.size(); ++i)
      if (read[i] != text[i]) settle(static_cast<int32_t>(i));
    settle(static_cast<int32_t>(text.size()));
    told(*this);
  }
  int32_t unread() const { return static_cast<int32_t>(text.size()) - sequence.committed(); }
  // Forgets what it read from position `pos` on.
  void settle(int32_t pos) {
    if (pos >= sequence.committed()) return;
    sequence.rewind(pos);
    read.resize(static_cast<size_t>(pos));
  }

  Sequence sequence;
  std::vector<Token> text;  // committed by the target, from position 0
  std::vector<Token> read;  // run through the model: sequence.committed() of them
  std::function<void(ModelSession&)> told;
};

class ModelDrafter : public Drafter {
 public:
  ModelDrafter(std::shared_ptr<const Model> model, const ModelSpec& target,
               const ModelDrafterOptions& options)
      : model_(std::move(model)), options_(options) {
    if (model_->spec.vocab != target.vocab)
      throw Error(fmt::format("the drafter '{}' has a vocabulary of {}, the model '{}' one of {}",
                              model_->spec.name, model_->spec.vocab, target.name, target.vocab),
                  "a drafter must have the model's own tokenizer");
    for (const LayerSpec& l : model_->spec.layers)
      if (l.recurrent.valid())
        throw Error(fmt::format("'{}' keeps states that cannot be rewound", model_->spec.name),
                    "a small model as drafter must have attention in all layers");
  }

  std::string_view name() const override { return "model"; }
  int32_t max_depth() const override { return kModelDepth; }
  void attach(const DraftTarget& target) override {
    stepper_ = std::make_unique<Stepper>(target.backend, model_, model_cache_limits(target.kv->limits()),
                                         options_.cache, options_.cache);
    stepper_->prepare(kChunk, 0);
    stepper_->prepare(1, 1);
  }
  bool rehearse(int32_t depth) override;
  void rest(bool now) override { idle_ = now ? kIdle : 0; }
  int64_t memory_bytes() const override { return stepper_ ? stepper_->memory_bytes() : 0; }
  std::unique_ptr<DraftSession> open(const Sequence&, const SampleParams&) override {
    auto s = std::make_unique<ModelSession>(stepper_->pages());
    s->told = [this](ModelSession& session) {
      if (++idle_ <= kIdle && session.unread() >= kChunk) catch_up(session, 0);
    };
    return s;
  }
  void propose(std::span<DraftAsk> asks) override;

 private:
  // Tokens that one sequence reads in the next run.
  struct Reading {
    DraftAsk* ask;
    std::vector<Token> tokens;
  };
  void catch_up(ModelSession& s, int32_t leave);
  void run(std::span<Reading> readings);

  const std::shared_ptr<const Model> model_;
  const ModelDrafterOptions options_;
  std::unique_ptr<Stepper> stepper_;
  int32_t idle_ = 0;  // commits since anybody asked
};

bool ModelDrafter::rehearse(int32_t depth) {
  if (stepper_->pages().free_slots() == 0) return false;
  Sequence nobody(stepper_->pages());
  const std::vector<Token> token{0};
  for (int32_t i = 0; i < depth; ++i) {
    if (!nobody.append(1)) return false;
    const Stepper::Part part{&nobody, token, Stepper::Wanted::last};
    stepper_->run({&part, 1});
    nobody.commit(1);
  }
  return true;
}

// Reads committed tokens until at most `leave` are left.
void ModelDrafter::catch_up(ModelSession& s, int32_t leave) {
  while (s.unread() > leave) {
    const int32_t n = std::min(s.unread() - leave, kChunk);
    const auto from = s.text.begin() + s.sequence.committed();
    const std::vector<Token> tokens(from, from + n);
    if (!s.sequence.append(n)) return;
    const Stepper::Part part{&s.sequence, tokens, Stepper::Wanted::none};
    stepper_->run({&part, 1});
    s.sequence.commit(n);
    s.read.insert(s.read.end(), tokens.begin(), tokens.end());
  }
}

// Runs the readings together and adds each sequence's next token to its proposal; readings end where the
// proposal does.
void ModelDrafter::run(std::span<Reading> readings) {
  std::vector<Stepper::Part> parts;
  for (Reading& r : readings) {
    auto& s = *static_cast<ModelSession*>(r.ask->session);
    const bool room = s.sequence.append(static_cast<int32_t>(r.tokens.size()));
    CARAT_CHECK(room, "{} rows behind {}", r.tokens.size(), s.sequence.committed());
    parts.push_back({&s.sequence, r.tokens, Stepper::Wanted::last});
  }
  stepper_->run(parts);
  for (size_t i = 0; i < readings.size(); ++i) {
    Reading& r = readings[i];
    auto& s = *static_cast<ModelSession*>(r.ask->session);
    s.sequence.commit(static_cast<int32_t>(r.tokens.size()));
    s.read.insert(s.read.end(), r.tokens.begin(), r.tokens.end());
    r.tokens.clear();
    if (!extend_chain(stepper_->logits(static_cast<int32_t>(i)), *r.ask)) continue;
    if (static_cast<int32_t>(r.ask->out.token.size()) < std::min(r.ask->max_depth, kModelDepth))
      r.tokens.push_back(r.ask->out.token.back());
  }
}

void ModelDrafter::propose(std::span<DraftAsk> asks) {
  std::vector<Reading> readings;
  idle_ = 0;
  for (DraftAsk& a : asks) {
    a.out = {};
    auto& s = *static_cast<ModelSession*>(a.session);
    if (a.max_depth <= 0 || static_cast<int32_t>(s.text.size()) != a.pos) continue;
    s.settle(a.pos);  // a round's own reading ahead
    catch_up(s, kModelDepth);
    Reading r{&a, {s.text.begin() + s.sequence.committed(), s.text.end()}};
    r.tokens.push_back(a.anchor);
    readings.push_back(std::move(r));
  }
  while (!readings.empty()) {
    // as many sequences as a step has rows for
    size_t first = 0;
    while (first < readings.size()) {
      size_t n = 0;
      for (int32_t rows = 0; first + n < readings.size(); ++n) {
        rows += static_cast<int32_t>(readings[first + n].tokens.size());
        if (n > 0 && rows > stepper_->limits().step_rows) break;
      }
      run(std::span(readings).subspan(first, n));
      first += n;
    }
    std::erase_if(readings, [](const Reading& r) { return r.tokens.empty(); });
  }
}

}  // namespace

std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<const Model> model, const ModelSpec& target,
                                            const ModelDrafterOptions& options) {
  return std::make_unique<ModelDrafter>(std::move(model), target, options);
}

KvLimits model_cache_limits(KvLimits l) {
  l.pages = l.ring_pages = 0;
  l.context += kModelDepth + 1;
  l.step_rows = kChunk + l.sequences + kModelDepth;
  return l;
}

}  // namespace carat
