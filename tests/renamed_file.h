// A copy of a file with tensors and keys renamed: what another converter would have written.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "model/files/gguf_writer.h"
#include "model/files/source.h"

namespace carat::test {

struct Renaming {
  std::string arch, prefix;                    // architecture, and "PREFIX." of its keys
  std::map<std::string, std::string> tensors;  // old name -> new name
  std::map<std::string, std::string> keys;     // whole keys, old -> new; "" drops one
  std::map<std::string, MetaValue> add;
};

inline std::string renamed_file(const std::string& file, const Renaming& r) {
  const auto source = open_source(file);
  const std::string old = source->meta().get_string("general.architecture") + ".";
  Metadata meta;
  for (const auto& [k, v] : source->meta().all()) {
    const auto it = r.keys.find(k);
    const std::string key = it != r.keys.end()   ? it->second
                            : k.starts_with(old) ? r.prefix + "." + k.substr(old.size())
                                                 : k;
    if (!key.empty()) meta.set(key, v);
  }
  for (const auto& [k, v] : r.add) meta.set(k, v);
  meta.set("general.architecture", r.arch);
  std::vector<GgufTensor> tensors;
  for (const TensorInfo& t : source->tensors()) {
    const auto it = r.tensors.find(t.name);
    tensors.push_back({it == r.tensors.end() ? t.name : it->second, t.type, t.shape});
  }
  const std::string out = file + "." + r.arch + ".gguf";
  GgufWriter writer(out, meta, tensors);
  for (const TensorInfo& t : source->tensors()) writer.write(t.data, t.bytes);
  writer.finish();
  return out;
}

// A source with other values of some keys.
class Patched : public WeightSource {
 public:
  Patched(std::shared_ptr<WeightSource> from, const std::map<std::string, MetaValue>& keys)
      : from_(std::move(from)) {
    path_ = from_->path(), format_ = std::string(from_->format());
    for (const auto& [k, v] : from_->meta().all()) meta_.set(k, v);
    for (const auto& [k, v] : keys) meta_.set(k, v);
    tensors_.assign(from_->tensors().begin(), from_->tensors().end());
    index();
  }

 private:
  std::shared_ptr<WeightSource> from_;
};

}  // namespace carat::test
