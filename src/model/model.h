// A model family is three functions and a name (docs/design.md, "Adding things"). Model code knows no
// backend: it records operations into a Program.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "model/files/source.h"
#include "model/rope.h"
#include "state/layout.h"

namespace carat {

struct LayerSpec {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t window = 0;      // 0: all positions
  int32_t rope_pairs = 0;  // rotated pairs; the rest of the head passes through
  float rope_base = 0;
  RopeScaling rope;
  int32_t rope_height = 0, rope_width = 0;  // of the pairs, those that turn by these axes of a picture
  bool k_is_v = false;
  int32_t kv_from = -1;  // layer whose cache this one reads; its own index if it owns one
  int32_t ffn = 0;       // dense MLP width
  int32_t experts = 0, experts_used = 0, expert_ffn = 0;
  int32_t shared_ffn = 0;   // width of the expert that every row takes
  RecurrentSpec recurrent;  // instead of attention; kv_from is -1 then
};

struct ModelSpec {
  std::string arch, name;
  int32_t dim = 0, vocab = 0, context = 0;
  int32_t per_layer_dim = 0;  // width of per-layer embeddings, 0: none
  float embed_scale = 1, eps = 0, final_softcap = 0;
  bool blocks = false;  // rows of one picture see each other in sliding layers
  bool axes = false;    // positions in pictures are in time, height and width
  std::vector<LayerSpec> layers;
  // The last layer with a cache or a state of its own: behind it only rows whose logits are wanted are
  // needed.
  int last_kv_owner() const;
};

// What each layer keeps, for plan_kv and KvPool.
std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, DType k, DType v);

// Scratch memory of programs. Programs of all buckets share it: reset() starts the next program over the same
// bytes. Nothing moves or is freed while the arena lives, so compiled programs stay valid.
class Arena {
 public:
  explicit Arena(Backend& backend) : backend_(&backend) {}
  Arena() = default;  // measures only: tensors without memory
  void reset() { chunk_ = used_ = 0; }
  // Not zeroed, 64-byte aligned.
  Tensor take(int32_t rows, int32_t cols, DType type = DType::f32);
  int64_t bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  std::vector<Buffer> chunks_;
  size_t chunk_ = 0, used_ = 0;  // where the next tensor may go
  int64_t bytes_ = 0;
};

// What a builder may touch.
struct Build {
  Program& program;
  const ModelSpec& spec;
  const KvPool& kv;
  Arena& arena;
  int32_t rows = 0, out_rows = 0;  // the bucket; 1 <= out_rows <= rows
  // What drafters and tests want of all rows, wanted or not: the outputs of these layers (ascending), and the
  // hidden state behind the final norm. Both postpone the point from which only wanted rows run.
  std::span<const int32_t> taps = {};
  bool hidden_all = false;

  bool tapped(int layer) const;
  // The layer from which on (its attention included) only wanted rows run; the number of layers: none.
  int first_out_layer() const;
};

struct Outputs {
  Tensor logits;  // f32 [out_rows, vocab]
  Tensor hidden;  // f32 [out_rows, dim] after the final norm: what drafters and embeddings read
  std::vector<Tensor> taps = {};  // f32 [rows, dim] each, in the order of Build::taps
  Tensor hidden_all = {};         // f32 [rows, dim], if asked for
};

// What drafters use of their target's weights: the embedding table, to be read by rows, and the output head.
// Values are the stored ones times *_scale; invalid: the family does not share them.
struct SharedTables {
  Tensor embed, head;
  float embed_scale = 1, head_scale = 1;
};

class Weights {
 public:
  virtual ~Weights() = default;
  virtual SharedTables shared() const { return {}; }
  // f32 [head_dim] of a layer with K = V: its keys before the rotation by position are values times this.
  virtual const float* key_gain(int /*layer*/) const { return nullptr; }
};

// A head of the model's own that drafts the token after next, from a token and the hidden state (after the
// final norm) of the position before it. It has a cache of its own: one layer, a position for every such
// pair.
class NextnHead {
 public:
  virtual ~NextnHead() = default;
  virtual KvLayerSpec cache(DType k, DType v) const = 0;
  struct Io {
    Tensor hidden_in;  // f32 [rows, dim], filled by the caller
    Tensor hidden;     // f32 [out_rows, dim]: hidden_in of a chain's next step
    Tensor logits;     // f32 [out_rows, columns]
  };
  virtual Io build(Program& program, Arena& arena, const KvPool& kv, int32_t rows,
                   int32_t out_rows) const = 0;
  virtual int32_t token_at(int32_t column) const { return column; }  // of the logits
};
struct NextnOptions {
  // Drafts choose among this many tokens, from a copy of the output head's rows: faster, and lossless, since
  // drafts are verified. 0: all.
  int32_t head_rows = 0;
  std::shared_ptr<WeightSource> file = {};  // of the head alone (ModelFamily::is_head); null: the model's own
};

using Progress = std::function<void(double fraction, std::string_view what)>;

class VisionTower;
class SoundTower;

struct Model;
struct ModelFamily {
  std::string_view arch;  // general.architecture
  ModelSpec (*read_spec)(const WeightSource&);
  std::unique_ptr<Weights> (*bind)(const WeightSource&, const ModelSpec&, Backend&, const Progress&);
  Outputs (*build)(Build&, const Weights&);  // pushes one step
  // The model's own drafting head, or that of options.file; null if there is none.
  std::unique_ptr<NextnHead> (*nextn)(const Model&, Backend&, const NextnOptions&) = nullptr;
  KvLayerSpec (*nextn_cache)(const WeightSource&, DType k, DType v) = nullptr;  // its cache; from -1: no head
  bool (*is_head)(const WeightSource&) = nullptr;  // a file that holds the drafting head alone
  // Its eyes (model/tower.h), from such files.
  std::shared_ptr<const VisionTower> (*vision)(std::shared_ptr<const WeightSource> towers, Backend&,
                                               const Progress&) = nullptr;
  // Its ears (model/sound_tower.h).
  std::shared_ptr<const SoundTower> (*sound)(std::shared_ptr<const WeightSource> towers, Backend&,
                                             const Progress&) = nullptr;
};

// The family of the file's architecture; Error naming it and the known ones otherwise.
const ModelFamily& find_family(std::string_view arch);
const ModelFamily* known_family(std::string_view arch);  // null: none

struct Model {
  const ModelFamily* family = nullptr;
  ModelSpec spec;
  std::shared_ptr<WeightSource> source;
  std::unique_ptr<Weights> weights;
  std::vector<int32_t> suppressed = {};  // tokens that are never said (kSuppressKey), of the vocabulary
};
Model load_model(std::shared_ptr<WeightSource> source, Backend& backend, const Progress& progress = {});

}  // namespace carat
