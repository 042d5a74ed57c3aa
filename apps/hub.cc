#include "apps/hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "apps/offload.h"
#include "apps/part_map.h"
#include "apps/progress.h"
#include "base/file.h"
#include "base/log.h"
#include "cuda/cuda.h"
#include "model/families/published.h"
#include "serve/config.h"

namespace carat {
namespace fs = std::filesystem;
namespace {

// A file descriptor that is closed and, where it was locked, free again.
struct Descriptor {
  int fd = -1;
  explicit Descriptor(int n) : fd(n) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

std::string from_environment(const char* name) { return environment(name).value_or(""); }

fs::path repo_folder(const std::string& name) {
  std::string folder = "models--" + name;
  folder.replace(folder.find('/'), 1, "--");
  return fs::path(hub_cache()) / folder;
}

FetchOptions fetch_options(const HubFlags& flags) {
  FetchOptions o;
  o.token = flags.token.empty() ? from_environment("HF_TOKEN") : flags.token;
  if (const std::string pause = from_environment("CARAT_FETCH_PAUSE"); !pause.empty())
    o.first_pause = std::atof(pause.c_str());
  if (const std::string part = from_environment("CARAT_FETCH_PART"); !part.empty())
    o.part = std::max(int64_t{1} << 16, static_cast<int64_t>(std::atoll(part.c_str())));
  o.connections = flags.connections;
  return o;
}

std::string sha256_of(int fd, int64_t size, const std::string& name) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> c(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(c.get(), EVP_sha256(), nullptr);
  ProgressBar bar("checking " + name, "B");
  std::vector<char> buffer(size_t{1} << 20);
  for (int64_t at = 0; at < size;) {
    const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), at);
    if (n <= 0) throw Error(fmt::format("cannot read {} back", name));
    EVP_DigestUpdate(c.get(), buffer.data(), static_cast<size_t>(n));
    at += n;
    bar.update(static_cast<double>(at), static_cast<double>(size));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_DigestFinal_ex(c.get(), digest, &length);
  std::string hex;
  for (unsigned i = 0; i < length; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

// Names of a file that is on its way. Those of the hub's own programs are grown from the front, so parts are
// another file.
fs::path incomplete(const fs::path& blob) { return blob.string() + ".incomplete"; }
fs::path in_parts(const fs::path& blob) { return blob.string() + ".parts"; }
fs::path part_map(const fs::path& blob) { return blob.string() + ".parts-map"; }

// Locked, so that two programs do not write one file.
std::unique_ptr<Descriptor> open_locked(const fs::path& path, const HubRepo& repo, const HubFile& file) {
  auto d = std::make_unique<Descriptor>(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (d->fd < 0) throw Error(fmt::format("cannot write '{}'", path.string()), "HF_HOME names another folder");
  if (::flock(d->fd, LOCK_EX | LOCK_NB) != 0)
    throw Error(fmt::format("another program loads {} of {}", file.path, repo.name),
                "wait until it has ended");
  return d;
}

int64_t bytes_here(const fs::path& blob) {
  std::error_code ec;
  if (const int64_t n = bytes_in_map(part_map(blob).string()); n > 0) return n;
  return fs::exists(incomplete(blob), ec) ? static_cast<int64_t>(fs::file_size(incomplete(blob), ec)) : 0;
}

// Whole, and checked; the path that it stands under until it has its name.
fs::path load_incomplete(const HubRepo& repo, const HubFile& file, const fs::path& blob,
                         const FetchOptions& o, const HubReport& report) {
  const std::string url =
      fmt::format("{}/{}/resolve/{}/{}", hub_endpoint(), repo.name, repo.commit, file.path);
  ProgressBar bar(file.path, "B");
  const auto progress = [&](int64_t at) {
    bar.update(static_cast<double>(at), static_cast<double>(file.size));
    if (report) report(file.path, at, file.size);
  };
  const auto say = [&](int64_t have) {
    if (have > 0)
      log_info("{}: {} of {} are here already", file.path, human_bytes(static_cast<double>(have)),
               human_bytes(static_cast<double>(file.size)));
  };
  std::error_code ec;
  if (o.connections > 1 && file.size > 2 * o.part && !fs::exists(incomplete(blob), ec)) {
    const auto d = open_locked(in_parts(blob), repo, file);
    say(bytes_here(blob));
    if (fetch_parts(url, o, d->fd, file.size, part_map(blob).string(), progress)) return in_parts(blob);
    fs::remove(in_parts(blob), ec);
  }
  const auto d = open_locked(incomplete(blob), repo, file);
  auto have = static_cast<int64_t>(::lseek(d->fd, 0, SEEK_END));
  if (have > file.size) have = ::ftruncate(d->fd, 0);
  say(have);
  fetch_file(url, o, d->fd, have, file.size, progress);
  return incomplete(blob);
}

void load_blob(const HubRepo& repo, const HubFile& file, const fs::path& folder, const FetchOptions& o,
               const HubReport& report) {
  const fs::path blob = folder / "blobs" / file.blob;
  std::error_code ec;
  if (fs::exists(blob, ec) && static_cast<int64_t>(fs::file_size(blob, ec)) == file.size) return;
  const fs::path part = load_incomplete(repo, file, blob, o, report);
  const auto d = open_locked(part, repo, file);
  if (!file.sha256.empty() && sha256_of(d->fd, file.size, file.path) != file.sha256) {
    fs::remove(part, ec);
    fs::remove(part_map(blob), ec);
    throw Error(fmt::format("{} came with other bytes than its SHA-256 says; it was removed", file.path),
                "run the same again");
  }
  ::fsync(d->fd);
  fs::rename(part, blob);
  fs::remove(part_map(blob), ec);
}

void link_into_snapshot(const HubFile& file, const fs::path& folder, const std::string& commit) {
  const fs::path link = folder / "snapshots" / commit / file.path;
  fs::create_directories(link.parent_path());
  const fs::path target = fs::relative(folder / "blobs" / file.blob, link.parent_path());
  std::error_code ec;
  if (fs::is_symlink(link) && fs::read_symlink(link, ec) == target) return;
  fs::remove(link, ec);
  fs::create_symlink(target, link);
}

// Names of files come from outside, and paths are made of them.
bool safe_path(const std::string& path) {
  if (path.empty() || path.front() == '/' || path.find('\\') != std::string::npos) return false;
  for (const fs::path& part : fs::path(path))
    if (part == ".." || part == "." || part.empty()) return false;
  return true;
}
bool safe_name(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
}

// What is in the cache of a repository whose server is not asked.
HubRepo cached_repo(const std::string& name) {
  HubRepo repo;
  repo.name = name;
  std::ifstream(repo_folder(name) / "refs" / "main") >> repo.commit;
  const fs::path snapshot = repo_folder(name) / "snapshots" / repo.commit;
  std::error_code ec;
  if (repo.commit.empty() || !fs::is_directory(snapshot, ec)) return repo;
  for (const auto& entry : fs::recursive_directory_iterator(snapshot, ec)) {
    if (!fs::is_regular_file(entry.path(), ec)) continue;  // links are followed: broken ones are not loaded
    HubFile f;
    f.path = entry.path().lexically_relative(snapshot).string();
    f.size = static_cast<int64_t>(fs::file_size(entry.path(), ec));
    repo.files.push_back(std::move(f));
  }
  return repo;
}

HubRepo asked_repo(const std::string& name, const HubFlags& flags) {
  if (!flags.offline) {
    try {
      return parse_repo(
          name, fetch_text(fmt::format("{}/api/models/{}/revision/main?blobs=true", hub_endpoint(), name),
                           fetch_options(flags)));
    } catch (const HttpError&) {
      throw;
    } catch (const Error& e) {
      HubRepo repo = cached_repo(name);
      if (repo.files.empty()) throw;
      log_warn("{}: what is in the cache is used", e.what());
      return repo;
    }
  }
  HubRepo repo = cached_repo(name);
  if (repo.files.empty())
    throw Error(fmt::format("{} is not in the cache", name), "leave out --offline to load it");
  return repo;
}

void check_disk(const fs::path& folder, int64_t needed) {
  struct statvfs s {};
  if (needed <= 0 || ::statvfs(folder.c_str(), &s) != 0) return;
  const auto room = static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
  if (static_cast<double>(needed) > room)
    throw Error(
        fmt::format("{} are to be loaded, and {} has room for {}", human_bytes(static_cast<double>(needed)),
                    folder.string(), human_bytes(room)),
        "choose a smaller quantization (:QUANT), make room (carat rm), or name another folder with HF_HOME");
}

HubRoom room_for_weights() {
  HubRoom room;
  room.host = static_cast<int64_t>(0.7 * static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                                   static_cast<double>(::sysconf(_SC_PAGESIZE)));
  try {
    if (!cuda_devices().empty()) room.gpu = weights_room(make_cuda_backend(0)->info());
  } catch (const Error& e) {
    log_debug("the GPU's memory is not counted: {}", e.what());
  }
  return room;
}

// The projector of a model that reads pictures, stored beside it.
void pull_mmproj(const HubFlags& flags, const HubRepo& repo, HubChoice& choice) {
  if (flags.mmproj.empty() || flags.mmproj == "none") return;
  const HubFile* file = choose_mmproj(repo, flags.mmproj);
  if (!file) {
    if (flags.mmproj != "auto")
      throw Error(fmt::format("{} has no file '{}'", repo.name, flags.mmproj), "--mmproj auto looks for one");
    log_info("{} has no mmproj file", repo.name);
    return;
  }
  choice.files.push_back(*file);
  log_info("{} comes with it", file->path);
}

}  // namespace

std::string hub_endpoint() {
  std::string url = environment("HF_ENDPOINT").value_or("https://huggingface.co");
  while (!url.empty() && url.back() == '/') url.pop_back();
  return url;
}

std::string hub_cache() {
  if (const auto dir = environment("HF_HUB_CACHE")) return *dir;
  if (const auto home = environment("HF_HOME")) return *home + "/hub";
  if (const auto cache = environment("XDG_CACHE_HOME")) return *cache + "/huggingface/hub";
  return environment("HOME").value_or("/root") + "/.cache/huggingface/hub";
}

bool is_repo_name(const std::string& name) {
  static const std::regex form("[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*");
  return name.size() < 200 && std::regex_match(name, form);
}

HubRepo parse_repo(const std::string& name, const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  HubRepo repo;
  repo.name = name;
  const auto wrong = [&]() -> Error {
    return Error(fmt::format("the answer of {} about {} cannot be read", hub_endpoint(), name),
                 "check HF_ENDPOINT");
  };
  if (!json.is_object() || !json.contains("sha") || !json["sha"].is_string() || !json.contains("siblings") ||
      !json["siblings"].is_array())
    throw wrong();
  repo.commit = json["sha"].get<std::string>();
  if (!safe_name(repo.commit)) throw wrong();
  for (const auto& s : json["siblings"]) {
    if (!s.is_object() || !s.value("rfilename", nlohmann::json()).is_string()) throw wrong();
    HubFile f;
    f.path = s["rfilename"].get<std::string>();
    if (!safe_path(f.path)) continue;
    const auto number = [](const nlohmann::json& j) {
      return j.is_number_integer() ? j.get<int64_t>() : int64_t{-1};
    };
    const auto word = [](const nlohmann::json& j) {
      return j.is_string() ? j.get<std::string>() : std::string();
    };
    f.size = number(s.value("size", nlohmann::json()));
    f.blob = word(s.value("blobId", nlohmann::json()));
    const nlohmann::json lfs = s.value("lfs", nlohmann::json());
    if (lfs.is_object()) {
      f.sha256 = f.blob = word(lfs.value("sha256", nlohmann::json()));
      f.size = number(lfs.value("size", nlohmann::json()));
    }
    if (f.size >= 0 && safe_name(f.blob)) repo.files.push_back(std::move(f));
  }
  return repo;
}

std::string pull(const HubFlags& flags, const HubReport& report) {
  const size_t colon = flags.repo.find(':');
  const std::string name = flags.repo.substr(0, colon),
                    quant = colon == std::string::npos ? "" : flags.repo.substr(colon + 1);
  if (!is_repo_name(name))
    throw Error(fmt::format("'{}' is no name of a repository", flags.repo),
                "give OWNER/REPO or OWNER/REPO:QUANT, as in ggml-org/gemma-4-E2B-it-GGUF:Q4_K_M");
  const HubRepo repo = asked_repo(name, flags);
  HubChoice choice = choose_files(repo, quant, flags.file, room_for_weights());
  pull_mmproj(flags, repo, choice);
  const fs::path folder = repo_folder(name), snapshot = folder / "snapshots" / repo.commit;
  int64_t all = 0, needed = 0;
  std::vector<HubFile> wanted;
  std::error_code ec;
  for (const HubFile& f : choice.files) {
    all += f.size;
    if (f.blob.empty()) continue;  // from the cache
    if (fs::exists(folder / "blobs" / f.blob, ec)) {
      link_into_snapshot(f, folder, repo.commit);
      continue;
    }
    needed += f.size - bytes_here(folder / "blobs" / f.blob);
    wanted.push_back(f);
  }
  log_info("{}: {}, {}{}", name, choice.why, human_bytes(static_cast<double>(all)),
           wanted.empty() ? ", in the cache" : "");
  try {
    if (!wanted.empty()) {
      fs::create_directories(folder / "blobs");
      fs::create_directories(folder / "refs");
      check_disk(folder, needed);
    }
    for (const HubFile& f : wanted) {
      load_blob(repo, f, folder, fetch_options(flags), report);
      link_into_snapshot(f, folder, repo.commit);
    }
    if (!choice.files.front().blob.empty()) std::ofstream(folder / "refs" / "main") << repo.commit;
  } catch (const fs::filesystem_error& e) {
    throw Error(fmt::format("cannot write the cache: {}", e.what()), "HF_HOME names another folder");
  }
  return choice.directory ? snapshot.string() : (snapshot / choice.files.front().path).string();
}

namespace {

// Error where a file was meant to be a repository.
std::string hint_at_repo(const std::string& model) {
  std::error_code ec;
  if (model.starts_with("https://") || model.starts_with("http://") || model.starts_with("hf://"))
    throw Error(fmt::format("'{}' is no file", model),
                "give -hf OWNER/REPO[:QUANT] to load a model of Hugging Face");
  if (!fs::exists(model, ec) && is_repo_name(model.substr(0, model.find(':'))) && !model.ends_with(".gguf"))
    throw Error(fmt::format("there is no file '{}'", model), "to load it from Hugging Face: -hf " + model);
  return {};
}

// What -hfd auto means beside this -hf.
std::string drafter_for(const std::string& model) {
  const std::string drafter = published_drafter(model.substr(0, model.find(':')));
  if (drafter.empty())
    throw Error(model.empty() ? "-hfd auto needs -hf, whose drafter it looks for"
                              : fmt::format("no published drafter of {} is known here", model),
                "name one: -hfd OWNER/REPO[:QUANT]");
  log_info("the drafter is {}", drafter);
  return drafter;
}

// The flag that loads sets the one that names a file, before anything asks for its value.
void stands_for(CLI::App& app, const std::string& flag, CLI::Option* file,
                const std::shared_ptr<HubFlags>& flags, CLI::Option* tower, const std::string& help) {
  const bool draft = flag == "--hf-repo-draft";
  CLI::Option* model = app.get_option_no_throw("--hf-repo");
  app.add_option_function<std::string>(
         flag,
         [flags, file, draft, model, tower](const std::string& repo) {
           if (file->count() > 0) throw Error("both a file and a repository are given", "give one of them");
           HubFlags hub = *flags;
           hub.repo = repo;
           if (tower && tower->count() > 0) hub.mmproj = tower->results().front();
           if (draft) {
             hub.file.clear(), hub.mmproj.clear();
             if (repo == "auto")
               hub.repo = drafter_for(model && model->count() > 0 ? model->results().front() : "");
           }
           try {
             file->add_result(pull(hub));
           } catch (const Error& e) {  // among many flags: the one that failed
             throw Error(fmt::format("{} {}: {}", draft ? "-hfd" : "-hf", repo, e.what()), e.hint());
           }
           file->run_callback();
         },
         help)
      ->type_name("TEXT");
}

}  // namespace

void add_hub_flags(CLI::App& app) {
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) add_hub_flags(*sub);
  CLI::Option* model = app.get_option_no_throw("--model");
  if (!model) model = app.get_name() == "inspect" ? app.get_option_no_throw("file") : nullptr;
  if (!model) return;
  auto flags = std::make_shared<HubFlags>();
  model->check(CLI::Validator([](std::string& m) { return hint_at_repo(m); }, ""));
  app.add_option("--hf-file", flags->file, "With -hf: this file of the repository (-hff)");
  app.add_option("--hf-token", flags->token, "With -hf: access token (-hft; default: HF_TOKEN)");
  CLI::Option* tower = app.get_option_no_throw("--mmproj");  // who sees has it already
  if (!tower)
    app.add_option_function<std::string>(
        "--mmproj",
        [&app, flags](const std::string& file) {
          flags->mmproj = file;
          if (app.get_option("--hf-repo")->count() == 0)
            log_warn("--mmproj {}: this command reads text alone", file);
        },
        "With -hf: also download this projector for pictures; auto: the repository's");
  app.add_flag("--offline", flags->offline, "With -hf: use what is in the cache, send no request");
  stands_for(app, "--hf-repo", model, flags, tower,
             "Model of Hugging Face (-hf), downloaded unless it is in the cache; without QUANT the best that "
             "fits into memory");
  if (CLI::Option* draft = app.get_option_no_throw("--model-draft"))
    stands_for(app, "--hf-repo-draft", draft, flags, tower,
               "Drafter of Hugging Face (-hfd); auto: the published drafter of the model of -hf");
}

}  // namespace carat
