// Pre-tokenizers of byte-level vocabularies: a regular expression (PCRE2) whose matches, and what lies
// between them, are the pieces that merges stay inside.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

// What a GGUF file's tokenizer.ggml.pre stands for.
struct PreTokenizer {
  std::string_view name;
  std::string_view pattern;
  bool nfc;
  bool ignore_merges;
  bool add_bos = false;                     // where the file does not say
  std::vector<std::string_view> then = {};  // further patterns, each inside the pieces of those before
};
// nullptr if the name is not known.
const PreTokenizer* find_pre_tokenizer(std::string_view name);
// The name that stands for these; empty if there is none.
std::string pre_tokenizer_name(std::string_view pattern, bool nfc, bool ignore_merges);
// All names, for messages.
std::string pre_tokenizer_names();

// GPT-2's pattern: what ByteLevel means in tokenizer.json when it says use_regex.
extern const std::string_view kGpt2Pattern;

// Unicode's \w: alphabetic, mark, decimal digit, connector punctuation, joiner.
bool is_word_character(char32_t c);

class Splitter {
 public:
  explicit Splitter(std::string_view pattern);  // Error if the pattern does not compile
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;
  // Appends the pieces of a well-formed UTF-8 text, in order, covering it.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
