// carat eval: what a model computes, and how well: logits to a file, perplexity, KL between two models.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/npy.h"
#include "apps/open.h"
#include "apps/progress.h"
#include "base/error.h"
#include "base/file.h"
#include "model/stepper.h"

namespace carat {
namespace {

struct EvalOptions {
  OpenOptions open;
  std::string tokens, out, text, base;
  int32_t window = 512, chunk = 64, windows = -1;
  DType cache_k = DType::f32, cache_v = DType::f32;
  bool score_all = false, no_bos = false, json = false;
};

std::vector<Token> read_tokens(const std::string& path) {
  try {
    nlohmann::json j = nlohmann::json::parse(read_file(path));
    if (j.is_object()) j = j.at("tokens");
    std::vector<Token> tokens = j.get<std::vector<Token>>();
    if (tokens.empty()) throw Error(fmt::format("'{}' has no tokens", path));
    return tokens;
  } catch (const nlohmann::json::exception&) {
    throw Error(fmt::format("'{}' is not a list of token ids", path), "expected JSON like [2, 105, 2364]");
  }
}

// A sequence of its own: feeds tokens from position 0 and hands over the logits of every position.
class Feeder {
 public:
  Feeder(const Opened& opened, const EvalOptions& o, int32_t context)
      : stepper_(opened.backend, opened.model,
                 KvLimits{.context = context, .sequences = 1, .step_rows = std::min(o.chunk, context)},
                 o.cache_k, o.cache_v) {}

  template <class F>  // f(position, logits)
  void feed(std::span<const Token> tokens, F&& f) {
    Sequence sequence(stepper_.pages());
    const auto n = static_cast<int32_t>(tokens.size()), chunk = stepper_.limits().step_rows;
    for (int32_t at = 0; at < n; at += chunk) {
      const int32_t rows = std::min(chunk, n - at);
      CARAT_CHECK(sequence.append(rows));
      const Stepper::Part part{&sequence, tokens.subspan(at, rows), Stepper::Wanted::all};
      stepper_.run({&part, 1});
      for (int32_t i = 0; i < rows; ++i) f(at + i, stepper_.logits(i));
      sequence.commit(rows);
    }
  }

 private:
  Stepper stepper_;
};

int32_t check_length(const Opened& opened, size_t n) {
  if (n > static_cast<size_t>(opened.model->spec.context))
    throw Error(
        fmt::format("{} tokens are more than the model's context of {}", n, opened.model->spec.context));
  return static_cast<int32_t>(n);
}

void eval_logits(const EvalOptions& o) {
  const std::vector<Token> tokens = read_tokens(o.tokens);
  const Opened opened = open_model(o.open);
  Feeder feeder(opened, o, check_length(opened, tokens.size()));
  NpyWriter out(o.out, {static_cast<int64_t>(tokens.size()), opened.model->spec.vocab});
  ProgressBar bar("evaluating", "tok");
  feeder.feed(tokens, [&](int32_t i, std::span<const float> logits) {
    out.write(logits);
    bar.update(i + 1, static_cast<double>(tokens.size()));
  });
  out.commit();
}

double log_sum_exp(std::span<const float> z) {
  const double most = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const float v : z) sum += std::exp(v - most);
  return most + std::log(sum);
}

// Consecutive windows of the text, each after BOS. As in llama.cpp only the second half of a window is
// scored, so that every scored token has a context of at least half a window; --score-all scores from the
// first token on.
std::vector<std::vector<Token>> windows_of(const EvalOptions& o, const Opened& opened) {
  std::vector<Token> all;
  Token bos = -1;
  if (!o.tokens.empty()) {
    all = read_tokens(o.tokens);
  } else {
    require_text(opened);
    all = opened.tokenizer->encode(read_file(o.text), false);
    bos = opened.tokenizer->data().bos;
  }
  if (o.no_bos || !o.tokens.empty()) bos = -1;
  const int32_t window = check_length(opened, o.window), fresh = window - (bos >= 0 ? 1 : 0);
  std::vector<std::vector<Token>> windows;
  for (size_t at = 0; at < all.size(); at += fresh) {
    std::vector<Token> w;
    if (bos >= 0) w.push_back(bos);
    const size_t n = std::min<size_t>(fresh, all.size() - at);
    if (n < static_cast<size_t>(fresh) && !windows.empty() && !o.score_all) break;
    w.insert(w.end(), all.begin() + at, all.begin() + at + n);
    if (w.size() > 1) windows.push_back(std::move(w));
    if (o.windows > 0 && windows.size() == static_cast<size_t>(o.windows)) break;
  }
  if (windows.empty()) throw Error("the text is too short: at least two tokens are needed");
  return windows;
}

size_t first_scored(const EvalOptions& o, size_t window) { return o.score_all ? 0 : window / 2 - 1; }

void eval_ppl(const EvalOptions& o) {
  const Opened opened = open_model(o.open);
  const auto windows = windows_of(o, opened);
  Feeder feeder(opened, o, o.window);
  double sum = 0, squares = 0, bytes = 0;
  size_t n = 0, done = 0;
  ProgressBar bar("evaluating", "windows");
  for (const auto& w : windows) {
    const size_t from = first_scored(o, w.size());
    feeder.feed(w, [&](int32_t i, std::span<const float> z) {
      if (static_cast<size_t>(i) < from || static_cast<size_t>(i) + 1 >= w.size()) return;
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

struct Divergence {
  std::vector<double> kl;
  size_t same_top = 0;
  void add(std::span<const float> base, std::span<const float> other) {
    const double a = log_sum_exp(base), b = log_sum_exp(other);
    double sum = 0;
    for (size_t v = 0; v < base.size(); ++v) {
      const double p = base[v] - a;
      sum += std::exp(p) * (p - (other[v] - b));
    }
    kl.push_back(std::max(0.0, sum));
    same_top += std::max_element(base.begin(), base.end()) - base.begin() ==
                std::max_element(other.begin(), other.end()) - other.begin();
  }
};

void eval_kl(const EvalOptions& o) {
  OpenOptions base_options = o.open;
  base_options.model = o.base;
  const Opened base = open_model(base_options), other = open_model(o.open);
  if (base.model->spec.vocab != other.model->spec.vocab)
    throw Error(fmt::format("the vocabularies differ: {} and {} entries", base.model->spec.vocab,
                            other.model->spec.vocab));
  const auto windows = windows_of(o, base.tokenizer ? base : other);
  Feeder base_feeder(base, o, o.window), feeder(other, o, o.window);
  Divergence d;
  ProgressBar bar("evaluating", "windows");
  for (size_t done = 0; done < windows.size(); ++done) {
    const auto& w = windows[done];
    std::vector<float> kept;
    base_feeder.feed(w,
                     [&](int32_t, std::span<const float> z) { kept.insert(kept.end(), z.begin(), z.end()); });
    feeder.feed(w, [&](int32_t i, std::span<const float> z) {
      d.add({kept.data() + z.size() * static_cast<size_t>(i), z.size()}, z);
    });
    bar.update(static_cast<double>(done + 1), static_cast<double>(windows.size()));
  }
  std::sort(d.kl.begin(), d.kl.end());
  const auto at = [&](double q) {
    return d.kl[static_cast<size_t>(q * static_cast<double>(d.kl.size() - 1))];
  };
  double mean = 0;
  for (const double v : d.kl) mean += v / static_cast<double>(d.kl.size());
  const double same = static_cast<double>(d.same_top) / static_cast<double>(d.kl.size());
  if (o.json)
    fmt::print("{}\n", nlohmann::json{{"kl_mean", mean},
                                      {"kl_median", at(0.5)},
                                      {"kl_p99", at(0.99)},
                                      {"kl_max", at(1)},
                                      {"same_top", same},
                                      {"positions", d.kl.size()}}
                           .dump());
  else
    fmt::print(
        "KL mean {:.6f} median {:.6f} p99 {:.6f} max {:.6f} nats; same top token {:.2f} %; {} positions\n",
        mean, at(0.5), at(0.99), at(1), same * 100, d.kl.size());
}

void add_common(CLI::App& app, EvalOptions& o) {
  add_open_flags(app, o.open);
  add_cache_type(app, "--cache-type-k", o.cache_k, "Type of cached keys (-ctk)");
  add_cache_type(app, "--cache-type-v", o.cache_v, "Type of cached values (-ctv)");
  app.add_option("-b,--batch-size", o.chunk, "Tokens per step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
}

void add_windows(CLI::App& app, EvalOptions& o) {
  auto* text = app.add_option("-f,--file", o.text, "Text to evaluate");
  app.add_option("--tokens", o.tokens, "Or token ids: a JSON list (no BOS is added)")->excludes(text);
  app.add_option("-c,--ctx-size", o.window, "Tokens per window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--chunks", o.windows, "Windows at most (-1: all)")->capture_default_str();
  app.add_flag("--no-bos", o.no_bos, "Do not begin windows with BOS");
  app.add_flag("--json", o.json, "Print a JSON object");
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* eval = app.add_subcommand("eval", "Logits, perplexity, KL, rendered prompts");
  eval->require_subcommand(1);

  auto logits = std::make_shared<EvalOptions>();
  CLI::App* a = eval->add_subcommand("logits", "Logits of every position to a .npy file, float32 [T, vocab]");
  add_common(*a, *logits);
  a->add_option("--tokens", logits->tokens, "Token ids: a JSON list; nothing is added")->required();
  a->add_option("--out", logits->out, "The .npy file")->required();
  a->callback([logits] { eval_logits(*logits); });

  add_eval_render(*eval);

  auto ppl = std::make_shared<EvalOptions>();
  CLI::App* b = eval->add_subcommand("ppl", "Perplexity of a text");
  add_common(*b, *ppl);
  add_windows(*b, *ppl);
  b->add_flag("--score-all", ppl->score_all, "Score whole windows, not only their second halves");
  b->callback([ppl] {
    if (ppl->text.empty() && ppl->tokens.empty())
      throw Error("no text", "give one with -f FILE or --tokens FILE.json");
    eval_ppl(*ppl);
  });

  auto kl = std::make_shared<EvalOptions>();
  kl->score_all = true;
  CLI::App* c = eval->add_subcommand("kl", "KL divergence of a model from another, over a text");
  add_common(*c, *kl);
  add_windows(*c, *kl);
  c->add_option("--base", kl->base, "The model to compare with, usually of higher precision")->required();
  c->callback([kl] {
    if (kl->text.empty() && kl->tokens.empty())
      throw Error("no text", "give one with -f FILE or --tokens FILE.json");
    eval_kl(*kl);
  });
}

}  // namespace carat
