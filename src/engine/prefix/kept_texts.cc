#include "engine/prefix/kept_texts.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "state/snapshot.h"

namespace carat {
namespace {

constexpr size_t kMostUnsaved = 256;
constexpr int32_t kWorthLoading = 64;  // tokens that a file must have more than memory

// Grows when the same weights give other numbers: what older programs have saved is not used then.
constexpr int kNumerics = 2;

uint64_t mixed(uint64_t h, const std::byte* data, size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
  }
  for (; bytes > 0; ++data, --bytes) h = (h ^ static_cast<uint8_t>(*data)) * 0x100000001b3;
  return h;
}

// Of the vocabulary, names, shapes and values: small tensors whole, of large ones parts from all over, as
// reading tens of gigabytes at each start would cost more than what is saved. Training moves all of them.
uint64_t weights_hash(const WeightSource& source) {
  constexpr size_t kWhole = size_t{4} << 20, kPart = 16384, kParts = 32;
  uint64_t h = 0xcbf29ce484222325;
  if (const auto* words = source.meta().find_strings("tokenizer.ggml.tokens"))
    for (const std::string& w : *words)
      h = mixed(h ^ w.size(), reinterpret_cast<const std::byte*>(w.data()), w.size());
  for (const TensorInfo& t : source.tensors()) {
    h = mixed(h, reinterpret_cast<const std::byte*>(t.name.data()), t.name.size());
    h = (h ^ (t.bytes << 8) ^ static_cast<uint64_t>(t.type)) * 0x100000001b3;
    if (!t.data) continue;
    if (t.bytes <= kWhole) {
      h = mixed(h, t.data, t.bytes);
      continue;
    }
    for (size_t i = 0; i < kParts; ++i) h = mixed(h, t.data + (t.bytes - kPart) / (kParts - 1) * i, kPart);
  }
  return h;
}

// How positions are encoded, which flags may change.
std::string positions(const ModelSpec& spec) {
  std::string all;
  for (const LayerSpec& l : spec.layers) {
    if (l.heads == 0) continue;
    std::string one = fmt::format(", rope {:g}", l.rope_base);
    if (l.rope.any()) one += fmt::format(" {}", rope_text(l.rope));
    if (all.find(one) == all.npos) all += one;
  }
  return all;
}

}  // namespace

std::string saved_identity(const Model& m) {
  return fmt::format("{} {}: {} layers, {} wide, {} entries, {} bytes, weights {:016x}, numerics {}{}",
                     m.spec.arch, m.spec.name, m.spec.layers.size(), m.spec.dim, m.spec.vocab,
                     m.source->total_bytes(), weights_hash(*m.source), kNumerics, positions(m.spec));
}

namespace {

constexpr size_t kSalted = 2;  // tokens: of 30 bits each, so that salts do not meet by chance

// A text's name among those of the same salt: another salt's text begins with other tokens.
Token salted(uint64_t salt, size_t at, Token token) {
  uint64_t h = (salt + at) * 0x9E3779B97F4A7C15u;
  h = (h ^ h >> 31 ^ static_cast<uint32_t>(token)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ h >> 27) * 0x94D049BB133111EBu;
  return -2 - static_cast<Token>(h >> 34);
}

bool begins_with(const std::vector<Token>& text, const std::vector<Token>& start) {
  return start.size() <= text.size() && std::equal(start.begin(), start.end(), text.begin());
}

// Of a text that moves between a file and the caches: long ones tell how far they are, and at the end how
// fast it was.
class Moves {
 public:
  Moves(const char* doing, const char* done, const std::string& path)
      : doing_(doing), done_(done), path_(path) {}
  StateProgress progress() {
    return [this](int64_t done, int64_t total) {
      bytes_ = total;
      const double now = seconds();
      if (done == total || now - told_ < 2) return;
      told_ = now;
      log_info("{} '{}': {} of {} MB", doing_, path_, done / 1'000'000, total / 1'000'000);
    };
  }
  void ended(size_t tokens) const {
    log_info("{} '{}': {} tokens, {:.1f} MB in {:.2f} s, {:.2f} GB/s", done_, path_, tokens,
             static_cast<double>(bytes_) / 1e6, seconds(), static_cast<double>(bytes_) / seconds() / 1e9);
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  const char *doing_, *done_;
  const std::string path_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double told_ = 0;
  int64_t bytes_ = 0;
};

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
      model_(saved_identity(model)),
      slots_(static_cast<size_t>(config.sequences)),
      tell_(config.prefix_changes) {
  if (config.prefix_cache_bytes <= 0) return;
  prefix_ = std::make_unique<PrefixCache>(backend_, stepper_, config.prefix_cache_bytes);
  if (!config.prefix_cache_dir.empty())
    store_ = std::make_unique<PrefixStore>(config.prefix_cache_dir, model_, config.prefix_disk_bytes);
}

// What keeps texts of different salts and with different pictures apart; a salt changes their first tokens.
std::span<const Token> KeptTexts::name_of(const Running& r, std::span<const Token> text) {
  if ((r.request.salt == 0 && r.request.soft.empty()) || text.empty()) return text;
  name_ = known_as(r.request.soft, text);
  if (r.request.salt == 0) return name_;
  for (size_t i = 0; i < std::min(kSalted, text.size()); ++i) name_[i] = salted(r.request.salt, i, text[i]);
  return name_;
}

int32_t KeptTexts::slot_for(const Running& r, Requests running, Requests paused) {
  std::vector<bool> taken(slots_.size());
  for (const Requests& list : {running, paused})
    for (const auto& other : list)
      if (other && other->slot >= 0) taken[static_cast<size_t>(other->slot)] = true;
  const auto prompt = name_of(r, r.request.prompt);
  const auto goes_on = [&](const Slot& s) {
    const size_t n = static_cast<size_t>(std::ranges::mismatch(prompt, s.text).in1 - prompt.begin());
    return n > prompt.size() / 10 ? n : 0;
  };
  size_t best = r.request.slot >= 0 ? static_cast<size_t>(r.request.slot) : slots_.size();
  for (size_t i = 0; i < slots_.size() && r.request.slot < 0; ++i) {
    if (taken[i]) continue;
    const auto worth = [&](size_t n) { return std::pair(goes_on(slots_[n]), ~slots_[n].used); };
    if (best == slots_.size() || worth(i) > worth(best)) best = i;
  }
  if (best == slots_.size()) best = 0;  // more are paused than there are slots
  slots_[best].used = ++slots_used_;
  return static_cast<int32_t>(best);
}

void KeptTexts::begin(Running& r, bool first) {
  if (first && !r.request.load_state.empty()) return load_state(r);
  if (!prefix_ || r.request.prompt_logprobs) return;  // whose every row is wanted
  // At least the last token is read, or nothing would follow from it; of what was generated it is known.
  const auto text = r.history.tokens().first(static_cast<size_t>(r.read_until) + (r.generated > 0 ? 1 : 0));
  const auto name = name_of(r, text);
  if (store_ && first) look_on_disk(r, name.first(name.size() - 1));
  const int32_t found = prefix_->begin(*r.sequence, name, r.request.shared, r.marks);
  for (int32_t& at : r.marks)  // no step ends inside a picture that is read whole
    if (const SoftRows* s = soft_at(r.request.soft, at); s && s->whole) at = s->begin;
  std::erase_if(r.marks, [&](int32_t at) { return at <= found; });
  if (first) r.cached = found;
  r.prompt_done = std::max(r.prompt_done, std::min(found, r.prompt_size()));
}

void KeptTexts::keep(Running& r) {
  if (!prefix_ || !r.sequence) return;
  try {
    prefix_->keep(*r.sequence, name_of(r, r.committed_tokens()));
  } catch (const std::exception& e) {
    log_warn("request {}: its prompt is not kept in the prefix cache: {}", r.id, e.what());
  }
}

void KeptTexts::keep_along(Requests running) {
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
    const auto name = name_of(r, r.committed_tokens());
    const std::vector<Token> text(name.begin(), name.end());
    if (r.slot >= 0) slots_[static_cast<size_t>(r.slot)].text = text;
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
    Moves moves("saving", "saved", r.request.save_state);
    const std::vector<Token> tokens = known_as(r.request.soft, r.committed_tokens());
    save_sequence(r.request.save_state, *backend_, stepper_.kv(), *r.sequence, tokens, model_,
                  moves.progress());
    moves.ended(tokens.size());
  } catch (const Error& e) {
    fail(event, e);
  }
}

void KeptTexts::load_state(Running& r) {
  try {
    Moves moves("loading", "loaded", r.request.load_state);
    const std::vector<Token> saved = load(r.request.load_state, *r.sequence, moves.progress());
    moves.ended(saved.size());
    if (saved.size() >= r.request.prompt.size() ||
        !begins_with(known_as(r.request.soft, r.request.prompt), saved))
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
    if (std::filesystem::exists(path)) log_warn("{}", e.what());  // else another process has removed it
    store_->discard(path, dynamic_cast<const DamagedFile*>(&e) != nullptr);
  }
  r.sequence.emplace(stepper_.pages());
}

void KeptTexts::tell_changes(bool rests) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kOften{20};
  constexpr int kShare = 20;  // of the time may go into it, at the most
  if (!tell_ || !prefix_ || !prefix_->changed()) return;
  const auto began = Clock::now();
  if (!rests && began < tell_at_) return;
  PrefixChanges changes = prefix_->changes();
  changes.anew = anew_;
  if (!changes.empty() && (anew_ = !tell_(std::move(changes)))) prefix_->tell_anew();
  const auto took = Clock::now() - began;
  tell_at_ = began + std::max<Clock::duration>(kOften, kShare * took);
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
    save(slot_at(slot).text, path);
    return slot_at(slot).text.size();
  });
}

SlotResult KeptTexts::restore_slot(int32_t slot, const std::string& path) {
  return timed(path, [&] {
    Slot& restored = slot_at(slot);
    Sequence s(stepper_.pages());
    std::vector<Token> saved = load(path, s);
    prefix_->keep(s, saved);
    restored = {std::move(saved), ++slots_used_};
    return restored.text.size();
  });
}

SlotResult KeptTexts::erase_slot(int32_t slot) {
  const std::vector<Token> text = std::exchange(slot_at(slot).text, {});
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

std::vector<Token> KeptTexts::load(const std::string& path, Sequence& sequence,
                                   const StateProgress& progress) {
  return load_sequence(path, *backend_, stepper_.kv(), sequence, model_, progress);
}

KeptTexts::Slot& KeptTexts::slot_at(int32_t slot) {
  if (slot < 0 || slot >= static_cast<int32_t>(slots_.size()))
    throw Error(fmt::format("there is no slot {}", slot), fmt::format("choose 0 to {}", slots_.size() - 1));
  return slots_[static_cast<size_t>(slot)];
}

}  // namespace carat
