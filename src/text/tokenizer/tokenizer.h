// Text to tokens and back, for the vocabularies of GGUF files and tokenizer.json.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

using Token = int32_t;

// GGUF's token types.
enum class TokenType : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

// How an added token meets the text around it; what Hugging Face's tokenizer.json says of it beyond the plain
// match.
struct AddedTokenRule {
  Token id = -1;
  bool lstrip = false, rstrip = false;  // takes the white space on this side with it
  bool single_word = false;             // only where no word character touches it
  bool normalized = false;              // matched after normalization, not on the raw text
};

// A vocabulary as files carry it, whatever the dialect (gemma4.md section 6; tokenizer.ggml.* keys).
struct TokenizerData {
  std::string model;                // "gemma4", "llama" or "gpt2" (byte-level BPE)
  std::string pre;                  // pre-tokenizer name; "gemma4", "qwen35", ...
  std::vector<std::string> tokens;  // index = id; pieces as in the file (U+2581 for space)
  std::vector<TokenType> types;     // same length
  std::vector<float> scores;        // same length or empty
  std::vector<std::string> merges;  // "left right", best first
  Token bos = -1, eos = -1, unk = -1, pad = -1, mask = -1;
  bool add_bos = false, add_eos = false, add_space_prefix = false;
  std::vector<Token> end_of_generation;  // eos and every further id that ends a turn
  std::string chat_template;
  // The rest is only in tokenizer.json; a GGUF file leaves it as it is here.
  std::string split_pattern;  // gpt2: regular expression of the pre-tokenizer; empty: pattern and nfc follow
                              // from `pre`
  std::vector<std::string> then_split;      // further patterns, each inside the pieces of those before
  bool nfc = false;                         // gpt2: text is brought to NFC first
  bool ignore_merges = false;               // a piece that is a token is taken whole
  bool fuse_unk = true;                     // a run of unknown characters is one unk
  std::vector<AddedTokenRule> added_rules;  // only tokens with a flag set
};

// From the text of Hugging Face's tokenizer.json, tokenizer_config.json and generation_config.json (the
// latter two may be empty). Error with a hint on anything unknown or inconsistent.
TokenizerData read_tokenizer_json(std::string_view tokenizer_json, std::string_view tokenizer_config,
                                  std::string_view generation_config);
// The text of tokenizer.json for a vocabulary of Gemma's kind; Error for another.
std::string write_tokenizer_json(const TokenizerData& data);

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerData data);  // Error if the data is inconsistent
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  // No BOS, no EOS. User-defined tokens are always matched, longest first. parse_special: so are control
  // tokens written in the text ("<|turn>"); else they are text. Invalid UTF-8 is encoded byte by byte, never
  // an error.
  std::vector<Token> encode(std::string_view text, bool parse_special) const;
  // Control tokens are written only if special; the bytes are raw (a token may end inside a character: see
  // Utf8Stream). Ids outside the vocabulary (padding rows of a model) are skipped.
  std::string decode(std::span<const Token> tokens, bool special) const;
  // The bytes of one token; empty outside the vocabulary.
  const std::string& piece(Token token) const;
  // Never shown to a user as text. Gemma's turn, channel and tool marks are control tokens here whatever the
  // file says of them (converters differ); a parser of replies looks at ids or decodes with special = true.
  bool is_control(Token token) const;
  // A token that text never becomes by merging: a control token, or one that users may write.
  bool is_mark(Token token) const;
  bool is_end(Token token) const;            // in data().end_of_generation
  Token find(std::string_view piece) const;  // exact vocabulary entry, -1 if none
  int32_t size() const;
  const TokenizerData& data() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of bytes into a stream of whole UTF-8 characters: holds back an unfinished character,
// replaces what can no longer become valid by U+FFFD.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();

 private:
  std::string held_;
};

}  // namespace carat
