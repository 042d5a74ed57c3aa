// What was given in the place of a model, said by name with where it belongs.
#pragma once
#include <string>

#include "model/files/source.h"

namespace carat {

// Error if the file is a projector, an adapter, an importance matrix.
void require_model(const WeightSource& source);
// Whether a file can be one, by its first bytes: no folder's, pipe's, half a download's, projector's,
// drafter's.
bool may_be_model(const std::string& path);
// A directory without config.json: always an Error.
void refuse_directory(const std::string& directory);
// A path where nothing is: Error if it looks like a name from elsewhere.
void refuse_missing(const std::string& path);
// The models among a directory's GGUF files, quoted and joined; empty: none.
std::string gguf_inside(const std::string& directory);

}  // namespace carat
