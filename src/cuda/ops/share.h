// What parts of a program give each other (Op::Share).
#pragma once
#include "cuda/ops/ops.h"

namespace carat::cuda {

// How a part reaches the others (cuda/links.h). Words are numbers of shares, which only grow.
struct ShareLink {
  uint32_t peers = 0;        // bit p: its memory is reached directly, and mine by it
  uint32_t* mine = nullptr;  // [0, 8): columns of part p have come; [8, 16): p's y may be written
  uint32_t* theirs[kMaxParts] = {};
  uint32_t* host = nullptr;   // pinned: [taker][giver] have come; [64 + giver][taker] have been taken
  uint32_t* error = nullptr;  // pinned; not 0: waiting has ended
  std::byte* staging[kMaxParts] = {};  // pinned: columns of part p on their way
  int32_t* arrived = nullptr;          // blocks that have done their part: of giving, of taking
  int64_t patience = 0;                // nanoseconds that a part waits for another
};
// before[p]: one more than the share of this step whose columns part p had from this part's staging; 0: none.
struct ShareBefore {
  uint32_t number[kMaxParts] = {};
};
void share(const Context& c, const ShareArgs& a, const ShareLink& link, const ShareBefore& before,
           RowSet rows);

// Where few rows go: pairs of words, each with the share's number (put_numbered), so that nothing is said or
// awaited besides them.
struct ShareBoxes {
  uint64_t* to[kMaxParts] = {};          // this part's at part p
  const uint64_t* from[kMaxParts] = {};  // part p's here
};
inline constexpr int64_t kBoxWords = 128 << 10;
// Whether all parts give and take, and no more than boxes hold.
bool fits_boxes(const ShareArgs& a);
void share_boxes(const Context& c, const ShareArgs& a, const ShareLink& link, const ShareBoxes& boxes,
                 RowSet rows);

// Two devices that write to each other's memory at the same time, `words` numbers and a flag in each of
// `rounds`: what has come wrong is counted in *wrong. mine, theirs: [words + 1], zeros.
void test_link(const Launcher& l, uint32_t* mine, uint32_t* theirs, int32_t words, int32_t rounds,
               uint32_t* wrong, int64_t patience);

}  // namespace carat::cuda
