// carat eval: what a model computes, and how well: logits to a file, perplexity, and more in cmd_eval_*.cc.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

#include "apps/cli.h"
#include "apps/eval.h"
#include "apps/eyes.h"
#include "apps/npy.h"
#include "apps/progress.h"

namespace carat {
namespace {

void eval_logits(const EvalOptions& o, const EyesFlags& eyes, const std::string& path) {
  const std::vector<Token> tokens = read_tokens(o.tokens);
  const Opened opened = open_model(o.open);
  const int32_t length = check_length(opened, tokens.size());
  const Seen seen = see(opened, eyes, tokens);
  Feeder feeder(opened, o.rows(), flag_formats(o.cache, opened, length), length, seen.soft, seen.place);
  NpyWriter out(path, {static_cast<int64_t>(tokens.size()), opened.model->spec.vocab});
  ProgressBar bar("evaluating", "tok");
  feeder.feed(tokens, 0, [&](int32_t i, std::span<const float> logits) {
    out.write(logits);
    bar.update(i + 1, static_cast<double>(tokens.size()));
  });
  out.commit();
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* eval =
      app.add_subcommand("eval", "Evaluate a model: perplexity, KL divergence, logits, long prompts, drafts");
  eval->require_subcommand(1);

  auto logits = std::make_shared<EvalOptions>();
  auto eyes = std::make_shared<EyesFlags>();
  auto out = std::make_shared<std::string>();
  CLI::App* a = eval->add_subcommand("logits", "Logits of every position to a .npy file, float32 [T, vocab]");
  add_eval_common(*a, *logits);
  a->add_option("--tokens", logits->tokens, "Token ids: a JSON list; nothing is added")->required();
  a->add_option("--out", *out, "The .npy file")->required();
  add_eyes_flags(*a, *eyes);
  a->callback([logits, eyes, out] { eval_logits(*logits, *eyes, *out); });

  add_eval_render(*eval);
  add_eval_acceptance(*eval);

  add_eval_ppl(*eval);
  add_eval_artefacts(*eval);
  add_eval_kld(*eval);
  add_eval_needle(*eval);
}

}  // namespace carat
