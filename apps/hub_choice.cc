// Which files of a repository are the model that was asked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <regex>

#include "apps/hub.h"
#include "apps/progress.h"

namespace carat {
namespace {

std::string upper(std::string s) {
  for (char& c : s) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return s;
}

struct Variant {
  std::string quant;  // "Q4_K_M", "BF16"
  std::vector<HubFile> parts;
  int64_t bytes = 0;
};

// The last word of a name that is a type: "gemma-4-E2B-it-UD-Q4_K_XL-00001-of-00002.gguf" -> "UD-Q4_K_XL".
std::string quant_of(const std::string& path) {
  static const std::regex form(
      "(?:UD-)?(?:I?Q[0-9]+(?:_[A-Z0-9]+)*|TQ[0-9]_[0-9]|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16)(?=[^A-Z0-9_]"
      "|$)");
  const std::string name = upper(path);
  std::string last;
  for (auto it = std::sregex_iterator(name.begin(), name.end(), form); it != std::sregex_iterator(); ++it)
    last = it->str();
  return last;
}

std::vector<Variant> variants_of(const HubRepo& repo) {
  static const std::regex part("^(.*)-[0-9]{5}-of-[0-9]{5}\\.gguf$");
  std::map<std::string, Variant> all;
  for (const HubFile& f : repo.files) {
    if (!f.path.ends_with(".gguf")) continue;
    const std::string file = upper(f.path.substr(f.path.rfind('/') + 1));
    if (file.starts_with("MMPROJ") || file.starts_with("MTP-") || file.find("IMATRIX") != std::string::npos)
      continue;
    std::smatch m;
    Variant& v = all[std::regex_match(f.path, m, part) ? m[1].str() : f.path];
    v.quant = quant_of(f.path);
    v.parts.push_back(f);
    v.bytes += f.size;
  }
  std::vector<Variant> list;
  for (auto& [name, v] : all) {
    std::sort(v.parts.begin(), v.parts.end(),
              [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
    list.push_back(std::move(v));
  }
  std::sort(list.begin(), list.end(), [](const Variant& a, const Variant& b) { return a.bytes < b.bytes; });
  return list;
}

std::string list_of(const std::vector<Variant>& variants) {
  std::vector<std::string> all;
  for (const Variant& v : variants)
    all.push_back(fmt::format("{} ({})", v.quant.empty() ? v.parts.front().path : v.quant,
                              human_bytes(static_cast<double>(v.bytes))));
  return fmt::format("{}", fmt::join(all, ", "));
}

HubChoice chosen(const Variant& v, const std::string& why) {
  HubChoice c;
  c.files = v.parts;
  c.why =
      fmt::format("{}{}{}", v.quant.empty() ? v.parts.front().path : v.quant, why.empty() ? "" : " ", why);
  return c;
}

HubChoice directory(const HubRepo& repo) {
  HubChoice c;
  c.directory = true;
  for (const HubFile& f : repo.files) {
    const bool top = f.path.find('/') == std::string::npos;
    const bool wanted = f.path.ends_with(".safetensors") || f.path.ends_with(".json") ||
                        f.path.ends_with(".jinja") || f.path == "merges.txt";
    if (!top || !wanted) continue;
    c.files.push_back(f);
    if (f.path == "config.json") std::swap(c.files.front(), c.files.back());
  }
  const bool weights = std::any_of(c.files.begin(), c.files.end(),
                                   [](const HubFile& f) { return f.path.ends_with(".safetensors"); });
  if (!weights || c.files.front().path != "config.json")
    throw Error(fmt::format("{} has neither GGUF files nor config.json with safetensors", repo.name),
                "look for a repository whose name ends in GGUF");
  c.why = "safetensors";
  return c;
}

// "16 GB: 70 % of this machine's memory", the GPU's before it.
std::string words_of(HubRoom room) {
  const std::string host = human_bytes(static_cast<double>(room.host)) + ", 70 % of this machine's memory";
  return room.gpu > 0
             ? fmt::format("{} of the GPU's memory and {}", human_bytes(static_cast<double>(room.gpu)), host)
             : host;
}
// What of it stays with the CPU.
std::string split(const Variant& v, HubRoom room) {
  if (room.gpu == 0) return {};
  if (v.bytes <= room.gpu) return "; all of it into the GPU's";
  return fmt::format("; the CPU has {}", human_bytes(static_cast<double>(v.bytes - room.gpu)));
}

}  // namespace

HubChoice choose_files(const HubRepo& repo, const std::string& quant, const std::string& file, HubRoom room) {
  if (!file.empty()) {
    for (const Variant& v : variants_of(repo))
      for (const HubFile& f : v.parts)
        if (f.path == file) return chosen(v, "");
    for (const HubFile& f : repo.files)
      if (f.path == file) return chosen({"", {f}, f.size}, "");
    throw Error(fmt::format("{} has no file '{}'", repo.name, file), "look at the files on its page");
  }
  const std::vector<Variant> all = variants_of(repo);
  if (all.empty()) {
    if (!quant.empty())
      throw Error(fmt::format("{} has no GGUF files, so no {}", repo.name, quant),
                  "leave out the quantization");
    return directory(repo);
  }
  const auto named = [&](const std::string& name) -> const Variant* {
    for (const Variant& v : all)
      if (v.quant == name) return &v;
    for (const Variant& v : all)
      if (v.quant.ends_with("-" + name)) return &v;  // UD-Q4_K_XL
    return nullptr;
  };
  if (!quant.empty()) {
    if (const Variant* v = named(upper(quant))) return chosen(*v, "");
    throw Error(fmt::format("{} has no {}", repo.name, quant), "it has " + list_of(all));
  }
  const int64_t memory = room.host + room.gpu;
  const std::string where = words_of(room);
  const Variant* usual = named("Q4_K_M");
  if (usual && usual->bytes <= memory)
    return chosen(*usual, fmt::format("(the usual one; it fits into {}{})", where, split(*usual, room)));
  const Variant* best = nullptr;
  for (const Variant& v : all)
    if (v.bytes <= memory && (!usual || v.bytes < usual->bytes)) best = &v;
  if (!best)
    throw Error(fmt::format("nothing of {} fits into {}", repo.name, where),
                "it has " + list_of(all) + "; name one: -hf " + repo.name + ":QUANT");
  return chosen(*best, fmt::format("(the largest{} that fits into {}{})", usual ? " below Q4_K_M" : "", where,
                                   split(*best, room)));
}

const HubFile* choose_mmproj(const HubRepo& repo, const std::string& name) {
  const HubFile* best = nullptr;
  static const std::vector<std::string> order = {"F16", "BF16", "F32"};
  const auto rank = [&](const HubFile& f) {
    return std::find(order.begin(), order.end(), quant_of(f.path)) - order.begin();
  };
  for (const HubFile& f : repo.files) {
    if (name != "auto" && f.path == name) return &f;
    if (name != "auto" || !f.path.ends_with(".gguf") ||
        !upper(f.path.substr(f.path.rfind('/') + 1)).starts_with("MMPROJ"))
      continue;
    if (!best || rank(f) < rank(*best)) best = &f;
  }
  return best;
}

}  // namespace carat
