// carat eval ppl: perplexity of a text, in windows as llama.cpp's perplexity takes them, for several cache
// settings in one run.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>

#include "apps/cli.h"
#include "apps/eval.h"
#include "apps/progress.h"
#include "base/file.h"

namespace carat {
namespace {

struct PplOptions : EvalOptions {
  int32_t stride = 0;
  bool by_chunk = false;
  std::vector<std::string> caches;
};

// Tokens of the text: in a turn of the model's chat template with --chat. A file of JSON lines, each an
// object with messages, is so many conversations, one behind the other.
std::vector<Token> text_tokens(const PplOptions& o, const Opened& opened) {
  if (!o.tokens.empty()) return read_tokens(o.tokens);
  require_text(opened);
  std::string text = read_file(o.text);
  const Tokenizer& t = *opened.tokenizer;
  const auto render = [&](const Json& messages, bool ends) {
    ChatInput input;
    input.messages = messages;
    input.add_generation_prompt = !ends;
    input.think = false;
    input.bos = opened.bos, input.eos = opened.eos;
    return opened.chat->render(input);
  };
  if (o.chat && o.text.ends_with(".jsonl")) {
    std::string all;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const Json line = Json::parse(text.substr(at, end - at), nullptr, false);
      if (line.is_object() && line.contains("messages")) all += render(line["messages"], true);
      at = end + 1;
    }
    if (all.empty())
      throw Error(fmt::format("'{}' has no messages", o.text), R"({"messages": [...]} a line)");
    text = std::move(all);
  } else if (o.chat) {
    text = render(Json::array({{{"role", "user"}, {"content", text}}}), false);
  }
  std::vector<Token> tokens = t.encode(text, o.chat);
  const TokenizerData& d = t.data();
  if (d.add_bos && d.bos >= 0 && !o.no_bos && (tokens.empty() || tokens.front() != d.bos))
    tokens.insert(tokens.begin(), d.bos);
  return tokens;
}

struct Window {
  std::vector<Token> tokens;
  int32_t from = 0;  // the first position whose next token is scored
};

// With a stride, windows of -c and half a stride begin a stride behind one another and score their last
// stride of tokens. Without, windows stand side by side, begin with BOS in place of their first token and
// score their second half. Both as in llama.cpp.
std::vector<Window> windows(const PplOptions& o, const Opened& opened) {
  const std::vector<Token> all = text_tokens(o, opened);
  const auto n = static_cast<int32_t>(all.size());
  const int32_t size = check_length(opened, static_cast<size_t>(o.window + o.stride / 2));
  std::vector<Window> out;
  const auto full = [&] { return o.windows > 0 && out.size() == static_cast<size_t>(o.windows); };
  if (o.stride > 0) {
    for (int32_t at = 0; at + size <= n && !full(); at += o.stride)
      out.push_back({{all.begin() + at, all.begin() + at + size}, size - o.stride - 1});
  } else {
    const Token bos = opened.tokenizer ? opened.tokenizer->data().bos : -1;
    const bool begins = o.tokens.empty() && !o.no_bos && bos >= 0;
    for (int32_t at = 0; at + 1 < n && !full(); at += size) {
      const int32_t end = std::min(at + size, n);
      if (end - at < size && !o.score_all && !out.empty()) break;
      Window w{{all.begin() + at, all.begin() + end}, o.score_all ? 0 : (end - at) / 2};
      if (begins) w.tokens.front() = bos;
      if (w.from + 1 >= end - at) w.from = 0;
      out.push_back(std::move(w));
    }
  }
  if (out.empty())
    throw Error(fmt::format("the text is too short: {} tokens, windows of {}", n, size),
                "choose a smaller -c");
  return out;
}

struct Perplexity {
  double sum = 0, squares = 0, bytes = 0, tokens = 0, seconds = 0, fed = 0;
  std::vector<double> cumulative;  // after every window
  Energy energy;
  double mean() const { return sum / tokens; }
  double error() const {
    return std::sqrt(std::max(0.0, squares / tokens - mean() * mean()) / std::max(1.0, tokens - 1));
  }
};

Perplexity perplexity(const std::vector<Window>& all, const PplOptions& o, const Opened& opened,
                      const KvFormats& formats, Measurement& m) {
  Feeder feeder(opened, o.rows(), formats, o.window + o.stride / 2);
  Perplexity p;
  ProgressBar bar(formats.text(), "windows");
  const Energy before = m.energy().read();
  const auto began = std::chrono::steady_clock::now();
  for (const Window& w : all) {
    feeder.feed(w.tokens, w.from, [&](int32_t i, std::span<const float> z) {
      const auto next = static_cast<size_t>(i) + 1;
      if (next >= w.tokens.size()) return;
      const double nats = log_sum_exp(z) - z[static_cast<size_t>(w.tokens[next])];
      p.sum += nats, p.squares += nats * nats, p.tokens += 1;
      if (opened.tokenizer) p.bytes += static_cast<double>(opened.tokenizer->piece(w.tokens[next]).size());
    });
    p.fed += static_cast<double>(w.tokens.size());
    p.cumulative.push_back(std::exp(p.mean()));
    bar.update(static_cast<double>(p.cumulative.size()), static_cast<double>(all.size()));
  }
  p.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  p.energy = m.energy().read() - before;
  return p;
}

Record record_of(const Measurement& m, const PplOptions& o, const KvFormats& f, const Perplexity& p) {
  Record r = m.begin("ppl " + f.text());
  Record& s = r["settings"];
  put_cache(s, f);
  s["text"] = o.text.empty() ? o.tokens : o.text;
  s["ctx"] = o.window, s["batch"] = o.rows(), s["stride"] = o.stride, s["chat"] = o.chat;
  Record& x = r["figures"];
  x["ppl"] = std::exp(p.mean()), x["ppl_error"] = std::exp(p.mean()) * p.error();
  x["nats_per_token"] = p.mean(), x["nats_per_token_error"] = p.error();
  if (p.bytes > 0) x["bits_per_byte"] = p.sum / std::log(2.0) / p.bytes;
  x["tokens"] = p.tokens, x["windows"] = p.cumulative.size(), x["cumulative_ppl"] = p.cumulative;
  x["wall_s"] = p.seconds, x["prefill_tps"] = p.fed / p.seconds;
  if (m.has_energy()) put_energy(x, p.energy);
  return r;
}

void print(const PplOptions& o, const KvFormats& f, const Perplexity& p, const std::vector<Window>& all) {
  const double ppl = std::exp(p.mean()), bits = p.bytes > 0 ? p.sum / std::log(2.0) / p.bytes : 0;
  fmt::print("| {:<26} | {:>10.4f} | {:>8.4f} | {:>9.5f} | {:>9.4f} | {:>7.0f} | {:>7} |\n", f.text(), ppl,
             ppl * p.error(), p.mean(), bits, p.tokens, all.size());
  if (!o.by_chunk) return;
  for (size_t i = 0; i < p.cumulative.size(); ++i)
    fmt::print("{}[{}]{:.4f}", i ? "," : "", i + 1, p.cumulative[i]);
  fmt::print("\n");
}

void eval_ppl(const PplOptions& o) {
  Measurement m(o.measure, "ppl");
  const Opened opened = open_model(o.open);
  m.opened(opened);
  if (o.chat && !opened.chat) throw Error("the model has no chat format", "leave --chat out");
  const std::vector<Window> all = windows(o, opened);
  if (m.prints_table()) {
    fmt::print("| {:<26} | {:>10} | {:>8} | {:>9} | {:>9} | {:>7} | {:>7} |\n", "cache K/V", "perplexity",
               "+/-", "nats", "bits/byte", "tokens", "windows");
    fmt::print("| {:-<26} | {:->9}: | {:->7}: | {:->8}: | {:->8}: | {:->6}: | {:->6}: |\n", "", "", "", "",
               "", "", "");
  }
  for (const KvFormats& f : formats_to_try(o.caches, o, opened, o.window + o.stride / 2)) {
    const Perplexity p = perplexity(all, o, opened, f, m);
    if (m.prints_table()) print(o, f, p, all);
    m.add(record_of(m, o, f, p));
  }
  m.finish();
}

}  // namespace

void add_eval_ppl(CLI::App& eval) {
  auto o = std::make_shared<PplOptions>();
  CLI::App* app = eval.add_subcommand("ppl", "Perplexity of a text");
  add_eval_common(*app, *o);
  add_eval_windows(*app, *o);
  app->add_flag("--score-all", o->score_all, "Score whole windows, not only their second halves");
  app->add_option("--ppl-stride", o->stride,
                  "Tokens between the starts of overlapping windows; each scores its last ones")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_flag("--chat", o->chat,
                "Put the text into a turn of the model's chat template; FILE.jsonl holds conversations");
  app->add_flag("--by-chunk", o->by_chunk, "Print the value after every window, too");
  add_caches_flag(*app, o->caches, "Go through these caches");
  app->callback([o, app] {
    if (o->text.empty() && o->tokens.empty())
      throw Error("no text", "give one with -f FILE or --tokens FILE.json");
    if (!o->chat) refuse_without_effect(*app, {"--chat-template"}, "eval ppl without --chat");
    if (o->chat && !o->tokens.empty())
      throw Error("--chat needs a text, not --tokens", "give it with -f FILE");
    if (o->stride > 0) refuse_without_effect(*app, {"--score-all"}, "eval ppl --ppl-stride");
    if (o->stride >= o->window) throw Error("--ppl-stride is not below -c", "choose a smaller stride");
    eval_ppl(*o);
  });
}

}  // namespace carat
