#include "model/model.h"

#include <algorithm>

#include "base/error.h"

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
  Model m;
  m.family = &find_family(source->meta().get_string("general.architecture"));
  m.spec = m.family->read_spec(*source);
  m.source = std::move(source);
  m.weights = m.family->bind(*m.source, m.spec, backend, progress);
  if (progress) progress(1, "ready");
  return m;
}

}  // namespace carat
