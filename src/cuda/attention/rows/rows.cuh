// Attention of a few rows of a sequence over packed caches on warpgroups (sm_90a): drafts behind a long text.
// A task is that of tiles/tiles.cuh, and so are its bits: up to 64 pairs of a row and a query head,
// and a segment. Eight warps decode what all pairs share, once, from packed rows that come to shared memory
// as they lie in the cache; two warpgroups multiply.
#pragma once
#include "cuda/attention/rows/unpack.cuh"
#include "cuda/attention/tiles/tiles.cuh"
#include "cuda/device/arrivals.cuh"

namespace carat::cuda {

template <int DIM, bool COPIES>
struct RowsShape : TileShape<DIM, 4, true, false, true, COPIES> {
  using Tiles = TileShape<DIM, 4, true, false, true, COPIES>;
  static constexpr int kThreads = 512, kMultipliers = kTileThreads, kWarps = 8;  // kWarps: that decode
  // Of 128 a thread.
  static constexpr int kMultiplierRegs = 192, kDecoderRegs = 64;
  static constexpr int kMostSlots = 8, kSlotRows = kKvTile / kWarps;
  // Gates: a piece is there, a piece has been used; packed rows are there, a warp's own in each slot.
  static constexpr int kGates = Tiles::kJob + 128, kUsed = kGates + 8 * Tiles::kStages,
                       kCame = kUsed + 8 * Tiles::kStages,
                       kPacked = (kCame + 8 * kMostSlots * kWarps + 127) / 128 * 128, kBytes = 227 << 10,
                       kPackedBytes = (kBytes - 1024 - kPacked) / 128 * 128;
};

// Entry i of a list; the tiles that all rows find in one place are its whole ones.
CARAT_D CopyList::Entry entry_of(const TileList& list, int32_t i) {
  return {list.tile(i), list.row(i), false, false, false};
}
CARAT_D CopyList::Entry entry_of(const CopyList& list, int32_t i) { return list.entry(i); }
CARAT_D int32_t first_whole(const TileList& list) { return list.first; }
CARAT_D int32_t first_whole(const CopyList& list) { return list.shared.first; }
CARAT_D int32_t whole_tiles(const TileList& list) { return list.shared; }
CARAT_D int32_t whole_tiles(const CopyList& list) { return list.shared.n; }

// What both sides go through alike.
template <class S>
struct RowsTasks {
  const AttentionPart& a;
  const DevStep* s;
  RowSet set;

  // begin(group, kv_head, head, length) and reach() for every task; walk(n, from, to, length, segments) for
  // its segments n, tiles from .. to.
  template <class Begin, class Reached, class Walk>
  CARAT_D void each(Begin begin, Reached reached, Walk walk) const {
    const int32_t per = a.by_width.quotient(S::kRows), groups = group_count(a.runs, s, set, per),
                  segments = s->segments[a.span], tasks = groups * segments * a.kv.heads * a.chunks;
#pragma unroll 1
    for (int32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
      const int32_t all = task / segments, k = task - all * segments, rest = all / groups,
                    which = all - rest * groups, kv_head = a.by_chunks.quotient(rest),
                    chunk = rest - kv_head * a.chunks;
      const RowGroup group = group_of(a.runs, s, set, per, groups - 1 - which);  // the longest first
      int32_t length = segment_of(a.kv.window, pos_of(s, step_row(s, set, group.m)));
#pragma unroll 1
      while (length != INT32_MAX) {
        begin(group, kv_head, chunk * a.width, length);
        const int32_t first = reached().first, last = reached().last;
#pragma unroll 1
        for (int32_t n = segment_at(first, length) + k; n <= segment_at(last, length); n += segments) {
          const int32_t from = n * length, to = from + length - 1;
          walk(n, (from < first ? first : from) / kKvTile, (to > last ? last : to) / kKvTile, length,
               segments);
        }
        length = reached().longer;
      }
    }
  }
};

// One of the two warpgroups that multiply.
template <class S>
struct RowsWalk : TileWalk<S, AnyKvKinds> {
  using Base = TileWalk<S, AnyKvKinds>;
  using Base::a, Base::s, Base::tables, Base::set, Base::memory, Base::base, Base::job, Base::pairs;
  using Base::lane, Base::share, Base::kTileBytes;
  int slot = 0, parity = 0;

  using Base::Base;

  CARAT_D SharedAddress next_piece() {
    gate_wait(base + S::kGates + 8 * slot, parity);
    return base + S::kRing + slot * S::kPieceBytes;
  }
  CARAT_D void give_back() {
    arrive_as_warp(base + S::kUsed + 8 * slot);
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
  CARAT_D void together() const { turn_wait(1, S::kMultipliers); }

  // As TileLoads::split_queries(), where warpgroups want them.
  CARAT_D void take_queries() {
    if (!this->single()) return Base::take_queries();
    const QuerySplit<S::kDim / 32, kKeyColumns / 32> split(a, tables, lane);
#pragma unroll 1
    for (int at = threadIdx.x / 32; at < S::kRows; at += kTileWarps) {
      const auto put = [&](int32_t column, float x) {
        *reinterpret_cast<uint16_t*>(memory + S::kQuery + this->tiled_at(at, column / 8) + column % 8 * 2) =
            static_cast<uint16_t>(pack_halves(x, 0));
      };
      for (int i = lane; i < S::kQueries; i += 32) put(i, 0);
      if (pairs[at].row < 0) continue;
      sync_warp();
      split.run(
          this->query_of(pairs[at]), [&](int32_t i, float x) { put(i, x); },
          [&](int32_t i, float x) { put(S::kDim + i, x); });
    }
  }
  // STEPS of sixteen columns from 256 c on.
  template <int STEPS>
  CARAT_D void add_columns(int c, SharedAddress keys, float (&x)[S::kScores][4]) const {
    wide_fence();
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      const int tile = k / 4 * kTileBytes + k % 4 * 32;
      wide_scores(x, codes_operand(base + S::kQuery + S::kWide / 64 * c * kTileBytes + tile),
                  codes_operand(keys + tile + share * (kTileBytes / 2)));
    }
    wide_commit();
    wide_wait<0>();
  }
  CARAT_D void scores(float (&x)[S::kScores][4]) {
#pragma unroll
    for (int j = 0; j < S::kScores; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = 0;
#pragma unroll 1
    for (int c = 0; c < this->pieces(); ++c) {
      add_columns<S::kWide / 16>(c, next_piece(), x);
      give_back();
    }
    if (!this->single()) return;
    add_columns<kKeyColumns / 16>(this->pieces(), next_piece(), x);
    give_back();
  }
  CARAT_D void walk(int32_t from, int32_t to) {
    sync_block();
    if (threadIdx.x == 0) job.list = this->list_of_tiles(from, to);
    sync_block();
    wait_inputs();
    take_queries();
    show_to_products();
    together();
    this->clear(0), this->clear(1);
#pragma unroll 1
    for (int32_t i = 0; i < job.list.count; ++i) {
      const auto e = entry_of(job.list, i);
      float x[S::kScores][4];
      scores(x);
      this->mask(e.tile, e.row, e.second, x);
      together();
      this->weigh(x);
      show_to_products();
      together();
      uint32_t p[kKvTile / 16][4];
      this->take_weights(p);
#pragma unroll
      for (int c = 0; c < S::kPieces; ++c) {
        this->add_values(p, next_piece(), this->o[c]);
        give_back();
      }
    }
  }
  CARAT_D void run() {
    RowsTasks<S>{a, s, set}.each([&](const RowGroup& group, int32_t kv_head, int32_t head,
                                     int32_t length) { this->begin(group, kv_head, head, length); },
                                 [&]() -> const Reach& { return job.reach; },
                                 [&](int32_t n, int32_t from, int32_t to, int32_t length, int32_t segments) {
                                   walk(from, to);
                                   this->leave_segment(n, length, segments);
                                 });
  }
};

// A warp of those that decode: eight rows of every tile, a lane 64 columns of one. It asks for its rows'
// bytes some tiles ahead, keys and values (of single copies values and keys) in slots of its own. What does
// not lie in one piece, and second copies, it reads where they are.
template <class S>
struct RowsDecoder : TileLoads<S, AnyKvKinds> {
  using Base = TileLoads<S, AnyKvKinds>;
  using Base::a, Base::s, Base::tables, Base::set, Base::memory, Base::base, Base::job, Base::lane,
      Base::part;
  const int warp = static_cast<int>(threadIdx.x) / 32 - S::kMultipliers / 32,
            row = S::kSlotRows * warp + lane % 8, group = lane / 8;
  const int slot_bytes = S::kSlotRows * static_cast<int>(a.kv.k_row > a.kv.v_row ? a.kv.k_row : a.kv.v_row),
            slots = S::kPackedBytes / (S::kWarps * slot_bytes) < S::kMostSlots
                        ? S::kPackedBytes / (S::kWarps * slot_bytes)
                        : S::kMostSlots;
  int slot = 0, parity = 1;
  uint32_t phases = 0;  // bit k: of slot k's gate

  using Base::Base;

  CARAT_D SharedAddress came(int at) const { return base + S::kCame + 8 * (S::kWarps * at + warp); }
  CARAT_D unsigned char* packed(int at) const {
    return memory + S::kPacked + (S::kWarps * at + warp) * slot_bytes;
  }
  // Unit u of the whole tiles of a walk: both of one, then of the next.
  CARAT_D void ask(int32_t u, int at) const {
    if (lane || u >= 2 * whole_tiles(job.list)) return;
    const bool values = (u % 2 == 1) != this->single();
    const int32_t begin = (first_whole(job.list) + u / 2) * kKvTile,
                  nth = a.kv.page.quotient(a.kv.in_ring(begin));
    const int64_t page = job.pages[nth], at_row = int64_t{job.kv_head} * a.kv.page_tokens +
                                                  a.kv.in_page(begin) + S::kSlotRows * warp;
    const uint8_t* from = values ? a.kv.v + page * a.kv.v_page_bytes + at_row * a.kv.v_row
                                 : a.kv.k + page * a.kv.k_page_bytes + at_row * a.kv.k_row;
    const int bytes = S::kSlotRows * static_cast<int>(values ? a.kv.v_row : a.kv.k_row);
    gate_arrive(came(at), bytes);
    copy_bulk(shared_address(packed(at)), from, bytes, came(at));
  }
  CARAT_D int next_slot(int at) const { return at + 1 == slots ? 0 : at + 1; }

  // Where position p is, or null: there is nothing to read.
  CARAT_D const uint8_t* row_at(const CopyList::Entry& e, int32_t p, bool values) const {
    const int32_t own = e.row, of = own < 0 ? 0 : step_row(s, set, job.group.m + own);
    if (p < job.reach.first || p > job.reach.last ||
        (own >= 0 && p > (a.both_ways ? s->last_pos : s->pos)[of]))
      return nullptr;
    const int32_t at = own < 0 || p < job.reach.settled ? p : slot_seen(s, of, p);
    if (!S::kCopies || !e.second)
      return values ? v_row(a.kv, *job.seq, at, job.kv_head) : k_row(a.kv, *job.seq, at, job.kv_head);
    if (!this->kept_twice(p)) return nullptr;
    return values ? v_edge_row(a.kv, a.copies, *job.seq, at, job.kv_head)
                  : k_edge_row(a.kv, a.copies, *job.seq, at, job.kv_head);
  }
  // The next piece of the entry's: `from` its packed row, null: zeros.
  CARAT_D void decode(const uint8_t* from, DType type, bool values) const {
    const int32_t columns = this->columns(values), unit = this->number(values) * S::kUnits + 8 * group;
    if (S::kCopies && 64 * group >= kKeyColumns && !values && this->single()) return;  // never read
    unsigned char* to = memory + S::kRing + slot * S::kPieceBytes + group * Base::kTileBytes + 128 * row;
    const auto put = [&](int u, uint4 v) { *reinterpret_cast<uint4*>(to + (u ^ lane % 8) * 16) = v; };
    if (!from) {
#pragma unroll
      for (int u = 0; u < 8; ++u) put(u, uint4{0, 0, 0, 0});
      return;
    }
    kv_unpack64(type, from, columns, unit, tables, put);
  }
  template <class F>
  CARAT_D void piece(F f) {
    gate_wait(base + S::kUsed + 8 * slot, parity);
    f();
    show_to_products();
    arrive_as_warp(base + S::kGates + 8 * slot);
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
  // A tile that lies in one piece: unit 0 in slot `at`, unit 1 in the next.
  CARAT_D void decode_whole(int32_t tile, int32_t unit, int at) {
    const int32_t p = tile * kKvTile + row, parts = this->score_pieces() + this->pieces();
    const bool there = p >= job.reach.first && p <= job.reach.last;
#pragma unroll 1
    for (part = 0; part < parts; ++part) {
      const bool values = this->of_values(), second = values != this->single(),
                 keys_alone = this->single() && !values;
      const bool fresh = keys_alone || part == 0 || (!this->single() && part == this->pieces());
      const bool done = keys_alone || part + 1 == parts || (!this->single() && part + 1 == this->pieces());
      const int from = second ? next_slot(at) : at;
      if (fresh) gate_wait(came(from), phases >> from & 1), phases ^= 1u << from;
      piece([&] {
        const int pitch = static_cast<int>(values ? a.kv.v_row : a.kv.k_row);
        decode(there ? packed(from) + lane % 8 * pitch : nullptr, values ? a.kv.v_type : a.kv.k_type, values);
      });
      if (!done) continue;
      sync_warp();
      ask(unit + second + slots, from);
    }
  }
  CARAT_D void walk() {
    sync_block();
    sync_block();  // the list is there
    wait_inputs();
    const bool near = job.near;
    if (near)
#pragma unroll 1
      for (int k = 0; k < slots; ++k) ask(k, k);
    int at = 0;
    int32_t unit = 0;
#pragma unroll 1
    for (int32_t i = 0; i < job.list.count; ++i) {
      const CopyList::Entry e = entry_of(job.list, i);
      if (near && e.row < 0 && !e.second) {
        decode_whole(e.tile, unit, at);
        unit += 2, at = next_slot(next_slot(at));
        continue;
      }
      const int32_t p = e.tile * kKvTile + row;
#pragma unroll 1
      for (part = 0; part < this->score_pieces() + this->pieces(); ++part)
        piece([&] {
          const bool values = this->of_values();
          decode(row_at(e, p, values), e.second ? DType::f16 : values ? a.kv.v_type : a.kv.k_type, values);
        });
    }
  }
  CARAT_D void run() {
    RowsTasks<S>{a, s, set}.each(
        [&](const RowGroup&, int32_t, int32_t, int32_t) {
          sync_block();
          sync_block();  // the task is there
        },
        [&]() -> const Reach& { return job.reach; },
        [&](int32_t, int32_t, int32_t, int32_t, int32_t) { walk(); });
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    rows_attention(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  let_next_start();
  CARAT_SHARED(shared);
  unsigned char* memory = shared + (1024 - shared_address(shared) % 1024) % 1024;
  const int thread = threadIdx.x;
  if (thread < 2 * S::kStages)
    gate_init(shared_address(memory) + S::kGates + 8 * thread, arrivals(S::kWarps));
  if (thread < S::kMostSlots * S::kWarps) gate_init(shared_address(memory) + S::kCame + 8 * thread, 1);
  sync_block();
  if (thread >= S::kMultipliers) {
    fewer_registers<S::kDecoderRegs>();
    RowsDecoder<S>(a, s, *tables, set, memory).run();
  } else {
    more_registers<S::kMultiplierRegs>();
    RowsWalk<S>(a, s, *tables, set, memory).run();
  }
  wait_inputs();  // who had no task
#endif
}

}  // namespace carat::cuda
