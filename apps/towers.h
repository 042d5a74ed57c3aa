// The towers that come with a model, for those who ask what is in a file and what memory it takes.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/files/source.h"

namespace carat {

struct TowerFacts {
  std::string path;      // where they are
  std::string pictures;  // the kind of the tower for pictures, "gemma4v"; empty: there is none
  std::string sound;     // of the one for sound, "gemma4a"
  int32_t layers = 0, dim = 0, patch = 0, group = 0, width = 0;  // group: patches of a row; width: of rows
  int64_t parameters = 0, bytes = 0;                             // of the tower for pictures
  int64_t sound_parameters = 0, sound_bytes = 0;
  int64_t sound_layers = 0, sound_dim = 0;
};
TowerFacts tower_facts(const WeightSource& towers);
// Of the model at this path: its own, or those of a file beside it. Nothing if there are none, or they cannot
// be read.
std::optional<TowerFacts> tower_facts(const std::string& model);

// Activations of the tower for pictures while it looks at one of so many rows.
int64_t tower_work_bytes(const WeightSource& towers, int32_t rows);
// Rows of the largest picture that a model is shown: a step's where it reads a picture in one step.
int32_t largest_picture(bool in_one_step, int32_t step_rows);

std::string towers_text(const TowerFacts& facts);  // lines
nlohmann::ordered_json towers_json(const TowerFacts& facts);

}  // namespace carat
