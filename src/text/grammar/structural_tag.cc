// Structural tags, as xgrammar describes them (docs/structural_tag there): a tree of formats. Marks such as
// <tool_call> may be written by the control token or spelled; free text ends where the tag around it ends.
#include "text/grammar/structural_tag.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "text/grammar/dispatch.h"
#include "text/grammar/structural_fields.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

using namespace structural;

using Expr = GrammarBuilder::Expr;

constexpr int kMaxFormatDepth = 50;
constexpr int64_t kMaxRepeat = 10'000;

// How the tag around a format ends.
struct Around {
  std::vector<std::string> texts;
  std::vector<Token> tokens;
};

class TagReader {
 public:
  explicit TagReader(GrammarBuilder& b) : b_(b), vocabulary_(b.specials()) {
    for (Token t = 0; vocabulary_ && t < vocabulary_->size(); ++t)
      if (is_special(*vocabulary_, t) && !vocabulary_->is_end(t) && !vocabulary_->piece(t).empty())
        marks_[vocabulary_->piece(t)[0]].push_back(t);
  }

  Expr whole(const Json& tag) {
    if (!tag.is_object()) fail("it is not an object");
    if (tag.contains("structures")) {  // the older form: begin, schema, end
      Json tags = Json::array();
      for (const Json& s : list(tag, "structures")) {
        Json schema = s.contains("schema") ? s["schema"] : Json::object();
        tags.push_back({{"type", "tag"},
                        {"begin", text(s, "begin")},
                        {"content", {{"type", "json_schema"}, {"json_schema", std::move(schema)}}},
                        {"end", text(s, "end")}});
      }
      return triggered_tags({{"triggers", list(tag, "triggers")}, {"tags", std::move(tags)}}, {}, 0);
    }
    return format(tag.contains("format") ? tag["format"] : tag, {}, 0);
  }

 private:
  Token token(const Json& j) const {
    const int64_t t = j.is_string() && vocabulary_ ? vocabulary_->find(j.get_ref<const std::string&>())
                      : j.is_number_integer()      ? j.get<int64_t>()
                                                   : -1;
    if (!vocabulary_ || t < 0 || t >= vocabulary_->size())
      fail(fmt::format("the vocabulary has no token {:.100}",
                       j.dump(-1, ' ', false, Json::error_handler_t::replace)));
    return static_cast<Token>(t);
  }
  std::vector<Token> tokens(const Json& f, const char* name) const {
    std::vector<Token> out;
    if (!has(f, name)) return out;
    for (const Json& j : list(f, name)) out.push_back(token(j));
    return out;
  }
  static bool is_token(const Json& j) { return j.is_object() && j.contains("type") && j["type"] == "token"; }
  Expr said(Token t) {
    if (vocabulary_->is_end(t)) return b_.empty();  // the answer ends there
    return b_.text(is_special(*vocabulary_, t) ? special_bytes(t) : vocabulary_->piece(t));
  }
  // The control token that `text` begins with, -1: none.
  Token mark_at(std::string_view text) const {
    Token best = -1;
    const auto it = text.empty() ? marks_.end() : marks_.find(text[0]);
    if (it == marks_.end()) return best;
    for (const Token t : it->second)
      if (text.starts_with(vocabulary_->piece(t)) &&
          (best < 0 || vocabulary_->piece(t).size() > vocabulary_->piece(best).size()))
        best = t;
    return best;
  }
  // The text, its marks spelled or as control tokens.
  Expr literal(std::string_view text) {
    std::string marked;
    bool any = false;
    for (size_t at = 0; at < text.size();) {
      const Token t = mark_at(text.substr(at));
      any |= t >= 0;
      marked += t >= 0 ? special_bytes(t) : std::string(1, text[at]);
      at += t >= 0 ? vocabulary_->piece(t).size() : 1;
    }
    return any ? b_.alt({b_.text(text), b_.text(marked)}) : b_.text(text);
  }

  // ---- formats ----
  Expr format(const Json& f, const Around& around, int depth) {
    if (depth > kMaxFormatDepth) fail("formats are nested too deeply");
    const std::string type = text(f, "type");
    if (type == "const_string") return literal(text(f, "value"));
    if (type == "json_schema" || type == "qwen_xml_parameter") return schema(f, type);
    if (type == "regex") return regex_grammar(b_, text(f, "pattern"), Spelling::plain, false);
    if (type == "grammar") return gbnf_grammar(b_, text(f, "grammar"));
    if (type == "any_text") return any_text(f, around);
    if (type == "token") return said(token(member(f, "token")));
    if (type == "any_tokens") return any_tokens(f, around);
    if (type == "tag") return tag(f, {}, depth);
    if (type == "triggered_tags") return triggered_tags(f, around, depth);
    if (type == "token_triggered_tags") return token_triggered_tags(f, around, depth);
    if (type == "dispatch") return dispatch(f, around, depth);
    if (type == "token_dispatch") return token_dispatch(f, around, depth);
    if (type == "tags_with_separator") return separated(f, depth);
    return composed(f, type, around, depth);
  }

  Expr composed(const Json& f, const std::string& type, const Around& around, int depth) {
    if (type == "sequence" || type == "or") {
      std::vector<Expr> parts;
      for (const Json& e : list(f, "elements")) parts.push_back(format(e, around, depth + 1));
      if (parts.empty()) fail("'elements' is empty");
      return type == "or" ? b_.alt(std::move(parts)) : b_.seq(std::move(parts));
    }
    int64_t least = type == "plus", most = type == "optional" ? 1 : -1;
    if (type == "repeat") {
      least = count(f, "min", kMaxRepeat);
      most = count(f, "max", kMaxRepeat);
      if (least < 0 || (most >= 0 && most < least)) fail("'min' and 'max' are no range");
    } else if (type != "plus" && type != "star" && type != "optional") {
      fail(fmt::format("the format '{:.50}' is not known", type),
           "const_string, json_schema, regex, grammar, any_text, sequence, or, optional, plus, star, repeat, "
           "tag, "
           "triggered_tags, tags_with_separator, dispatch and those of tokens are");
    }
    return b_.repeat(b_.named("repeated", format(member(f, "content"), around, depth + 1)), least, most);
  }

  // any_order would allow more; the order that is written is one of those.
  Expr schema(const Json& f, const std::string& type) {
    const std::string style = type == "qwen_xml_parameter" ? "qwen_xml"
                              : has(f, "style")            ? text(f, "style")
                                                           : "json";
    if (style != "json" && style != "qwen_xml")
      fail(fmt::format("the style '{:.50}' is not known", style), "json and qwen_xml are");
    return schema_grammar(b_, member(f, "json_schema"),
                          style == "json" ? SchemaDialect::json : SchemaDialect::tag_call);
  }

  static void refuse_tokens_limit(const Json& f) {
    if (has(f, "max_tokens"))
      fail("'max_tokens' is not supported",
           "use max_chars; the whole answer's limit is the request's max_tokens");
  }

  Expr any_text(const Json& f, const Around& around) {
    refuse_tokens_limit(f);
    FreeText t;
    t.never = texts(f, "excludes", false);
    stop_at(t, around);
    if (has(f, "max_chars")) t.most = std::max<int64_t>(0, count(f, "max_chars", INT32_MAX));
    if (t.never.empty() && t.most >= 0) return b_.repeat(b_.chars(complement({})), 0, t.most);
    return free_text_grammar(b_, t);
  }
  static void stop_at(FreeText& t, const Around& around) {
    for (const std::string& s : around.texts)
      if (!s.empty()) t.never.push_back(s);
  }

  // Any text and any control token but these and those that end the tag around it.
  Expr any_tokens(const Json& f, const Around& around) {
    refuse_tokens_limit(f);
    const FreeText t = of_tokens(tokens(f, "exclude_tokens"), around);
    return free_text_grammar(b_, t);
  }
  FreeText of_tokens(std::vector<Token> never, const Around& around) {
    never.insert(never.end(), around.tokens.begin(), around.tokens.end());
    for (const Token t : never)
      if (!is_special(*vocabulary_, t) && !vocabulary_->is_end(t))
        fail(fmt::format("'{}' is no control token, and only those can be kept out", vocabulary_->piece(t)),
             "use excludes of any_text");
    FreeText text;
    text.other = b_.named("control token", any_mark_but(never));
    return text;
  }

  Expr any_mark_but(const std::vector<Token>& these) {
    std::vector<std::string> all;
    for (const auto& [first, tokens] : marks_)
      for (const Token t : tokens)
        if (std::find(these.begin(), these.end(), t) == these.end()) all.push_back(special_bytes(t));
    return b_.literals(std::move(all));
  }

  // What follows `said` of the tag's beginning.
  Expr tag(const Json& f, std::string_view said_already, int depth) {
    if (!f.is_object()) fail("a tag is no object");
    const Json& end = member(f, "end");
    Around around;
    std::vector<Expr> closers;
    if (is_token(end)) {
      around.tokens.push_back(token(member(end, "token")));
      closers.push_back(said(around.tokens[0]));
    } else {
      around.texts = end.is_string() ? std::vector{end.get<std::string>()} : texts(f, "end", true);
      if (around.texts.empty()) fail("'end' is empty");
      for (const std::string& t : around.texts) closers.push_back(literal(t));
    }
    const Json& begin = member(f, "begin");
    const Expr open = is_token(begin)
                          ? (said_already.empty() ? said(token(member(begin, "token"))) : b_.empty())
                          : literal(text(f, "begin").substr(said_already.size()));
    return b_.seq({open, format(member(f, "content"), around, depth + 1), b_.alt(std::move(closers))});
  }

  // The first tag, if one is demanded, and what comes then.
  Expr with_first(const Json& f, FreeText rest, int depth) {
    const bool first = flag(f, "at_least_one", false), stop = flag(f, "stop_after_first", false);
    rest.loop = !stop;
    if (!first) return free_text_grammar(b_, rest);
    std::vector<Expr> all;
    for (const Json& t : list(f, "tags")) all.push_back(tag(t, {}, depth + 1));
    if (all.empty()) fail("'tags' is empty");
    return stop ? b_.alt(std::move(all)) : b_.seq({b_.alt(std::move(all)), free_text_grammar(b_, rest)});
  }

  // A text that leads on: spelled, or led by the control token that it begins with.
  DispatchBranch branch(const std::string& pattern, Expr after) {
    DispatchBranch out{pattern, after};
    const Token t = mark_at(pattern);
    if (t >= 0) {
      const std::string rest = pattern.substr(vocabulary_->piece(t).size());
      out.token = b_.seq({b_.text(special_bytes(t)), literal(rest), after});
    }
    return out;
  }

  Expr triggered_tags(const Json& f, const Around& around, int depth) {
    FreeText rest;
    rest.never = texts(f, "excludes", false);
    stop_at(rest, around);
    const std::vector<std::string> triggers = texts(f, "triggers", true);
    std::vector<std::vector<Expr>> after(triggers.size());
    for (const Json& t : list(f, "tags")) {
      const std::string begin = text(t, "begin");
      const auto leads = [&](const std::string& trigger) { return begin.starts_with(trigger); };
      const auto it = std::find_if(triggers.begin(), triggers.end(), leads);
      if (it == triggers.end() || std::count_if(triggers.begin(), triggers.end(), leads) > 1)
        fail(fmt::format("the tag '{:.100}' must begin with exactly one of the triggers", begin));
      after[static_cast<size_t>(it - triggers.begin())].push_back(tag(t, *it, depth + 1));
    }
    for (size_t i = 0; i < triggers.size(); ++i) {
      if (after[i].empty()) fail(fmt::format("no tag begins with the trigger '{:.100}'", triggers[i]));
      rest.branches.push_back(branch(triggers[i], b_.named("tags", b_.alt(std::move(after[i])))));
    }
    return with_first(f, std::move(rest), depth);
  }

  Expr token_triggered_tags(const Json& f, const Around& around, int depth) {
    const std::vector<Token> triggers = tokens(f, "trigger_tokens");
    std::vector<Token> never = tokens(f, "exclude_tokens");
    never.insert(never.end(), triggers.begin(), triggers.end());
    FreeText rest = of_tokens(never, around);
    std::vector<Expr> led;
    for (const Json& t : list(f, "tags")) {
      const Json& begin = member(t, "begin");
      if (!is_token(begin) ||
          std::find(triggers.begin(), triggers.end(), token(member(begin, "token"))) == triggers.end())
        fail("a tag must begin with one of the trigger tokens");
      led.push_back(tag(t, {}, depth + 1));
    }
    return with_first(f, behind_tokens(std::move(rest), std::move(led)), depth);
  }
  // Without a text to watch for, a branch is taken by its token alone.
  FreeText behind_tokens(FreeText rest, std::vector<Expr> led) {
    for (const Expr e : led) rest.branches.push_back({{}, b_.nothing(), e});
    return rest;
  }

  Expr dispatch(const Json& f, const Around& around, int depth) {
    FreeText t;
    t.never = texts(f, "excludes", false);
    stop_at(t, around);
    t.loop = flag(f, "loop", true);
    for (const Json& rule : rules(f)) {
      if (!rule[0].is_string()) fail("a rule's pattern is not a string");
      t.branches.push_back(
          branch(rule[0].get<std::string>(), b_.named("dispatched", format(rule[1], around, depth + 1))));
    }
    return free_text_grammar(b_, t);
  }
  Expr token_dispatch(const Json& f, const Around& around, int depth) {
    std::vector<Token> never = tokens(f, "exclude_tokens");
    std::vector<Expr> led;
    for (const Json& rule : rules(f)) {
      never.push_back(token(rule[0]));
      led.push_back(b_.seq({said(never.back()), format(rule[1], around, depth + 1)}));
    }
    FreeText t = behind_tokens(of_tokens(never, around), std::move(led));
    t.loop = flag(f, "loop", true);
    return free_text_grammar(b_, t);
  }
  static const Json& rules(const Json& f) {
    const Json& all = list(f, "rules");
    for (const Json& rule : all)
      if (!rule.is_array() || rule.size() != 2) fail("'rules' is not made of pairs");
    return all;
  }

  Expr separated(const Json& f, int depth) {
    std::vector<Expr> all;
    for (const Json& t : list(f, "tags")) all.push_back(tag(t, {}, depth + 1));
    if (all.empty()) fail("'tags' is empty");
    const Expr one = b_.named("tag", b_.alt(std::move(all)));
    Expr some = one;
    if (!flag(f, "stop_after_first", false))
      some = b_.seq({one, b_.repeat(b_.seq({literal(text(f, "separator")), one}), 0, -1)});
    return flag(f, "at_least_one", false) ? some : b_.optional(some);
  }

  GrammarBuilder& b_;
  const Tokenizer* vocabulary_;
  std::map<char, std::vector<Token>> marks_;  // control tokens that end nothing, by their first byte
};

}  // namespace

Expr structural_tag_grammar(GrammarBuilder& b, const Json& tag) { return TagReader(b).whole(tag); }

}  // namespace carat
