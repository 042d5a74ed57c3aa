// Pictures and sounds in a prompt: rows that stand in the places of its tokens, and how texts with them are
// known.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/sampler.h"

namespace carat {

struct SoftRows {
  int32_t begin = 0, rows = 0;                       // places in the prompt
  std::shared_ptr<const std::vector<float>> values;  // f32 [rows, the model's width]
  int32_t high = 0, wide = 0;            // of them, as they lie in the picture; a sound's: 1, rows
  std::array<uint32_t, 8> content = {};  // a hash of the picture or sound: equal ones have equal rows
  bool heard = false;                    // of a sound
  bool filmed = false;                   // of a video's frame
  bool whole = false;  // its rows see each other, so one step reads them all; the engine says so

  int32_t end() const { return begin + rows; }
};

// The one with a row in this place, or null. all: ascending, as a request has them.
const SoftRows* soft_at(std::span<const SoftRows> all, int32_t place);
// What stands in the places [from, from + n), null for tokens; empty if those are tokens alone.
std::vector<const float*> soft_in(std::span<const SoftRows> all, int32_t from, int32_t n);
// Where the tokens in these positions stand in time, height and width ([n][3]), for ModelSpec::axes: one
// after the other; a picture's at one time, by row and column; what follows a picture behind its longer side.
std::vector<int32_t> places_of(std::span<const SoftRows> all, std::span<const int32_t> positions);
// The tokens as the prefix cache knows them: in the places of pictures numbers below 0 that follow from their
// content.
std::vector<Token> known_as(std::span<const SoftRows> all, std::span<const Token> tokens);
// Error if they do not fit a prompt of so many tokens and a model of that width.
void check_soft(std::span<const SoftRows> all, size_t prompt, int32_t width);

}  // namespace carat
