#include "tools/forge_vocab.h"

#include <map>
#include <set>

#include "base/error.h"

namespace carat {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581
constexpr int32_t kFull = 262144, kBytes = 238;      // where the 256 byte tokens begin

struct Fixed {
  int32_t id;
  std::string_view text;
  TokenType type;
};
constexpr Fixed kSpecial[] = {
    {0, "<pad>", TokenType::control},
    {1, "<eos>", TokenType::control},
    {2, "<bos>", TokenType::control},
    {3, "<unk>", TokenType::unknown},
    {4, "<mask>", TokenType::control},
    {46, "<|tool>", TokenType::control},
    {47, "<tool|>", TokenType::control},
    {48, "<|tool_call>", TokenType::user_defined},
    {49, "<tool_call|>", TokenType::user_defined},
    {50, "<|tool_response>", TokenType::user_defined},
    {51, "<tool_response|>", TokenType::user_defined},
    {52, "<|\"|>", TokenType::user_defined},
    {98, "<|think|>", TokenType::control},
    {100, "<|channel>", TokenType::user_defined},
    {101, "<channel|>", TokenType::user_defined},
    {105, "<|turn>", TokenType::control},
    {106, "<turn|>", TokenType::control},
    {107, "\n", TokenType::normal},
    {108, "\n\n", TokenType::normal},
    {109, "\n\n\n", TokenType::normal},
    {110, "\n\n\n\n", TokenType::normal},
    {138, "\xe2\x96\x81\xe2\x96\x81", TokenType::normal},
    {139, "\xe2\x96\x81\xe2\x96\x81\xe2\x96\x81", TokenType::normal},
    {140, "\xe2\x96\x81\xe2\x96\x81\xe2\x96\x81\xe2\x96\x81", TokenType::normal},
    {212, "</s>", TokenType::normal},
    {255999, "<|image>", TokenType::control},
    {256000, "<|audio>", TokenType::control},
    {258880, "<|image|>", TokenType::control},
    {258881, "<|audio|>", TokenType::control},
    {258882, "<image|>", TokenType::control},
    {258883, "<audio|>", TokenType::control},
    {258884, "<|video|>", TokenType::control},
};
// Words at their published places.
constexpr Fixed kWords[] = {
    {2364, "user", TokenType::normal},   {6639, "call", TokenType::normal},
    {9259, "Hello", TokenType::normal},  {45518, "thought", TokenType::normal},
    {236743, kSpace, TokenType::normal}, {236782, "{", TokenType::normal},
    {236783, "}", TokenType::normal},    {236787, ":", TokenType::normal},
};

// Turns only: whoever declares tools must use the engine's own rendering.
constexpr std::string_view kTemplate = R"({%- if tools -%}
{{- raise_exception('this model was not made for tools') -}}
{%- endif -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}{%- set role = 'model' -%}
{%- elif message['role'] == 'developer' -%}{%- set role = 'system' -%}
{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
{{- '<|turn>' + role + '\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] | trim -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}{{- part['text'] | trim -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\n' -}}{%- endif -%}
)";

class Maker {
 public:
  explicit Maker(int32_t size) : pieces_(static_cast<size_t>(size)), size_(size) {
    data_.types.assign(pieces_.size(), TokenType::normal);
  }

  TokenizerData make() {
    for (const Fixed& f : kSpecial) put(f.id, f.text, f.type);
    for (int b = 0; b < 256; ++b) put(kBytes + b, fmt::format("<0x{:02X}>", b), TokenType::byte);
    if (size_ == kFull) {
      for (const Fixed& f : kWords) put(f.id, f.text, f.type);
    }
    free_ = kBytes + 256;
    characters();
    merges();
    if (size_ == kFull) ideographs();
    for (int32_t i = 0, n = 0; i < size_; ++i)
      if (pieces_[static_cast<size_t>(i)].empty()) put(i, fmt::format("<unused{}>", n++), TokenType::unused);
    finish();
    return std::move(data_);
  }

 private:
  void put(int32_t id, std::string_view text, TokenType type) {
    if (id >= size_) return;
    pieces_[static_cast<size_t>(id)] = std::string(text);
    data_.types[static_cast<size_t>(id)] = type;
    ids_.emplace(text, id);
  }
  // At the next free place below `end`; false if there is none.
  bool add(std::string_view text, int32_t end) {
    if (ids_.contains(text)) return true;
    while (free_ < end && !pieces_[static_cast<size_t>(free_)].empty()) ++free_;
    if (free_ >= end) return false;
    put(free_++, text, TokenType::normal);
    return true;
  }
  void characters() {
    const int32_t letters = free_;
    if (size_ == kFull) free_ = 236743;
    add(kSpace, size_);
    for (char c = '!'; c <= '~'; ++c) add(std::string_view(&c, 1), size_);
    after_characters_ = free_;
    if (size_ == kFull) free_ = letters;
  }
  bool merge(std::string_view left, std::string_view right, int32_t end) {
    if (!add(fmt::format("{}{}", left, right), end)) return false;
    std::string rule = fmt::format("{} {}", left, right);
    if (merged_.insert(rule).second) data_.merges.push_back(std::move(rule));
    return true;
  }

  void merges() {
    const int32_t end = size_ == kFull ? 236743 : size_;
    for (const std::string_view c : {std::string_view("\n"), kSpace}) {
      std::string run(c);
      for (int i = 1; i < 4; ++i, run += c) data_.merges.push_back(fmt::format("{} {}", run, c));
    }
    constexpr std::string_view kOrder =
        "etaoinshrdlucmfwypvbgkjqxz";  // by frequency: what does not fit is rare
    std::vector<std::string> level, next;
    for (const char c : kOrder) level.emplace_back(1, c);
    for (const std::string& s : level) merge(kSpace, s, end);
    for (const char* text : {"Hello", "thought", "user", "call"}) word(text, end);
    for (int length = 2; length <= 4; ++length) {
      next.clear();
      for (const std::string& s : level) {
        for (const char c : kOrder) {
          if (!merge(s, std::string_view(&c, 1), end)) return;
          next.push_back(s + c);
        }
      }
      if (length < 4) {
        for (const std::string& s : next)
          if (!merge(fmt::format("{}{}", kSpace, s.substr(0, s.size() - 1)), s.substr(s.size() - 1), end))
            return;
      }
      level = next;
    }
  }
  // A word of its own in the full vocabulary, letter by letter.
  void word(std::string_view text, int32_t end) {
    if (size_ != kFull) return;
    for (size_t i = 1; i < text.size(); ++i) merge(text.substr(0, i), text.substr(i, 1), end);
  }
  void ideographs() {
    free_ = after_characters_;
    for (uint32_t c = 0x4E00; c <= 0x9FFF; ++c) {
      const char utf8[] = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
                           static_cast<char>(0x80 | (c & 63))};
      if (!add(std::string_view(utf8, 3), 255999)) return;
    }
  }
  void finish() {
    data_.model = "gemma4";
    data_.pre = "gemma4";
    data_.tokens = std::move(pieces_);
    data_.pad = 0;
    data_.eos = 106;
    data_.bos = 2;
    data_.unk = 3;
    data_.mask = 4;
    data_.add_bos = true;
    data_.end_of_generation = {106, 1, 50};
    data_.chat_template = kTemplate;
  }

  TokenizerData data_;
  std::vector<std::string> pieces_;
  std::map<std::string, int32_t, std::less<>> ids_;
  std::set<std::string> merged_;
  int32_t size_, free_ = 0, after_characters_ = 0;
};

}  // namespace

TokenizerData forge_vocabulary(int32_t size) {
  CARAT_CHECK(size == kFull || (size >= 640 && size < kFull), "{} tokens", size);
  return Maker(size).make();
}

}  // namespace carat
