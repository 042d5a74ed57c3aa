// A sequence's caches in a file: saved, and restored into an empty sequence, possibly of a pool with another
// context. One format: rows as they are stored, so a restored sequence goes on with the same bits.
//
//   "caratkv\n", u32 version, model (string), u32 tokens, tokens, geometry of all caches (string); the
//   checkpoint's from, ring_first, logged (i32 each); per layer with pages its K and V; the checkpoint's
//   bytes (state/checkpoint.h); u64 checksum of all before. Little-endian, strings with a u32 length.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "core/backend.h"
#include "state/layout.h"
#include "state/sequence.h"

namespace carat {

// A file that was not written to its end, or was changed since.
class DamagedFile : public Error {
 public:
  using Error::Error;
};

// Bytes of the file that are done, and all of them: now and then, and at the end.
using StateProgress = std::function<void(int64_t done, int64_t total)>;

// tokens: those of the committed positions. model: what the caches belong to; restoring compares it. The file
// appears whole or not at all.
void save_sequence(const std::string& path, Backend& backend, const KvPool& pool, const Sequence& sequence,
                   std::span<const int32_t> tokens, std::string_view model,
                   const StateProgress& progress = {});

// Bytes of such a file of so many tokens: the pages' and the checkpoint's. What stands before them is left
// out: a few hundred bytes, and four a token.
int64_t saved_bytes(const KvPlan& plan, std::span<const KvLayerSpec> layers, const KvLimits& limits,
                    int32_t tokens);

// Fills a new sequence and returns its tokens. Error that says why if the file is damaged, of another version
// or model, or if cache formats or geometry differ, or if it is longer than the context; the sequence is then
// as it was.
std::vector<int32_t> load_sequence(const std::string& path, Backend& backend, const KvPool& pool,
                                   Sequence& sequence, std::string_view model,
                                   const StateProgress& progress = {});

// The tokens of a file that is whole; for whom it is does not matter.
std::vector<int32_t> saved_tokens(const std::string& path);

// What a file says at its beginning; whether the rest is whole is not looked at.
struct SavedHead {
  std::string model;
  std::vector<int32_t> tokens;
  int32_t from = 0;  // the first position where a sequence can go on
};
SavedHead saved_head(const std::string& path);

}  // namespace carat
