// The texts of a Hugging Face directory (config.json, tokenizer.json, ...) from a Gemma 4 GGUF file's
// metadata: the way back of model/files/hf_config.cc and text/tokenizer/json.cc.
#pragma once
#include <map>
#include <string>

#include "model/files/source.h"

namespace carat {

// File name to text. Error with a hint where the metadata does not suffice.
std::map<std::string, std::string> hf_texts(const WeightSource& source);

}  // namespace carat
