#include "engine/prefix/kept_texts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "state/snapshot.h"

namespace carat {
namespace {

constexpr size_t kMostUnsaved = 256;
constexpr int32_t kWorthLoading = 64;  // tokens that a file must have more than memory

std::string identity(const Model& m) {
  return fmt::format("{} {}: {} layers, {} wide, {} entries, {} bytes", m.spec.arch, m.spec.name,
                     m.spec.layers.size(), m.spec.dim, m.spec.vocab, m.source->total_bytes());
}

bool begins_with(const std::vector<Token>& text, const std::vector<Token>& start) {
  return start.size() <= text.size() && std::equal(start.begin(), start.end(), text.begin());
}

// What a slot's file holds, and how long `work` took, which tells the tokens.
template <class Work>
SlotResult timed(const std::string& path, Work&& work) {
  const auto began = std::chrono::steady_clock::now();
  const size_t tokens = work();
  return {static_cast<int32_t>(tokens), static_cast<int64_t>(std::filesystem::file_size(path)),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count()};
}

}  // namespace

KeptTexts::KeptTexts(std::shared_ptr<Backend> backend, Stepper& stepper, const Model& model,
                     const EngineConfig& config)
    : backend_(std::move(backend)),
      stepper_(stepper),
      model_(identity(model)),
      slots_(static_cast<size_t>(config.sequences)) {
  if (config.prefix_cache_bytes <= 0) return;
  prefix_ = std::make_unique<PrefixCache>(backend_, stepper_, config.prefix_cache_bytes);
  if (!config.prefix_cache_dir.empty())
    store_ = std::make_unique<PrefixStore>(config.prefix_cache_dir, model_, config.prefix_disk_bytes);
}

void KeptTexts::begin(Running& r, bool first) {
  if (first && !r.request.load_state.empty()) return load_state(r);
  if (!prefix_ || r.request.prompt_logprobs) return;  // whose every row is wanted
  // At least the last token is read, or nothing would follow from it; of what was generated it is known.
  const auto text = r.history.tokens().first(static_cast<size_t>(r.read_until) + (r.generated > 0 ? 1 : 0));
  if (store_ && first) look_on_disk(r, text.first(text.size() - 1));
  const int32_t found = prefix_->begin(*r.sequence, text, r.request.shared, r.marks);
  if (first) r.cached = found;
  r.prompt_done = std::max(r.prompt_done, std::min(found, r.prompt_size()));
}

void KeptTexts::keep(Running& r) {
  if (!prefix_ || !r.sequence) return;
  try {
    prefix_->keep(*r.sequence, r.committed_tokens());
  } catch (const std::exception& e) {
    log_warn("request {}: its prompt is not kept in the prefix cache: {}", r.id, e.what());
  }
}

void KeptTexts::keep_along(std::span<const std::unique_ptr<Running>> running) {
  if (!prefix_) return;
  for (const auto& r : running) {
    if (!r->sequence || r->event.finish == Finish::error) continue;
    if (!r->marks.empty() && r->marks.front() <= r->sequence->committed()) {
      keep(*r);
      std::erase_if(r->marks, [&](int32_t at) { return at <= r->sequence->committed(); });
    } else if (!r->reads() && !r->prompt_kept && prefix_->leaves(*r->sequence, r->prompt_size())) {
      keep(*r);
      r->prompt_kept = true;
    }
  }
}

void KeptTexts::keep_end(Running& r) {
  if (!prefix_ || !r.sequence || r.sequence->committed() == 0) return;
  keep(r);
  try {
    const std::vector<Token> text(r.committed_tokens().begin(), r.committed_tokens().end());
    slots_[static_cast<size_t>(r.sequence->ring_slot())] = text;
    if (!store_ || text.size() < kWorthLoading) return;
    std::erase_if(unsaved_, [&](const std::vector<Token>& old) { return begins_with(text, old); });
    if (unsaved_.size() >= kMostUnsaved) unsaved_.erase(unsaved_.begin());
    unsaved_.push_back(text);
  } catch (const std::exception& e) {
    log_warn("request {}: its text is not kept in the prefix cache: {}", r.id, e.what());
  }
}

void KeptTexts::save_state(const Running& r, Event& event) {
  if (r.request.save_state.empty() || (event.finish != Finish::stop && event.finish != Finish::length))
    return;
  try {
    save_sequence(r.request.save_state, *backend_, stepper_.kv(), *r.sequence, r.committed_tokens(), model_);
  } catch (const Error& e) {
    fail(event, e);
  }
}

void KeptTexts::load_state(Running& r) {
  try {
    const std::vector<Token> saved = load(r.request.load_state, *r.sequence);
    if (saved.size() >= r.request.prompt.size() || !begins_with(r.request.prompt, saved))
      throw Error(fmt::format("'{}' does not hold the beginning of this prompt", r.request.load_state),
                  "continue the text that was saved");
    r.prompt_done = static_cast<int32_t>(saved.size());
  } catch (const Error& e) {
    fail(r.event, e);
    r.tell = true;
  }
}

// A text that the disk knows better than memory comes into memory; the request's sequence lends its slot.
void KeptTexts::look_on_disk(Running& r, std::span<const Token> text) {
  const std::string path = store_->find(text, prefix_->known(text) + kWorthLoading);
  if (path.empty()) return;
  try {
    const std::vector<Token> saved = load(path, *r.sequence);
    prefix_->keep(*r.sequence, saved);
  } catch (const std::exception& e) {
    log_warn("{}", e.what());
    store_->discard(path, dynamic_cast<const DamagedFile*>(&e) != nullptr);
  }
  r.sequence.emplace(stepper_.pages());
}

void KeptTexts::save_newest() {
  const std::vector<Token> text = std::move(unsaved_.back());
  unsaved_.pop_back();
  try {
    save(text, store_->path_of(text));
    store_->saved(text);
  } catch (const std::exception& e) {
    log_warn("the prefix cache could not save a text: {}", e.what());
  }
}

SlotResult KeptTexts::save_slot(int32_t slot, const std::string& path) {
  return timed(path, [&] {
    save(text_of(slot), path);
    return text_of(slot).size();
  });
}

SlotResult KeptTexts::restore_slot(int32_t slot, const std::string& path) {
  return timed(path, [&] {
    std::vector<Token>& text = text_of(slot);
    Sequence s(stepper_.pages());
    std::vector<Token> saved = load(path, s);
    prefix_->keep(s, saved);
    text = std::move(saved);
    return text.size();
  });
}

SlotResult KeptTexts::erase_slot(int32_t slot) {
  const std::vector<Token> text = std::exchange(text_of(slot), {});
  if (text.empty()) return {};
  prefix_->erase(text);
  std::erase_if(unsaved_, [&](const std::vector<Token>& t) { return begins_with(text, t); });
  if (store_) store_->forget(text);
  return {static_cast<int32_t>(text.size())};
}

void KeptTexts::save(const std::vector<Token>& text, const std::string& path) {
  Sequence s(stepper_.pages());
  if (text.empty() || !prefix_->rebuild(s, text))
    throw Error("the slot's text is not in memory any more", "run its request again");
  save_sequence(path, *backend_, stepper_.kv(), s, text, model_);
}

std::vector<Token> KeptTexts::load(const std::string& path, Sequence& sequence) {
  return load_sequence(path, *backend_, stepper_.kv(), sequence, model_);
}

std::vector<Token>& KeptTexts::text_of(int32_t slot) {
  if (slot < 0 || slot >= static_cast<int32_t>(slots_.size()))
    throw Error(fmt::format("there is no slot {}", slot), fmt::format("choose 0 to {}", slots_.size() - 1));
  return slots_[static_cast<size_t>(slot)];
}

}  // namespace carat
