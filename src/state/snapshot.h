// A sequence's caches in a file: saved, and restored into an empty sequence, possibly of a pool with another
// context. One format: rows as they are stored, so a restored sequence goes on with the same bits.
//
//   "caratkv\n", u32 version, model (string), u32 tokens, tokens, u32 caches; per cache its geometry, then
//   per position and head the K row and the V row; u64 FNV-1a of all before. Little-endian. Sliding layers
//   keep one window of positions.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "state/layout.h"
#include "state/sequence.h"

namespace carat {

// tokens: those of the committed positions. model: what the caches belong to; restoring compares it. The file
// appears whole or not at all.
void save_sequence(const std::string& path, Backend& backend, const KvPool& pool, const Sequence& sequence,
                   std::span<const int32_t> tokens, std::string_view model);

// Fills a new sequence and returns its tokens. Error that says why if the file is damaged, of another version
// or model, or if cache formats or geometry differ, or if it is longer than the context; the sequence is then
// as it was.
std::vector<int32_t> load_sequence(const std::string& path, Backend& backend, const KvPool& pool,
                                   Sequence& sequence, std::string_view model);

// The tokens of a file that is whole; for whom it is does not matter.
std::vector<int32_t> saved_tokens(const std::string& path);

}  // namespace carat
