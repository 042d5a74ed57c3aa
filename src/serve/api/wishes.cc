#include "serve/api/wishes.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>

#include "engine/engine.h"

namespace carat {
namespace {

constexpr size_t kMaxWords = 1024, kMaxWordBytes = 4096, kMaxTokenIds = 1 << 20;

std::vector<std::string> read_texts(const Fields& f, const char* name) {
  std::vector<std::string> out;
  const Json* j = f.find(name);
  if (!j) return out;
  if (!j->is_array() || j->size() > kMaxWords)
    f.fail(name, fmt::format("an array of at most {} strings", kMaxWords));
  for (const Json& s : *j) {
    if (!s.is_string() || s.get_ref<const std::string&>().empty() ||
        s.get_ref<const std::string&>().size() > kMaxWordBytes)
      f.fail(name, "made of strings that are neither empty nor very long");
    out.push_back(s.get<std::string>());
  }
  return out;
}

std::vector<Token> read_ids(const Fields& f, const char* name) {
  const Json* j = f.find(name);
  if (!j) return {};
  if (!is_token_array(*j) || j->size() > kMaxTokenIds) f.fail(name, "an array of token ids");
  return read_tokens(*j, name);
}

// The first one where the field is not there.
std::string one_of(const Fields& f, const char* name, std::initializer_list<std::string_view> values) {
  const std::string value = f.get_string(name, *values.begin());
  if (std::find(values.begin(), values.end(), value) != values.end()) return value;
  std::string must;
  for (const std::string_view v : values) must += fmt::format("{}\"{}\"", must.empty() ? "" : " or ", v);
  f.fail(name, must);
}

constexpr const char* kBudgets[] = {"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget",
                                    "reasoning_budget_tokens"};

// A word that may not be said: no token may complete it, however it is cut into tokens. Parts of longer words
// are no words, as far as the token at hand shows it.
class BannedWord {
 public:
  BannedWord(std::string word, const Tokenizer& tokenizer) : word_(std::move(word)), tokenizer_(tokenizer) {}

  // said: the text so far, or its end.
  void ban(std::string_view said, std::vector<uint64_t>& mask) {
    clear(0, mask);
    for (size_t known = 1; known < word_.size(); ++known)
      if (said.ends_with(std::string_view(word_).substr(0, known)) && begins_word(said, said.size() - known))
        clear(known, mask);
    if (said.empty() || begins_word(said, said.size())) clear(kWhole, mask);
  }
  size_t size() const { return word_.size(); }

 private:
  static constexpr size_t kWhole = std::string::npos;

  static bool letter(char c) {
    return static_cast<unsigned char>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  }
  // A word may begin there: what stands before is none, or this one begins with no letter.
  bool begins_word(std::string_view text, size_t at) const {
    return at == 0 || !letter(text[at - 1]) || !letter(word_[0]);
  }
  bool ends_word(std::string_view piece, size_t at) const {
    return at >= piece.size() || !letter(piece[at]) || !letter(word_.back());
  }
  // known: bytes of the word that are said. 0: the token holds all of it, behind something else; kWhole: it
  // begins with the word.
  bool completes(std::string_view piece, size_t known) const {
    if (known != 0) {
      const std::string_view rest = std::string_view(word_).substr(known == kWhole ? 0 : known);
      return piece.starts_with(rest) && ends_word(piece, rest.size());
    }
    for (size_t at = piece.find(word_, 1); at != piece.npos; at = piece.find(word_, at + 1))
      if (begins_word(piece, at) && ends_word(piece, at + word_.size())) return true;
    return false;
  }
  void clear(size_t known, std::vector<uint64_t>& mask) {
    const auto [it, fresh] = tokens_.try_emplace(known);
    if (fresh)
      for (Token t = 0; t < tokenizer_.size(); ++t)
        if (completes(tokenizer_.piece(t), known)) it->second.push_back(t);
    for (const Token t : it->second)
      if (static_cast<size_t>(t) / 64 < mask.size())
        mask[static_cast<size_t>(t) / 64] &= ~(uint64_t{1} << (static_cast<size_t>(t) % 64));
  }

  const std::string word_;
  const Tokenizer& tokenizer_;
  std::map<size_t, std::vector<Token>> tokens_;  // that complete it, by what is said
};

class RestrictedMask final : public TokenMask {
 public:
  RestrictedMask(std::shared_ptr<TokenMask> inner, const Wishes& w, std::vector<Token> ends,
                 const ThoughtMarks* marks, const Tokenizer& tokenizer)
      : inner_(std::move(inner)),
        min_tokens_(w.min_tokens),
        ends_(std::move(ends)),
        tokenizer_(tokenizer),
        vocab_(static_cast<size_t>(tokenizer.size())) {
    for (const std::string& word : w.bad_words) banned_.emplace_back(word, tokenizer);
    if (!w.allowed_token_ids.empty()) {
      listed_.assign(words(), 0);
      for (const Token t : w.allowed_token_ids) set(listed_, t);
    }
    if (!marks || w.thinking_budget < 0) return;
    open_ = tokenizer.encode(marks->open, true);
    end_of_thought_ = tokenizer.encode(marks->close, true);
    closing_ = w.budget_message.empty() ? std::vector<Token>() : tokenizer.encode(w.budget_message, false);
    closing_.insert(closing_.end(), end_of_thought_.begin(), end_of_thought_.end());
    budget_ = w.thinking_budget;
    if (!marks->head.empty()) head_ = static_cast<int64_t>(tokenizer.encode(marks->head, false).size());
    thinking_ = marks->opened;
  }

  bool ready(std::chrono::microseconds patience) override { return !inner_ || inner_->ready(patience); }
  std::span<const uint64_t> allowed() override {
    const std::span<const uint64_t> base = inner_ ? inner_->allowed() : std::span<const uint64_t>();
    if (const Token t = next_of_closing(); t >= 0 && (base.empty() || has(base, t))) {
      mask_.assign(words(), 0);
      set(mask_, t);
      return mask_;
    }
    const bool young = said_.size() < static_cast<size_t>(min_tokens_);
    if (!young && listed_.empty() && banned_.empty()) return base;
    fill(base);
    for (BannedWord& word : banned_) word.ban(text_, mask_);
    const bool some = any();
    if (young)
      for (const Token t : ends_) clear(mask_, t);
    if (any()) return mask_;
    if (!some) nothing_left();
    return only_ends(base);
  }

  void picked(Token token) override {
    if (inner_) inner_->picked(token);
    said_.push_back(token);
    if (!banned_.empty()) text_ += tokenizer_.piece(token);
    if (budget_ < 0) return;
    if (closed_ > 0 || next_of_closing() == token) {
      closed_ = token == closing_[closed_] ? closed_ + 1 : 0;
      if (closed_ == closing_.size()) closed_ = 0, thinking_ = false;
      return;
    }
    if (thinking_ && ends_with(end_of_thought_)) {
      thinking_ = false;
    } else if (thinking_) {
      ++thought_;
    } else if (ends_with(open_)) {
      thinking_ = true;
      thought_ -= head_;
    }
  }

  std::vector<Token> forced(size_t most) override {
    if (const Token t = next_of_closing(); t >= 0) {
      std::vector<Token> rest(closing_.begin() + static_cast<std::ptrdiff_t>(closed_), closing_.end());
      if (rest.size() > most) rest.resize(most);
      return rest;
    }
    return inner_ ? inner_->forced(most) : std::vector<Token>();
  }

 private:
  // What must be said now because the thought has been long enough; -1: nothing.
  Token next_of_closing() const {
    if (budget_ < 0 || !thinking_ || closing_.empty()) return -1;
    return closed_ > 0 || thought_ >= budget_ ? closing_[closed_] : -1;
  }
  size_t words() const { return (vocab_ + 63) / 64; }
  static bool has(std::span<const uint64_t> mask, Token t) {
    const auto at = static_cast<size_t>(t);
    return at / 64 < mask.size() && (mask[at / 64] >> (at % 64) & 1) != 0;
  }
  static void set(std::vector<uint64_t>& mask, Token t) {
    mask[static_cast<size_t>(t) / 64] |= uint64_t{1} << (static_cast<size_t>(t) % 64);
  }
  static void clear(std::vector<uint64_t>& mask, Token t) {
    if (static_cast<size_t>(t) / 64 < mask.size())
      mask[static_cast<size_t>(t) / 64] &= ~(uint64_t{1} << (static_cast<size_t>(t) % 64));
  }
  bool any() const {
    return std::any_of(mask_.begin(), mask_.end(), [](uint64_t w) { return w != 0; });
  }
  void fill(std::span<const uint64_t> base) {
    if (base.empty()) {
      mask_.assign(words(), ~uint64_t{0});
      if (vocab_ % 64) mask_.back() = (uint64_t{1} << (vocab_ % 64)) - 1;
    } else {
      mask_.assign(base.begin(), base.end());
    }
    if (listed_.empty()) return;
    for (size_t i = 0; i < mask_.size(); ++i) mask_[i] &= i < listed_.size() ? listed_[i] : 0;
  }
  // A grammar that has come to its end, before min_tokens: the grammar wins.
  std::span<const uint64_t> only_ends(std::span<const uint64_t> base) {
    mask_.assign(words(), 0);
    for (const Token t : ends_)
      if ((base.empty() || has(base, t)) && (listed_.empty() || has(listed_, t))) set(mask_, t);
    if (!any()) nothing_left();
    return mask_;
  }
  [[noreturn]] static void nothing_left() {
    throw Error("no token may be said",
                "bad_words and allowed_token_ids leave nothing of what the grammar allows");
  }
  bool ends_with(std::span<const Token> tokens) const {
    return tokens.size() <= said_.size() &&
           std::equal(tokens.begin(), tokens.end(), said_.end() - static_cast<std::ptrdiff_t>(tokens.size()));
  }

  const std::shared_ptr<TokenMask> inner_;
  const int32_t min_tokens_;
  const std::vector<Token> ends_;
  const Tokenizer& tokenizer_;
  std::vector<BannedWord> banned_;
  std::string text_;
  const size_t vocab_;
  std::vector<uint64_t> listed_, mask_;
  std::vector<Token> said_;
  std::vector<Token> open_, end_of_thought_, closing_;
  int64_t budget_ = -1, thought_ = 0, head_ = 0;
  bool thinking_ = false;
  size_t closed_ = 0;  // tokens of closing_ that are said
};

void check_ids(const std::vector<Token>& ids, const Tokenizer& tokenizer, const char* name) {
  for (const Token t : ids)
    if (t < 0 || t >= tokenizer.size())
      throw ApiError(400, fmt::format("{}: there is no token {}", name, t), name);
}

}  // namespace

int32_t read_thinking_budget(const Fields& f, int32_t otherwise) {
  for (const char* name : kBudgets)
    if (f.find(name)) return static_cast<int32_t>(f.get_int(name, -1, -1, 1 << 30));
  return otherwise;
}

void refuse_thinking_budget(const Fields& f) {
  for (const char* name : kBudgets)
    if (f.get_int(name, -1, -1, 1 << 30) >= 0)
      throw ApiError(400,
                     fmt::format("{} is not supported here: a completion is plain text, whose thoughts are "
                                 "not told apart; use /v1/chat/completions",
                                 name),
                     name);
}

Wishes read_wishes(const Fields& f, const ServeConfig& config) {
  Wishes w;
  w.min_tokens = static_cast<int32_t>(f.get_int("min_tokens", 0, 0, 1 << 30));
  w.stop_token_ids = read_ids(f, "stop_token_ids");
  w.allowed_token_ids = read_ids(f, "allowed_token_ids");
  if (f.find("allowed_token_ids") && w.allowed_token_ids.empty()) f.fail("allowed_token_ids", "not empty");
  w.bad_words = read_texts(f, "bad_words");
  w.dry_breakers =
      f.find("dry_sequence_breakers") ? read_texts(f, "dry_sequence_breakers") : config.dry_breakers;
  w.include_stop = f.get_bool("include_stop_str_in_output", false);
  w.return_token_ids = f.get_bool("return_token_ids", false);
  w.truncate_prompt = static_cast<int32_t>(f.get_int("truncate_prompt_tokens", 0, -1, 1 << 30));
  if (f.find("truncate_prompt_tokens") && w.truncate_prompt == 0)
    f.fail("truncate_prompt_tokens", "at least 1, or -1 for what fits");
  w.truncate_end = one_of(f, "truncation_side", {"left", "right"}) == "right";
  w.drop_oldest = one_of(f, "truncation", {"disabled", "auto"}) == "auto";
  w.include_reasoning = f.get_bool("include_reasoning", true);
  w.special_tokens = !f.get_bool("skip_special_tokens", true);
  w.tokens_as_ids = f.get_bool("return_tokens_as_token_ids", false);
  w.return_prompt_text = f.get_bool("return_prompt_text", false);
  w.thinking_budget = read_thinking_budget(f, config.reasoning_budget);
  w.budget_message = f.get_string("reasoning_budget_message", config.reasoning_budget_message);
  return w;
}

void copy_shared_fields(const Json& from, Json& to) {
  static constexpr const char* kShared[] = {
      "temperature",
      "top_p",
      "top_k",
      "min_p",
      "seed",
      "stream",
      "presence_penalty",
      "frequency_penalty",
      "repeat_penalty",
      "repetition_penalty",
      "repeat_last_n",
      "logit_bias",
      "top_n_sigma",
      "typical_p",
      "xtc_probability",
      "xtc_threshold",
      "dynatemp_range",
      "dynatemp_exponent",
      "mirostat",
      "mirostat_tau",
      "mirostat_eta",
      "dry_multiplier",
      "dry_base",
      "dry_allowed_length",
      "dry_penalty_last_n",
      "dry_sequence_breakers",
      "samplers",
      "min_tokens",
      "stop_token_ids",
      "bad_words",
      "allowed_token_ids",
      "include_stop_str_in_output",
      "truncate_prompt_tokens",
      "truncation_side",
      "ignore_eos",
      "priority",
      "id_slot",
      "thinking_token_budget",
      "thinking_budget_tokens",
      "reasoning_budget",
      "reasoning_budget_tokens",
      "reasoning_budget_message",
      "include_reasoning",
      "request_id",
      "grammar",
      "guided_json",
      "guided_regex",
      "guided_choice",
      "guided_grammar",
      "structured_outputs",
      "chat_template_kwargs",
      "enable_thinking",
      "cache_salt",
      "image_tokens",
      "mm_processor_kwargs",
  };
  for (const char* name : kShared)
    if (from.contains(name) && !from[name].is_null()) to[name] = from[name];
}

void truncate_prompt(std::vector<Token>& prompt, const Wishes& wishes, int32_t context, int32_t max_tokens,
                     Token bos) {
  if (wishes.truncate_prompt == 0) return;
  const int32_t fits = std::max(1, context - std::max(1, max_tokens));
  const auto most = static_cast<size_t>(wishes.truncate_prompt < 0 ? fits : wishes.truncate_prompt);
  if (prompt.size() <= most) return;
  const bool begins = prompt.front() == bos && most > 1;
  if (wishes.truncate_end) {
    prompt.resize(most);
    return;
  }
  prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(most));
  if (begins) prompt.front() = bos;
}

std::shared_ptr<const DryBreakers> find_breakers(const Tokenizer& tokenizer,
                                                 const std::vector<std::string>& texts) {
  auto out = std::make_shared<DryBreakers>();
  out->token.resize(static_cast<size_t>(tokenizer.size()));
  for (const std::string& text : texts) {
    for (Token t = 0; t < tokenizer.size(); ++t)
      if (tokenizer.piece(t).find(text) != std::string::npos) out->token[static_cast<size_t>(t)] = true;
    std::vector<Token> spelled = tokenizer.encode(text, false);
    if (spelled.size() > 1) out->sequences.push_back(std::move(spelled));
  }
  return out;
}

std::shared_ptr<TokenMask> restricted(std::shared_ptr<TokenMask> inner, const Wishes& w,
                                      const std::vector<Token>& ends, const ThoughtMarks* marks,
                                      const Tokenizer& tokenizer) {
  check_ids(w.stop_token_ids, tokenizer, "stop_token_ids");
  check_ids(w.allowed_token_ids, tokenizer, "allowed_token_ids");
  const bool bounded = marks && w.thinking_budget >= 0;
  if (w.min_tokens == 0 && w.allowed_token_ids.empty() && w.bad_words.empty() && !bounded) return inner;
  return std::make_shared<RestrictedMask>(std::move(inner), w, ends, marks, tokenizer);
}

}  // namespace carat
