// Models of Hugging Face: `-hf OWNER/REPO[:QUANT]`, `carat pull`, `list`, `rm`. Files stand in the hub's own
// cache layout (models--OWNER--REPO/blobs, refs, snapshots), so that other programs find what is loaded here,
// and the reverse. Source: huggingface_hub's guide "Understand caching".
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/fetch.h"

namespace CLI {
class App;
}

namespace carat {

struct HubFlags {
  std::string repo;    // OWNER/REPO[:QUANT]
  std::string file;    // one file of it
  std::string token;   // else HF_TOKEN
  std::string mmproj;  // auto, or a file of it; empty: none
  int connections = 4;
  bool offline = false;
};

struct HubFile {
  std::string path;  // in the repository
  int64_t size = 0;
  std::string sha256;  // empty: a small file, which has none
  std::string blob;    // its name in the cache
};
struct HubRepo {
  std::string name, commit;
  std::vector<HubFile> files;
};

// From the answer to api/models/NAME/revision/main?blobs=true.
HubRepo parse_repo(const std::string& name, const std::string& json);

struct HubChoice {
  std::vector<HubFile> files;  // what to load; the first is the model, or a directory's config.json
  std::string why;             // empty: nothing was chosen
  bool directory = false;      // safetensors
};
// Bytes that weights may take. What the GPU has no room for stays with the CPU.
struct HubRoom {
  int64_t host = 0, gpu = 0;
};
// The file of a quantization (parts and all), or the best that fits; Error with what there is.
HubChoice choose_files(const HubRepo& repo, const std::string& quant, const std::string& file, HubRoom room);
// `name`, or with auto the projector of the repository, F16 first; null: there is none.
const HubFile* choose_mmproj(const HubRepo& repo, const std::string& name);

std::string
hub_cache();  // HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub
std::string hub_endpoint();  // HF_ENDPOINT, or https://huggingface.co
bool is_repo_name(const std::string& name);

// A file's name, and its bytes here and in all.
using HubReport = std::function<void(const std::string& file, int64_t done, int64_t total)>;
// Loads what is not there yet. The path of the model: a .gguf file or a directory.
std::string pull(const HubFlags& flags, const HubReport& report = {});

// carat pull, list, rm (cmd_hub.cc).
void add_hub(CLI::App& app);
// -hf, -hff, -hft, --offline and -hfd for every command that opens models: what they name is loaded, and its
// path is the value of -m (-md) then.
void add_hub_flags(CLI::App& app);

}  // namespace carat
