#include "state/snapshot.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "state/checkpoint.h"
#include "state/saved_sum.h"

namespace carat {
namespace {

constexpr char kMagic[8] = {'c', 'a', 'r', 'a', 't', 'k', 'v', '\n'};
constexpr uint32_t kVersion = 4;
constexpr int32_t kSpan = 512;  // positions before the end where one can go on

// Tells now and then, and at the end.
class Told {
 public:
  Told(const StateProgress& progress, int64_t total) : progress_(progress), total_(total) {}
  void add(size_t bytes) {
    constexpr int64_t kOften = int64_t{16} << 20;
    done_ += static_cast<int64_t>(bytes);
    if (progress_ && (done_ - told_ >= kOften || done_ == total_)) progress_(told_ = done_, total_);
  }

 private:
  const StateProgress& progress_;
  int64_t total_, done_ = 0, told_ = 0;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : file_(path, true) {}
  void put(const void* data, size_t n) {
    file_.write(data, n);
    sum_.add(static_cast<const std::byte*>(data), n);
  }
  void put(uint32_t v) { put(&v, 4); }
  void put(std::string_view s) {
    put(static_cast<uint32_t>(s.size()));
    put(s.data(), s.size());
  }
  void commit() {
    const uint64_t sum = sum_.value();
    file_.write(&sum, 8);
    file_.commit();
  }

 private:
  AtomicFile file_;
  SavedSum sum_;
};

class Reader {
 public:
  // whole: its checksum is looked at.
  explicit Reader(const std::string& path, bool whole = true, const StateProgress& progress = {})
      : file_(path), rest_(file_.bytes()) {
    char magic[8];
    if (rest_.size() < 20 || (take(magic, 8), std::memcmp(magic, kMagic, 8) != 0))
      throw Error(fmt::format("'{}' is not a saved sequence", path));
    const uint32_t version = number();
    if (version != kVersion)
      throw Error(fmt::format("'{}' is of version {}, this program reads {}", path, version, kVersion),
                  "save it again");
    if (!whole) return;
    const size_t body = file_.bytes().size() - 8;
    uint64_t sum;
    std::memcpy(&sum, file_.bytes().data() + body, 8);
    if (sum_of(file_.bytes().first(body), progress) != sum)
      throw DamagedFile(fmt::format("'{}' is damaged: its checksum is wrong", path), "save it again");
    rest_ = rest_.first(rest_.size() - 8);
  }
  std::span<const std::byte> take(size_t n) {
    if (n > rest_.size()) throw Error(fmt::format("'{}' is cut off", file_.path()));
    const auto part = rest_.first(n);
    rest_ = rest_.subspan(n);
    return part;
  }
  void take(void* to, size_t n) { std::memcpy(to, take(n).data(), n); }
  uint32_t number() {
    uint32_t v;
    take(&v, 4);
    return v;
  }
  std::string text() {
    const auto s = take(number());
    return {reinterpret_cast<const char*>(s.data()), s.size()};
  }
  std::vector<int32_t> tokens() {
    const auto bytes = take(size_t{number()} * 4);
    std::vector<int32_t> out(bytes.size() / 4);
    std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<std::byte*>(out.data()));
    return out;
  }
  size_t left() const { return rest_.size(); }

 private:
  // This is what reads the file: what follows copies what memory has.
  static uint64_t sum_of(std::span<const std::byte> body, const StateProgress& progress) {
    constexpr size_t kPiece = size_t{4} << 20;
    SavedSum sum;
    Told told(progress, static_cast<int64_t>(body.size()));
    for (size_t at = 0; at < body.size(); at += kPiece) {
      const auto piece = body.subspan(at, std::min(kPiece, body.size() - at));
      sum.add(piece.data(), piece.size());
      told.add(piece.size());
    }
    return sum.value();
  }

  MappedFile file_;
  std::span<const std::byte> rest_;
};

// What the bytes mean.
std::string geometry(const KvPool& pool) {
  std::string all;
  for (const KvPlan::Layer& l : pool.plan().layers) {
    const KvView v = pool.view(l.layer);
    const int64_t rows = int64_t{v.spec.heads} * v.page_tokens;
    all += fmt::format("layer {}: {} heads of {}, {} {}, K {} in {}, V {} in {} bytes, {} pairs; ", l.layer,
                       v.spec.heads, v.spec.dim, l.ring_tokens ? "a ring with window" : "pages with window",
                       v.spec.window, info(v.spec.k).name, v.k_page_bytes / rows, info(v.spec.v).name,
                       v.v_page_bytes / rows, v.spec.pairs);
    if (const KvProtect& p = v.spec.protect; p.any())
      all += fmt::format("layer {}: {} first and {} last positions protected; ", l.layer, p.sinks, p.recent);
  }
  for (const KvPlan::Recurrent& r : pool.plan().recurrent)
    all += fmt::format("layer {}: states of {} and {} floats; ", r.layer, pool.conv(r.layer).base_floats,
                       pool.matrix(r.layer).base_floats);
  return all + fmt::format("pages of {}", pool.limits().page_tokens);
}

// The parts in which two geometries differ.
std::string first_difference(const std::string& a, const std::string& b) {
  size_t from = 0;
  while (from < a.size()) {
    const size_t end = std::min(a.find("; ", from), a.size());
    if (a.compare(from, end - from, b, from, end - from) != 0) return a.substr(from, end - from);
    from = end + 2;
  }
  return a.substr(a.rfind("; ") + 1);
}

// f over the keys and values of all layers with pages.
template <class F>
void each_paged_run(const KvPool& pool, const Sequence& s, int32_t tokens, F&& f) {
  const SeqView seq = s.view();
  for (const KvPlan::Layer& l : pool.plan().layers)
    if (l.ring_tokens == 0) each_kv_run(pool.view(l.layer), seq, 0, tokens, f);
}

int64_t paged_bytes(const KvPlan& plan, const KvLimits& limits, int32_t tokens) {
  int64_t bytes = 0;
  for (const KvPlan::Layer& l : plan.layers)
    if (l.ring_tokens == 0) bytes += tokens * ((l.k_page_bytes + l.v_page_bytes) / limits.page_tokens);
  return bytes;
}

}  // namespace

int64_t saved_bytes(const KvPlan& plan, std::span<const KvLayerSpec> layers, const KvLimits& limits,
                    int32_t tokens) {
  int32_t window = 0, from = std::max(0, tokens - kSpan);
  for (const KvPlan::Layer& l : plan.layers)
    if (l.ring_tokens) window = std::max(window, layers[static_cast<size_t>(l.layer)].kv.window);
  for (const KvPlan::Layer& l : plan.layers)
    if (l.ring_tokens && l.ring_tokens < tokens) from = std::max(from, tokens - l.ring_tokens + window);
  int64_t bytes = paged_bytes(plan, limits, tokens);
  for (const KvPlan::Layer& l : plan.layers)
    if (l.ring_tokens)
      bytes +=
          (tokens - std::max(0, from - window)) * ((l.k_page_bytes + l.v_page_bytes) / limits.page_tokens);
  for (const KvPlan::Edge& e : plan.edges) {
    const KvProtect& p = layers[static_cast<size_t>(e.layer)].kv.protect;
    const int64_t rows = int64_t{limits.sequences} * (p.sinks + e.ring_tokens);
    const int32_t recent = p.recent ? tokens - std::max(0, from - p.recent) : 0;
    bytes += e.bytes() / rows * std::min(tokens, p.sinks + recent);
  }
  for (const KvPlan::Recurrent& r : plan.recurrent) bytes += (r.conv_base + r.matrix_base) / limits.sequences;
  return bytes;
}

void save_sequence(const std::string& path, Backend& backend, const KvPool& pool, const Sequence& sequence,
                   std::span<const int32_t> tokens, std::string_view model, const StateProgress& progress) {
  const int32_t n = sequence.committed();
  CARAT_CHECK(static_cast<int32_t>(tokens.size()) == n, "{} tokens, {} positions", tokens.size(), n);
  const Checkpoint c = take_checkpoint(backend, pool, sequence, kSpan);
  Writer out(path);
  out.put(kMagic, sizeof kMagic);
  out.put(kVersion);
  out.put(model);
  out.put(static_cast<uint32_t>(n));
  out.put(tokens.data(), tokens.size() * 4);
  out.put(std::string_view(geometry(pool)));
  for (const int32_t v : {c.from, c.ring_first, c.logged}) out.put(static_cast<uint32_t>(v));
  Told told(progress, paged_bytes(pool.plan(), pool.limits(), n) + static_cast<int64_t>(c.bytes.size()));
  std::vector<std::byte> run;
  each_paged_run(pool, sequence, n, [&](const std::byte* p, size_t bytes) {
    run.resize(bytes);
    backend.copy(run.data(), p, bytes);
    out.put(run.data(), bytes);
    told.add(bytes);
  });
  out.put(c.bytes.data(), c.bytes.size());
  told.add(c.bytes.size());
  out.commit();
}

std::vector<int32_t> load_sequence(const std::string& path, Backend& backend, const KvPool& pool,
                                   Sequence& sequence, std::string_view model,
                                   const StateProgress& progress) {
  CARAT_CHECK(sequence.committed() == 0, "{} positions are there already", sequence.committed());
  Reader in(path, true, progress);
  if (const std::string theirs = in.text(); theirs != model)
    throw Error(fmt::format("'{}' belongs to another model: {}", path, theirs),
                fmt::format("this is {}", model));
  const std::vector<int32_t> tokens = in.tokens();
  const auto n = static_cast<int32_t>(tokens.size());
  if (n > pool.limits().context)
    throw Error(fmt::format("'{}' holds {} tokens, the context is {}", path, n, pool.limits().context),
                "make the context larger");
  const std::string theirs = in.text(), ours = geometry(pool);
  if (theirs != ours)
    throw Error(fmt::format("'{}' was saved with another cache: {}", path, first_difference(theirs, ours)),
                fmt::format("here it is {}", first_difference(ours, theirs)));
  Checkpoint c;
  c.to = n;
  c.from = static_cast<int32_t>(in.number());
  c.ring_first = static_cast<int32_t>(in.number());
  c.logged = static_cast<int32_t>(in.number());
  if (c.ring_first < 0 || c.ring_first > c.from || c.from > n || c.logged < 0)
    throw Error(fmt::format("'{}' makes no sense", path), "save it again");
  if (c.logged > pool.limits().draft_rows)
    throw Error(fmt::format("'{}' was saved with drafters and needs {} rows of drafts", path, c.logged),
                "use --spec as when it was saved");
  const auto paged = static_cast<size_t>(paged_bytes(pool.plan(), pool.limits(), n));
  for (const KvPlan::Layer& l : pool.plan().layers) {
    if (l.ring_tokens && n - c.ring_first > l.ring_tokens)
      throw Error(fmt::format("'{}' was saved with longer steps", path), "use -b as when it was saved");
  }
  for (const KvPlan::Edge& e : pool.plan().edges)
    if (const int32_t recent = pool.view(e.layer).spec.protect.recent;
        recent && n - std::max(0, c.from - recent) > e.ring_tokens)
      throw Error(fmt::format("'{}' was saved with longer steps", path), "use -b as when it was saved");
  const std::span<const std::byte> pages = in.take(paged), rest = in.take(in.left());
  if (rest.size() != checkpoint_size(pool, c))
    throw Error(fmt::format("'{}' is cut off or longer than it should be", path));
  // All is there; now it may be written.
  if (!sequence.start_blank(n, c))
    throw Error("no room for the saved sequence", "wait until others have ended");
  const std::byte* at = pages.data();
  each_paged_run(pool, sequence, n, [&](std::byte* p, size_t bytes) {
    backend.copy(p, at, bytes);
    at += bytes;
  });
  c.bytes.assign(rest.begin(), rest.end());
  restore_checkpoint(backend, pool, sequence, c);
  return tokens;
}

SavedHead saved_head(const std::string& path) {
  Reader in(path, false);
  SavedHead h;
  h.model = in.text();
  h.tokens = in.tokens();
  in.text();
  h.from = static_cast<int32_t>(in.number());
  return h;
}

std::vector<int32_t> saved_tokens(const std::string& path) {
  Reader in(path);
  in.text();
  return in.tokens();
}

}  // namespace carat
