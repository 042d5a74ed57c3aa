// carat pull, list, rm: models of Hugging Face in the hub's own cache.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include "apps/cli.h"
#include "apps/hub.h"
#include "apps/part_map.h"
#include "apps/progress.h"
#include "base/error.h"

namespace carat {
namespace fs = std::filesystem;
namespace {

// models--OWNER--REPO -> OWNER/REPO; empty for other folders.
std::string repo_of(const fs::path& folder) {
  std::string name = folder.filename().string();
  if (!name.starts_with("models--")) return {};
  name.erase(0, 8);
  const size_t between = name.find("--");
  if (between == std::string::npos) return {};
  return name.replace(between, 2, "/");
}

int64_t blob_bytes(const fs::path& file) {
  std::error_code ec;
  const auto n = fs::file_size(file, ec);
  return ec ? 0 : static_cast<int64_t>(n);
}

bool is_weights(const fs::path& file) {
  return file.extension() == ".gguf" || file.extension() == ".safetensors";
}

void list() {
  std::error_code ec;
  int repos = 0;
  for (const auto& folder : fs::directory_iterator(hub_cache(), ec)) {
    const std::string name = repo_of(folder.path());
    if (name.empty()) continue;
    std::set<std::string> lines;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path() / "snapshots", ec))
      if (is_weights(entry.path()) && fs::exists(entry.path(), ec))
        lines.insert(fmt::format("  {:>8}  {}", human_bytes(static_cast<double>(blob_bytes(entry.path()))),
                                 entry.path().filename().string()));
    int64_t unfinished = 0;
    for (const auto& entry : fs::directory_iterator(folder.path() / "blobs", ec))
      if (entry.path().extension() == ".incomplete")
        unfinished += blob_bytes(entry.path());
      else if (entry.path().extension() == ".parts-map")
        unfinished += bytes_in_map(entry.path().string());
    if (lines.empty() && unfinished == 0) continue;
    ++repos;
    std::printf("%s\n", name.c_str());
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    if (unfinished > 0)
      std::printf("  %8s  of a file whose loading was broken off (carat pull goes on)\n",
                  human_bytes(static_cast<double>(unfinished)).c_str());
  }
  if (repos == 0)
    std::printf("No models in %s; carat pull OWNER/REPO[:QUANT] loads one.\n", hub_cache().c_str());
}

// All of a repository, or the files of one quantization with the blobs that nothing else links.
void remove(const std::string& what) {
  const size_t colon = what.find(':');
  const std::string name = what.substr(0, colon);
  if (!is_repo_name(name))
    throw Error(fmt::format("'{}' is no name of a repository", what), "give OWNER/REPO or OWNER/REPO:QUANT");
  std::string folder_name = "models--" + name;
  folder_name.replace(folder_name.find('/'), 1, "--");
  const fs::path folder = fs::path(hub_cache()) / folder_name;
  std::error_code ec;
  if (!fs::is_directory(folder, ec))
    throw Error(fmt::format("{} is not in the cache", name), "carat list shows what is");
  int64_t freed = 0;
  if (colon == std::string::npos) {
    for (const auto& entry : fs::directory_iterator(folder / "blobs", ec)) freed += blob_bytes(entry.path());
    fs::remove_all(folder);
  } else {
    HubRepo repo;
    repo.name = name;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "snapshots", ec))
      if (fs::is_symlink(entry.path(), ec))
        repo.files.push_back({entry.path().string(), blob_bytes(entry.path()), "", ""});
    for (const HubFile& f : choose_files(repo, what.substr(colon + 1), "", {}).files) {
      const fs::path blob = fs::canonical(f.path, ec);
      fs::remove(f.path);
      const bool used = std::any_of(repo.files.begin(), repo.files.end(), [&](const HubFile& other) {
        std::error_code none;
        return fs::exists(other.path, none) && fs::canonical(other.path, none) == blob;
      });
      if (!used && fs::is_regular_file(blob, ec)) freed += blob_bytes(blob), fs::remove(blob);
    }
  }
  std::printf("%s freed\n", human_bytes(static_cast<double>(freed)).c_str());
}

}  // namespace

void add_hub(CLI::App& app) {
  auto flags = std::make_shared<HubFlags>();
  CLI::App* p = app.add_subcommand("pull", "Download a model of Hugging Face and print its path");
  p->add_option("repo", flags->repo, "OWNER/REPO[:QUANT]; without QUANT the best that fits into memory")
      ->required();
  p->add_option("--hf-file", flags->file, "Download this file of the repository (-hff)");
  p->add_option("--hf-token", flags->token, "Access token (-hft; default: HF_TOKEN)");
  p->add_option("--mmproj", flags->mmproj,
                "Also download this projector for pictures; auto: the repository's");
  p->add_option("--connections", flags->connections, "Connections for a large file")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  p->callback([flags] { std::printf("%s\n", pull(*flags).c_str()); });
  app.add_subcommand("list", "List the downloaded models")->callback(list);
  auto what = std::make_shared<std::string>();
  CLI::App* r = app.add_subcommand("rm", "Delete a downloaded model");
  r->add_option("repo", *what, "OWNER/REPO, or OWNER/REPO:QUANT for one of its files")->required();
  r->callback([what] { remove(*what); });
}

}  // namespace carat
