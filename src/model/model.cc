#include "model/model.h"

#include <algorithm>

#include "base/error.h"
#include "model/files/what_it_is.h"

namespace carat {

int ModelSpec::last_kv_owner() const {
  int last = -1;
  for (int i = 0; i < static_cast<int>(layers.size()); ++i)
    if (layers[i].kv_from == i || layers[i].recurrent.valid()) last = i;
  return last;
}

bool Build::tapped(int layer) const { return std::find(taps.begin(), taps.end(), layer) != taps.end(); }

int Build::first_out_layer() const {
  const auto layers = static_cast<int>(spec.layers.size());
  if (hidden_all || rows == 1) return layers;
  return std::max(spec.last_kv_owner(), taps.empty() ? 0 : taps.back() + 1);
}

std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, DType k, DType v) {
  std::vector<KvLayerSpec> out;
  for (const LayerSpec& l : spec.layers)
    out.push_back({KvSpec{k, v, l.kv_heads, l.head_dim, l.window}, l.kv_from, l.recurrent});
  return out;
}

Tensor Arena::take(int32_t rows, int32_t cols, DType type) {
  constexpr size_t kAlign = 64, kChunk = size_t{4} << 20;
  CARAT_CHECK(rows > 0 && cols > 0, "{} x {}", rows, cols);
  const size_t bytes = (static_cast<size_t>(row_bytes(type, cols)) * rows + kAlign - 1) / kAlign * kAlign;
  if (!backend_) {
    bytes_ += static_cast<int64_t>(bytes);
    return make_tensor(nullptr, type, rows, cols);
  }
  for (; chunk_ < chunks_.size(); ++chunk_, used_ = 0)
    if (used_ + bytes <= chunks_[chunk_].size()) break;
  if (chunk_ == chunks_.size()) {
    chunks_.push_back(backend_->alloc(std::max(bytes, kChunk)));
    bytes_ += static_cast<int64_t>(chunks_.back().size());
  }
  const Tensor t = make_tensor(chunks_[chunk_].data() + used_, type, rows, cols);
  used_ += bytes;
  return t;
}

Model load_model(std::shared_ptr<WeightSource> source, Backend& backend, const Progress& progress) {
  require_model(*source);
  Model m;
  m.family = &find_family(source->meta().get_string("general.architecture"));
  if (m.family->is_head && m.family->is_head(*source))
    throw Error(fmt::format("'{}' holds the drafting head (MTP) of a model alone", source->path()),
                "give it with --model-draft (-md) beside the model's own file");
  m.spec = m.family->read_spec(*source);
  if (const MetaValue* v = source->meta().find(kSuppressKey))
    if (const auto* ids = std::get_if<std::vector<int64_t>>(v))
      for (const int64_t id : *ids)
        if (id >= 0 && id < m.spec.vocab) m.suppressed.push_back(static_cast<int32_t>(id));
  m.source = std::move(source);
  m.weights = m.family->bind(*m.source, m.spec, backend, progress);
  if (progress) progress(1, "ready");
  return m;
}

}  // namespace carat
