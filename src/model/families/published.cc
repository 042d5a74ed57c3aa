#include "model/families/published.h"

#include <algorithm>
#include <cctype>

namespace carat {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

const std::vector<PublishedDrafter>& published_drafters() {
  static const std::vector<PublishedDrafter> all = {
      {"google/gemma-4-E2B-it", "google/gemma-4-E2B-it-assistant"},
      {"google/gemma-4-E4B-it", "google/gemma-4-E4B-it-assistant"},
      {"google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B-it-assistant"},
      {"google/gemma-4-31B-it", "google/gemma-4-31B-it-assistant"},
      {"Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash"},
  };
  return all;
}

std::string published_drafter(std::string_view repo) {
  const std::string name = lower(repo.substr(repo.find('/') + 1));
  for (const PublishedDrafter& p : published_drafters()) {
    const std::string model =
        lower(std::string_view(p.model).substr(std::string_view(p.model).find('/') + 1));
    const size_t at = name.find(model);
    if (at == std::string::npos) continue;
    // A whole name: not "x27b" in another model's, nor a drafter's own.
    const size_t end = at + model.size();
    const auto word = [&](size_t i) {
      return i < name.size() && std::isalnum(static_cast<unsigned char>(name[i]));
    };
    if ((at > 0 && word(at - 1)) || word(end)) continue;
    if (lower(p.drafter).ends_with("/" + name)) continue;
    return p.drafter;
  }
  return {};
}

}  // namespace carat
