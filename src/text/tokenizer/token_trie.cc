#include "text/tokenizer/token_trie.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "text/grammar/grammar.h"

namespace carat {
namespace {

constexpr size_t kMaxBytes = 1000;  // a longer token is never forced or needed; grammars do without it

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : next_same_(static_cast<size_t>(tokenizer.size()), -1) {
  for (Token t = 0; t < tokenizer.size(); ++t) {
    begin_.push_back(static_cast<uint32_t>(text_.size()));
    if (tokenizer.is_end(t))
      ends_.push_back(t);
    else if (is_special(tokenizer, t))
      text_ += special_bytes(t);
    else if (const std::string& piece = tokenizer.piece(t);
             piece.size() <= kMaxBytes && piece.find(static_cast<char>(kSpecialByte)) == piece.npos)
      text_ += piece;  // a byte that would spell a control token is in no text
  }
  begin_.push_back(static_cast<uint32_t>(text_.size()));
  std::vector<Token> order(next_same_.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [this](Token t) { return bytes(t).empty(); });
  std::stable_sort(order.begin(), order.end(), [this](Token a, Token b) { return bytes(a) < bytes(b); });

  nodes_.push_back({});
  std::vector<uint32_t> path = {0};  // nodes down to the last one made
  Token before = -1;
  for (const Token t : order) {
    const std::string_view text = bytes(t), last = before < 0 ? std::string_view() : bytes(before);
    if (before >= 0 && text == last) {
      next_same_[static_cast<size_t>(before)] = t;
      before = t;
      continue;
    }
    const size_t shared = static_cast<size_t>(
        std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
    for (; path.size() > shared + 1; path.pop_back())
      nodes_[path.back()].skip = static_cast<uint32_t>(nodes_.size());
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      Node n;
      n.depth = static_cast<uint16_t>(i + 1);
      n.byte = static_cast<uint8_t>(text[i]);
      nodes_.push_back(n);
    }
    nodes_.back().token = t;
    deepest_ = std::max(deepest_, text.size());
    before = t;
  }
  for (const uint32_t node : path) nodes_[node].skip = static_cast<uint32_t>(nodes_.size());
}

std::string_view TokenTrie::bytes(Token t) const {
  if (t < 0 || t >= vocabulary()) return {};
  const auto i = static_cast<size_t>(t);
  return std::string_view(text_).substr(begin_[i], begin_[i + 1] - begin_[i]);
}

bool TokenTrie::is_end(Token t) const { return std::find(ends_.begin(), ends_.end(), t) != ends_.end(); }

}  // namespace carat
