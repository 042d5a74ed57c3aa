// Drafters without a network: they find what was written before and propose what followed it then. The first
// four follow llama.cpp's of the same names (docs/speculative.md there); `suffix` is our own. Per token they
// cost amortized constant time; their memory is bounded by the sequence's length or by a window.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/speculate/drafter.h"

namespace carat {

struct NgramOptions {
  int32_t key = 12;                                   // ngram-simple and -map: tokens that must match
  int32_t value = 48;                                 // and tokens that may be copied
  int32_t min_hits = 1;                               // ngram-map: how often a key must have come
  int32_t mod_key = 24, mod_min = 48, mod_max = 64;   // ngram-mod: match, shortest and longest draft
  int32_t mod_entries = 4 << 20;                      // of its table, shared by all sequences
  int32_t suffix_window = 1 << 16, suffix_match = 2;  // suffix: tokens it remembers, shortest match
};
// Error naming the option and its range.
void check_ngram_options(const NgramOptions& options);

// Copies what followed the last occurrence of the last `key` tokens, if at least `key` tokens did.
std::unique_ptr<Drafter> make_ngram_simple(const NgramOptions& options);
// The same by a map of keys, from occurrences that `value` tokens follow; drafts no more than were right the
// last time. four_values: up to four continuations a key with their counts, of which one must be twice as
// frequent as the others together.
std::unique_ptr<Drafter> make_ngram_map(const NgramOptions& options, bool four_values);
// A table from the hash of `mod_key` tokens to the next token, without keys; all requests learn from it.
std::unique_ptr<Drafter> make_ngram_mod(const NgramOptions& options);
// A suffix automaton over prompt and output (Blumer et al. 1985): follows the longest suffix that came before
// into its most frequent, then most recent continuation. Confidence from counts; makes trees.
std::unique_ptr<Drafter> make_suffix(const NgramOptions& options);

// The names of the above as in --spec, "suffix" included. Null if there is none of this name.
std::unique_ptr<Drafter> make_ngram(std::string_view name, const NgramOptions& options);

// How many tokens of a chain came true behind `at` tokens of the history.
int32_t tokens_right(std::span<const Token> draft, std::span<const Token> history, size_t at);

}  // namespace carat
