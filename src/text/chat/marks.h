// Tags that are tokens of their own, and text that only spells them. Parsers keep both in one text: a tag
// that the model said as a token has the byte kMark in front, which no UTF-8 text holds.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {

inline constexpr char kMark = '\xff';
inline constexpr std::string_view kBlank = " \t\r\n";
inline constexpr size_t kNone = std::string_view::npos;

// The text is a beginning of the tag, but not all of it.
inline bool begins(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}
// Without the blanks at the end of the first `end` bytes.
size_t rtrim(std::string_view s, size_t end);
std::string_view trimmed(std::string_view s);
// Where the first byte that is not blank stands, at or after `at`; the size if there is none.
size_t skip_blank(std::string_view s, size_t at);
// As it was said, without kMark.
std::string unmarked(std::string_view s);

// What parsers share: text that is not decided, deltas that are.
class MarkedParser : public ChatParser {
 public:
  std::vector<ChatDelta> push(std::string_view bytes) final;
  std::vector<ChatDelta> push_mark(std::string_view tag) final;
  std::vector<ChatDelta> finish(bool cut) final;

 protected:
  using Kind = ChatDelta::Kind;
  // tags: with kMark in front.
  explicit MarkedParser(std::vector<std::string_view> tags) : tags_(std::move(tags)) {}
  // Decides what can be decided. last: nothing more comes.
  virtual void run(bool last) = 0;
  virtual void end(bool /*cut*/) {}

  void emit(Kind kind, std::string_view text, int index = 0);
  void emit_end(int index) { out_.push_back({Kind::tool_end, {}, index}); }
  // Emits up to the first of the tags and steps over it; which one, or -1 if none is here. Blanks before it
  // are left in space_: they belong to the tag if it is one, to the text if it is not.
  int until(Kind kind, std::initializer_list<std::string_view> tags, bool last);
  virtual void said(std::string_view /*content*/) {}  // all content goes by here

  std::string text_;   // not yet decided
  std::string space_;  // before the last tag
  std::vector<ChatDelta> out_;
  bool cut_ = false;

 private:
  const std::vector<std::string_view> tags_;
  Utf8Stream utf8_;
};

// The parser of a model that must spell these tags (without kMark), since they are no tokens of it.
std::unique_ptr<ChatParser> with_spelled_marks(std::unique_ptr<ChatParser> parser,
                                               const std::vector<std::string>& tags);
// Those of the tags (with kMark) that the tokenizer does not know as tokens of their own.
std::vector<std::string> missing_marks(const Tokenizer* tokenizer,
                                       std::initializer_list<std::string_view> tags);

}  // namespace carat
