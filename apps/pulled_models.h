// Models that clients of `carat serve --models-dir DIR --allow-pull` have loaded from Hugging Face. Their
// files are in the hub's cache; DIR/pulled-models.tsv says which belong to DIR: a name and a path a line.
#pragma once
#include <string>
#include <vector>

#include "apps/hub.h"
#include "apps/models_folder.h"

namespace carat {

// Those whose files are there; named OWNER/REPO or OWNER/REPO:QUANT.
std::vector<FolderModel> pulled_models(const std::string& folder);

// name: hf.co/OWNER/REPO[:QUANT], with or without the host; Ollama's `:latest` asks for no QUANT. Loads what
// is not in the cache, as -hf does, and writes it down. One at a time. Error naming what is wrong.
void pull_into(const std::string& folder, const std::string& name, const HubReport& report);

// Error if the folder cannot be written.
void check_can_keep_pulled(const std::string& folder);

}  // namespace carat
