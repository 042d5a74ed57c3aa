#include "apps/spec_runs.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>

#include "apps/generate.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"

namespace carat {
namespace {

std::vector<Token> random_tokens(int32_t n, uint64_t seed, const Opened& opened) {
  std::vector<Token> tokens;
  const double vocab = opened.model->spec.vocab;
  for (int32_t i = 0; i < n; ++i)
    tokens.push_back(
        static_cast<Token>((0.1 + 0.8 * uniform_noise(seed, static_cast<uint64_t>(i), 0)) * vocab));
  return tokens;
}

std::vector<Token> with_bos(const std::string& text, const Opened& opened) {
  require_text(opened);
  std::vector<Token> tokens = opened.tokenizer->encode(text, true);
  const TokenizerData& data = opened.tokenizer->data();
  if (data.add_bos && data.bos >= 0 && (tokens.empty() || tokens.front() != data.bos))
    tokens.insert(tokens.begin(), data.bos);
  return tokens;
}

std::vector<Token> prompt_tokens(const Json& p, uint64_t seed, const Opened& opened) {
  if (p.contains("random"))
    return random_tokens(std::clamp(p.at("random").get<int32_t>(), 1, 4096), seed, opened);
  if (p.contains("text")) return with_bos(p.at("text").get<std::string>(), opened);
  require_text(opened);
  ChatInput input;
  input.messages = Json::array({{{"role", "user"}, {"content", p.at("user").get<std::string>()}}});
  input.think = p.value("think", false);
  input.bos = opened.bos;
  input.eos = opened.eos;
  return with_bos(opened.chat->render(input), opened);
}

double elapsed_seconds(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// Several at once: all are submitted, the engine runs as many as it has sequences.
SpecRun run_together(Engine& engine, std::vector<Request> requests) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    size_t ended = 0;
    double tokens = 0;
    SpecStats stats;
    std::string error;
  };
  const auto shared = std::make_shared<Shared>();
  const size_t all = requests.size();
  const auto began = std::chrono::steady_clock::now();
  for (Request& r : requests) {
    r.sink = [shared](const Event& e) {
      const std::lock_guard lock(shared->mutex);
      shared->tokens += static_cast<double>(e.tokens.size());
      if (e.finish == Finish::none) return;
      if (e.finish == Finish::error) shared->error = e.error;
      if (e.spec) shared->stats.add(*e.spec);
      ++shared->ended;
      shared->changed.notify_one();
    };
    engine.submit(std::move(r));
  }
  std::unique_lock lock(shared->mutex);
  shared->changed.wait(lock, [&] { return shared->ended == all; });
  if (!shared->error.empty()) throw Error(shared->error);
  SpecRun run;
  run.stats = shared->stats, run.tokens = shared->tokens, run.seconds = elapsed_seconds(began);
  return run;
}

}  // namespace

std::vector<PromptSet> read_prompts(const std::string& path, const std::vector<std::string>& only,
                                    const Opened& opened) {
  std::vector<PromptSet> sets;
  try {
    const Json all = Json::parse(read_file(path, size_t{64} << 20));
    for (const auto& [name, prompts] : all.items()) {
      if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
      PromptSet& set = sets.emplace_back();
      set.name = name;
      for (const Json& p : prompts) set.prompts.push_back(prompt_tokens(p, set.prompts.size() + 1, opened));
    }
  } catch (const Json::exception& e) {
    throw Error(fmt::format("'{}' is no file of prompts: {}", path, e.what()),
                R"(expected {"name": [{"user": "..."}, {"text": "..."}, {"random": 64}]})");
  }
  for (const std::string& name : only)
    if (std::none_of(sets.begin(), sets.end(), [&](const PromptSet& s) { return s.name == name; }))
      throw Error(fmt::format("'{}' has no prompts of the kind '{}'", path, name), "--only takes its names");
  if (sets.empty()) throw Error(fmt::format("'{}' has no prompts", path));
  return sets;
}

void put_before(std::vector<PromptSet>& sets, const std::string& file, int32_t n, const Opened& opened) {
  require_text(opened);
  const std::vector<Token> text = opened.tokenizer->encode(read_file(file, size_t{64} << 20), false);
  if (text.empty()) throw Error(fmt::format("'{}' is empty", file), "--before takes a text");
  const Token bos = opened.tokenizer->data().bos;
  for (PromptSet& set : sets)
    for (std::vector<Token>& prompt : set.prompts) {
      const bool starts = !prompt.empty() && prompt.front() == bos;
      std::vector<Token> all;
      if (starts) all.push_back(bos);
      for (int32_t i = 0; i < n; ++i) all.push_back(text[static_cast<size_t>(i) % text.size()]);
      all.insert(all.end(), prompt.begin() + (starts ? 1 : 0), prompt.end());
      prompt = std::move(all);
    }
}

std::string SpecSetting::name() const {
  if (drafters.empty()) return "plain";
  return depth > 0 ? fmt::format("{} {}", drafters, depth) : fmt::format("auto ({})", drafters);
}

SpecBed::SpecBed(const SpecFlags& flags, const Opened& opened, EngineConfig config, bool keeps)
    : backend_(opened.backend), config_(std::move(config)) {
  set_up_speculation(flags, opened, config_);
  for (const auto& d : config_.drafters) keeps &= !d->wants_hidden() && d->taps().empty();
  if (!keeps) config_.prefix_cache_bytes = 0;
  for (const auto& d : config_.drafters)
    if (!d->wants_forced()) names_.emplace_back(d->name());
  engine_ = std::make_unique<Engine>(opened.backend, opened.model, config_);
}

SpecSetting SpecBed::setting(const std::string& drafters, int32_t depth) const {
  SpecSetting s{drafters, depth, nullptr};
  if (drafters.empty()) return s;
  SpecConfig c = config_.spec;
  c.max_rows = engine_->config().spec.max_rows;
  if (depth > 0) {
    c.adaptive = false;
    c.draft_max = depth;
    c.draft_min = std::min(c.draft_min, depth);
  }
  std::vector<std::shared_ptr<Drafter>> own;
  for (const std::string& name : spec_types(drafters))
    for (const auto& d : config_.drafters)
      if (d->name() == name) own.push_back(d);
  s.speculator = std::make_shared<Speculator>(std::move(own), c);
  return s;
}

SpecRun SpecBed::run(const SpecSetting& setting, std::span<const std::vector<Token>> prompts, size_t at,
                     const std::vector<Token>& ends, const SampleParams& sample, int32_t n, int32_t streams) {
  std::vector<Request> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request& r = requests.emplace_back();
    r.prompt = prompts[i];
    r.sample = sample;
    r.sample.seed += at + i;
    r.max_tokens = n;
    r.stop_tokens = ends;
    r.ignore_eos = ends.empty();
  }
  engine_->speculate(setting.speculator);
  const auto drawn = [&] { return energy_ ? energy_->read() : Energy{}; };
  if (streams > 1) {
    const CudaUse before = cuda_use(*backend_);
    const Energy began = drawn();
    SpecRun run = run_together(*engine_, std::move(requests));
    run.used = cuda_use(*backend_) - before;
    run.decode = drawn() - began;
    return run;
  }
  SpecRun run;
  for (Request& r : requests) {
    CudaUse first, last;
    const Energy began = drawn();
    Energy read;
    bool answers = false;
    const Generated g = generate(*engine_, std::move(r), [&](const Event& e) {
      if (e.tokens.empty()) return;
      last = cuda_use(*backend_);
      if (first.kernels == 0) first = last;
      if (!answers) read = drawn();
      answers = true;
    });
    run.prefill += read - began;
    run.decode += drawn() - read;
    run.prompt_tokens += static_cast<double>(g.prompt_tokens);
    run.prompt_seconds += g.prompt_seconds;
    run.first_token.push_back(g.prompt_seconds);
    run.used += last - first;
    run.tokens += static_cast<double>(g.tokens.size()) - 1;
    run.seconds += g.seconds;
    if (g.spec) run.stats.add(*g.spec);
  }
  return run;
}

}  // namespace carat
