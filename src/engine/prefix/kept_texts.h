// What the engine keeps of texts behind the requests that read them: in memory (prefix_cache.h), on disk
// (prefix_store.h), by the slot they ran in, and in files that requests name. The engine's thread alone.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix/prefix_cache.h"
#include "engine/prefix/prefix_store.h"
#include "engine/running.h"
#include "state/snapshot.h"

namespace carat {

// What saved texts of a model say they belong to: its shape, its weights, how positions are encoded.
std::string saved_identity(const Model& model);

class KeptTexts {
 public:
  // config: resolved. Error if the directory of texts cannot be used.
  KeptTexts(std::shared_ptr<Backend> backend, Stepper& stepper, const Model& model,
            const EngineConfig& config);

  bool on() const { return prefix_ != nullptr; }
  PrefixStats stats() const { return prefix_ ? prefix_->stats() : PrefixStats{}; }
  int64_t memory_bytes() const { return prefix_ ? prefix_->memory_bytes() : 0; }

  using Requests = std::span<const std::unique_ptr<Running>>;
  // The slot that a request asks for; else, of those that no request in the lists has, the one whose text its
  // prompt goes on, or the one that was used longest ago.
  int32_t slot_for(const Running& r, Requests running, Requests paused);
  // Fills a new sequence with what need not be read; first: the request has not had one before. A file that
  // the request names and that does not fit fails the request.
  void begin(Running& r, bool first);
  void keep(Running& r);  // what it has read so far
  // What is worth keeping before requests end.
  void keep_along(Requests running);
  // What an ended request leaves: also for those who ask for its slot, and for the disk.
  void keep_end(Running& r);
  // To the file that the request names; event is its last.
  void save_state(const Running& r, Event& event);

  // Tells config's prefix_changes what has changed: soon where the engine rests, else not so often that it
  // would take time from steps.
  void tell_changes(bool rests);

  // Texts on their way to the disk, the newest goes first.
  bool unsaved() const { return !unsaved_.empty(); }
  void save_newest();

  SlotResult save_slot(int32_t slot, const std::string& path);
  SlotResult restore_slot(int32_t slot, const std::string& path);
  SlotResult erase_slot(int32_t slot);

 private:
  std::span<const Token> name_of(const Running& r, std::span<const Token> text);
  void load_state(Running& r);
  void look_on_disk(Running& r, std::span<const Token> text);
  void save(const std::vector<Token>& text, const std::string& path);
  std::vector<Token> load(const std::string& path, Sequence& sequence, const StateProgress& progress = {});
  struct Slot {
    std::vector<Token> text;  // that the last request in it left
    uint64_t used = 0;        // counts up; 0: never
  };
  Slot& slot_at(int32_t slot);

  const std::shared_ptr<Backend> backend_;
  Stepper& stepper_;
  const std::string model_;              // what saved sequences belong to
  std::unique_ptr<PrefixCache> prefix_;  // null: texts are always read
  std::unique_ptr<PrefixStore> store_;   // null: nothing outlives the process
  std::vector<Token> name_;
  std::vector<std::vector<Token>> unsaved_;  // newest last
  std::vector<Slot> slots_;
  uint64_t slots_used_ = 0;
  const std::function<bool(PrefixChanges)> tell_;
  std::chrono::steady_clock::time_point tell_at_{};
  bool anew_ = false;  // what was told before was lost
};

}  // namespace carat
