// Gemma 4's MTP drafter ("assistant"): a few layers of queries over the target's own KV cache, with a
// vocabulary head of its own, full or clustered. Facts: huggingface/transformers, models/gemma4_assistant;
// docs/gemma4.md section 4.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "model/bind.h"
#include "model/blocks.h"
#include "model/model.h"

namespace carat {

struct MtpSpec {
  ModelSpec net;  // dim, vocab, layers: of the drafter; its layers own no cache
  int32_t target_dim = 0;
  int32_t clusters = 0, top_clusters = 0;  // 0: the full head
  int32_t cluster_size() const { return clusters ? net.vocab / clusters : 0; }
};

bool is_mtp(std::string_view arch);
MtpSpec read_mtp_spec(const WeightSource& source);

struct MtpOptions {
  // Position of the queries, the same for all steps of a round: that of the newest token, which no cache
  // holds yet (as in transformers and llama.cpp), or that of the last cached one (as in vLLM and Ollama).
  // Sliding layers see the keys k with position - k < window either way.
  bool at_anchor = true;
};

class MtpNet {
 public:
  // target: whose caches it will read; its layers' positions are encoded as there, whatever the drafter's
  // file says. null: as its file says.
  MtpNet(std::shared_ptr<WeightSource> source, Backend& backend, const Progress& progress = {},
         const ModelSpec* target = nullptr);

  // Error with a hint if it was not made for such a target.
  void check_target(const ModelSpec& target) const;

  // One step over rows of (token, hidden): StepState::pos is the last cached position of the row's sequence.
  struct Io {
    Tensor hidden_in;  // [rows, target_dim] f32, filled by the caller: a view with the pitch of its memory
    Tensor hidden;     // [rows, target_dim]: hidden_in of the next step
    Tensor logits;     // [rows, vocab], or of the chosen clusters [rows, top_clusters * cluster_size]
    Tensor chosen;     // i32 [rows, top_clusters], best first; none with a full head
  };
  Io build(Program& program, Arena& arena, const Model& target, const KvPool& kv, int32_t rows,
           const MtpOptions& options) const;
  // The token of a column of a row's logits; chosen: the row of Io::chosen, null with a full head.
  int32_t token_at(const int32_t* chosen, int32_t column) const;

  const MtpSpec& spec() const { return spec_; }
  const WeightSource& source() const { return *source_; }

 private:
  struct Layer {
    Tensor attn_norm, post_attn_norm, q_norm, ffn_norm, post_ffn_norm, gain;
    Linear q, o;
    Rope rope;
    GatedMlp mlp;
  };
  void follow_positions(const ModelSpec& target);
  void bind_layer(Binder& b, int i);
  void bind_head(Binder& b, Backend& backend);
  int donor(const ModelSpec& target, const LayerSpec& layer) const;

  std::shared_ptr<WeightSource> source_;
  MtpSpec spec_;
  Linear pre_, post_, head_, centroids_;
  Tensor final_norm_, slices_;
  std::vector<int32_t> ordering_;  // cluster c holds the tokens [c * size, (c + 1) * size)
  std::vector<std::byte> table_;   // the head's rows in that order, where the backend reads them in place
  std::vector<Layer> layers_;
  std::vector<Buffer> owners_;
};

}  // namespace carat
