// The families, one line each.
#include "base/error.h"
#include "model/drafters/dflash.h"
#include "model/drafters/gemma4_mtp.h"
#include "model/families/gemma4.h"
#include "model/families/qwen36.h"

namespace carat {
namespace {
const ModelFamily* const kFamilies[] = {&kGemma4, &kQwen35, &kQwen35Moe};
}

const ModelFamily* known_family(std::string_view arch) {
  for (const ModelFamily* f : kFamilies)
    if (f->arch == arch) return f;
  return nullptr;
}

const ModelFamily& find_family(std::string_view arch) {
  if (const ModelFamily* f = known_family(arch)) return *f;
  std::string known;
  for (const ModelFamily* f : kFamilies) known += fmt::format("{}{}", known.empty() ? "" : ", ", f->arch);
  if (is_mtp(arch) || is_dflash(arch))
    throw Error(fmt::format("'{}' is a drafter and cannot run alone", arch),
                "give it with --model-draft (-md) beside the model that it was made for");
  std::string shown;  // the file's word: shown as far as it is printable
  for (const char c : arch.substr(0, 64)) shown += c >= 0x20 && c < 0x7f ? c : '?';
  throw Error(fmt::format("the model's architecture '{}' is not known", shown),
              "known architectures: " + known);
}

}  // namespace carat
