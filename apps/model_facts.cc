#include "apps/model_facts.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "apps/drafter.h"
#include "apps/inspect.h"
#include "base/file.h"
#include "base/log.h"
#include "model/files/hf_dialect.h"
#include "model/model.h"
#include "text/chat/chat.h"

namespace carat {
namespace fs = std::filesystem;
namespace {

// Of a file, or of a directory's config.json.
struct Stamp {
  int64_t bytes = 0, modified = 0;
  bool operator==(const Stamp&) const = default;
};
Stamp stamp_of(const std::string& path) {
  struct stat s {};
  const std::string file = fs::is_directory(path) ? (fs::path(path) / "config.json").string() : path;
  if (::stat(file.c_str(), &s) != 0) return {};
  return {static_cast<int64_t>(s.st_size), static_cast<int64_t>(s.st_mtime)};
}

// "4.7B", "268.1M", as Ollama writes them.
std::string parameters_text(int64_t n) {
  const double count = static_cast<double>(n);
  if (n >= 1'000'000'000) return fmt::format("{:.1f}B", count / 1e9);
  return n >= 1'000'000 ? fmt::format("{:.1f}M", count / 1e6) : fmt::format("{:.1f}K", count / 1e3);
}

// The type that most bytes are in.
std::string quantization(const Json& types) {
  std::string most;
  int64_t bytes = -1;
  for (const auto& [name, n] : types.items())
    if (const int64_t here = n["bytes"].get<int64_t>(); here > bytes) bytes = here, most = name;
  std::transform(most.begin(), most.end(), most.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return most;
}

// Of a vocabulary only single values.
Json without_vocabulary(const Json& metadata) {
  Json out = Json::object();
  for (const auto& [key, value] : metadata.items()) {
    if (key == "tokenizer.chat_template") continue;
    out[key] = key.starts_with("tokenizer.") && value.is_structured() ? Json() : value;
  }
  return out;
}

// Which of its words a template knows; without one the family's own rendering has both.
void read_template(ModelFacts& f) {
  const auto has = [&](const char* word) { return f.chat_template.find(word) != std::string::npos; };
  f.calls = f.chat_template.empty() || has("tools");
  f.thinks = f.chat_template.empty() || has("think");
}

int64_t trained_context(const Metadata& meta, const std::string& arch) {
  return meta.get_int_or(arch + ".context_length", 0);
}

// A directory is known by its config.json: reading its tensors may mean to repack them.
ModelFacts facts_of_directory(const std::string& path) {
  const std::string config = (fs::path(path) / "config.json").string();
  const HfModel hf = read_hf_config(read_file(config, size_t{16} << 20), config);
  ModelFacts f;
  f.format = "safetensors";
  f.family = hf.meta.get_string("general.architecture");
  find_family(f.family);
  f.context = trained_context(hf.meta, f.family);
  std::error_code ec;
  for (fs::directory_iterator i(path, ec), end; !ec && i != end; i.increment(ec))
    if (i->path().extension() == ".safetensors") f.bytes += static_cast<int64_t>(i->file_size(ec));
  const fs::path text = fs::path(path) / "chat_template.jinja";
  if (fs::is_regular_file(text, ec)) f.chat_template = read_file(text.string(), size_t{1} << 20);
  f.metadata = {{"general.architecture", f.family}};
  return f;
}

ModelFacts facts_of_file(const std::string& path) {
  if (!fs::is_regular_file(path))
    throw Error(fmt::format("'{}' is no file", path));  // a pipe would be waited for
  const auto source = open_source(path);
  ModelFacts f;
  f.format = "gguf";
  f.family = source->meta().get_string("general.architecture");
  const std::string type = source->meta().get_string_or("general.type", "model");
  if (type != "model") throw Error(fmt::format("'{}' is no model but of the type '{}'", path, type));
  if (drafter_kind(*source) != DrafterKind::none)
    throw Error(fmt::format("'{}' drafts for a model and is none", path), "give it with -md");
  find_family(f.family).read_spec(*source);
  const Json all = inspect_json(*source);
  f.parameters = parameters_text(parameter_count(*source));
  f.quantization = quantization(all["types"]);
  f.bytes = static_cast<int64_t>(source->total_bytes());
  f.context = trained_context(source->meta(), f.family);
  f.chat_template = source->meta().get_string_or("tokenizer.chat_template", "");
  f.metadata = without_vocabulary(all["metadata"]);
  f.metadata["general.parameter_count"] = parameter_count(*source);
  return f;
}

struct Read {
  Stamp stamp;
  ModelFacts facts;
  std::string error;
};

Read read_facts(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, Read> known;
  const Stamp now = stamp_of(path);
  {
    const std::lock_guard lock(mutex);
    if (const auto it = known.find(path); it != known.end() && it->second.stamp == now) return it->second;
  }
  Read r{now, {}, {}};
  try {
    r.facts = fs::is_directory(path) ? facts_of_directory(path) : facts_of_file(path);
    r.facts.path = path;
    r.facts.modified = now.modified;
    read_template(r.facts);
  } catch (const std::exception& e) {
    r.error = e.what();
    log_info("{}: not among the models: {}", fs::path(path).filename().string(), r.error);
  }
  const std::lock_guard lock(mutex);
  return known[path] = std::move(r);
}

}  // namespace

ModelFacts model_facts(const std::string& path) {
  Read r = read_facts(path);
  if (!r.error.empty()) throw Error(r.error);
  return std::move(r.facts);
}

bool can_be_served(const std::string& path) { return read_facts(path).error.empty(); }

}  // namespace carat
