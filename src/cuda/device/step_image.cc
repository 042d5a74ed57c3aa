// The step's arrays as kernels read them, made from StepState.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cuda/executable.h"

namespace carat::cuda {
namespace {

// Appends arrays; returns offsets, which point_into() turns into addresses.
class Packer {
 public:
  explicit Packer(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }
  template <class T>
  const T* add(const T* from, size_t n) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + n * sizeof(T));
    if (n) std::memcpy(bytes_.data() + at, from, n * sizeof(T));
    return reinterpret_cast<const T*>(at + 1);  // never null: null stays null
  }

 private:
  std::vector<std::byte>& bytes_;
};

template <class T>
void move(const T*& p, const std::byte* device) {
  if (p) p = reinterpret_cast<const T*>(device + (reinterpret_cast<uintptr_t>(p) - 1));
}

int32_t segments_of(const Span& span, int32_t pos, int32_t last) {
  const int32_t length = segment_of(span.window, pos);
  const int32_t first = span.window && pos - span.window + 1 > 0 ? pos - span.window + 1 : 0;
  return (span.both_ways ? last : pos) / length - first / length + 1;
}

template <class F>
std::vector<SeqRun> runs_of(int32_t n, F seq) {
  std::vector<SeqRun> runs;
  for (int32_t m = 0; m < n; ++m) {
    if (m == 0 || seq(m) != seq(m - 1)) runs.push_back({m, 0});
    ++runs.back().count;
  }
  return runs;
}

const int32_t* add_tokens(Packer& p, const StepState& s) {
  std::vector<int32_t> tokens(s.token, s.token + s.n_rows);
  for (size_t m = 0; s.soft && m < tokens.size(); ++m)
    if (s.soft[m]) tokens[m] = ~tokens[m];
  return p.add(tokens.data(), tokens.size());
}

// What of the span's caches is decoded before the step attends. A sequence's tiles come as one, and in a part
// of their own if they need more than one.
std::vector<UnpackedRun> unpacked_of(const StepState& s, const std::vector<SeqRun>& runs, const Span& span,
                                     int32_t tiles) {
  std::vector<UnpackedRun> all;
  int32_t at = 0;
  for (const SeqRun& r : runs) {
    const int32_t end = r.first + r.count;
    if (r.count <= kUnpackRows || (s.slot && !std::equal(s.slot + r.first, s.slot + end, s.pos + r.first)))
      continue;
    const auto [least, most] = std::minmax_element(s.pos + r.first, s.pos + end);
    const int32_t from = span.window && *least >= span.window ? *least - span.window + 1 : 0,
                  first = from / 64, count = *most / 64 + 1 - first;
    if (at % tiles + count > tiles) at = (at + tiles - 1) / tiles * tiles;
    if (span.window && count > tiles) continue;
    all.push_back({s.seq[r.first], first, count, at, from, *most});
    at += count;
  }
  return all;
}

}  // namespace

void make_image(const CudaExecutable& exe, StepImage& image) {
  const StepState& s = *exe.state;
  CARAT_CHECK(exe.max_rows == 0 || s.n_rows <= exe.max_rows, "{} rows in a bucket of {}", s.n_rows,
              exe.max_rows);
  CARAT_CHECK(exe.max_out == 0 || s.n_out <= exe.max_out, "{} rows out in a bucket of {}", s.n_out,
              exe.max_out);
  CARAT_CHECK(!exe.chains || !s.slot, "a tree in a tower");
  const auto rows = static_cast<size_t>(s.n_rows);
  const std::vector<SeqRun> runs = runs_of(s.seq ? s.n_rows : 0, [&](int32_t m) { return s.seq[m]; });
  const std::vector<SeqRun> out_runs =
      runs_of(s.seq && s.out_row ? s.n_out : 0, [&](int32_t i) { return s.seq[s.out_row[i]]; });
  std::vector<int32_t> last(rows, 0);
  std::vector<SeqView> views;
  if (s.seq && s.seqs) {
    views.resize(rows ? static_cast<size_t>(*std::max_element(s.seq, s.seq + rows)) + 1 : 0);
    std::copy(s.seqs, s.seqs + views.size(), views.begin());
  }
  Packer p(image.bytes);
  DevStep& d = image.step;
  d = {};
  d.n_rows = s.n_rows, d.n_out = s.n_out, d.n_runs = static_cast<int32_t>(runs.size());
  d.n_out_runs = static_cast<int32_t>(out_runs.size());
  const auto rows_of = [&](const int32_t* from) { return from ? p.add(from, rows) : nullptr; };
  d.token = s.token ? add_tokens(p, s) : nullptr, d.pos = rows_of(s.pos), d.seq = rows_of(s.seq);
  d.slot = rows_of(s.slot), d.parent = rows_of(s.parent);
  if (s.place) d.place = p.add(s.place, 3 * rows);
  if (s.out_row) d.out_row = p.add(s.out_row, static_cast<size_t>(s.n_out));
  for (const SeqRun& r : runs) {
    const int32_t end = r.first + r.count;
    int32_t top = 0;
    for (int32_t m = r.first; s.pos && m < end; ++m) {
      top = std::max({top, s.pos[m], s.slot_of(m)});
      last[static_cast<size_t>(m)] = !exe.blocks ? s.pos[end - 1] : s.until ? s.until[m] : s.pos[m];
    }
    SeqView& v = views.at(static_cast<size_t>(s.seq[r.first]));
    const auto pages = exe.page_tokens ? static_cast<size_t>(top / exe.page_tokens) + 1 : 0,
               of_ring = std::min(pages, static_cast<size_t>(exe.ring_pages));
    v.pages = v.pages && pages ? p.add(v.pages, pages) : nullptr;
    v.ring = v.ring && of_ring ? p.add(v.ring, of_ring) : nullptr;
    v.kept = v.kept && v.n_kept ? p.add(v.kept, static_cast<size_t>(v.n_kept)) : nullptr;
  }
  d.last_pos = p.add(last.data(), rows);
  d.runs = p.add(runs.data(), runs.size());
  d.out_runs = p.add(out_runs.data(), out_runs.size());
  if (rows == 1 && !views.empty() && s.pos)
    d.one_seq = views[static_cast<size_t>(s.seq[0])], d.one_pos = s.pos[0];
  for (size_t i = 0; i < kMaxSpans; ++i) {
    image.unpackings[i] = 0;
    if (!s.pos || !s.seq || i >= exe.spans.size() || exe.tiles[i] == 0) continue;
    const std::vector<UnpackedRun> all = unpacked_of(s, runs, exe.spans[i], exe.tiles[i]);
    d.unpacked[i] = p.add(all.data(), all.size());
    d.n_unpacked[i] = static_cast<int32_t>(all.size());
    d.all_unpacked[i] = all.size() == runs.size();
    if (!all.empty())
      image.unpackings[i] = (all.back().at + all.back().count + exe.tiles[i] - 1) / exe.tiles[i];
  }
  d.seqs = p.add(views.data(), views.size());  // the last array: point_into()
  for (size_t i = 0; s.pos && i < exe.spans.size(); ++i)
    for (size_t m = 0; m < rows; ++m)
      d.segments[i] = std::max(d.segments[i], segments_of(exe.spans[i], s.pos[m], last[m]));
  image.partial = 0;
  for (size_t i = 0; i < exe.split.size(); ++i)
    image.partial = std::max(
        image.partial, partial_floats(exe.split[i], exe.split[i].y.rows, d.segments[exe.split_span[i]]));
}

void point_into(StepImage& image, std::byte* device) {
  DevStep& d = image.step;
  const std::byte* at = d.seqs ? image.bytes.data() + (reinterpret_cast<uintptr_t>(d.seqs) - 1) : nullptr;
  const size_t n =
      at ? static_cast<size_t>(image.bytes.data() + image.bytes.size() - at) / sizeof(SeqView) : 0;
  for (size_t i = 0; i < n; ++i) {  // the last array
    SeqView v;
    std::memcpy(&v, at + i * sizeof v, sizeof v);
    move(v.pages, device), move(v.ring, device), move(v.kept, device);
    std::memcpy(image.bytes.data() + (at - image.bytes.data()) + i * sizeof v, &v, sizeof v);
  }
  move(d.one_seq.pages, device), move(d.one_seq.ring, device), move(d.one_seq.kept, device);
  move(d.token, device), move(d.pos, device), move(d.seq, device), move(d.out_row, device);
  move(d.slot, device), move(d.parent, device), move(d.last_pos, device), move(d.place, device);
  for (const UnpackedRun*& runs : d.unpacked) move(runs, device);
  move(d.runs, device), move(d.out_runs, device), move(d.seqs, device);
}

}  // namespace carat::cuda
