#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"

namespace carat {
namespace {

constexpr size_t kShort = 32;  // symbols; up to here a scan beats a heap
constexpr uint64_t kEmpty = UINT64_MAX;

uint64_t pair_key(Token left, Token right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t spread(uint64_t key, int shift) {
  key ^= key >> 29;
  return static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> shift);
}

int shift_for(size_t entries) { return 64 - std::max<int>(1, std::bit_width(entries * 2)); }

uint32_t hash_of(std::string_view s) { return static_cast<uint32_t>(std::hash<std::string_view>{}(s)); }

}  // namespace

void VocabIndex::build(std::span<const std::string> tokens) {
  tokens_ = tokens;
  slots_.assign(std::bit_ceil(tokens.size() * 2 + 2), {});
  const size_t mask = slots_.size() - 1;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    const uint32_t h = hash_of(tokens[id]);
    size_t i = h & mask;
    while (slots_[i].id >= 0 && !(slots_[i].hash == h && tokens_[slots_[i].id] == tokens[id]))
      i = (i + 1) & mask;
    slots_[i] = {h, static_cast<Token>(id)};
  }
}

Token VocabIndex::find(std::string_view piece) const {
  if (slots_.empty() || piece.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  const uint32_t h = hash_of(piece);
  for (size_t i = h & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].hash == h && tokens_[slots_[i].id] == piece) return slots_[i].id;
  }
  return -1;
}

void Bpe::build(const VocabIndex& index, std::span<const std::string> tokens,
                std::span<const std::string> merges) {
  if (tokens.size() > INT32_MAX || merges.size() > INT32_MAX)
    throw Error("The tokenizer's tables are too large");
  shift_ = shift_for(merges.size());
  slots_.assign(size_t{1} << (64 - shift_), {});
  part_.assign(tokens.size(), false);
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& m = merges[rank];
    // A part may itself hold a space: take the first cut that the vocabulary knows.
    Token left = -1, right = -1, result = -1;
    for (size_t cut = m.find(' ', 1); cut != std::string::npos && result < 0; cut = m.find(' ', cut + 1)) {
      const std::string_view a(m.data(), cut), b(m.data() + cut + 1, m.size() - cut - 1);
      left = index.find(a);
      right = index.find(b);
      if (left < 0 || right < 0) continue;
      joined.assign(a);
      joined.append(b);
      result = index.find(joined);
    }
    if (result < 0) {
      throw Error(
          fmt::format("The tokenizer's merge {} (\"{:.60}\") is not made of tokens of its vocabulary", rank,
                      m),
          "The tokenizer data is damaged or from another model; take the file from the publisher again.");
    }
    insert(left, right, static_cast<uint32_t>(rank), result);
    part_[left] = part_[right] = true;
  }
}

void Bpe::insert(Token left, Token right, uint32_t rank, Token result) {
  const uint64_t key = pair_key(left, right);
  size_t i = spread(key, shift_);
  while (slots_[i].pair != kEmpty && slots_[i].pair != key) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {key, rank, result};
}

const Bpe::Merge* Bpe::find(Token left, Token right) const {
  const uint64_t key = pair_key(left, right);
  size_t i = spread(key, shift_);
  while (slots_[i].pair != key) {
    if (slots_[i].pair == kEmpty) return nullptr;
    i = (i + 1) & (slots_.size() - 1);
  }
  return &slots_[i];
}

void Bpe::build_joints(std::span<const Token> first, std::span<const Token> last) {
  std::vector<uint64_t> keys;
  keys.reserve(slots_.size());
  for (const Merge& m : slots_) {
    if (m.pair == kEmpty) continue;
    const Token a = last[m.pair >> 32], b = first[m.pair & UINT32_MAX];
    if (a >= 0 && b >= 0) keys.push_back(pair_key(a, b));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  joint_shift_ = shift_for(keys.size());
  joints_.assign(size_t{1} << (64 - joint_shift_), kEmpty);
  for (const uint64_t key : keys) {
    size_t i = spread(key, joint_shift_);
    while (joints_[i] != kEmpty) i = (i + 1) & (joints_.size() - 1);
    joints_[i] = key;
  }
}

bool Bpe::joins(Token left, Token right) const {
  if (joints_.empty()) return true;
  const uint64_t key = pair_key(left, right);
  size_t i = spread(key, joint_shift_);
  while (joints_[i] != key) {
    if (joints_[i] == kEmpty) return false;
    i = (i + 1) & (joints_.size() - 1);
  }
  return true;
}

void Bpe::encode(std::span<const Token> symbols, std::vector<Token>& out) const {
  for (size_t begin = 0; begin < symbols.size();) {
    size_t end = begin + 1;
    while (end < symbols.size() && joins(symbols[end - 1], symbols[end])) ++end;
    const auto run = symbols.subspan(begin, end - begin);
    if (run.size() == 1) {
      out.push_back(run[0]);
    } else if (run.size() <= kShort) {
      encode_short(run, out);
    } else {
      encode_long(run, out);
    }
    begin = end;
  }
}

void Bpe::encode_short(std::span<const Token> symbols, std::vector<Token>& out) const {
  Token token[kShort];
  uint32_t rank[kShort];  // of the pair that starts here
  Token result[kShort];
  size_t n = symbols.size();
  std::copy(symbols.begin(), symbols.end(), token);
  const auto look = [&](size_t i) {
    const Merge* m = find(token[i], token[i + 1]);
    rank[i] = m ? m->rank : kNoRank;
    result[i] = m ? m->result : -1;
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    const size_t best = static_cast<size_t>(std::min_element(rank, rank + n - 1) - rank);
    if (rank[best] == kNoRank) break;
    token[best] = result[best];
    std::copy(token + best + 2, token + n, token + best + 1);
    if (best + 2 < n) {
      std::copy(rank + best + 2, rank + n - 1, rank + best + 1);
      std::copy(result + best + 2, result + n - 1, result + best + 1);
    }
    --n;
    if (best > 0) look(best - 1);
    if (best + 1 < n) look(best);
  }
  out.insert(out.end(), token, token + n);
}

void Bpe::encode_long(std::span<const Token> symbols, std::vector<Token>& out) const {
  struct Node {
    Token token;
    uint32_t rank;  // of the pair (this, next), kNoRank if there is none or the node is gone
    Token result;
    uint32_t prev, next;
  };
  CARAT_CHECK(symbols.size() < kNoRank);
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<Node> node(n);
  std::vector<uint64_t> heap;  // rank << 32 | position: least is best rank, then leftmost
  heap.reserve(n);
  const auto look = [&](uint32_t i) {
    const Merge* m = node[i].next < n ? find(node[i].token, node[node[i].next].token) : nullptr;
    node[i].rank = m ? m->rank : kNoRank;
    node[i].result = m ? m->result : -1;
    return m != nullptr;
  };
  for (uint32_t i = 0; i < n; ++i) node[i] = {symbols[i], kNoRank, -1, i - 1, i + 1};
  for (uint32_t i = 0; i + 1 < n; ++i) {
    if (look(i)) heap.push_back(static_cast<uint64_t>(node[i].rank) << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t i) {
    if (!look(i)) return;
    heap.push_back(static_cast<uint64_t>(node[i].rank) << 32 | i);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<uint32_t>(top);
    // A rank names one pair of tokens, so an entry is current exactly if the node still has this rank.
    if (node[i].rank != top >> 32) continue;
    const uint32_t gone = node[i].next;
    node[i].token = node[i].result;
    node[i].next = node[gone].next;
    node[gone].rank = kNoRank;
    if (node[i].next < n) node[node[i].next].prev = i;
    push(i);
    if (i > 0) push(node[i].prev);
  }
  for (uint32_t i = 0; i < n; i = node[i].next) out.push_back(node[i].token);
}

}  // namespace carat
