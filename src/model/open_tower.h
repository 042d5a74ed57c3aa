// Towers by themselves, without the model that they belong to: for measuring and for planning.
#pragma once
#include <cstdint>
#include <memory>

#include "model/tower.h"

namespace carat {

// Of the family that such towers belong to; Error if none is known.
std::shared_ptr<const VisionTower> open_vision(std::shared_ptr<const WeightSource> towers, Backend& backend);
// Rows of the program that an Encoder runs for so many.
int32_t encoder_rows(int32_t rows);

}  // namespace carat
