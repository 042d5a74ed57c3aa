// What config.json says of positions beyond the training, in GGUF's keys (model/rope.h).
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "model/files/source.h"

namespace carat {

// rope: "rope_parameters", or "rope_scaling" of older files; its type is "rope_type" or "type". Error that
// names `file` for a type that is not known.
void read_hf_rope_scaling(const nlohmann::json& rope, std::string_view arch, std::string_view file,
                          Metadata& meta);

}  // namespace carat
