// Qwen3.6 and Qwen3.5: gated delta nets with gated full attention in every fourth layer, dense or with
// experts and a shared expert, and a drafting head ("nextn"). Facts: huggingface/transformers, models/qwen3_5
// and qwen3_5_moe; docs/qwen36.md.
#pragma once
#include "model/model.h"

namespace carat {
extern const ModelFamily kQwen35, kQwen35Moe;
// qwen36_vision.cc
std::shared_ptr<const VisionTower> qwen36_vision(std::shared_ptr<const WeightSource> towers, Backend& backend,
                                                 const Progress& progress);
}  // namespace carat
