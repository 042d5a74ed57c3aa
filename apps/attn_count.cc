#include "apps/attn_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "apps/attn_vectors.h"
#include "apps/eval.h"
#include "apps/progress.h"
#include "base/file.h"
#include "cuda/ops/ops.h"
#include "model/stepper.h"

namespace carat {
namespace {

constexpr int32_t kTile = 64, kPairs = 64, kLongSegment = 1024;
constexpr float kHalfBits = 25;  // 2^-25 and less round to the half 0

// The largest score of each tile.
std::vector<float> best_of(const AttentionVectors& v, const std::vector<float>& q,
                           const std::vector<float>& keys, int32_t positions) {
  std::vector<float> tiles(static_cast<size_t>((positions + kTile - 1) / kTile), -INFINITY);
  for (int32_t p = 0; p < positions; ++p) {
    float& t = tiles[static_cast<size_t>(p / kTile)];
    t = std::max(t, v.score(q.data(), v.key(keys, p)));
  }
  return tiles;
}

void count_dead(const std::vector<uint8_t>& dead, TileCount& count) {
  count.all += static_cast<int64_t>(dead.size());
  for (const uint8_t d : dead)
    for (size_t r = 0; r < kTileRules; ++r) count.dead[r] += d >> r & 1;
}

// Runs programs in pieces that end where a global layer has attended, and counts there.
class CountingBackend : public Backend {
 public:
  explicit CountingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}
  std::map<int, AttentionCount>* counts = nullptr;  // by layer; null: nothing is counted

  DeviceInfo info() const override { return inner_->info(); }
  Buffer alloc(size_t bytes) override { return inner_->alloc(bytes); }
  void copy(void* dst, const void* src, size_t bytes) override { inner_->copy(dst, src, bytes); }
  void copy_within(void* dst, const void* src, size_t bytes) override {
    inner_->copy_within(dst, src, bytes);
  }
  Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) override {
    return inner_->place_weight(host, use, owner);
  }
  bool reads_single_copies() const override { return inner_->reads_single_copies(); }
  bool protects_rows() const override { return inner_->protects_rows(); }
  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    auto all = std::make_unique<Pieces>();
    all->state = state;
    Program piece;
    for (const OpRecord& op : program.ops()) {
      piece.push(op);
      if (op.op != Op::Attention || op.as<AttentionArgs>().kv.spec.window) continue;
      all->pieces.push_back({inner_->compile(piece, state), op, true});
      piece = {};
    }
    if (!piece.ops().empty()) all->pieces.push_back({inner_->compile(piece, state), {}, false});
    return all;
  }
  void submit(Executable& executable) override {
    auto& all = static_cast<Pieces&>(executable);
    for (const Piece& p : all.pieces) {
      inner_->submit(*p.part);
      inner_->wait();
      if (!counts || !p.attends) continue;
      const auto& a = p.attention.as<AttentionArgs>();
      AttentionCount c = count_tiles(a, *all.state, p.attention.rows);
      c.blocks = count_blocks(a, *all.state, p.attention.rows);
      (*counts)[p.attention.layer].add(c);
    }
  }
  void wait() override { inner_->wait(); }

 private:
  struct Piece {
    std::unique_ptr<Executable> part;
    OpRecord attention;
    bool attends;
  };
  struct Pieces : Executable {
    std::vector<Piece> pieces;
    const StepState* state = nullptr;
  };
  std::shared_ptr<Backend> inner_;
};

std::vector<Token> tokens_of(const Opened& opened, const std::string& path, int32_t n) {
  require_text(opened);
  std::vector<Token> tokens = opened.tokenizer->encode(read_file(path), false);
  const TokenizerData& d = opened.tokenizer->data();
  if (d.add_bos && d.bos >= 0) tokens.insert(tokens.begin(), d.bos);
  if (tokens.size() < static_cast<size_t>(n))
    throw Error(fmt::format("'{}' has {} tokens, and {} are needed", path, tokens.size(), n),
                "give a longer text, or a smaller -d or -p");
  return tokens;
}

std::map<int, AttentionCount> counts_at(const AttentionCountOptions& o, const Opened& opened,
                                        const KvFormats& formats, std::span<const Token> tokens,
                                        int32_t depth) {
  auto backend = std::make_shared<CountingBackend>(opened.backend);
  const int32_t n = depth + o.rows;
  Stepper stepper(backend, opened.model,
                  {.context = n, .sequences = 1, .step_rows = std::min(std::max(o.chunk, o.rows), n)},
                  formats);
  Sequence sequence(stepper.pages());
  std::map<int, AttentionCount> counts;
  ProgressBar bar(fmt::format("{} rows at depth {}", o.rows, depth));
  for (int32_t at = 0; at < n;) {
    const bool counted = at == depth;
    const int32_t rows = counted ? o.rows : std::min(o.chunk, depth - at);
    if (counted) backend->counts = &counts;
    CARAT_CHECK(sequence.append(rows));
    const Stepper::Part part{&sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(rows)),
                             counted ? Stepper::Wanted::all : Stepper::Wanted::none};
    stepper.run({&part, 1});
    sequence.commit(rows);
    at += rows;
    bar.update(at, n);
  }
  return counts;
}

void print_counts(const std::map<int, AttentionCount>& counts, int32_t rows, int32_t depth) {
  fmt::print("\n{} rows at depth {}: share of tiles without a weight, in % (of single rows and heads)\n\n",
             rows, depth);
  fmt::print("| layer |     tiles |");
  for (int r = 0; r < kTileRules; ++r) fmt::print(" {:>18} |", name_of(static_cast<TileRule>(r)));
  fmt::print("\n| ----: | --------: |");
  for (int r = 0; r < kTileRules; ++r) fmt::print(" {:->17}: |", "");
  fmt::print("\n");
  const auto line = [](const std::string& name, const AttentionCount& c) {
    fmt::print("| {:>5} | {:>9} |", name, c.tasks.all);
    for (int r = 0; r < kTileRules; ++r) {
      const auto rule = static_cast<TileRule>(r);
      fmt::print(" {:>18} |",
                 fmt::format("{:.2f} ({:.2f})", 100 * c.tasks.share(rule), 100 * c.pairs.share(rule)));
    }
    fmt::print("\n");
  };
  AttentionCount all;
  for (const auto& [layer, c] : counts) {
    line(std::to_string(layer), c);
    all.add(c);
  }
  line("all", all);
}

void print_blocks(const std::map<int, AttentionCount>& counts) {
  if (std::none_of(counts.begin(), counts.end(),
                   [](const auto& layer) { return layer.second.blocks.any(); })) {
    fmt::print(
        "\nNo block of 128 rows stands whole among these rows: take a -d that is a multiple of 128, and a -p "
        "of 128 or more, to see how many blocks of keys they would read.\n");
    return;
  }
  fmt::print(
      "\nBlocks of 128 keys that a block of 128 rows would read, in %, if each head's were to hold a share "
      "of "
      "its weights: what\nthey hold, and the least of a row. By weights: the fewest there are; by means: as "
      "scores of means of 16 keys choose.\n\n| layer |");
  for (const double share : kKeptShares)
    for (const char* how : {"by weights", "by means"})
      fmt::print(" {:>20} |", fmt::format("{}, {}", share, how));
  fmt::print("\n| ----: |");
  for (size_t i = 0; i < 2 * kKeptShares.size(); ++i) fmt::print(" {:->19}: |", "");
  fmt::print("\n");
  const auto line = [](const std::string& name, const BlockCount& c) {
    fmt::print("| {:>5} |", name);
    for (size_t g = 0; g < kKeptShares.size(); ++g)
      for (const ChosenBlocks* b : {&c.best[g], &c.by_means[g]})
        fmt::print(" {:>20} |", fmt::format("{:.1f}: {:.1f}, {:.1f}", 100 * b->density(),
                                            100 * b->kept_share(), 100 * b->worst));
    fmt::print("\n");
  };
  AttentionCount all;
  for (const auto& [layer, c] : counts) line(std::to_string(layer), c.blocks), all.add(c);
  line("all", all.blocks);
}

Record count_record(const Measurement& m, const AttentionCountOptions& o, const KvFormats& formats,
                    const std::map<int, AttentionCount>& counts, int32_t depth) {
  Record record = m.begin(fmt::format("attention count d{} {}", depth, formats.text()));
  Record& s = record["settings"];
  static constexpr const char* kKeys[kTileRules] = {"as_now", "segments_1024", "floor", "row"};
  s["text"] = o.text, s["depth"] = depth, s["rows"] = o.rows;
  put_cache(s, formats);
  Record layers = Record::array();
  for (const auto& [layer, c] : counts) {
    Record one;
    one["layer"] = layer, one["tiles"] = c.tasks.all;
    for (int r = 0; r < kTileRules; ++r) {
      const auto rule = static_cast<TileRule>(r);
      one["dead_share"][kKeys[r]] = c.tasks.share(rule);
      one["dead_share_of_pairs"][kKeys[r]] = c.pairs.share(rule);
    }
    for (size_t g = 0; g < kKeptShares.size() && c.blocks.any(); ++g) {
      const auto put = [&](const char* how, const ChosenBlocks& b) {
        one["blocks"][fmt::format("{}", kKeptShares[g])][how] = {
            {"density", b.density()}, {"kept", b.kept_share()}, {"kept_least", b.worst}};
      };
      put("by_weights", c.blocks.best[g]), put("by_means", c.blocks.by_means[g]);
    }
    layers.push_back(std::move(one));
  }
  record["figures"]["layers"] = std::move(layers);
  return record;
}

}  // namespace

const char* name_of(TileRule rule) {
  switch (rule) {
    case TileRule::as_now: return "as now";
    case TileRule::segments: return "segments of 1,024";
    case TileRule::floor: return "with a floor";
    case TileRule::row: break;
  }
  return "of the row";
}

void AttentionCount::add(const AttentionCount& other) {
  pairs.add(other.pairs), tasks.add(other.tasks), blocks.add(other.blocks);
}
void TileCount::add(const TileCount& other) {
  all += other.all;
  for (size_t r = 0; r < kTileRules; ++r) dead[r] += other.dead[r];
}

void judge_tiles(const std::vector<float>& best, int32_t positions, std::vector<uint8_t>& dead) {
  const auto n = static_cast<int32_t>(best.size());
  const float most = *std::max_element(best.begin(), best.end()), sinks = std::max(best.front(), best.back());
  const auto more = static_cast<float>(24 + std::bit_width(static_cast<uint32_t>(positions - 1)));
  const int32_t length = cuda::segment_of(0, positions - 1) / kTile;
  float now = -INFINITY, in_long = -INFINITY, floor = sinks;
  dead.assign(best.size(), 0);
  for (int32_t t = 0; t < n; ++t) {
    const float b = best[static_cast<size_t>(t)];
    now = t % length ? std::max(now, b) : b;
    in_long = t % (kLongSegment / kTile) ? std::max(in_long, b) : b;
    floor = std::max(floor, b);
    const bool of[kTileRules] = {b <= now - kHalfBits, b <= in_long - kHalfBits, b < floor - more,
                                 b <= most - kHalfBits};
    for (int r = 0; r < kTileRules; ++r)
      dead[static_cast<size_t>(t)] |= static_cast<uint8_t>(uint8_t{of[r]} << r);
  }
}

AttentionCount count_tiles(const AttentionArgs& a, const StepState& state, RowSet set) {
  const AttentionVectors vectors{a};
  const int32_t heads = a.q.cols / a.kv.spec.dim, group = heads / a.kv.spec.heads,
                width = std::min(16, group), per = kPairs / width,
                count = set == RowSet::all ? state.n_rows : state.n_out;
  const auto row_at = [&](int32_t m) { return set == RowSet::all ? m : state.out_row[m]; };
  AttentionCount counts;
  std::vector<uint8_t> dead, task;
  for (int32_t kv_head = 0; kv_head < a.kv.spec.heads; ++kv_head)
    for (int32_t m = 0; m < count;) {
      const int32_t seq = state.seq[row_at(m)];
      int32_t end = m + 1;
      while (end < count && state.seq[row_at(end)] == seq) ++end;
      const std::vector<float> keys = vectors.keys(state.seqs[seq], state.pos[row_at(end - 1)] + 1, kv_head);
      for (; m < end; m += std::min(per, end - m))
        for (int32_t from = 0; from < group; from += width) {
          task.clear();
          for (int32_t r = m; r < std::min(m + per, end); ++r)
            for (int32_t h = from; h < std::min(from + width, group); ++h) {
              const int32_t positions = state.pos[row_at(r)] + 1;
              judge_tiles(best_of(vectors, vectors.query(r, kv_head * group + h), keys, positions), positions,
                          dead);
              count_dead(dead, counts.pairs);
              task.resize(std::max(task.size(), dead.size()), 0xff);  // others do not see it
              for (size_t t = 0; t < dead.size(); ++t) task[t] &= dead[t];
            }
          count_dead(task, counts.tasks);
        }
    }
  return counts;
}

void bench_attention_count(const AttentionCountOptions& o) {
  Measurement m(o.measure, "attention count");
  const Opened opened = open_model(o.open);
  m.opened(opened);
  if (!opened.backend->host_memory()) throw Error("--attn-count counts on the processor", "add --device cpu");
  const int32_t most = *std::max_element(o.depths.begin(), o.depths.end()) + o.rows;
  const KvFormats formats = flag_formats(o.cache, opened, most);
  const std::vector<Token> tokens = tokens_of(opened, o.text, most);
  for (const int32_t depth : o.depths) {
    const std::map<int, AttentionCount> counts = counts_at(o, opened, formats, tokens, depth);
    if (m.prints_table()) print_counts(counts, o.rows, depth), print_blocks(counts);
    m.add(count_record(m, o, formats, counts, depth));
  }
  m.finish();
}

}  // namespace carat
