// What was given in the place of a model, said by name: files that belong beside one, folders that hold one.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "model/drafters/dflash.h"
#include "model/drafters/gemma4_mtp.h"
#include "model/files/gguf.h"
#include "model/files/what_it_is.h"

namespace carat {
namespace {

namespace fs = std::filesystem;

struct Named {
  std::string_view key;  // general.type or general.architecture
  std::string_view is;   // "'FILE' is ..."
  std::string_view hint;
};
constexpr size_t kHead = 64 << 10;  // converters write what a file is before its vocabulary
constexpr const char* kMerge =
    "merge it into its model's weights (PEFT: merge_and_unload), then use carat convert";
const Named kNotModels[] = {
    {"mmproj", "a projector of images or sound (mmproj), not a model",
     "give the model's own file with -m, and this one with --mmproj"},
    {"clip", "a projector of images or sound (mmproj), not a model",
     "give the model's own file with -m, and this one with --mmproj"},
    {"adapter", "a LoRA adapter, not a model", kMerge},
    {"controlvector", "a control vector, not a model", "give the model's own file"},
    {"imatrix", "an importance matrix, not a model", "it belongs to carat convert --imatrix FILE"},
};

// null: a model, as far as the keys say.
const Named* other_thing(const Metadata& meta) {
  for (const char* key : {"general.type", "general.architecture"}) {
    const std::string word = meta.get_string_or(key, "");
    for (const Named& n : kNotModels)
      if (n.key == word) return &n;
  }
  return nullptr;
}

bool is_there(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

std::vector<fs::path> entries(const fs::path& dir, std::string_view ending) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator i(dir, ec), end; !ec && i != end; i.increment(ec))
    if (i->path().filename().string().ends_with(ending)) out.push_back(i->path());
  std::sort(out.begin(), out.end());
  return out;
}

bool later_part(const std::string& name) {
  const size_t at = name.rfind("-of-");
  return at != name.npos && at >= 5 && name.substr(at - 5, 5) != "00001";
}

// A folder of the hub's cache, models--OWNER--REPO: the folder of the commit that it has.
fs::path snapshot_in(const fs::path& dir) {
  std::error_code ec;
  fs::path found;
  for (fs::directory_iterator i(dir / "snapshots", ec), end; !ec && i != end; i.increment(ec))
    found = i->path();
  if (!is_there(dir / "refs" / "main")) return found;
  std::string commit = read_file((dir / "refs" / "main").string(), 4096);
  commit.resize(std::min(commit.find_first_of("\r\n/"), commit.size()));
  return is_there(dir / "snapshots" / commit) ? dir / "snapshots" / commit : found;
}

}  // namespace

std::string gguf_inside(const std::string& directory) {
  std::string names;
  size_t shown = 0;
  for (const fs::path& p : entries(directory, ".gguf")) {
    const std::string name = p.filename().string();
    if (later_part(name) || name.find("mmproj") != name.npos) continue;
    if (++shown <= 3) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", p.string());
  }
  if (shown > 3) names += fmt::format(" or one of {} more", shown - 3);
  return names;
}

void refuse_directory(const std::string& directory) {
  const fs::path dir = directory;
  const auto refuse = [&](std::string_view what, const std::string& hint) {
    throw Error(fmt::format("'{}' {}", directory, what), hint);
  };
  if (const std::string inside = gguf_inside(directory); !inside.empty())
    refuse("is a directory of GGUF files", "give the file (of a split model its first): " + inside);
  if (is_there(dir / "adapter_config.json")) refuse("holds a LoRA adapter, not a model", kMerge);
  if (is_there(dir / "snapshots")) {
    const fs::path snapshot = snapshot_in(dir);
    const std::string inside = snapshot.empty() ? "" : gguf_inside(snapshot.string());
    if (!snapshot.empty())
      refuse("is a repository's folder in the hub's cache",
             "give what it holds: " + (inside.empty() ? fmt::format("'{}'", snapshot.string()) : inside));
  }
  if (!entries(dir, ".safetensors").empty())
    refuse("holds no config.json",
           "put config.json and tokenizer.json of the model's repository beside its weights");
  if (!entries(dir, ".bin").empty() || !entries(dir, ".pth").empty())
    refuse("holds a PyTorch checkpoint", "take the model's *.safetensors files, or a GGUF file of it");
  for (const fs::path& sub : entries(dir, ""))
    if (is_there(sub / "config.json") || !gguf_inside(sub.string()).empty())
      refuse("holds no config.json", fmt::format("the model may be in '{}'", sub.string()));
  refuse("holds no config.json", "a model is a .gguf file or a directory with config.json and *.safetensors");
}

void refuse_missing(const std::string& path) {
  if (is_there(path + ".gguf"))
    throw Error(fmt::format("there is no file '{}'", path), fmt::format("'{}.gguf' is there", path));
  const size_t colon = path.find(':');
  if (colon == path.npos || colon == 0 || path.find("://") != path.npos || path.ends_with(".gguf")) return;
  throw Error(fmt::format("there is no file '{}'", path),
              "names of Ollama's library are not known; give a .gguf file, or -hf OWNER/REPO[:QUANT]");
}

bool may_be_model(const std::string& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return false;  // a pipe would be waited for
  std::string head(kHead, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), kHead);
  head.resize(static_cast<size_t>(file.gcount()));
  try {
    const Metadata meta = gguf_first_keys(std::as_bytes(std::span(head)), path);
    const std::string arch = meta.get_string_or("general.architecture", "");
    return !other_thing(meta) && !is_mtp(arch) && !is_dflash(arch);
  } catch (const Error&) {
    return false;
  }
}

void require_model(const WeightSource& source) {
  if (const Named* n = other_thing(source.meta()))
    throw Error(fmt::format("'{}' is {}", source.path(), n->is), std::string(n->hint));
}

}  // namespace carat
