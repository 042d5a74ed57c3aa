// The safetensors files of a Hugging Face directory, one or many.
#include <filesystem>
#include <map>

#include "base/error.h"
#include "model/files/gguf.h"
#include "model/files/safetensors.h"
#include "model/files/what_it_is.h"

namespace carat {
namespace {

constexpr size_t kMaxIndex = size_t{64} << 20;

void load(HfShards& out, const std::string& path) {
  out.files.emplace_back(path);
  for (SafeTensor& t : parse_safetensors(out.files.back().bytes(), path)) out.tensors.push_back(std::move(t));
}

}  // namespace

HfShards open_shards(const std::string& directory) {
  const auto file = [&](std::string_view name) { return (std::filesystem::path(directory) / name).string(); };
  const std::string index_path = file("model.safetensors.index.json"), single = file("model.safetensors");
  HfShards out;
  if (!std::filesystem::exists(index_path)) {
    if (!std::filesystem::exists(single)) {
      const std::string gguf = gguf_inside(directory);
      throw Error(
          fmt::format("'{}' holds neither model.safetensors nor model.safetensors.index.json", directory),
          gguf.empty() ? "download the checkpoint's *.safetensors files into it"
                       : "give the GGUF file itself: " + gguf);
    }
    load(out, single);
    return out;
  }
  const auto map = parse_shard_index(read_file(index_path, kMaxIndex), index_path);
  std::map<std::string, size_t> shards;
  for (const auto& [tensor, shard] : map) ++shards[shard];
  for (const auto& [shard, count] : shards) {
    const size_t before = out.tensors.size();
    load(out, file(shard));
    for (size_t i = before; i < out.tensors.size(); ++i) {
      const SafeTensor& t = out.tensors[i];
      const auto it = map.find(t.name);
      if (it == map.end() || it->second != shard) {
        throw Error(fmt::format("'{}' holds the tensor '{}', which the index does not place there",
                                file(shard), printable(t.name)),
                    "index and shards are of different checkpoints; download them again");
      }
    }
    if (out.tensors.size() - before != count) {
      throw Error(fmt::format("'{}' holds {} tensors, the index places {} there", file(shard),
                              out.tensors.size() - before, count),
                  "index and shards are of different checkpoints; download them again");
    }
  }
  return out;
}

}  // namespace carat
