// What parts of a program give each other. Of few rows, every word travels with the number of the share, and
// the part that wants it polls the word itself. Of many, a device writes its columns to where the others want
// them: into their memory once they have said that it may be written, or to pinned memory of the host, from
// where they fetch them; one thread a device polls the host's memory then, all others poll the device's.
#include "cuda/ops/share.h"

namespace carat::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kABlock = 16 << 10;  // bytes that a block gives or takes, of few rows
constexpr int kMostBlocks = 56;        // fewer than any device has room for at a time

CARAT_D bool reached(uint32_t word, uint32_t number) { return static_cast<int32_t>(word - number) >= 0; }

// Until there() is true; false: it is given up.
template <class There>
CARAT_D bool await(const ShareLink& l, There there) {
  int64_t began = 0;
  for (int32_t i = 1; !there(); ++i) {
    if (i % 256 == 0) {
      if (peek_flag(l.error)) return false;
      const int64_t now = clock_ns();
      if (began == 0) began = now;
      if (now - began > l.patience) {
        put_flag(l.error, 2);
        return false;
      }
    }
    spin_pause();
  }
  return true;
}
CARAT_D bool await_flag(const uint32_t* at, uint32_t number, const ShareLink& l) {
  return await(l, [&] { return reached(peek_flag(at), number); });
}

// Whether this block is the last one to come here; what all have written is there for it.
CARAT_D bool last_of_all(int32_t* counter, uint32_t* said) {
  fence_devices();
  sync_block();
  if (threadIdx.x == 0) {
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const bool last = arrive(counter) == blocks - 1;
    if (last) *counter = 0;
    fence_devices();
    *said = last;
  }
  sync_block();
  return *said != 0;
}

// Columns of four bytes each.
struct Piece {
  std::byte* at;
  int64_t pitch;
};
CARAT_D void copy_words(const Piece& to, const Piece& from, int32_t rows, int32_t cols, bool foreign) {
  const bool wide = (reinterpret_cast<uintptr_t>(to.at) | reinterpret_cast<uintptr_t>(from.at) |
                     static_cast<uintptr_t>(to.pitch) | static_cast<uintptr_t>(from.pitch) |
                     static_cast<uintptr_t>(4 * cols)) %
                        16 ==
                    0;
  const uint32_t step = gridDim.x * kThreads, a_row = static_cast<uint32_t>(wide ? cols / 4 : cols),
                 all = static_cast<uint32_t>(rows) * a_row;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < all; i += step) {
    const uint32_t m = i / a_row, k = i % a_row;
    std::byte* t = to.at + m * to.pitch;
    const std::byte* f = from.at + m * from.pitch;
    if (wide) {
      const auto* x = reinterpret_cast<const float4*>(f) + k;
      reinterpret_cast<float4*>(t)[k] = foreign ? load_foreign(x) : *x;
    } else {
      const auto* x = reinterpret_cast<const uint32_t*>(f) + k;
      reinterpret_cast<uint32_t*>(t)[k] = foreign ? load_foreign(x) : *x;
    }
  }
}

CARAT_D void give(const ShareArgs& a, const ShareLink& l, const ShareBefore& before, const DevStep* s,
                  int32_t rows, uint32_t* said) {
  const int32_t me = a.part;
  const uint32_t number = s->share + static_cast<uint32_t>(a.number) + 1;
  const bool takes = (a.takes >> me & 1) != 0;
  const auto other = static_cast<int32_t>(threadIdx.x);
  const bool direct = other < a.parts && (l.peers >> other & 1) != 0;
  if (blockIdx.x == 0 && takes && direct && a.gives[other].cols > 0)
    put_flag(l.theirs[other] + kMaxParts + me, number);
  sync_block();
  if (other < a.parts && other != me && a.gives[me].cols > 0 && (a.takes >> other & 1)) {
    if (direct)
      await_flag(l.mine + kMaxParts + other, number, l);
    else if (before.number[other])
      await_flag(l.host + 64 + me * kMaxParts + other, s->share + before.number[other], l);
  }
  sync_block();
  const ShareArgs::Run run = a.gives[me];
  if (run.cols == 0) return;
  const Piece from{a.y.data + 4 * run.first, a.y.pitch};
  bool host = false;
  for (int32_t p = 0; p < a.parts; ++p) {
    if (p == me || !(a.takes >> p & 1)) continue;
    if (l.peers >> p & 1)
      copy_words({a.at[p] + 4 * run.first, a.y.pitch}, from, rows, run.cols, false);
    else
      host = true;
  }
  if (host) copy_words({l.staging[me], int64_t{4} * run.cols}, from, rows, run.cols, false);
  if (!last_of_all(l.arrived, said) || threadIdx.x >= static_cast<unsigned>(a.parts)) return;
  const auto p = static_cast<int32_t>(threadIdx.x);
  if (p == me || !(a.takes >> p & 1)) return;
  put_flag(l.peers >> p & 1 ? l.theirs[p] + me : l.host + p * kMaxParts + me, number);
}

CARAT_D void take(const ShareArgs& a, const ShareLink& l, const DevStep* s, int32_t rows, uint32_t* said) {
  const int32_t me = a.part;
  if (!(a.takes >> me & 1)) return;
  const uint32_t number = s->share + static_cast<uint32_t>(a.number) + 1;
  if (threadIdx.x == 0)
    for (int32_t p = 0; p < a.parts; ++p) {
      if (p == me || a.gives[p].cols == 0) continue;
      const bool direct = (l.peers >> p & 1) != 0;
      if (!direct && blockIdx.x == 0) {
        await_flag(l.host + me * kMaxParts + p, number, l);
        put_flag(l.mine + p, number);
      }
      if (blockIdx.x == 0 ? direct : !direct) await_flag(l.mine + p, number, l);
    }
  sync_block();
  bool host = false;
  for (int32_t p = 0; p < a.parts; ++p) {
    const ShareArgs::Run run = a.gives[p];
    if (p == me || run.cols == 0 || (l.peers >> p & 1)) continue;
    copy_words({a.y.data + 4 * run.first, a.y.pitch}, {l.staging[p], int64_t{4} * run.cols}, rows, run.cols,
               true);
    host = true;
  }
  if (!host || !last_of_all(l.arrived + 1, said) || threadIdx.x >= static_cast<unsigned>(a.parts)) return;
  const auto p = static_cast<int32_t>(threadIdx.x);
  if (p != me && a.gives[p].cols > 0 && !(l.peers >> p & 1))
    put_flag(l.host + 64 + p * kMaxParts + me, number);
}

__global__ void __launch_bounds__(kThreads)
    share_kernel(const ShareArgs a, const ShareLink l, const ShareBefore before, const DevStep* s, RowSet set,
                 bool gives, bool takes) {
  CARAT_STATIC_SHARED uint32_t said;
  wait_inputs();
  const int32_t rows = row_count(s, set);
  if (gives) give(a, l, before, s, rows, &said);
  sync_block();      // threads that wait for columns must not hold up those that send
  let_next_start();  // the next operation asks for weights while this one waits
  if (takes) take(a, l, s, rows, &said);
}

// Two words that a thread gives or takes: of row `row`, behind `column` columns of the run.
struct Pair {
  int32_t row, column;
};
CARAT_D Pair pair_of(int32_t i, int32_t cols) { return {i / (cols / 2), i % (cols / 2) * 2}; }

CARAT_D void give_words(const ShareArgs& a, const ShareBoxes& boxes, uint32_t number, int32_t rows) {
  const ShareArgs::Run run = a.gives[a.part];
  const auto step = static_cast<int32_t>(gridDim.x) * kThreads;
  for (int32_t i = static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
       i < rows * run.cols / 2; i += step) {
    const Pair at = pair_of(i, run.cols);
    const auto w =
        *reinterpret_cast<const uint2*>(a.y.data + at.row * a.y.pitch + 4 * (run.first + at.column));
    for (int32_t p = 0; p < a.parts; ++p)
      if (p != a.part) put_numbered(boxes.to[p] + 2 * i, w, number);
  }
}
CARAT_D void take_words(const ShareArgs& a, const ShareBoxes& boxes, uint32_t number, int32_t rows,
                        const ShareLink& l) {
  const auto step = static_cast<int32_t>(gridDim.x) * kThreads;
  for (int32_t p = 0; p < a.parts; ++p) {
    if (p == a.part) continue;
    const ShareArgs::Run run = a.gives[p];
    for (int32_t i = static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
         i < rows * run.cols / 2; i += step) {
      uint2 w;
      if (!await(l, [&] { return peek_numbered(boxes.from[p] + 2 * i, number, w); })) return;
      const Pair at = pair_of(i, run.cols);
      *reinterpret_cast<uint2*>(a.y.data + at.row * a.y.pitch + 4 * (run.first + at.column)) = w;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    share_boxes_kernel(const ShareArgs a, const ShareLink l, const ShareBoxes boxes, const DevStep* s,
                       RowSet set, bool gives, bool takes) {
  wait_inputs();
  const int32_t rows = row_count(s, set);
  const uint32_t number = s->share + static_cast<uint32_t>(a.number) + 1;
  if (gives) give_words(a, boxes, number, rows);
  sync_block();      // threads that wait must not hold up those that give
  let_next_start();  // the next operation asks for weights while this one waits
  if (takes) take_words(a, boxes, number, rows, l);
}

CARAT_D uint32_t test_word(int32_t round, int32_t i) {
  return (static_cast<uint32_t>(round) * 2654435761u) ^ (static_cast<uint32_t>(i) * 40503u + 1u);
}

__global__ void __launch_bounds__(kThreads) test_kernel(uint32_t* mine, uint32_t* theirs, int32_t words,
                                                        int32_t rounds, uint32_t* wrong, int64_t patience) {
  CARAT_STATIC_SHARED uint32_t given_up;
  wait_inputs();
  if (threadIdx.x == 0) given_up = 0;
  sync_block();
  const auto n = static_cast<uint32_t>(rounds);
  for (uint32_t round = 1; round <= n && !given_up; ++round) {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < words; i += kThreads)
      theirs[1 + i] = test_word(static_cast<int32_t>(round), i);
    fence_devices();
    sync_block();
    if (threadIdx.x == 0) {
      put_flag(theirs, 2 * round - 1);
      const int64_t began = clock_ns();
      while (!reached(peek_flag(mine), 2 * round - 1) && !given_up) {
        if (clock_ns() - began > patience) given_up = 1;
        spin_pause();
      }
    }
    sync_block();
    uint32_t bad = 0;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < words && !given_up; i += kThreads)
      bad += load_foreign(mine + 1 + i) != test_word(static_cast<int32_t>(round), i);
    if (bad) put_flag(wrong, 1);
    sync_block();
    if (threadIdx.x == 0) {  // both have looked before either writes again
      put_flag(theirs, 2 * round);
      const int64_t began = clock_ns();
      while (!reached(peek_flag(mine), 2 * round) && !given_up) {
        if (clock_ns() - began > patience) given_up = 1;
        spin_pause();
      }
    }
    sync_block();
  }
  if (given_up && threadIdx.x == 0) put_flag(wrong, 2);
}

}  // namespace

void share(const Context& c, const ShareArgs& a, const ShareLink& link, const ShareBefore& before,
           RowSet rows) {
  const bool takes = (a.takes >> a.part & 1) != 0;
  int64_t most = 0;
  for (int32_t p = 0; p < a.parts; ++p) {
    const int64_t bytes = int64_t{4} * a.gives[p].cols * a.y.rows;
    most = bytes > most ? bytes : most;
  }
  Launcher l = in_order(c.launcher);
  l.overlap = false, l.most_shared = false;
  int64_t blocks = (most + kABlock - 1) / kABlock;
  blocks = blocks < 1 ? 1 : blocks > kMostBlocks ? kMostBlocks : blocks;
  const dim3 grid(static_cast<unsigned>(blocks));
#ifdef CARAT_CUDA_EMULATE
  const bool together = blocks == 1;
#else
  const bool together = true;  // the device is empty when they start, and has room for all of them
#endif
  launch(l, "share", share_kernel, grid, kThreads, 0, a, link, before, c.step, rows, true, takes && together);
  // Blocks that run one after the other must not give behind those that wait for what others give.
  if (takes && !together)
    launch(l, "share", share_kernel, grid, kThreads, 0, a, link, before, c.step, rows, false, true);
}

bool fits_boxes(const ShareArgs& a) {
  bool fits = a.y.pitch % 8 == 0;
  for (int32_t p = 0; p < a.parts; ++p) {
    const ShareArgs::Run run = a.gives[p];
    fits &= run.cols > 0 && run.first % 2 == 0 && run.cols % 2 == 0 && (a.takes >> p & 1) != 0 &&
            a.y.rows * run.cols <= kBoxWords;
  }
  return fits;
}

void share_boxes(const Context& c, const ShareArgs& a, const ShareLink& link, const ShareBoxes& boxes,
                 RowSet rows) {
  int32_t most = 0;
  for (int32_t p = 0; p < a.parts; ++p) most = a.gives[p].cols > most ? a.gives[p].cols : most;
  int64_t blocks = (a.y.rows * most / 2 + kThreads - 1) / kThreads;
  blocks = blocks > kMostBlocks ? kMostBlocks : blocks;
  const dim3 grid(static_cast<unsigned>(blocks));
#ifdef CARAT_CUDA_EMULATE
  const bool together = blocks == 1;  // they run one after the other
#else
  const bool together = true;
#endif
  launch(c.launcher, "share", share_boxes_kernel, grid, kThreads, 0, a, link, boxes, c.step, rows, true,
         together);
  if (!together)
    launch(c.launcher, "share", share_boxes_kernel, grid, kThreads, 0, a, link, boxes, c.step, rows, false,
           true);
}

void test_link(const Launcher& l, uint32_t* mine, uint32_t* theirs, int32_t words, int32_t rounds,
               uint32_t* wrong, int64_t patience) {
  launch(l, "test_link", test_kernel, dim3(1), kThreads, 0, mine, theirs, words, rounds, wrong, patience);
}

}  // namespace carat::cuda
