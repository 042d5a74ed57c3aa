// Weights made smaller while a model is opened, for those who have no quantized file.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "model/files/source.h"

namespace carat {

// Matrices of the layers in FP8 with a scale a row, from weights of 16 and 32 bits: what `carat convert
// --type fp8_dynamic` writes. Tables, heads, routers, norms and layers that keep a state stay as they are.
// Error if the file has no such weights.
std::shared_ptr<WeightSource> load_as_fp8(
    std::shared_ptr<WeightSource> source, int threads,
    const std::function<void(double part, std::string_view what)>& progress = {});

// Products with the source's weights in FP8 round their activations to FP8 as well, each row with a scale of
// its own (W8A8, as the makers of FP8-Dynamic checkpoints mean it); those with the layers' matrices in MXFP4
// and NVFP4 round theirs to FP8 with a power of two for every 32 columns, instead of to int8
// (docs/numerics.md). Error if it has no such weights.
std::shared_ptr<WeightSource> round_activations(std::shared_ptr<WeightSource> source);

}  // namespace carat
