// Any bytes as config.json, and what model code reads from the result.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/hf_dialect.h"
#include "model/model.h"

namespace {

class ConfigOnly : public carat::WeightSource {
 public:
  explicit ConfigOnly(carat::Metadata meta) {
    path_ = "fuzz";
    meta_ = std::move(meta);
    carat::TensorInfo& t = tensors_.emplace_back();  // read_spec takes the vocabulary from it
    t.name = "token_embd.weight";
    t.shape = {512, meta_.get_int(meta_.get_string("general.architecture") + ".embedding_length")};
    index();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    carat::HfModel model =
        carat::read_hf_config(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const ConfigOnly source(std::move(model.meta));
    carat::find_family(source.meta().get_string("general.architecture")).read_spec(source);
  } catch (const carat::Error& e) {
    if (e.what()[0] == '\0') std::abort();
  }
  return 0;
}
