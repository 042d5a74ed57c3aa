// Gemma 4: dense, mixture of experts, and per-layer embeddings with shared KV. Facts: the model's published
// configuration and reference implementation (huggingface/transformers, models/gemma4;
// google-deepmind/gemma).
#pragma once
#include "model/model.h"

namespace carat {
extern const ModelFamily kGemma4;
// gemma4_vision.cc
std::shared_ptr<const VisionTower> gemma4_vision(std::shared_ptr<const WeightSource> towers, Backend& backend,
                                                 const Progress& progress);
// gemma4_sound.cc
std::shared_ptr<const SoundTower> gemma4_sound(std::shared_ptr<const WeightSource> towers, Backend& backend,
                                               const Progress& progress);
}  // namespace carat
