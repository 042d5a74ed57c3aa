// A made-up vocabulary with Gemma 4's special tokens in their places, for files with random weights.
#pragma once
#include "text/tokenizer/tokenizer.h"

namespace carat {

// size: 262144 for the published ids of all special tokens (gemma4.md section 6), or from 640 up for a small
// one without those of images and sound. Every byte, every printable ASCII character and many letter groups
// are pieces, with merges that reach them.
TokenizerData forge_vocabulary(int32_t size);

}  // namespace carat
