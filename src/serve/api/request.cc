#include "serve/api/request.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <random>

#include "serve/api/refusals.h"
#include "serve/keys.h"

namespace carat {
namespace {

constexpr int kMaxAnswers = 32, kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

Token token_of_key(const std::string& key) {
  Token t = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), t);
  if (error != std::errc() || end != key.data() + key.size() || t < 0)
    throw ApiError(400, fmt::format("logit_bias: '{}' is not a token id", key), "logit_bias");
  return t;
}

float bias_of(const Json& j) {
  if (j.is_boolean() && !j.get<bool>()) return -std::numeric_limits<float>::infinity();
  if (!j.is_number() || std::abs(j.get<double>()) > 1000)
    throw ApiError(400, "logit_bias: a bias must be a number between -1000 and 1000, or false", "logit_bias");
  return j.get<float>();
}

// {"15": -100} as OpenAI has it, or [[15, -100], [16, false], ["a text", -1]] as llama.cpp does.
void read_logit_bias(const Fields& f, SampleParams& p, Wishes& w) {
  const Json* j = f.find("logit_bias");
  if (!j) return;
  if (j->is_object()) {
    for (const auto& [key, value] : j->items()) p.logit_bias.emplace_back(token_of_key(key), bias_of(value));
    return;
  }
  if (!j->is_array()) f.fail("logit_bias", "an object of token ids and biases");
  for (const Json& pair : *j) {
    if (!pair.is_array() || pair.size() != 2 || !(pair[0].is_number_integer() || pair[0].is_string()))
      f.fail("logit_bias", "made of pairs of a token id, or a text, and a bias");
    if (pair[0].is_string())
      w.text_bias.emplace_back(pair[0].get<std::string>(), bias_of(pair[1]));
    else
      p.logit_bias.emplace_back(token_of_key(pair[0].dump()), bias_of(pair[1]));
  }
}

std::vector<std::string> read_stop(const Fields& f) {
  const Json* j = f.find("stop");
  std::vector<std::string> out;
  if (!j) return out;
  const auto take = [&](const Json& s) {
    if (!s.is_string()) f.fail("stop", "a string or an array of strings");
    if (s.get_ref<const std::string&>().size() > kMaxStopBytes) f.fail("stop", "made of shorter strings");
    out.push_back(s.get<std::string>());
  };
  if (!j->is_array()) {
    take(*j);
    return out;
  }
  if (j->size() > kMaxStops) f.fail("stop", fmt::format("at most {} strings", kMaxStops));
  for (const Json& s : *j) take(s);
  return out;
}

float number(const Fields& f, const char* name, float otherwise, double low, double high) {
  return static_cast<float>(f.get_number(name, otherwise, low, high));
}
int32_t whole(const Fields& f, const char* name, int32_t otherwise, int64_t low, int64_t high) {
  return static_cast<int32_t>(f.get_int(name, otherwise, low, high));
}

// llama.cpp's own, by its names.
void read_llama_samplers(const Fields& f, SampleParams& p) {
  p.top_n_sigma = number(f, "top_n_sigma", p.top_n_sigma, -1, 1000);
  p.typical_p = number(f, "typical_p", p.typical_p, 0, 1);
  p.xtc_probability = number(f, "xtc_probability", p.xtc_probability, 0, 1);
  p.xtc_threshold = number(f, "xtc_threshold", p.xtc_threshold, 0, 1);
  p.dynatemp_range = number(f, "dynatemp_range", p.dynatemp_range, 0, 100);
  p.dynatemp_exponent = number(f, "dynatemp_exponent", p.dynatemp_exponent, 0, 100);
  p.mirostat = whole(f, "mirostat", p.mirostat, 0, 2);
  p.mirostat_tau = number(f, "mirostat_tau", p.mirostat_tau, 0, 100);
  p.mirostat_eta = number(f, "mirostat_eta", p.mirostat_eta, 0, 10);
  p.dry_multiplier = number(f, "dry_multiplier", p.dry_multiplier, 0, 100);
  p.dry_base = number(f, "dry_base", p.dry_base, 1, 100);
  p.dry_allowed_length = whole(f, "dry_allowed_length", p.dry_allowed_length, 1, 1 << 30);
  p.dry_penalty_last_n = whole(f, "dry_penalty_last_n", p.dry_penalty_last_n, -1, 1 << 30);
}

// llama.cpp's list of samplers and their order: those that it leaves out are off. Another order than ours
// cannot be had; where the temperature stands in it does not matter here.
void read_samplers(const Fields& f, SampleParams& p) {
  struct Sampler {
    const char *name, *other;
    char letter;
    void (*off)(SampleParams&);
  };
  static constexpr Sampler kOrder[] = {
      {"penalties", "", 'e',
       [](SampleParams& s) { s.repeat_penalty = 1, s.presence_penalty = 0, s.frequency_penalty = 0; }},
      {"dry", "", 'd', [](SampleParams& s) { s.dry_multiplier = 0; }},
      {"top_n_sigma", "top-n-sigma", 's', [](SampleParams& s) { s.top_n_sigma = -1; }},
      {"top_k", "top-k", 'k', [](SampleParams& s) { s.top_k = 0; }},
      {"typ_p", "typical_p", 'y', [](SampleParams& s) { s.typical_p = 1; }},
      {"top_p", "top-p", 'p', [](SampleParams& s) { s.top_p = 1; }},
      {"min_p", "min-p", 'm', [](SampleParams& s) { s.min_p = 0; }},
      {"xtc", "", 'x', [](SampleParams& s) { s.xtc_probability = 0; }},
      {"temperature", "temp", 't', [](SampleParams& s) { s.temperature = 1, s.dynatemp_range = 0; }}};
  constexpr size_t kCount = std::size(kOrder);
  const Json* j = f.find("samplers");
  if (!j) return;
  const std::string order =
      "an array of penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc and temperature, in this "
      "order";
  std::vector<std::string> names;
  if (j->is_string()) {  // a letter each
    for (const char c : j->get_ref<const std::string&>()) names.emplace_back(1, c);
  } else {
    if (!j->is_array()) f.fail("samplers", order);
    for (const Json& name : *j) names.push_back(name.is_string() ? name.get<std::string>() : "");
  }
  std::array<bool, kCount> on{};
  size_t last = 0;
  for (const std::string& name : names) {
    const auto is = [&](const Sampler& s) {
      if (j->is_string()) return name[0] == s.letter;
      return name == s.name || (*s.other != 0 && name == s.other);
    };
    size_t i = 0;
    while (i < kCount && !is(kOrder[i])) ++i;
    if (i == kCount || on[i] || (i + 1 < kCount && i < last)) f.fail("samplers", order);
    on[i] = true;
    if (i + 1 < kCount) last = i;
  }
  for (size_t i = 0; i < kCount; ++i)
    if (!on[i]) kOrder[i].off(p);
}

SampleParams read_sampling(const Fields& f, const ServeConfig& config) {
  const SampleParams& d = config.sample;
  SampleParams p = d;
  p.temperature = static_cast<float>(f.get_number("temperature", d.temperature, 0, 100));
  p.top_p = static_cast<float>(f.get_number("top_p", d.top_p, 0, 1));
  p.min_p = static_cast<float>(f.get_number("min_p", d.min_p, 0, 1));
  p.top_k = static_cast<int32_t>(std::max<int64_t>(0, f.get_int("top_k", d.top_k, -1, 1 << 30)));
  p.presence_penalty = static_cast<float>(f.get_number("presence_penalty", d.presence_penalty, -2, 2));
  p.frequency_penalty = static_cast<float>(f.get_number("frequency_penalty", d.frequency_penalty, -2, 2));
  const char* repeat = f.find("repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
  p.repeat_penalty = static_cast<float>(f.get_number(repeat, d.repeat_penalty, 0.01, 100));
  p.repeat_last_n = static_cast<int32_t>(f.get_int("repeat_last_n", d.repeat_last_n, -1, 1 << 30));
  read_llama_samplers(f, p);
  read_samplers(f, p);
  const int64_t seed = f.get_int("seed", config.seed);
  p.seed = seed == -1 ? random_seed() : static_cast<uint64_t>(seed);
  return p;
}

std::string read_id(const Fields& f) {
  std::string id = f.get_string("request_id", "");
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  if (id.size() > 128 || !std::all_of(id.begin(), id.end(), fits))
    f.fail("request_id", "at most 128 letters, digits and - _ .");
  return id;
}

void read_stream_options(const Fields& f, GenerateOptions& o) {
  const Json* j = f.find("stream_options");
  if (!j) return;
  if (!j->is_object()) f.fail("stream_options", "an object");
  const Fields options(*j, "stream_options.");
  o.include_usage = options.get_bool("include_usage", false);
  o.usage_each = options.get_bool("continuous_usage_stats", false) && o.include_usage;
  o.include_steps = options.get_bool("include_steps", false);
  if (!o.stream) f.fail("stream_options", "left out where `stream` is not true");
}

}  // namespace

GenerateOptions read_options(const Json& body, const ServeConfig& config, const HttpRequest& request) {
  const Fields f(body);
  refuse_what_is_not_done(f);
  GenerateOptions o;
  o.sample = read_sampling(f, config);
  const char* limit = f.find("max_completion_tokens") ? "max_completion_tokens"
                      : f.find("n_predict")           ? "n_predict"
                                                      : "max_tokens";
  o.max_tokens = static_cast<int32_t>(f.get_int(limit, config.max_tokens, -1, 1 << 30));
  o.n = static_cast<int>(f.get_int(f.find("n_cmpl") ? "n_cmpl" : "n", 1, 1, kMaxAnswers));
  o.slot = whole(f, "id_slot", -1, -1, kMaxSequences - 1);
  o.priority = static_cast<int32_t>(f.get_int("priority", 0, -1000000, 1000000));
  const std::string own = f.get_string("cache_salt", "");
  const std::string secret = config.salt_per_key ? request.secret : std::string();
  if (!own.empty() || !secret.empty()) o.salt = KeyRing::salt_of(secret, own);
  o.stop = read_stop(f);
  o.stream = f.get_bool("stream", false);
  o.ignore_eos = f.get_bool("ignore_eos", false);
  o.speculate = f.get_bool("speculation", true);
  o.id = read_id(f);
  o.timings_each = f.get_bool("timings_per_token", false);
  o.progress = f.get_bool("return_progress", false) && o.stream;
  o.max_predict_ms = f.get_number("t_max_predict_ms", 0, -1, 1e9);
  o.indent = static_cast<int>(f.get_int("n_indent", 0, 0, 1 << 20));
  o.wishes = read_wishes(f, config);
  read_logit_bias(f, o.sample, o.wishes);
  if (o.max_tokens > 0 && o.wishes.min_tokens > o.max_tokens)
    f.fail("min_tokens", fmt::format("at most {} ({})", limit, o.max_tokens));
  read_stream_options(f, o);
  return o;
}

std::vector<Token> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<Token> tokens = tokenizer.encode(text, true);
  const TokenizerData& d = tokenizer.data();
  if (d.add_bos && d.bos >= 0 && (tokens.empty() || tokens.front() != d.bos))
    tokens.insert(tokens.begin(), d.bos);
  return tokens;
}

void check_length(size_t prompt_tokens, int32_t context, const char* param) {
  if (prompt_tokens > static_cast<size_t>(context))
    throw PromptTooLong(
        fmt::format("the prompt has {} tokens, but the context holds {}; shorten it, or start the server "
                    "with a larger context (-c)",
                    prompt_tokens, context),
        param, prompt_tokens, context);
}

}  // namespace carat
