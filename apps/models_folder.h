// A folder of models, as the server's source of them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace carat {

struct FolderModel {
  std::string name, path;
  int64_t bytes = 0;
};

// GGUF files (of split ones the first) and directories with config.json, by name: the file's without .gguf
// and the part's number; no projectors, drafters, half downloads. Error if the folder cannot be read.
std::vector<FolderModel> models_in(const std::string& folder);

}  // namespace carat
