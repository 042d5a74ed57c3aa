#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "core/codec.h"
#include "tests/op_cases.h"

namespace carat::test {
namespace {

constexpr size_t kGuard = 256;
constexpr auto kPoison = std::byte{0xff};  // NaN in every float format

// Sum of four uniform numbers: near enough to normal, variance 1.
double near_normal(uint64_t bits) {
  double s = -2;
  for (int i = 0; i < 4; ++i) s += static_cast<double>((bits >> 16 * i & 0xffff) + 0.5) / 65536;
  return s * std::sqrt(3.0);
}

// Blocks of a format to compose rows from: encoding thousands of rows would cost more than all kernels.
class BlockPool {
 public:
  static constexpr int kBlocks = 97;
  explicit BlockPool(DType type) : bytes_(info(type).bytes), data_(static_cast<size_t>(kBlocks) * bytes_) {
    Random rng(static_cast<uint64_t>(type) + 1);
    std::vector<float> x(info(type).elems);
    for (int b = 0; b < kBlocks; ++b) {
      std::byte* block = &data_[static_cast<size_t>(b) * bytes_];
      for (float& v : x) v = static_cast<float>(near_normal(rng()));
      if (can_encode(type))
        encode_row(type, x.data(), block, info(type).elems);
      else
        do
          for (int k = 0; k < bytes_; ++k) block[k] = static_cast<std::byte>(rng());
        while (!moderate(type, block, x));
    }
  }
  void fill(std::byte* row, int64_t blocks, Random& rng) const {
    for (int64_t b = 0; b < blocks; ++b)
      std::memcpy(row + b * bytes_, &data_[rng() % kBlocks * bytes_], static_cast<size_t>(bytes_));
  }

 private:
  static bool moderate(DType type, const std::byte* block, std::vector<float>& x) {
    decode_row(type, block, x.data(), info(type).elems);
    return std::all_of(x.begin(), x.end(), [](float v) { return std::abs(v) < 100; });
  }
  int bytes_;
  std::vector<std::byte> data_;
};

// Finite codes of e4m3 and a factor.
void fill_fp8(std::byte* row, int32_t cols, Random& rng) {
  for (int32_t i = 0; i < cols; ++i) {
    const auto code = static_cast<uint8_t>(rng() >> 17);
    row[i] = static_cast<std::byte>((code & 127) == 127 ? 0 : code);
  }
  const uint16_t factor = f32_to_f16(0.002f + 0.01f * static_cast<float>(rng() % 64) / 64);
  std::memcpy(row + cols, &factor, 2);
}

const BlockPool& pool(DType type) {
  static std::map<DType, BlockPool> pools;
  return pools.try_emplace(type, type).first->second;
}

}  // namespace

double Operand::norm(int64_t r) const {
  if (norms_.empty()) norms_.assign(host.size() / static_cast<size_t>(t.cols), -1);
  double& norm = norms_[static_cast<size_t>(r)];
  if (norm >= 0) return norm;
  double s = 0;
  for (int32_t i = 0; i < t.cols; ++i) s += double{row(r)[i]} * row(r)[i];
  return norm = std::sqrt(s);
}
double Operand::max_abs(int64_t r) const {
  double m = 0;
  for (int32_t i = 0; i < t.cols; ++i) m = std::max(m, std::abs(double{row(r)[i]}));
  return m;
}

double CaseRun::normal() { return near_normal(rng_()); }

std::byte* CaseRun::add(std::vector<std::byte> image) {
  Block b{backend_.alloc(image.size()), std::move(image)};
  backend_.copy(b.memory.data(), b.image.data(), b.image.size());
  blocks_.push_back(std::move(b));
  return blocks_.back().memory.data();
}

const std::byte* CaseRun::image_at(const std::byte* p) const {
  for (const Block& b : blocks_)
    if (p >= b.memory.data() && p < b.memory.data() + b.image.size())
      return b.image.data() + (p - b.memory.data());
  CARAT_CHECK(false, "not of this case");
  return nullptr;
}

Operand CaseRun::input(int32_t rows, int32_t cols, int32_t used, double spread, bool halves) {
  const int64_t pitch = (int64_t{cols} + 3 + cols % 5) * 4;
  std::vector<std::byte> image(static_cast<size_t>(pitch) * rows, kPoison);
  Operand o;
  o.host.resize(static_cast<size_t>(rows) * cols);
  for (int32_t r = 0; r < used; ++r)
    for (int32_t c = 0; c < cols; ++c) {
      const double x = normal() * spread;
      const auto v = static_cast<float>(halves ? std::round(2 * x) / 2 : x);
      o.host[static_cast<size_t>(r) * cols + c] = v;
      std::memcpy(&image[static_cast<size_t>(pitch) * r + c * 4], &v, 4);
    }
  o.t = make_tensor(add(std::move(image)), DType::f32, rows, cols);
  o.t.pitch = pitch;
  return o;
}

Operand CaseRun::weight(DType type, int32_t rows, int32_t cols, int32_t slices, WeightUse use) {
  Operand o;
  const size_t n = static_cast<size_t>(rows) * slices, pitch = row_bytes(type, cols);
  // Exactly the bytes and often odd addresses, as in a file: reading past the end shows under ASan.
  const size_t shift = rng_() % 4;
  weights_.push_back(std::make_unique<std::byte[]>(n * pitch + shift));
  std::byte* data = weights_.back().get() + shift;
  o.host.resize(n * cols);
  for (size_t r = 0; r < n; ++r) {
    const DType stored = stored_as(type);
    if (carat::info(stored).family == Family::cache)
      fill_fp8(data + r * pitch, cols, rng_);
    else
      pool(stored).fill(data + r * pitch, cols / info(type).elems, rng_);
    decode_row(type, data + r * pitch, &o.host[r * cols], cols);
  }
  Buffer owner;
  o.file = make_tensor(data, type, rows, cols, slices);
  if (slices > 1 && use == WeightUse::product) use = WeightUse::experts;
  o.t = backend_.place_weight(o.file, use, owner);
  owners_.push_back(std::move(owner));
  return o;
}

Operand CaseRun::weight_rows(const Operand& host, int32_t first, int32_t n) {
  Operand o;
  o.file = host.file.row_range(first, n);
  Buffer owner;
  o.t = backend_.place_weight(o.file, host.file.slices > 1 ? WeightUse::experts : WeightUse::product, owner);
  owners_.push_back(std::move(owner));
  for (int32_t s = 0; s < host.t.slices; ++s) {
    const float* from = host.row(int64_t{s} * host.t.rows + first);
    o.host.insert(o.host.end(), from, from + int64_t{n} * host.t.cols);
  }
  return o;
}

Operand CaseRun::shared_row(int32_t cols, double low, double high) {
  Operand o;
  for (int32_t i = 0; i < cols; ++i)
    o.host.push_back(static_cast<float>(low + (high - low) * static_cast<double>(rng_() >> 11) * 0x1.0p-53));
  o.t = make_tensor(const_cast<float*>(floats(o.host)), DType::f32, 1, cols);
  return o;
}

const float* CaseRun::floats(const std::vector<float>& values) {
  std::vector<std::byte> image(values.size() * 4);
  std::memcpy(image.data(), values.data(), image.size());
  return reinterpret_cast<const float*>(add(std::move(image)));
}

Tensor CaseRun::ints(const std::vector<int32_t>& values, int32_t rows, int32_t cols) {
  std::vector<std::byte> image(values.size() * 4);
  std::memcpy(image.data(), values.data(), image.size());
  return make_tensor(add(std::move(image)), DType::i32, rows, cols);
}

Tensor CaseRun::output(int32_t rows, int32_t cols, DType type) {
  const int64_t pitch = row_bytes(type, cols) + 4 * (1 + cols % 7);
  std::byte* p = add(std::vector<std::byte>(static_cast<size_t>(pitch) * rows + 2 * kGuard, kPoison));
  Tensor t = make_tensor(p + kGuard, type, rows, cols);
  t.pitch = pitch;
  return t;
}

void CaseRun::expect(const std::string& name, const Tensor& t, int32_t rows,
                     const std::function<double(int32_t, int32_t)>& tolerance) {
  for (int32_t r = 0; r < rows; ++r) {
    std::vector<double> tol;
    if (tolerance)
      for (int32_t c = 0; c < t.cols; ++c) tol.push_back(tolerance(r, c));
    regions_.push_back({fmt::format("{}[{}]", name, r), t.row<std::byte>(r), t.type, t.cols, std::move(tol)});
  }
}

void CaseRun::expect_row(std::string name, std::byte* data, DType type, std::vector<double> tolerance) {
  const auto n = static_cast<int32_t>(tolerance.size());
  regions_.push_back({std::move(name), data, type, n, std::move(tolerance)});
}

void CaseRun::step(const std::vector<Rows>& sequences, int32_t vocab, int32_t keep) {
  sequences_ = sequences;
  bool trees = false;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const Rows& q = sequences[s];
    const auto first = static_cast<int32_t>(token_.size());
    trees |= !q.parents.empty();
    for (int32_t i = 0; i < q.count; ++i) {
      const int32_t up = q.parents.empty() ? i - 1 : q.parents[static_cast<size_t>(i)];
      token_.push_back(static_cast<int32_t>(rng_() % static_cast<uint64_t>(vocab)));
      pos_.push_back(up < 0 ? q.first_pos : pos_[first + up] + 1);
      seq_.push_back(static_cast<int32_t>(s));
      slot_.push_back(q.first_pos + i);
      parent_.push_back(up < 0 ? -1 : first + up);
    }
  }
  const auto rows = static_cast<int32_t>(token_.size());
  for (int32_t i = 0; i < rows; ++i)
    if (i % keep == keep - 1 || i + 1 == rows) out_row_.push_back(i);
  views_.resize(sequences.size());
  state_ = {rows,          static_cast<int32_t>(out_row_.size()),
            token_.data(), pos_.data(),
            seq_.data(),   out_row_.data(),
            views_.data()};
  if (trees) state_.slot = slot_.data(), state_.parent = parent_.data();
}

void CaseRun::blocks(int32_t rows) {
  until_ = pos_;
  int32_t end = 0;
  for (const Rows& s : sequences_) {
    const int32_t first = std::exchange(end, end + s.count);
    const int32_t skip = rows == end - first ? 0 : 1;
    for (int32_t i = first + skip; i < end; ++i) {
      const int32_t at = (i - first - skip) % (rows + 1), last = std::min(i - at + rows, end) - 1;
      if (at < rows) until_[i] = pos_[last];
    }
  }
  state_.until = until_.data();
}

void CaseRun::places() {
  for (int32_t i = 0; i < 3 * n_rows(); ++i) place_.push_back(static_cast<int32_t>(rng_() % 300));
  state_.place = place_.data();
}

void CaseRun::soft(int32_t cols) {
  for (int32_t i = 0; i < n_rows(); ++i) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (float& v : row) v = static_cast<float>(normal());
    soft_.push_back(i % 3 == 1 ? floats(row) : nullptr);
  }
  state_.soft = soft_.data();
}

KvView CaseRun::cache(KvSpec spec, int32_t page_tokens, bool ring, bool with_step) {
  KvView v;
  v.spec = spec;
  v.page_tokens = page_tokens;
  int32_t most_rows = 0;
  size_t pages = 0;
  for (const Rows& s : sequences_) most_rows = std::max(most_rows, s.count);
  const auto in_pages = [&](int32_t n) { return (n + page_tokens - 1) / page_tokens; };
  if (ring) v.ring_tokens = in_pages(spec.window + most_rows) * page_tokens;
  for (const Rows& s : sequences_)
    pages += static_cast<size_t>(in_pages(ring ? v.ring_tokens : s.first_pos + s.count));
  // Page numbers in no order.
  std::vector<int32_t> numbers;
  for (size_t i = 0; i < pages; ++i) numbers.push_back(static_cast<int32_t>(i));
  for (size_t i = pages; i > 1; --i) std::swap(numbers[i - 1], numbers[rng_() % i]);
  pages_.clear();
  for (size_t s = 0, next = 0; s < sequences_.size(); ++s) {
    pages_.emplace_back();
    const int32_t n = in_pages(ring ? v.ring_tokens : sequences_[s].first_pos + sequences_[s].count);
    for (int32_t i = 0; i < n; ++i) pages_[s].push_back(numbers[next++]);
  }
  for (size_t s = 0; s < sequences_.size(); ++s)
    views_[s] = {pages_[s].data(), pages_[s].data(), static_cast<int32_t>(sequences_.size() - 1 - s)};
  // Page sizes larger than needed: kernels must use them.
  v.k_page_bytes = int64_t{spec.heads} * page_tokens * spec.k_bytes() + 32;
  v.v_page_bytes = int64_t{spec.heads} * page_tokens * spec.v_bytes() + 96;
  std::vector<std::byte> k(pages * v.k_page_bytes, kPoison), val(pages * v.v_page_bytes, kPoison);
  std::vector<float> x(static_cast<size_t>(spec.dim));
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const int32_t end = sequences_[s].first_pos + (with_step ? sequences_[s].count : 0);
    for (int32_t p = ring ? std::max(0, end - v.ring_tokens) : 0; p < end; ++p)
      for (int32_t h = 0; h < spec.heads; ++h) {
        KvView on_host = v;
        on_host.k = k.data();
        on_host.v = val.data();
        for (float& f : x) f = static_cast<float>(normal());
        encode_row(spec.k, x.data(), on_host.k_row(views_[s], p, h), spec.key_dim());
        for (float& f : x) f = static_cast<float>(normal());
        encode_row(spec.v, x.data(), on_host.v_row(views_[s], p, h), spec.dim);
      }
  }
  v.k = add(std::move(k));
  v.v = add(std::move(val));
  if (spec.protect.any()) add_edges(v, most_rows, with_step);
  if (spec.pairs) {
    for (float& f : x) f = static_cast<float>(normal());
    v.gain = floats(x);
  }
  return v;
}

// The second copy has values of its own: who reads the wrong one computes something else.
void CaseRun::add_edges(KvView& v, int32_t most_rows, bool with_step) {
  const KvSpec& spec = v.spec;
  v.edge_ring = spec.protect.recent + most_rows;
  const size_t rows =
      sequences_.size() * static_cast<size_t>((spec.protect.sinks + v.edge_ring) * spec.heads);
  std::vector<std::byte> k(rows * spec.k_edge_bytes(), kPoison), val(rows * spec.v_edge_bytes(), kPoison);
  std::vector<float> x(static_cast<size_t>(spec.dim));
  KvView on_host = v;
  on_host.k_edge = k.data(), on_host.v_edge = val.data();
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const int32_t end = sequences_[s].first_pos + (with_step ? sequences_[s].count : 0);
    for (int32_t p = 0; p < end; ++p)
      for (int32_t h = 0; h < spec.heads; ++h) {
        for (float& f : x) f = static_cast<float>(normal());
        encode_row(DType::f16, x.data(), on_host.k_edge_row(views_[s], p, h), spec.key_dim());
        for (float& f : x) f = static_cast<float>(normal());
        encode_row(DType::f16, x.data(), on_host.v_edge_row(views_[s], p, h), spec.dim);
      }
  }
  v.k_edge = add(std::move(k));
  v.v_edge = add(std::move(val));
}

RecurrentView CaseRun::states(const RecurrentSpec& spec, int64_t base, int64_t entry, int32_t draft_rows) {
  const auto n = sequences_.size();
  RecurrentView v{nullptr, nullptr, base + 5, entry + 3, 2 * draft_rows, spec};
  std::vector<std::byte> bases(n * static_cast<size_t>(v.base_floats) * 4, kPoison);
  std::vector<std::byte> log(n * static_cast<size_t>(v.entries * v.entry_floats) * 4 + 4, kPoison);
  const auto fill = [&](std::byte* at, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<float>(0.3 * normal());
      std::memcpy(at + i * 4, &x, 4);
    }
  };
  kept_.assign(n, {});
  for (size_t s = 0; s < n; ++s) {
    const auto slot = static_cast<int32_t>(n - 1 - s);
    const int32_t half = s % 2 ? draft_rows : 0, count = sequences_[s].count;
    const int32_t kept = std::min(sequences_[s].first_pos, static_cast<int32_t>((s + 2) % (draft_rows + 1)));
    for (int32_t i = 0; i < kept; ++i) kept_[s].push_back((half ? 0 : draft_rows) + i);
    if (kept > 1) kept_[s].back() = (half ? 0 : draft_rows) + draft_rows - 1;  // not all in a row
    views_[s] = {nullptr, nullptr, slot, std::max(0, count - draft_rows), half, kept_[s].data(), kept};
    std::byte* mine = log.data() + int64_t{slot} * v.entries * v.entry_floats * 4;
    for (const int32_t e : kept_[s]) fill(mine + e * v.entry_floats * 4, entry);
    if (sequences_[s].first_pos > kept) fill(bases.data() + slot * v.base_floats * 4, base);
  }
  v.base = reinterpret_cast<float*>(add(std::move(bases)));
  v.log = reinterpret_cast<float*>(add(std::move(log)));
  return v;
}

void CaseRun::expect_states(const RecurrentView& v, int64_t base, int64_t entry, double tolerance) {
  const auto row = [&](std::string name, float* data, int64_t count) {
    std::vector<double> t(tolerance > 0 ? static_cast<size_t>(count) : 0, tolerance);
    regions_.push_back({std::move(name), reinterpret_cast<std::byte*>(data), DType::f32,
                        static_cast<int32_t>(count), std::move(t)});
  };
  for (size_t s = 0; s < sequences_.size(); ++s) {
    row(fmt::format("base of {}", s), v.base_of(views_[s]), base);
    for (int32_t i = views_[s].settled; i < sequences_[s].count; ++i)
      row(fmt::format("entry {} of {}", i, s), v.entry(views_[s], views_[s].log + i - views_[s].settled),
          entry);
  }
}

std::vector<float> CaseRun::stored(const KvView& v, int32_t row, int32_t p, int32_t head, bool keys) const {
  std::vector<float> x(static_cast<size_t>(keys ? v.spec.key_dim() : v.spec.dim));
  const SeqView& seq = views_[seq_[row]];
  const int32_t slot = state_.slot_seen(row, p);
  const bool edge = v.spec.protect.covers(pos_[row], p);
  const std::byte* at = edge   ? keys ? v.k_edge_row(seq, slot, head) : v.v_edge_row(seq, slot, head)
                          : keys ? v.k_row(seq, slot, head)
                               : v.v_row(seq, slot, head);
  decode_row(edge   ? DType::f16
             : keys ? v.spec.k
                    : v.spec.v,
             image_at(at), x.data(), static_cast<int64_t>(x.size()));
  return x;
}

std::vector<std::byte> CaseRun::bytes(const Region& r) const {
  std::vector<std::byte> b(static_cast<size_t>(row_bytes(r.type, r.count)));
  backend_.copy(b.data(), r.data, b.size());
  return b;
}

std::string CaseRun::run() {
  const auto executable = backend_.compile(program_, &state_);
  backend_.submit(*executable);
  backend_.wait();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    std::vector<std::byte> now(b.image.size()), want = b.image;
    backend_.copy(now.data(), b.memory.data(), now.size());
    for (const Region& r : regions_)
      if (r.data >= b.memory.data() && r.data < b.memory.data() + now.size()) {
        const auto at = static_cast<size_t>(r.data - b.memory.data());
        std::memcpy(&want[at], &now[at], static_cast<size_t>(row_bytes(r.type, r.count)));
      }
    for (size_t k = 0; k < now.size(); ++k)
      if (now[k] != want[k])
        return fmt::format("byte {} of {} in block {} was overwritten", k, now.size(), i);
  }
  return {};
}

std::string compare(const CaseRun& a, const CaseRun& b) {
  CARAT_CHECK(a.regions().size() == b.regions().size());
  for (size_t i = 0; i < a.regions().size(); ++i) {
    const Region& r = a.regions()[i];
    const std::vector<double>& allowed = b.regions()[i].tolerance;
    const std::vector<std::byte> x = a.bytes(r), y = b.bytes(b.regions()[i]);
    if (x == y) continue;
    std::vector<float> fx(static_cast<size_t>(r.count)), fy(fx.size());
    decode_row(r.type, x.data(), fx.data(), r.count);
    decode_row(r.type, y.data(), fy.data(), r.count);
    for (int32_t k = 0; k < r.count; ++k) {
      const double tol = allowed.empty() ? 0 : allowed[k];
      if (!(std::abs(double{fx[k]} - fy[k]) <= tol))
        return fmt::format("{}, element {}: {} instead of {}, tolerance {}", r.name, k, fy[k], fx[k], tol);
    }
    if (allowed.empty()) return fmt::format("{}: bytes differ", r.name);
  }
  return {};
}

}  // namespace carat::test
