#include "apps/models_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/error.h"
#include "model/files/what_it_is.h"

namespace carat {
namespace fs = std::filesystem;
namespace {

int64_t size_of(const fs::path& file) {
  std::error_code ec;
  const auto n = fs::file_size(file, ec);
  return ec ? 0 : static_cast<int64_t>(n);
}

// Names of a split file's parts end so.
constexpr std::string_view kPartEnd = "-00001-of-00003";
bool is_part(std::string_view name) {
  if (name.size() < kPartEnd.size()) return false;
  const std::string_view end = name.substr(name.size() - kPartEnd.size());
  for (size_t i = 0; i < end.size(); ++i) {
    const bool digit = end[i] >= '0' && end[i] <= '9';
    if (kPartEnd[i] == '-' || kPartEnd[i] == 'o' || kPartEnd[i] == 'f' ? end[i] != kPartEnd[i] : !digit)
      return false;
  }
  return true;
}

int64_t weights_in(const fs::path& directory) {
  int64_t bytes = 0;
  std::error_code ec;
  for (fs::directory_iterator i(directory, ec), end; !ec && i != end; i.increment(ec))
    if (i->path().extension() == ".safetensors") bytes += size_of(i->path());
  return bytes;
}

}  // namespace

std::vector<FolderModel> models_in(const std::string& folder) {
  std::map<std::string, FolderModel> found;
  std::error_code ec;
  for (fs::directory_iterator i(folder, ec), end; !ec && i != end; i.increment(ec)) {
    const fs::path& path = i->path();
    if (path.extension() == ".gguf") {
      std::string name = path.stem().string();
      bool first = true;
      if (is_part(name)) {
        first = name.substr(name.size() - kPartEnd.size(), 6) == "-00001";
        name.resize(name.size() - kPartEnd.size());
      }
      FolderModel& model = found[name];
      model.bytes += size_of(path);
      if (first && may_be_model(path.string())) model.path = path.string();
    } else if (std::error_code none; fs::exists(path / "config.json", none)) {
      const std::string name = path.filename().string();
      if (const int64_t bytes = weights_in(path)) found[name] = {name, path.string(), bytes};
    }
  }
  if (ec)
    throw Error(fmt::format("cannot read the folder '{}': {}", folder, ec.message()), "check --models-dir");
  std::vector<FolderModel> out;
  for (auto& [name, model] : found) {
    if (model.path.empty()) continue;  // parts without their first, and what is no model
    model.name = name;
    out.push_back(std::move(model));
  }
  return out;
}

}  // namespace carat
