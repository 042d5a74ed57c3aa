#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/split.h"
#include "text/tokenizer/unicode.h"

namespace carat {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, how SentencePiece writes U+0020

// The byte of "<0xXX>", -1 if the piece is not of this form.
int byte_of_piece(std::string_view piece) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const int high = digit(piece[3]), low = digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// GPT-2's alphabet: the code point that writes a byte. Printable Latin-1 stands for itself, the rest moves to
// U+0100 on.
std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    out[b] = printable ? b : next++;
  }
  return out;
}

std::string replace_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      out += kSpace;
    } else {
      out += c;
    }
  }
  return out;
}

std::string restore_spaces(std::string_view piece) {
  std::string out;
  for (size_t i = 0; i < piece.size();) {
    const bool space = piece.substr(i).starts_with(kSpace);
    out += space ? ' ' : piece[i];
    i += space ? kSpace.size() : 1;
  }
  return out;
}

// "<|turn>", "<turn|>", "<|image|>"
bool is_gemma_mark(std::string_view s) {
  return s.size() > 3 && s.front() == '<' && s.back() == '>' && (s[1] == '|' || s[s.size() - 2] == '|');
}

// "[PAD300]" as token 300: what converters write for rows of the table that have no token.
bool is_filler(std::string_view s, size_t id) {
  return s.starts_with("[PAD") && s == fmt::format("[PAD{}]", id);
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerData d);

  void check_and_complete();
  void set_control(Token id);
  void add_end(Token id);
  void index_symbols();
  void index_joints();
  void index_pieces();
  void index_added();

  struct Scratch {
    std::vector<Token> out;
    std::vector<Token> symbols;
    std::vector<std::string_view> pieces, whole;
  };
  void encode_text(std::string_view raw, bool parse_special, Scratch& scratch) const;
  void split(std::string_view text, Scratch& scratch) const;
  void encode_piece(std::string_view piece, Scratch& scratch) const;
  Token find_whole(std::string_view piece) const;
  bool append_symbols(std::string_view c, std::vector<Token>& symbols) const;
  Token symbol_of(char32_t c) const { return c < character_.size() ? character_[c] : -1; }
  bool valid(Token id) const { return id >= 0 && static_cast<size_t>(id) < data.tokens.size(); }

  TokenizerData data;
  bool byte_level = false;
  VocabIndex index;
  Bpe bpe;
  std::vector<Splitter> splitters;
  std::vector<Token> character_;    // gemma4: token of a single code point, -1 if none
  std::array<Token, 256> byte_;     // token of a byte, -1 if none
  std::vector<std::string> piece_;  // raw bytes
  std::vector<bool> end_;
  AddedTokens user_, all_;  // matched on raw text: without and with control tokens
  AddedTokens user_normalized_, all_normalized_;
};

Tokenizer::Impl::Impl(TokenizerData d) : data(std::move(d)) {
  byte_level = data.model == "gpt2";
  check_and_complete();
  bpe.build(index, data.tokens, data.merges);
  index_symbols();
  index_joints();
  index_pieces();
  index_added();
}

void Tokenizer::Impl::check_and_complete() {
  const size_t n = data.tokens.size();
  if (!byte_level && data.model != "gemma4" && data.model != "llama") {
    throw Error(fmt::format("Tokenizer model \"{:.40}\" is not supported", data.model),
                "Supported are \"gemma4\", \"llama\" with merges, and \"gpt2\".");
  }
  if (n == 0 || data.types.size() != n || (!data.scores.empty() && data.scores.size() != n)) {
    throw Error(fmt::format("The tokenizer has {} tokens, {} types and {} scores", n, data.types.size(),
                            data.scores.size()),
                "The lists must be of the same length; the file is damaged.");
  }
  if (data.merges.empty()) {
    throw Error("The tokenizer has no merges",
                "Vocabularies that are merged by score are not supported; "
                "convert the model again with a current converter.");
  }
  if (data.add_space_prefix && data.pre != "gemma4") {
    throw Error("The tokenizer wants a space before the text (add_space_prefix)",
                "Only Gemma's form is supported.");
  }
  for (const Token id : {data.bos, data.eos, data.unk, data.pad, data.mask}) {
    if (id != -1 && !valid(id)) {
      throw Error(fmt::format("The tokenizer names the special token {}, but has only {} tokens", id, n));
    }
  }
  index.build(data.tokens);
  if (byte_level && data.split_pattern.empty()) {
    const PreTokenizer* pre = find_pre_tokenizer(data.pre);
    if (!pre) {
      throw Error(fmt::format("Pre-tokenizer \"{:.40}\" is not known", data.pre),
                  "Known are: " + pre_tokenizer_names());
    }
    data.split_pattern = pre->pattern;
    data.then_split.assign(pre->then.begin(), pre->then.end());
    data.nfc = pre->nfc;
    data.ignore_merges = pre->ignore_merges;
  }
  if (byte_level) {
    splitters.emplace_back(data.split_pattern);
    for (const std::string& pattern : data.then_split) splitters.emplace_back(pattern);
  }
  for (const Token id : {data.bos, data.eos, data.pad}) set_control(id);
  std::vector<Token> ends;
  std::swap(ends, data.end_of_generation);
  end_.assign(n, false);
  add_end(data.eos);
  for (const Token id : ends) add_end(id);
  // What files leave out: Gemma ends a turn by any of three, and published files type <eos> as a normal
  // token.
  const char* const gemma[] = {"<eos>", "<turn|>", "<|tool_response>", "<end_of_turn>"};
  const char* const chatml[] = {"<|im_end|>", "<|endoftext|>"};
  for (const char* text :
       byte_level ? std::span<const char* const>(chatml) : std::span<const char* const>(gemma)) {
    add_end(index.find(text));
    set_control(index.find(text));
  }
  for (size_t id = 0; id < n && !byte_level; ++id) {
    if (data.types[id] == TokenType::user_defined && is_gemma_mark(data.tokens[id]))
      data.types[id] = TokenType::control;
  }
}

void Tokenizer::Impl::set_control(Token id) {
  if (id >= 0 && data.types[id] != TokenType::unknown) data.types[id] = TokenType::control;
}

void Tokenizer::Impl::add_end(Token id) {
  if (!valid(id) || end_[id]) return;
  end_[id] = true;
  data.end_of_generation.push_back(id);
}

void Tokenizer::Impl::index_symbols() {
  byte_.fill(-1);
  if (byte_level) {
    const auto alphabet = byte_alphabet();
    for (size_t b = 0; b < 256; ++b) {
      std::string s;
      append_utf8(s, alphabet[b]);
      byte_[b] = index.find(s);
    }
  } else {
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      const std::string& text = data.tokens[id];
      if (const int b = byte_of_piece(text); b >= 0) {
        byte_[b] = static_cast<Token>(id);
        if (data.types[id] == TokenType::normal) data.types[id] = TokenType::byte;
      }
      const Utf8Step step = utf8_step(text);
      if (!step.valid || step.bytes != text.size()) continue;
      if (step.value >= character_.size()) character_.resize(step.value + 1, -1);
      character_[step.value] = static_cast<Token>(id);
    }
  }
  if (data.unk < 0 && std::count(byte_.begin(), byte_.end(), -1) != 0) {
    throw Error("The tokenizer lacks tokens for some bytes and has no unknown token",
                "Text outside its alphabet could not be written; the tokenizer data is incomplete.");
  }
}

// Texts are cut where no merge reaches across (Bpe::build_joints). Byte and unknown tokens do not start as
// the characters of their names; a vocabulary that merges those is left uncut.
void Tokenizer::Impl::index_joints() {
  const size_t n = data.tokens.size();
  std::vector<Token> first(n, -1), last(n, -1);
  std::array<Token, 0x180> byte_symbol{};
  if (byte_level) {
    const auto alphabet = byte_alphabet();
    byte_symbol.fill(-1);
    for (size_t b = 0; b < 256; ++b) byte_symbol[alphabet[b]] = byte_[b];
  }
  for (size_t id = 0; id < n; ++id) {
    const std::string& text = data.tokens[id];
    const auto symbol = [&](char32_t c) {
      return !byte_level ? symbol_of(c) : c < byte_symbol.size() ? byte_symbol[c] : -1;
    };
    size_t back = text.size();
    while (back > 0 && (static_cast<uint8_t>(text[--back]) & 0xC0) == 0x80) {}
    if (text.empty()) continue;
    first[id] = symbol(utf8_step(text).value);
    last[id] = symbol(utf8_step(std::string_view(text).substr(back)).value);
  }
  if (!byte_level) {
    for (const Token id : byte_) {
      if (id >= 0 && bpe.is_part(id)) return;
    }
  }
  if (data.unk >= 0 && bpe.is_part(data.unk)) return;
  bpe.build_joints(first, last);
}

void Tokenizer::Impl::index_pieces() {
  const size_t n = data.tokens.size();
  piece_.resize(n);
  std::array<int, 0x180> byte_of{};
  byte_of.fill(-1);
  const auto alphabet = byte_alphabet();
  for (int b = 0; b < 256; ++b) byte_of[alphabet[b]] = b;
  for (size_t id = 0; id < n; ++id) {
    const std::string_view text = data.tokens[id];
    const TokenType type = data.types[id];
    if (type == TokenType::control || type == TokenType::unknown ||
        (byte_level && type == TokenType::user_defined)) {
      piece_[id] = text;
    } else if (type == TokenType::unused && is_filler(text, id)) {
      continue;  // of a table with more rows than the vocabulary has tokens: no text, as rows without a token
    } else if (!byte_level) {
      const int b = type == TokenType::byte ? byte_of_piece(text) : -1;
      piece_[id] = b >= 0 ? std::string(1, static_cast<char>(b)) : restore_spaces(text);
    } else {
      std::string raw;
      size_t pos = 0;
      while (pos < text.size()) {
        const Utf8Step step = utf8_step(text.substr(pos));
        if (step.value >= byte_of.size() || byte_of[step.value] < 0) break;
        raw += static_cast<char>(byte_of[step.value]);
        pos += step.bytes;
      }
      piece_[id] = pos == text.size() ? raw : std::string(text);
    }
  }
}

void Tokenizer::Impl::index_added() {
  std::vector<AddedTokenRule> rules(data.tokens.size());
  for (const AddedTokenRule& rule : data.added_rules) {
    if (!valid(rule.id))
      throw Error(fmt::format("The tokenizer has a rule for token {}, which does not exist", rule.id));
    rules[rule.id] = rule;
  }
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const bool user = data.types[id] == TokenType::user_defined;
    if (!user && data.types[id] != TokenType::control && data.types[id] != TokenType::unknown) continue;
    AddedTokenRule& rule = rules[id];
    rule.id = static_cast<Token>(id);
    std::string text = data.tokens[id];
    if (rule.normalized) text = !byte_level ? replace_spaces(text) : data.nfc ? nfc(text) : text;
    if (user) (rule.normalized ? user_normalized_ : user_).add(text, rule);
    (rule.normalized ? all_normalized_ : all_).add(text, rule);
  }
}

// A stretch of raw text without raw added tokens: bytes that are not UTF-8 stand alone, the rest is
// normalized and encoded.
void Tokenizer::Impl::encode_text(std::string_view raw, bool parse_special, Scratch& scratch) const {
  const AddedTokens& added = parse_special ? all_normalized_ : user_normalized_;
  while (!raw.empty()) {
    size_t good = 0;
    for (Utf8Step s = utf8_step(raw); s.valid; s = utf8_step(raw.substr(good))) good += s.bytes;
    if (good > 0) {
      const std::string_view valid_text = raw.substr(0, good);
      const std::string text = !byte_level ? replace_spaces(valid_text)
                               : data.nfc  ? nfc(valid_text)
                                           : std::string(valid_text);
      for (const TextSpan& span : added.split(text)) {
        if (span.token >= 0) {
          scratch.out.push_back(span.token);
        } else if (byte_level) {
          split(span.text, scratch);
          for (const std::string_view piece : scratch.pieces) encode_piece(piece, scratch);
        } else {
          encode_piece(span.text, scratch);
        }
      }
    }
    raw.remove_prefix(good);
    if (raw.empty()) break;
    const Token byte = byte_[static_cast<uint8_t>(raw[0])];
    scratch.out.push_back(byte >= 0 ? byte : data.unk);
    raw.remove_prefix(1);
  }
}

void Tokenizer::Impl::split(std::string_view text, Scratch& scratch) const {
  scratch.pieces.clear();
  splitters[0].split(text, scratch.pieces);
  for (size_t i = 1; i < splitters.size(); ++i) {
    std::swap(scratch.pieces, scratch.whole);
    scratch.pieces.clear();
    for (const std::string_view piece : scratch.whole) splitters[i].split(piece, scratch.pieces);
  }
}

void Tokenizer::Impl::encode_piece(std::string_view piece, Scratch& scratch) const {
  if (data.ignore_merges) {
    const Token whole = find_whole(piece);
    if (whole >= 0) {
      scratch.out.push_back(whole);
      return;
    }
  }
  scratch.symbols.clear();
  bool after_unknown = false;
  for (size_t pos = 0; pos < piece.size();) {
    const uint32_t size = byte_level ? 1 : utf8_step(piece.substr(pos)).bytes;
    const bool known = append_symbols(piece.substr(pos, size), scratch.symbols);
    if (!known && !(after_unknown && data.fuse_unk)) scratch.symbols.push_back(data.unk);
    after_unknown = !known;
    pos += size;
  }
  bpe.encode(scratch.symbols, scratch.out);
}

Token Tokenizer::Impl::find_whole(std::string_view piece) const {
  if (!byte_level) return index.find(piece);
  static const auto alphabet = byte_alphabet();
  std::string name;
  for (const char c : piece) append_utf8(name, alphabet[static_cast<uint8_t>(c)]);
  return index.find(name);
}

// The initial tokens of one character (byte-level: of one byte): its own, else its bytes'. False if it has
// neither.
bool Tokenizer::Impl::append_symbols(std::string_view c, std::vector<Token>& symbols) const {
  if (!byte_level) {
    const Token own = symbol_of(utf8_step(c).value);
    if (own >= 0) {
      symbols.push_back(own);
      return true;
    }
  }
  for (const char b : c) {
    if (byte_[static_cast<uint8_t>(b)] < 0) return false;
  }
  for (const char b : c) symbols.push_back(byte_[static_cast<uint8_t>(b)]);
  return true;
}

Tokenizer::Tokenizer(TokenizerData data) : impl_(std::make_unique<Impl>(std::move(data))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<Token> Tokenizer::encode(std::string_view text, bool parse_special) const {
  Impl::Scratch scratch;
  scratch.out.reserve(text.size() / 3 + 1);
  for (const TextSpan& span : (parse_special ? impl_->all_ : impl_->user_).split(text)) {
    if (span.token >= 0) {
      scratch.out.push_back(span.token);
    } else {
      impl_->encode_text(span.text, parse_special, scratch);
    }
  }
  return std::move(scratch.out);
}

std::string Tokenizer::decode(std::span<const Token> tokens, bool special) const {
  std::string out;
  for (const Token id : tokens) {
    if (special || !is_control(id)) out += piece(id);
  }
  return out;
}

const std::string& Tokenizer::piece(Token token) const {
  static const std::string none;
  return impl_->valid(token) ? impl_->piece_[token] : none;
}

bool Tokenizer::is_control(Token token) const {
  if (!impl_->valid(token)) return false;
  const TokenType type = impl_->data.types[token];
  return type == TokenType::control || type == TokenType::unknown;
}

bool Tokenizer::is_mark(Token token) const {
  return is_control(token) || (impl_->valid(token) && impl_->data.types[token] == TokenType::user_defined);
}

bool Tokenizer::is_end(Token token) const { return impl_->valid(token) && impl_->end_[token]; }
Token Tokenizer::find(std::string_view piece) const { return impl_->index.find(piece); }
int32_t Tokenizer::size() const { return static_cast<int32_t>(impl_->data.tokens.size()); }
const TokenizerData& Tokenizer::data() const { return impl_->data; }

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  size_t pos = 0;
  while (pos < held_.size()) {
    const Utf8Step step = utf8_step(std::string_view(held_).substr(pos));
    if (step.unfinished) break;
    if (step.valid) {
      out.append(held_, pos, step.bytes);
    } else {
      append_utf8(out, 0xFFFD);
    }
    pos += step.bytes;
  }
  held_.erase(0, pos);
  return out;
}

std::string Utf8Stream::finish() {
  std::string out;
  if (!held_.empty()) append_utf8(out, 0xFFFD);
  held_.clear();
  return out;
}

}  // namespace carat
