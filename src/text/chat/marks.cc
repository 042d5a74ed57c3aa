#include "text/chat/marks.h"

#include <algorithm>
#include <utility>

namespace carat {

size_t rtrim(std::string_view s, size_t end) {
  while (end > 0 && kBlank.find(s[end - 1]) != kBlank.npos) --end;
  return end;
}

std::string_view trimmed(std::string_view s) {
  s = s.substr(0, rtrim(s, s.size()));
  return s.substr(skip_blank(s, 0));
}

size_t skip_blank(std::string_view s, size_t at) {
  return std::min(s.find_first_not_of(kBlank, at), s.size());
}

std::string unmarked(std::string_view s) {
  std::string out(s);
  std::erase(out, kMark);
  return out;
}

std::vector<ChatDelta> MarkedParser::push(std::string_view bytes) {
  text_ += utf8_.push(bytes);
  run(false);
  return std::exchange(out_, {});
}

std::vector<ChatDelta> MarkedParser::push_mark(std::string_view tag) {
  text_ += utf8_.finish();
  const bool known =
      std::any_of(tags_.begin(), tags_.end(), [&](std::string_view t) { return t.substr(1) == tag; });
  if (known) text_ += kMark;
  text_ += known ? std::string(tag) : utf8_.push(tag);
  run(false);
  return std::exchange(out_, {});
}

std::vector<ChatDelta> MarkedParser::finish(bool cut) {
  text_ += utf8_.finish();
  cut_ = cut;
  run(true);
  end(cut);
  return std::exchange(out_, {});
}

void MarkedParser::emit(Kind kind, std::string_view text, int index) {
  if (text.empty()) return;
  std::string clean = unmarked(text);
  if (kind == Kind::content) said(clean);
  if (!out_.empty() && out_.back().kind == kind && out_.back().index == index && kind != Kind::tool_name)
    out_.back().text += clean;
  else
    out_.push_back({kind, std::move(clean), index});
}

int MarkedParser::until(Kind kind, std::initializer_list<std::string_view> tags, bool last) {
  size_t at = std::string::npos;
  int which = -1, i = 0;
  for (const std::string_view tag : tags) {
    if (const size_t p = text_.find(tag); p < at) at = p, which = i;
    ++i;
  }
  const std::string_view text = text_;
  if (which >= 0) {
    const size_t keep = rtrim(text, at);
    emit(kind, text.substr(0, keep));
    space_ = text.substr(keep, at - keep);
    text_.erase(0, at + (tags.begin() + which)->size());
    return which;
  }
  const size_t keep = !last || kind == Kind::thinking ? rtrim(text, text.size()) : text.size();
  emit(kind, text.substr(0, keep));
  text_.erase(0, last ? text_.size() : keep);
  return -1;
}

namespace {

// Finds tags that are spelled, however the text is cut.
class SpelledMarks final : public ChatParser {
 public:
  SpelledMarks(std::unique_ptr<ChatParser> parser, std::vector<std::string> tags)
      : parser_(std::move(parser)), tags_(std::move(tags)) {}

  std::vector<ChatDelta> push(std::string_view text) override {
    text_ += text;
    std::vector<ChatDelta> out;
    for (;;) {
      size_t at = std::string::npos, which = 0;
      for (size_t i = 0; i < tags_.size(); ++i)
        if (const size_t p = text_.find(tags_[i]); p < at) at = p, which = i;
      if (at == std::string::npos) break;
      take(out, parser_->push(std::string_view(text_).substr(0, at)));
      take(out, parser_->push_mark(tags_[which]));
      text_.erase(0, at + tags_[which].size());
    }
    size_t hold = text_.size();
    for (size_t n = std::min<size_t>(text_.size(), 32); n > 0; --n) {
      const std::string_view tail = std::string_view(text_).substr(text_.size() - n);
      if (std::none_of(tags_.begin(), tags_.end(), [&](const auto& t) { return begins(tail, t); })) continue;
      hold = text_.size() - n;
      break;
    }
    take(out, parser_->push(std::string_view(text_).substr(0, hold)));
    text_.erase(0, hold);
    return out;
  }
  std::vector<ChatDelta> push_mark(std::string_view tag) override {
    std::vector<ChatDelta> out = parser_->push(std::exchange(text_, {}));
    take(out, parser_->push_mark(tag));
    return out;
  }
  std::vector<ChatDelta> finish(bool cut) override {
    std::vector<ChatDelta> out = parser_->push(std::exchange(text_, {}));
    take(out, parser_->finish(cut));
    return out;
  }

 private:
  static void take(std::vector<ChatDelta>& out, std::vector<ChatDelta> more) {
    for (ChatDelta& d : more) out.push_back(std::move(d));
  }
  std::unique_ptr<ChatParser> parser_;
  std::vector<std::string> tags_;
  std::string text_;
};

}  // namespace

std::unique_ptr<ChatParser> with_spelled_marks(std::unique_ptr<ChatParser> parser,
                                               const std::vector<std::string>& tags) {
  if (tags.empty()) return parser;
  return std::make_unique<SpelledMarks>(std::move(parser), tags);
}

std::vector<std::string> missing_marks(const Tokenizer* tokenizer,
                                       std::initializer_list<std::string_view> tags) {
  std::vector<std::string> out;
  for (const std::string_view tag : tags) {
    const Token t = tokenizer ? tokenizer->find(tag.substr(1)) : 0;
    if (tokenizer && !tokenizer->is_mark(t)) out.emplace_back(tag.substr(1));
  }
  return out;
}

}  // namespace carat
