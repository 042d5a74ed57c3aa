// carat eval: what a model computes, and how well: logits to a file, perplexity, and more in cmd_eval_*.cc.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/eval.h"
#include "apps/npy.h"
#include "apps/progress.h"

namespace carat {
namespace {

void eval_logits(const EvalOptions& o, const std::string& path) {
  const std::vector<Token> tokens = read_tokens(o.tokens);
  const Opened opened = open_model(o.open);
  Feeder feeder(opened, o.chunk, o.cache_k, o.cache_v, check_length(opened, tokens.size()));
  NpyWriter out(path, {static_cast<int64_t>(tokens.size()), opened.model->spec.vocab});
  ProgressBar bar("evaluating", "tok");
  feeder.feed(tokens, 0, [&](int32_t i, std::span<const float> logits) {
    out.write(logits);
    bar.update(i + 1, static_cast<double>(tokens.size()));
  });
  out.commit();
}

size_t first_scored(const EvalOptions& o, size_t window) { return o.score_all ? 0 : window / 2 - 1; }

void eval_ppl(const EvalOptions& o) {
  const Opened opened = open_model(o.open);
  const auto windows = windows_of(o, opened);
  Feeder feeder(opened, o.chunk, o.cache_k, o.cache_v, o.window);
  double sum = 0, squares = 0, bytes = 0;
  size_t n = 0, done = 0;
  ProgressBar bar("evaluating", "windows");
  for (const auto& w : windows) {
    const auto from = static_cast<int32_t>(first_scored(o, w.size()));
    feeder.feed(w, from, [&](int32_t i, std::span<const float> z) {
      if (static_cast<size_t>(i) + 1 >= w.size()) return;
      const double nats = log_sum_exp(z) - z[w[i + 1]];
      sum += nats, squares += nats * nats, ++n;
      if (opened.tokenizer) bytes += static_cast<double>(opened.tokenizer->piece(w[i + 1]).size());
    });
    bar.update(static_cast<double>(++done), static_cast<double>(windows.size()));
  }
  const double count = static_cast<double>(n), mean = sum / count;
  const double error = std::sqrt(std::max(0.0, squares / count - mean * mean) / std::max(1.0, count - 1));
  const double bits_per_byte = bytes > 0 ? sum / std::log(2.0) / bytes : 0;
  if (o.json)
    fmt::print("{}\n", nlohmann::json{{"ppl", std::exp(mean)},
                                      {"nats_per_token", mean},
                                      {"nats_per_token_error", error},
                                      {"bits_per_byte", bits_per_byte},
                                      {"tokens", n},
                                      {"windows", windows.size()},
                                      {"window", o.window}}
                           .dump());
  else
    fmt::print(
        "perplexity {:.4f} +/- {:.4f}  ({:.5f} nats per token, {:.4f} bits per byte; {} tokens in {} windows "
        "of {})\n",
        std::exp(mean), std::exp(mean) * error, mean, bits_per_byte, n, windows.size(), o.window);
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* eval =
      app.add_subcommand("eval", "Logits, perplexity, KL, rendered prompts, acceptance of drafts");
  eval->require_subcommand(1);

  auto logits = std::make_shared<EvalOptions>();
  auto out = std::make_shared<std::string>();
  CLI::App* a = eval->add_subcommand("logits", "Logits of every position to a .npy file, float32 [T, vocab]");
  add_eval_common(*a, *logits);
  a->add_option("--tokens", logits->tokens, "Token ids: a JSON list; nothing is added")->required();
  a->add_option("--out", *out, "The .npy file")->required();
  a->callback([logits, out] { eval_logits(*logits, *out); });

  add_eval_render(*eval);
  add_eval_acceptance(*eval);

  auto ppl = std::make_shared<EvalOptions>();
  CLI::App* b = eval->add_subcommand("ppl", "Perplexity of a text");
  add_eval_common(*b, *ppl);
  add_eval_windows(*b, *ppl);
  b->add_flag("--score-all", ppl->score_all, "Score whole windows, not only their second halves");
  b->callback([ppl] {
    if (ppl->text.empty() && ppl->tokens.empty())
      throw Error("no text", "give one with -f FILE or --tokens FILE.json");
    eval_ppl(*ppl);
  });

  add_eval_kld(*eval);
  add_eval_needle(*eval);
}

}  // namespace carat
