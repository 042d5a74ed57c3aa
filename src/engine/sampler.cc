#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "engine/dry.h"
#include "engine/select.h"
#include "engine/truncate.h"

namespace carat {
namespace {

constexpr size_t kBlock = 64;  // tokens whose noise is computed together

// Reused between calls: fresh megabytes per token would cost more than the sampling.
struct Scratch {
  std::vector<float> adjusted, masked;
  std::vector<Scored> items;
  std::vector<uint32_t> seen;  // [vocab] number of the last call that met the token
  uint32_t call = 0;
};
Scratch& scratch() {
  thread_local Scratch s;
  return s;
}

void check_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high))
    throw Error(fmt::format("{} is {}", name, value),
                fmt::format("{} must be between {} and {}", name, low, high));
}

void repeat_penalty(std::span<float> logits, const SampleParams& p, const History& history) {
  std::span<const Token> recent = history.tokens();
  if (p.repeat_last_n >= 0 && recent.size() > static_cast<size_t>(p.repeat_last_n))
    recent = recent.last(static_cast<size_t>(p.repeat_last_n));
  Scratch& s = scratch();
  s.seen.resize(logits.size());
  if (++s.call == 0) {
    std::fill(s.seen.begin(), s.seen.end(), 0);
    s.call = 1;
  }
  for (const Token t : recent) {
    if (t < 0 || static_cast<size_t>(t) >= logits.size() || s.seen[t] == s.call) continue;
    s.seen[t] = s.call;
    logits[t] = logits[t] > 0 ? logits[t] / p.repeat_penalty : logits[t] * p.repeat_penalty;
  }
}

bool keeps_values(const SampleParams& p) {
  const bool repeats = p.repeat_penalty != 1 && p.repeat_last_n != 0;
  return !repeats && p.presence_penalty == 0 && p.frequency_penalty == 0 && !uses_dry(p);
}
bool keeps_logits(const SampleParams& p) { return p.logit_bias.empty() && keeps_values(p); }

bool bans(const std::pair<Token, float>& bias) {
  return bias.second == -std::numeric_limits<float>::infinity();
}

// Bias and penalties; the logits themselves if there are none.
std::span<const float> adjusted(std::span<const float> logits, const SampleParams& p,
                                const History& history) {
  if (keeps_logits(p)) return logits;
  std::vector<float>& out = scratch().adjusted;
  out.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : p.logit_bias)
    if (token >= 0 && static_cast<size_t>(token) < out.size()) out[token] += bias;
  if (p.repeat_penalty != 1 && p.repeat_last_n != 0) repeat_penalty(out, p, history);
  if (p.presence_penalty != 0 || p.frequency_penalty != 0)
    for (const auto& [token, count] : history.generated())
      if (token >= 0 && static_cast<size_t>(token) < out.size())
        out[token] -= p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
  if (uses_dry(p)) penalize_repeats(out, p, history);
  return out;
}

std::span<const float> masked(std::span<const float> logits, std::span<const uint64_t> allowed) {
  std::vector<float>& out = scratch().masked;
  out.assign(logits.size(), -std::numeric_limits<float>::infinity());
  for (size_t word = 0; word < allowed.size() && word * 64 < logits.size(); ++word)
    for (uint64_t bits = allowed[word]; bits != 0; bits &= bits - 1) {
      const size_t token = word * 64 + static_cast<size_t>(std::countr_zero(bits));
      if (token < logits.size()) out[token] = logits[token];
    }
  return out;
}

Maximum checked_maximum(std::span<const float> logits) {
  const Maximum m = find_maximum(logits);
  if (!m.finite)
    throw Error(
        "the model produced NaN or infinite logits",
        "the weights are damaged or of an unsupported kind; `carat inspect` and another file may tell");
  if (!(m.value > -std::numeric_limits<float>::infinity()))
    throw Error("no token may be picked", "logit_bias bans everything that is left");
  return m;
}

// What bias, penalties and filters leave: every value that cut keeps. If listed, the scratch items
// are these values.
struct Filtered {
  std::span<const float> values;
  float best = 0;
  Cut cut;
  bool listed = false;
};

// top-p and min-p, of what top-k left.
void cut_mass(Filtered& f, const SampleParams& p) {
  const double t = p.temperature;
  if (p.top_p < 1) {
    f.cut = f.listed ? mass_cut(scratch().items, f.best, t, p.top_p) : mass_cut(f.values, f.best, t, p.top_p);
  }
  if (p.min_p > 0) {
    // exp((v - best) / t) < min_p, solved for v once; the best always stays.
    const double bar = std::min(double{f.best}, f.best + t * std::log(double{p.min_p}));
    float least = static_cast<float>(bar);
    if (double{least} < bar) least = std::nextafter(least, std::numeric_limits<float>::infinity());
    if (least > f.cut.value) f.cut = {least, std::numeric_limits<Token>::max()};
  }
  if (f.listed) std::erase_if(scratch().items, [&](const Scored& s) { return !f.cut.keeps(s); });
}

Filtered filter(std::span<const float> logits, const SampleParams& p, const History& history) {
  Filtered f;
  f.values = adjusted(logits, p, history);
  f.best = checked_maximum(f.values).value;
  std::vector<Scored>& items = scratch().items;
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < f.values.size()) {
    select_top(f.values, static_cast<size_t>(p.top_k), items);
    f.listed = true;
    float lowest = f.best;
    for (const Scored& s : items) lowest = std::min(lowest, s.value);
    f.cut.value = lowest;
  }
  cut_mass(f, p);
  // The long way is the faster one per token.
  const size_t most = f.values.size() / 8 + kBlock;
  if (f.listed)
    f.listed = items.size() < most;
  else if (p.top_p < 1)
    f.listed = collect(f.values, f.cut, most, items);
  return f;
}

// What remains one by one where the filters of truncate.h are asked for, too.
struct Remaining {
  std::span<const Scored> items;
  float best = 0;
  double temperature = 1;
};

Remaining remaining(std::span<const float> logits, const SampleParams& p, const History& history,
                    int64_t pos) {
  const std::span<const float> values = adjusted(logits, p, history);
  const float best = checked_maximum(values).value;
  std::vector<Scored>& items = scratch().items;
  if (p.mirostat != 0) {
    keep_all(values, std::numeric_limits<float>::lowest(), items);
    keep_unsurprising(items, best, p, history);
    return {items, best, p.temperature};
  }
  const float bar = sigma_bar(values, best, p.top_n_sigma);
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < values.size()) {
    select_top(values, static_cast<size_t>(p.top_k), items);
    std::erase_if(items, [bar](const Scored& s) { return s.value < bar; });
  } else {
    keep_all(values, bar, items);
  }
  if (p.typical_p < 1) keep_typical(items, best, p.temperature, p.typical_p);
  Filtered f;
  f.listed = true;
  for (const Scored& s : items) f.best = &s == items.data() ? s.value : std::max(f.best, s.value);
  cut_mass(f, p);
  if (p.xtc_probability > 0) exclude_top(items, p, pos);
  f.best = items.front().value;
  for (const Scored& s : items) f.best = std::max(f.best, s.value);
  return {items, f.best, dynamic_temperature(items, f.best, p)};
}

// The running argmax of log p(x) + Gumbel(seed, pos, x); scores relative to the best token's log p.
class Draw {
 public:
  Draw(const SampleParams& p, int64_t pos, float best) : Draw(p, pos, best, p.temperature) {}
  Draw(const SampleParams& p, int64_t pos, float best, double temperature)
      : seed_(p.seed), pos_(static_cast<uint64_t>(pos)), best_(best), temperature_(temperature) {
    for (size_t i = 0; i < bound_.size(); ++i) bound_[i] = std::exp(-static_cast<double>(i)) * (1 + 0x1p-20);
  }
  double distance(float value) const { return (double{value} - best_) / temperature_; }
  void offer(float value, Token id) {
    const double noise = -std::log(-std::log(uniform_noise(seed_, pos_, static_cast<uint32_t>(id))));
    const double score = distance(value) + noise;
    if (token_ < 0 || score > score_ || (score == score_ && id < token_)) {
      token_ = id;
      score_ = score;
    }
  }
  // Whether u, known to be at most 1 - rest, can still win: it needs -log u < exp(distance - score), and
  // -log u >= 1 - u. The bound is rounded up, so nothing that could win is passed over.
  bool hopeless(float value, double rest) const {
    const double behind = score_ - distance(value);
    return behind >= 0 && rest > bound_[static_cast<size_t>(std::min(behind, 63.0))];
  }
  uint64_t seed() const { return seed_; }
  uint64_t pos() const { return pos_; }
  Token token() const { return token_; }

 private:
  uint64_t seed_, pos_;
  double best_, temperature_, score_ = 0;
  Token token_ = -1;
  std::array<double, 64> bound_;
};

// The first word of the noise of kBlock tokens: what uniform_noise takes its upper 32 bits from. Returns the
// largest.
// The thread sanitizer instruments resolvers, which run before it does.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
uint32_t
noise_words(uint64_t seed, uint64_t pos, uint32_t first, std::array<uint32_t, kBlock>& out) {
  std::array<uint32_t, kBlock> c0, c1, c2, c3;
  for (size_t l = 0; l < kBlock; ++l) {
    c0[l] = static_cast<uint32_t>(pos);
    c1[l] = static_cast<uint32_t>(pos >> 32);
    c2[l] = first + static_cast<uint32_t>(l);
    c3[l] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (size_t l = 0; l < kBlock; ++l) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[l], p1 = uint64_t{0xCD9E8D57u} * c2[l];
      c0[l] = static_cast<uint32_t>(p1 >> 32) ^ c1[l] ^ k0;
      c1[l] = static_cast<uint32_t>(p1);
      c2[l] = static_cast<uint32_t>(p0 >> 32) ^ c3[l] ^ k1;
      c3[l] = static_cast<uint32_t>(p0);
    }
  out = c0;
  uint32_t most = 0;
  for (const uint32_t word : c0) most = std::max(most, word);
  return most;
}

float largest(const float* values, size_t n) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> most;
  most.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) most[l] = std::max(most[l], values[i + l]);
  for (; i < n; ++i) most[0] = std::max(most[0], values[i]);
  return *std::max_element(most.begin(), most.end());
}

Token draw_from_all(const Filtered& f, Draw& draw) {
  draw.offer(f.best, first_of(f.values, f.best));  // a high bar from the start
  std::array<uint32_t, kBlock> words;
  for (size_t i = 0; i < f.values.size(); i += kBlock) {
    const size_t n = std::min(kBlock, f.values.size() - i);
    const float most = largest(&f.values[i], n);
    if (most < f.cut.value) continue;
    const auto rest = [](uint32_t word) { return (4294967295.0 - word) * 0x1p-32; };
    const uint32_t word = noise_words(draw.seed(), draw.pos(), static_cast<uint32_t>(i), words);
    if (draw.hopeless(most, rest(word))) continue;  // nobody in this block has as much of both
    for (size_t l = 0; l < n; ++l) {
      const float v = f.values[i + l];
      if (v < f.cut.value || draw.hopeless(v, rest(words[l]))) continue;
      const Scored s{v, static_cast<Token>(i + l)};
      if (f.cut.keeps(s)) draw.offer(v, s.id);
    }
  }
  return draw.token();
}

double log_sum(std::span<const float> logits, float best) {
  double sum = 0;
  for (const float v : logits) sum += std::exp(double{v} - best);
  return best + std::log(sum);
}

}  // namespace

void check_params(const SampleParams& p) {
  check_range("temperature", p.temperature, 0, 100);
  check_range("top_k", p.top_k, 0, 1 << 30);
  check_range("top_p", p.top_p, 0, 1);
  check_range("min_p", p.min_p, 0, 1);
  check_range("top_n_sigma", p.top_n_sigma, -1, 1000);
  check_range("typical_p", p.typical_p, 0, 1);
  check_range("xtc_probability", p.xtc_probability, 0, 1);
  check_range("xtc_threshold", p.xtc_threshold, 0, 1);
  check_range("dynatemp_range", p.dynatemp_range, 0, 100);
  check_range("dynatemp_exponent", p.dynatemp_exponent, 0, 100);
  check_range("mirostat", p.mirostat, 0, 2);
  check_range("mirostat_tau", p.mirostat_tau, 0, 100);
  check_range("mirostat_eta", p.mirostat_eta, 0, 10);
  check_range("dry_multiplier", p.dry_multiplier, 0, 100);
  check_range("dry_base", p.dry_base, 1, 100);
  check_range("dry_allowed_length", p.dry_allowed_length, 1, 1 << 30);
  check_range("dry_penalty_last_n", p.dry_penalty_last_n, -1, 1 << 30);
  check_range("repeat_penalty", p.repeat_penalty, 0.01, 100);
  check_range("repeat_last_n", p.repeat_last_n, -1, 1 << 30);
  check_range("presence_penalty", p.presence_penalty, -2, 2);
  check_range("frequency_penalty", p.frequency_penalty, -2, 2);
  for (const auto& [token, bias] : p.logit_bias)
    if (bias != -std::numeric_limits<float>::infinity()) check_range("logit_bias", bias, -1000, 1000);
}

void History::add_prompt(std::span<const Token> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}
void History::add(Token generated) {
  tokens_.push_back(generated);
  ++generated_[generated];
}
int32_t History::generated_count(Token token) const {
  const auto it = generated_.find(token);
  return it == generated_.end() ? 0 : it->second;
}

Token pick(std::span<const float> logits, const SampleParams& params, const History& history, int64_t pos,
           std::span<const uint64_t> allowed) {
  if (!allowed.empty()) logits = masked(logits, allowed);
  if (params.temperature == 0) {
    const std::span<const float> values = adjusted(logits, params, history);
    return first_of(values, checked_maximum(values).value);
  }
  if (truncates(params)) {
    const Remaining r = remaining(logits, params, history, pos);
    Draw draw(params, pos, r.best, r.temperature);
    for (const Scored& s : r.items) draw.offer(s.value, s.id);
    return draw.token();
  }
  const Filtered f = filter(logits, params, history);
  Draw draw(params, pos, f.best);
  if (!f.listed) return draw_from_all(f, draw);
  for (const Scored& s : scratch().items) draw.offer(s.value, s.id);
  return draw.token();
}

// Where the bias only bans: the rest of the best ones, in their order.
static std::optional<Token> pick_among_allowed(std::span<const int32_t> column, std::span<const float> value,
                                               const SampleParams& params, int64_t pos) {
  if (!std::all_of(params.logit_bias.begin(), params.logit_bias.end(), bans)) return {};
  std::vector<int32_t> left;
  std::vector<float> values;
  for (size_t i = 0; i < column.size(); ++i) {
    if (std::any_of(params.logit_bias.begin(), params.logit_bias.end(),
                    [&](const auto& b) { return b.first == column[i]; }))
      continue;
    left.push_back(column[i]), values.push_back(value[i]);
  }
  SampleParams plain = params;
  plain.logit_bias.clear();
  return pick_among(left, values, plain, pos);
}

void learn(std::span<const float> logits, const SampleParams& params, History& history, Token picked,
           std::span<const uint64_t> allowed) {
  if (params.mirostat == 0 || params.temperature == 0) return;
  if (!allowed.empty()) logits = masked(logits, allowed);
  const std::span<const float> values = adjusted(logits, params, history);
  learn_surprise(values, checked_maximum(values).value, params, history, picked);
}

std::optional<Token> pick_among(std::span<const int32_t> column, std::span<const float> value,
                                const SampleParams& params, int64_t pos) {
  if (column.empty() || !keeps_values(params)) return {};
  if (truncates(params) && params.temperature > 0) return {};
  if (!params.logit_bias.empty()) return pick_among_allowed(column, value, params, pos);
  if (params.temperature == 0) return column[0];
  const auto k = static_cast<size_t>(std::max(params.top_k, 0));
  if (k == 0 || value.size() <= k || value.back() == value[k - 1]) return {};  // others may tie with the k-th
  Filtered f;
  f.best = value[0], f.cut.value = value[k - 1], f.listed = true;
  std::vector<Scored>& items = scratch().items;
  items.clear();
  for (size_t i = 0; i < value.size() && value[i] >= f.cut.value; ++i) items.push_back({value[i], column[i]});
  cut_mass(f, params);
  Draw draw(params, pos, f.best);
  for (const Scored& s : items) draw.offer(s.value, s.id);
  return draw.token();
}

std::vector<float> distribution(std::span<const float> logits, const SampleParams& params,
                                const History& history, int64_t pos) {
  std::vector<float> out(logits.size(), 0.0F);
  if (params.temperature == 0) {
    out[pick(logits, params, history, pos)] = 1;
    return out;
  }
  if (truncates(params)) {
    const Remaining r = remaining(logits, params, history, pos);
    double all = 0;
    for (const Scored& s : r.items) all += std::exp((double{s.value} - r.best) / r.temperature);
    for (const Scored& s : r.items)
      out[s.id] = static_cast<float>(std::exp((double{s.value} - r.best) / r.temperature) / all);
    return out;
  }
  const Filtered f = filter(logits, params, history);
  const auto weight = [&](float v) { return std::exp((double{v} - f.best) / params.temperature); };
  const auto kept = [&](size_t i) { return f.cut.keeps({f.values[i], static_cast<Token>(i)}); };
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i)
    if (kept(i)) sum += weight(f.values[i]);
  for (size_t i = 0; i < out.size(); ++i)
    if (kept(i)) out[i] = static_cast<float>(weight(f.values[i]) / sum);
  return out;
}

Logprobs logprobs(std::span<const float> logits, Token token, int32_t n) {
  const double norm = log_sum(logits, checked_maximum(logits).value);
  Logprobs out;
  out.chosen = static_cast<float>(logits[token] - norm);
  if (n <= 0) return out;
  const size_t count = std::min(static_cast<size_t>(n), logits.size());
  std::vector<Scored> best;
  select_top(logits, count, best);
  std::sort(best.begin(), best.end(), before);
  if (best.size() > count) best.resize(count);
  for (const Scored& s : best) out.top.push_back({s.id, static_cast<float>(s.value - norm)});
  return out;
}

}  // namespace carat
