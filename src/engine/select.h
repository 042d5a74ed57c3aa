// Selection without sorting: the pieces of the sampler that must be fast on a vocabulary of 262,144.
// Everything is ordered by (value descending, id ascending); a filter keeps a prefix of that order.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/sampler.h"

namespace carat {

struct Scored {
  float value;
  Token id;
};
inline bool before(const Scored& a, const Scored& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// A prefix of the order: everything up to and including (value, last).
struct Cut {
  float value = std::numeric_limits<float>::lowest();
  Token last = std::numeric_limits<Token>::max();
  bool keeps(const Scored& s) const { return s.value > value || (s.value == value && s.id <= last); }
};

struct Maximum {
  float value = -std::numeric_limits<float>::infinity();
  bool finite = true;  // no NaN and no +inf anywhere
};
Maximum find_maximum(std::span<const float> values);

// The lowest id with this value; it must occur.
Token first_of(std::span<const float> values, float value);

// The k best finite values and everything that ties with the last of them, in no particular order.
void select_top(std::span<const float> values, size_t k, std::vector<Scored>& out);

// The shortest prefix whose share of the softmax over `items` (of values / temperature) reaches p. Masses are
// integers (2^44 = the best token's), so the result does not depend on the order of `items`.
Cut mass_cut(std::span<const Scored> items, float best, double temperature, double p);
// The same over a whole vocabulary.
Cut mass_cut(std::span<const float> values, float best, double temperature, double p);

// What the cut keeps, in order of ids; false, and no use of `out`, if that is more than `most`.
bool collect(std::span<const float> values, const Cut& cut, size_t most, std::vector<Scored>& out);

}  // namespace carat
