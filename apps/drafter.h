// From a file to a drafter: the kind is told from the file.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "apps/open.h"
#include "engine/speculate/draft_net.h"
#include "engine/speculate/draft_nextn.h"

namespace carat {

// none: a model of its own; head: the drafting head of a model that is another file
enum class DrafterKind : uint8_t { none, mtp, dflash, head };
DrafterKind drafter_kind(const WeightSource& source);

struct DrafterOptions {
  std::string file;  // an assistant, a DFlash drafter or a smaller model
  MtpOptions mtp = {};
  DFlashOptions dflash = {};
  ModelDrafterOptions model = {};
  NextnOptions head = {};
};
// Error with a hint if it does not fit the target: widths, layers, vocabulary, tokenizer.
std::unique_ptr<Drafter> open_drafter(const DrafterOptions& options, const Opened& target);

// What a drafter's file is, in a few words; empty for models.
std::string drafter_summary(const WeightSource& source);

}  // namespace carat
