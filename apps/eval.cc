#include "apps/eval.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "engine/setup.h"

namespace carat {
namespace {

// The tokens around the content of a user's turn.
void chat_turn(const Opened& opened, std::vector<Token>& before, std::vector<Token>& after) {
  const std::string mark = "CONTENT-GOES-HERE";
  ChatInput input;
  input.messages = {{{"role", "user"}, {"content", mark}}};
  input.think = false;
  input.bos = opened.bos;
  input.eos = opened.eos;
  const std::string prompt = opened.chat->render(input);
  const size_t at = prompt.find(mark);
  if (at == std::string::npos) throw Error("the chat template drops what the user says");
  before = opened.tokenizer->encode(prompt.substr(0, at), true);
  after = opened.tokenizer->encode(prompt.substr(at + mark.size()), true);
}

// N of "recent=N".
int32_t positions(const std::string& text) {
  const char *from = text.data() + text.find('=') + 1, *to = text.data() + text.size();
  int32_t n = -1;
  const auto [end, ec] = std::from_chars(from, to, n);
  if (ec != std::errc() || end != to || n < 0 || n > kMaxContext)
    throw Error(fmt::format("'{}' names no number of positions", text), "give it like recent=128");
  return n;
}

}  // namespace

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

int32_t check_length(const Opened& opened, size_t n) {
  const size_t most = std::min<size_t>(kMaxContext, 16 * static_cast<size_t>(opened.model->spec.context));
  if (n > most)
    throw Error(
        fmt::format("{} tokens are more than {}, sixteen times what the model was trained for", n, most),
        "leave out some");
  const auto context = static_cast<int32_t>(n);
  if (context > opened.model->spec.context) log_warn("{}", beyond_training(context, opened.model->spec));
  return context;
}

KvFormats cache_formats(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream in(name);
  for (std::string part; std::getline(in, part, '+');) parts.push_back(part);
  const std::vector<DType> t = cache_types(parts.empty() ? "" : parts[0]);
  KvFormats f;
  switch (t.size()) {
    case 1: f = {t[0], t[0], t[0], t[0]}; break;
    case 2: f = {t[0], t[1], t[0], t[1]}; break;
    case 4: f = {t[0], t[1], t[2], t[3]}; break;
    default:
      throw Error(fmt::format("'{}' names {} cache types", parts[0], t.size()),
                  "give one, K/V, or K/V and then those of sliding layers");
  }
  for (size_t i = 1; i < parts.size(); ++i)
    if (parts[i] == "single")
      f.single = true;
    else if (parts[i].starts_with("sinks="))
      f.protect.sinks = positions(parts[i]);
    else if (parts[i].starts_with("recent="))
      f.protect.recent = positions(parts[i]);
    else
      f.layers.push_back(layer_format(parts[i]));
  return f;
}

void add_caches_flag(CLI::App& app, std::vector<std::string>& caches, const std::string& does) {
  auto* flag = app.add_option("--caches", caches,
                              does +
                                  ": q8_0 (all), q8_0/tq4 (K/V), kv4/tq3/q8_0/q8_0 (then those of sliding "
                                  "layers); behind it +single, one copy of K = V, +sinks=N, +recent=N");
  flag->delimiter(',');
  exclude_cache_flags(app, *flag);
}

std::vector<KvFormats> formats_to_try(const std::vector<std::string>& names, const EvalOptions& o,
                                      const Opened& opened, int32_t context) {
  std::vector<KvFormats> all;
  for (const std::string& name : names) all.push_back(cache_formats(name));
  if (all.empty()) all.push_back(flag_formats(o.cache, opened, context));
  return all;
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
  std::vector<Token> before, after;  // of every window
  if (!o.tokens.empty()) {
    all = read_tokens(o.tokens);
  } else {
    require_text(opened);
    all = opened.tokenizer->encode(read_file(o.text), false);
    if (o.chat && opened.chat)
      chat_turn(opened, before, after);
    else if (const Token bos = opened.tokenizer->data().bos; bos >= 0 && !o.no_bos)
      before.push_back(bos);
  }
  const int32_t window = check_length(opened, o.window);
  const auto frame = static_cast<int32_t>(before.size() + after.size()), fresh = window - frame;
  if (fresh < 1) throw Error(fmt::format("windows of {} tokens leave no room for text", window));
  std::vector<std::vector<Token>> windows;
  for (size_t at = 0; at < all.size(); at += fresh) {
    std::vector<Token> w = before;
    const size_t n = std::min<size_t>(fresh, all.size() - at);
    if (n < static_cast<size_t>(fresh) && !windows.empty() && !o.score_all) break;
    w.insert(w.end(), all.begin() + at, all.begin() + at + n);
    w.insert(w.end(), after.begin(), after.end());
    if (w.size() > 1) windows.push_back(std::move(w));
    if (o.windows > 0 && windows.size() == static_cast<size_t>(o.windows)) break;
  }
  if (windows.empty()) throw Error("the text is too short: at least two tokens are needed");
  return windows;
}

void add_eval_common(CLI::App& app, EvalOptions& o) {
  add_open_flags(app, o.open);
  add_cache_flags(app, o.cache);
  app.add_option("--ubatch-size", o.ubatch, "The same, and the smaller of both counts (-ub)")
      ->check(CLI::Range(1, 8192));
  app.add_option("-b,--batch-size", o.chunk, "Tokens per step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
}

void add_eval_windows(CLI::App& app, EvalOptions& o) {
  auto* text = app.add_option("-f,--file", o.text, "Text to evaluate");
  app.add_option("--tokens", o.tokens, "Token ids in place of a text: a JSON list (no BOS is added)")
      ->excludes(text);
  app.add_option("-c,--ctx-size", o.window, "Tokens per window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--chunks", o.windows, "Evaluate at most this many windows (-1: all)")
      ->capture_default_str();
  app.add_flag("--no-bos", o.no_bos, "Do not begin windows with BOS");
  add_measure_flags(app, o.measure);
}

}  // namespace carat
