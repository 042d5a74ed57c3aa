// What a model's file says, for lists of models: read once, and again when the file changes.
#pragma once
#include <string>

#include "serve/models.h"

namespace carat {

// Error if the file cannot be read as a model.
ModelFacts model_facts(const std::string& path);
// Whether carat can serve what is there: not a projector, a drafter, an adapter, an empty or broken file.
// What it is not is said once in the log. Any thread.
bool can_be_served(const std::string& path);

}  // namespace carat
