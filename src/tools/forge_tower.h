// Towers for pictures in the shapes of Gemma 4's (docs/gemma4.md), with random weights: mmproj files for
// benchmarks and tests.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/files/source.h"

namespace carat {

bool is_tower_shape(std::string_view name);
std::string tower_shape_names();  // "e2b-mmproj ..."

// A shape's names and sizes without its weights.
std::unique_ptr<WeightSource> tower_shape(std::string_view shape, std::string_view type);

// type: f32, f16, bf16 or q8_0 of the matrices; another recipe's name means bf16, as published files have it.
// The same seed gives the same bytes. Returns the size of the file.
size_t forge_tower(std::string_view shape, const std::string& out, std::string_view type, uint64_t seed,
                   int threads);

}  // namespace carat
