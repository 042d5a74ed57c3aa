// Any bytes as config.json, and what model code reads from the result.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/drafters/dflash.h"
#include "model/drafters/gemma4_mtp.h"
#include "model/files/hf_dialect.h"
#include "model/model.h"

namespace {

class ConfigOnly : public carat::WeightSource {
 public:
  explicit ConfigOnly(carat::Metadata meta) {
    path_ = "fuzz";
    meta_ = std::move(meta);
    const int64_t dim = meta_.get_int(meta_.get_string("general.architecture") + ".embedding_length");
    // What the readers of specifications take from tensors: the vocabulary, a drafter's widths.
    add("token_embd.weight", {512, dim});
    add("nextn.pre_projection.weight", {dim, 128});
    add("fc.weight", {dim, 3 * dim});
    for (int i = 0; i < 3; ++i) {
      const std::string blk = "blk." + std::to_string(i) + ".";
      add(blk + "attn_q_norm.weight", {16});
      add(blk + "attn_q.weight", {64, dim});
      add(blk + "attn_k.weight", {32, dim});
      add(blk + "ffn_gate.weight", {96, dim});
    }
    index();
  }

 private:
  void add(std::string name, std::vector<int64_t> shape) {
    carat::TensorInfo& t = tensors_.emplace_back();
    t.name = std::move(name);
    t.shape = std::move(shape);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    carat::HfModel model =
        carat::read_hf_config(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const ConfigOnly source(std::move(model.meta));
    const std::string& arch = source.meta().get_string("general.architecture");
    if (carat::is_mtp(arch))
      carat::read_mtp_spec(source);
    else if (carat::is_dflash(arch))
      carat::read_dflash_spec(source);
    else
      carat::find_family(arch).read_spec(source);
  } catch (const carat::Error& e) {
    if (e.what()[0] == '\0') std::abort();
  }
  return 0;
}
