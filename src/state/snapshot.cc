#include "state/snapshot.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace carat {
namespace {

constexpr char kMagic[8] = {'c', 'a', 'r', 'a', 't', 'k', 'v', '\n'};
constexpr uint32_t kVersion = 1;

uint64_t fnv(uint64_t h, const void* data, size_t n) {
  for (size_t i = 0; i < n; ++i) h = (h ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
  return h;
}
constexpr uint64_t kFnv = 0xcbf29ce484222325;

class Writer {
 public:
  explicit Writer(const std::string& path) : file_(path) {}
  void put(const void* data, size_t n) {
    file_.write(data, n);
    hash_ = fnv(hash_, data, n);
  }
  void put(uint32_t v) { put(&v, 4); }
  void put(std::string_view s) {
    put(static_cast<uint32_t>(s.size()));
    put(s.data(), s.size());
  }
  void commit() {
    file_.write(&hash_, 8);
    file_.commit();
  }

 private:
  AtomicFile file_;
  uint64_t hash_ = kFnv;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path), rest_(file_.bytes()) {
    char magic[8];
    if (rest_.size() < 20 || (take(magic, 8), std::memcmp(magic, kMagic, 8) != 0))
      throw Error(fmt::format("'{}' is not a saved sequence", path));
    const uint32_t version = number();
    if (version != kVersion)
      throw Error(fmt::format("'{}' is of version {}, this program reads {}", path, version, kVersion),
                  "save it again");
    const size_t body = file_.bytes().size() - 8;
    uint64_t sum;
    std::memcpy(&sum, file_.bytes().data() + body, 8);
    if (fnv(kFnv, file_.bytes().data(), body) != sum)
      throw Error(fmt::format("'{}' is damaged: its checksum is wrong", path), "save it again");
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
  void end() const {
    if (!rest_.empty()) throw Error(fmt::format("'{}' is longer than it should be", file_.path()));
  }

 private:
  MappedFile file_;
  std::span<const std::byte> rest_;
};

// What the rows of a cache mean.
std::string geometry(const KvSpec& s) {
  return fmt::format("{} heads of {}, window {}, K {}, V {}{}", s.heads, s.dim, s.window, info(s.k).name,
                     info(s.v).name, s.pairs ? fmt::format(", one copy but for {} pairs", s.pairs) : "");
}
int32_t first_kept(const KvSpec& s, int32_t tokens) { return s.window ? std::max(0, tokens - s.window) : 0; }

void refuse_recurrent(const KvPool& pool) {
  if (!pool.plan().recurrent.empty())
    throw Error("a sequence with recurrent states cannot be saved or restored");
}

// f(row, bytes) over the rows of one cache, in the file's order.
template <class F>
void each_row(const KvView& v, const SeqView& seq, int32_t tokens, F&& f) {
  for (int32_t p = first_kept(v.spec, tokens); p < tokens; ++p)
    for (int32_t h = 0; h < v.spec.heads; ++h) {
      f(v.k_row(seq, p, h), static_cast<size_t>(v.spec.k_bytes()));
      f(v.v_row(seq, p, h), static_cast<size_t>(v.spec.v_bytes()));
    }
}
SeqView view_of(const Sequence& s) { return {s.pages().data(), s.ring_slot()}; }

}  // namespace

void save_sequence(const std::string& path, Backend& backend, const KvPool& pool, const Sequence& sequence,
                   std::span<const int32_t> tokens, std::string_view model) {
  refuse_recurrent(pool);
  const int32_t n = sequence.committed();
  CARAT_CHECK(static_cast<int32_t>(tokens.size()) == n, "{} tokens, {} positions", tokens.size(), n);
  Writer out(path);
  out.put(kMagic, sizeof kMagic);
  out.put(kVersion);
  out.put(model);
  out.put(static_cast<uint32_t>(n));
  out.put(tokens.data(), tokens.size() * 4);
  out.put(static_cast<uint32_t>(pool.plan().layers.size()));
  std::vector<std::byte> row;
  for (const KvPlan::Layer& l : pool.plan().layers) {
    const KvView v = pool.view(l.layer);
    out.put(static_cast<uint32_t>(l.layer));
    out.put(geometry(v.spec));
    each_row(v, view_of(sequence), n, [&](const std::byte* p, size_t bytes) {
      row.resize(bytes);
      backend.copy(row.data(), p, bytes);
      out.put(row.data(), bytes);
    });
  }
  out.commit();
}

std::vector<int32_t> load_sequence(const std::string& path, Backend& backend, const KvPool& pool,
                                   Sequence& sequence, std::string_view model) {
  CARAT_CHECK(sequence.committed() == 0, "{} positions are there already", sequence.committed());
  refuse_recurrent(pool);
  Reader in(path);
  if (const std::string theirs = in.text(); theirs != model)
    throw Error(fmt::format("'{}' belongs to another model: {}", path, theirs),
                fmt::format("this is {}", model));
  const std::vector<int32_t> tokens = in.tokens();
  const auto n = static_cast<uint32_t>(tokens.size());
  if (n > static_cast<uint32_t>(pool.limits().context))
    throw Error(fmt::format("'{}' holds {} tokens, the context is {}", path, n, pool.limits().context),
                "make the context larger");
  const uint32_t caches = in.number();
  if (caches != pool.plan().layers.size())
    throw Error(fmt::format("'{}' has {} caches, the model {}", path, caches, pool.plan().layers.size()));
  struct Part {
    KvView view;
    std::vector<std::span<const std::byte>> rows;
  };
  std::vector<Part> parts;  // all is read before anything is written
  for (const KvPlan::Layer& l : pool.plan().layers) {
    Part& part = parts.emplace_back(Part{pool.view(l.layer), {}});
    const KvSpec& s = part.view.spec;
    const uint32_t layer = in.number();
    const std::string theirs = in.text();
    if (layer != static_cast<uint32_t>(l.layer) || theirs != geometry(s))
      throw Error(fmt::format("'{}' was saved with another cache: layer {} has {}", path, layer, theirs),
                  fmt::format("here layer {} has {}", l.layer, geometry(s)));
    const int64_t rows = int64_t{static_cast<int32_t>(n) - first_kept(s, static_cast<int32_t>(n))} * s.heads;
    for (int64_t i = 0; i < rows; ++i) {
      part.rows.push_back(in.take(static_cast<size_t>(s.k_bytes())));
      part.rows.push_back(in.take(static_cast<size_t>(s.v_bytes())));
    }
  }
  in.end();
  for (int32_t left = static_cast<int32_t>(n); left > 0;) {
    const int32_t step = std::min(left, pool.limits().step_rows);
    if (!sequence.append(step)) throw Error("no room for the saved sequence", "wait until others have ended");
    sequence.commit(step);
    left -= step;
  }
  for (const Part& part : parts) {
    size_t i = 0;
    each_row(part.view, view_of(sequence), static_cast<int32_t>(n),
             [&](std::byte* p, size_t bytes) { backend.copy(p, part.rows[i++].data(), bytes); });
  }
  return tokens;
}

std::vector<int32_t> saved_tokens(const std::string& path) {
  Reader in(path);
  in.text();
  return in.tokens();
}

}  // namespace carat
