#include "apps/pulled_models.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "apps/model_facts.h"
#include "base/error.h"

namespace carat {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kBetweenReports{100};

fs::path list_of(const std::string& folder) { return fs::path(folder) / "pulled-models.tsv"; }

std::map<std::string, std::string> read_list(const std::string& folder) {
  std::map<std::string, std::string> out;
  std::ifstream in(list_of(folder));
  for (std::string line; std::getline(in, line);)
    if (const size_t tab = line.find('\t'); tab != line.npos) out[line.substr(0, tab)] = line.substr(tab + 1);
  return out;
}

// Under another name first, so that a reader sees the old list or the new one.
void write_list(const std::string& folder, const std::map<std::string, std::string>& list) {
  const fs::path path = list_of(folder), fresh = path.string() + ".new";
  std::error_code ec;
  {
    std::ofstream out(fresh);
    for (const auto& [name, file] : list) out << name << '\t' << file << '\n';
    if (!out.flush()) throw Error(fmt::format("cannot write '{}'", fresh.string()));
  }
  fs::rename(fresh, path, ec);
  if (ec) throw Error(fmt::format("cannot write '{}': {}", path.string(), ec.message()));
}

// A file, or all files of a directory or a split model.
int64_t bytes_of(const fs::path& path) {
  std::error_code ec;
  if (fs::is_regular_file(path, ec) && path.stem().string().find("-00001-of-") == std::string::npos)
    return static_cast<int64_t>(fs::file_size(path, ec));
  const fs::path folder = fs::is_directory(path, ec) ? path : path.parent_path();
  int64_t bytes = 0;
  for (fs::directory_iterator i(folder, ec), end; !ec && i != end; i.increment(ec))
    if (i->path().extension() == path.extension() || i->path().extension() == ".safetensors")
      bytes += static_cast<int64_t>(i->file_size(ec));
  return bytes;
}

std::string repository_of(std::string name) {
  for (const std::string_view host : {"https://", "http://"})
    if (name.starts_with(host)) name.erase(0, host.size());
  for (const std::string_view host : {"hf.co/", "huggingface.co/"})
    if (name.starts_with(host)) name.erase(0, host.size());
  if (name.ends_with(":latest")) name.resize(name.size() - 7);
  if (!is_repo_name(name.substr(0, name.find(':'))))
    throw Error(fmt::format("'{}' is no model of Hugging Face", name),
                "give hf.co/OWNER/REPO or hf.co/OWNER/REPO:QUANT, as in "
                "hf.co/ggml-org/gemma-4-E2B-it-GGUF:Q4_K_M");
  return name;
}

}  // namespace

std::vector<FolderModel> pulled_models(const std::string& folder) {
  std::vector<FolderModel> out;
  std::error_code ec;
  for (const auto& [name, path] : read_list(folder))
    if (fs::exists(path, ec)) out.push_back({name, path, bytes_of(path)});
  return out;
}

void pull_into(const std::string& folder, const std::string& name, const HubReport& report) {
  static std::mutex one_at_a_time;
  const std::string repo = repository_of(name);
  const std::unique_lock lock(one_at_a_time, std::try_to_lock);
  if (!lock) throw Error("another model is being loaded", "ask again when it is here");
  HubFlags flags;
  flags.repo = repo;
  std::mutex telling;  // files come over several connections
  auto told = std::chrono::steady_clock::time_point{};
  const std::string path = pull(flags, [&](const std::string& file, int64_t done, int64_t total) {
    const std::lock_guard guard(telling);
    const auto now = std::chrono::steady_clock::now();
    if (done < total && now - told < kBetweenReports) return;
    told = now;
    report(file, done, total);
  });
  if (!can_be_served(path))
    throw Error(fmt::format("{} is here, but no model that this server runs", repo), "carat rm removes it");
  auto list = read_list(folder);
  list[repo] = fs::absolute(path).string();
  write_list(folder, list);
}

void check_can_keep_pulled(const std::string& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(fmt::format("'{}' cannot be written", folder),
                "--allow-pull writes down there which models were loaded");
}

}  // namespace carat
