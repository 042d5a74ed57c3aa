#include "apps/drafter.h"

#include <fmt/ranges.h>

#include "apps/progress.h"
#include "base/error.h"
#include "base/log.h"
#include "tools/vocab.h"

namespace carat {
namespace {

// A drafter that brings a tokenizer must bring the target's.
void check_tokenizer(const WeightSource& source, const Opened& target) {
  if (!target.tokenizer || !has_tokenizer(source)) return;
  const std::vector<std::string> own = tokenizer_from_source(source).tokens;
  const std::vector<std::string>& theirs = target.tokenizer->data().tokens;
  size_t same = 0;
  while (same < own.size() && same < theirs.size() && own[same] == theirs[same]) ++same;
  // Files differ in how far they pad the vocabulary; what both have must agree.
  if (same < std::min(own.size(), theirs.size()))
    throw Error(
        fmt::format("the drafter '{}' has another tokenizer than the model: they differ from token {} on",
                    source.path(), same),
        "use a drafter that was made for this model");
}

std::string heads_text(int32_t clusters, int32_t top, int32_t vocab) {
  if (!clusters) return fmt::format("head of {} tokens", vocab);
  return fmt::format("head of {} tokens in {} clusters, {} computed", vocab, clusters, top);
}

}  // namespace

DrafterKind drafter_kind(const WeightSource& source) {
  const std::string arch = source.meta().get_string_or("general.architecture", "");
  if (is_mtp(arch)) return DrafterKind::mtp;
  if (is_dflash(arch)) return DrafterKind::dflash;
  if (const ModelFamily* f = known_family(arch); f && f->is_head && f->is_head(source))
    return DrafterKind::head;
  return DrafterKind::none;
}

std::unique_ptr<Drafter> open_drafter(const DrafterOptions& o, const Opened& target) {
  std::shared_ptr<WeightSource> source = open_source(o.file);
  check_tokenizer(*source, target);
  const ModelSpec& spec = target.model->spec;
  if (drafter_kind(*source) != DrafterKind::none && !target.model->weights->shared().embed.valid())
    throw Error(
        fmt::format("drafters that share tables with their target cannot be used with '{}'", spec.arch),
        "use a smaller model or an n-gram drafter");
  std::unique_ptr<Drafter> drafter;
  {
    ProgressBar bar("loading the drafter");
    const Progress progress = [&](double part, std::string_view what) { bar.update(part, 1, what); };
    switch (drafter_kind(*source)) {
      case DrafterKind::mtp:
        drafter =
            make_mtp_drafter(std::make_shared<MtpNet>(source, *target.backend, progress, &spec), spec, o.mtp);
        break;
      case DrafterKind::dflash:
        drafter = make_dflash_drafter(std::make_shared<DFlashNet>(source, *target.backend, progress), spec,
                                      o.dflash);
        break;
      case DrafterKind::head: {
        NextnOptions head = o.head;
        head.file = source;
        drafter = make_own_drafter(*target.model, *target.backend, head);
        if (!drafter)
          throw Error(fmt::format("'{}' is no drafting head for a model of {}", o.file, spec.arch),
                      "use the head that was made for this model");
        break;
      }
      case DrafterKind::none:
        drafter = make_model_drafter(std::make_shared<Model>(load_model(source, *target.backend, progress)),
                                     spec, o.model);
        break;
    }
  }
  log_info("drafter {}: {}, {}", o.file, drafter->name(),
           human_bytes(static_cast<double>(source->total_bytes())));
  return drafter;
}

std::string drafter_summary(const WeightSource& source) {
  switch (drafter_kind(source)) {
    case DrafterKind::none: return {};
    case DrafterKind::head: return "drafting head (MTP) of a model, without the model";
    case DrafterKind::mtp: {
      const MtpSpec s = read_mtp_spec(source);
      return fmt::format("drafter (MTP) for models of width {}: {} layers of {}, {}", s.target_dim,
                         s.net.layers.size(), s.net.dim, heads_text(s.clusters, s.top_clusters, s.net.vocab));
    }
    case DrafterKind::dflash: {
      const DFlashSpec s = read_dflash_spec(source);
      std::vector<std::string> masks;
      for (const DFlashLayer& l : s.layers)
        masks.push_back(fmt::format("{}{}", l.window ? fmt::format("{}", l.window) : "all",
                                    l.both_ways ? ", both ways" : ", causal"));
      return fmt::format(
          "drafter (DFlash) for models of width {}: blocks of {}, {} tapped layers [{}], masks [{}]", s.dim,
          s.block, s.features, fmt::join(s.taps, ", "), fmt::join(masks, "; "));
    }
  }
  return {};
}

}  // namespace carat
