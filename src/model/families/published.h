// Repositories of Hugging Face with drafters of the models that Carat knows, as their makers name them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace carat {

struct PublishedDrafter {
  const char *model, *drafter;
};
// Sources: Google's "Multi-Token Prediction" page for Gemma 4 (the assistant of NAME is NAME-assistant); the
// table of z-lab/dflash for DFlash drafters.
const std::vector<PublishedDrafter>& published_drafters();

// The drafter of a model's repository, of the maker or of whoever quantized it (unsloth/gemma-4-31B-it-GGUF);
// empty: none is known.
std::string published_drafter(std::string_view repo);

}  // namespace carat
