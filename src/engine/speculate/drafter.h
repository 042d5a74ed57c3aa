// Drafters: read-only guests that guess the next tokens of a sequence. They see what the target has committed
// and nothing else; whatever they propose, the tokens that come out are those of `pick` (docs/design.md,
// "Lossless"). Round contract: the speculation chapter of docs/design.md.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "model/model.h"
#include "state/sequence.h"

namespace carat {

// Tokens behind the anchor (the last token emitted, not yet run). A chain, or a tree whose nodes come after
// their parents.
struct Proposal {
  std::vector<Token> token;
  std::vector<int32_t> parent;    // index into token, -1: the anchor. Empty: a chain
  std::vector<float> confidence;  // the drafter's own probability of a node given its parent; empty: unknown
  // Of a chain under DraftRule::sampled: the law each token was drawn from, [vocab] a token; empty: none was.
  std::vector<std::vector<float>> law = {};
  bool empty() const { return token.empty(); }
  int32_t parent_of(int32_t i) const { return parent.empty() ? i - 1 : parent[static_cast<size_t>(i)]; }
  void shorten(size_t n) {  // to its first n nodes; children come after their parents
    if (token.size() <= n) return;
    token.resize(n);
    if (!parent.empty()) parent.resize(n);
    if (!confidence.empty()) confidence.resize(n);
    if (!law.empty()) law.resize(n);
  }
};

// What a drafter that knows a law of the next token proposes in a chain where the target samples. Trees of
// marginals hold what the noise makes likeliest under `keyed`, all others the most probable tokens.
enum class DraftRule : uint8_t {
  best,     // the most probable token
  keyed,    // what `pick` says of its law: the target's noise is known before the target has run
  sampled,  // a draw of its own: for SpecConfig::rejection
};

// Rows of one sequence that the target ran and that are now committed, in the order of their positions.
// Pointers are valid during the call.
struct CommittedRows {
  int32_t pos = 0;               // of the first
  std::span<const Token> token;  // [n] the tokens at those positions
  // Hidden state after the target's final norm, [dim] a row: of every row for a drafter that wants_hidden(),
  // else of the last row alone, the others null. Of a prompt chunk that is not the last, maybe none.
  std::span<const float* const> hidden;
  std::span<const float* const> taps;  // [n][taps().size()], row-major, in taps()'s order
};

// The drafter's memory of one sequence.
class DraftSession {
 public:
  virtual ~DraftSession() = default;
  // Called after every commit, prompt chunks included: all it ever learns. Rows at the beginning that others
  // have run (prefix reuse) come in the first call, with neither hidden states nor taps.
  virtual void committed(const CommittedRows& rows) = 0;
};

// Of a drafter that needs none.
struct NoMemory : DraftSession {
  void committed(const CommittedRows&) override {}
};

// One sequence's turn in a round.
struct DraftAsk {
  DraftSession* session = nullptr;
  const History* history = nullptr;  // prompt and generated tokens; the last one is the anchor
  Token anchor = 0;
  int32_t pos = 0;        // the anchor's position; committed rows are those before it
  int32_t max_depth = 0;  // tokens on the longest path, > 0
  int32_t max_nodes = 0;  // of a tree; == max_depth: a chain is wanted
  float p_min = 0;        // stop a path whose next token is less probable to the drafter
  Proposal out;           // the answer
  DraftRule rule = DraftRule::best;
  const SampleParams* sample = nullptr;  // the request's
  std::span<const Token> forced = {};    // what the request's grammar leaves no choice about (engine/mask.h)
};

// What a drafter may read of the engine it serves; lives longer than the drafter.
struct DraftTarget {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
  const KvPool* kv = nullptr;
};

// One loaded drafter. Everything on the engine's thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string_view name() const = 0;                    // as in --spec: "mtp", "dflash", "ngram-mod"
  virtual std::span<const int32_t> taps() const { return {}; }  // target layers whose output rows it reads
  virtual bool wants_hidden() const { return false; }           // of every row, prompt rows too
  virtual bool wants_forced() const { return false; }           // reads DraftAsk::forced
  virtual int32_t max_depth() const = 0;
  virtual bool makes_trees() const { return false; }
  // Once, before the first session: memory is taken and programs are compiled here. Error if it does not fit.
  virtual void attach(const DraftTarget&) {}
  virtual int64_t memory_bytes() const { return 0; }  // taken by attach: caches and scratch
  // Goes through the motions of drafting `depth` tokens for nobody, so that it is known what that costs
  // before anybody pays for reading a text with it. False: it cannot, ask it.
  virtual bool rehearse(int32_t /*depth*/) { return false; }
  // true: it is not worth its cost, nobody will ask soon, so it need not read along. A question ends it.
  virtual void rest(bool /*now*/) {}
  // For a request whose sequence in the target is `target`, which outlives the session.
  virtual std::unique_ptr<DraftSession> open(const Sequence& target, const SampleParams& params) = 0;
  // Answers all asks, in one pass where it can. Proposals may be shorter than asked for, or empty.
  virtual void propose(std::span<DraftAsk> asks) = 0;
};

}  // namespace carat
