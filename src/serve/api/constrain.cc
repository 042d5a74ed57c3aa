#include "serve/api/constrain.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "text/grammar/sources.h"
#include "text/grammar/structural_tag.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr size_t kKept = 64;
constexpr size_t kMaxChoices = 10'000;

// What is asked for: a kind and its value, and the field for errors.
struct Wish {
  enum class Kind : uint8_t { schema, compact, regex, gbnf, choice, tag } kind = Kind::schema;
  Json value;
  std::string field;
};

Json parse_text(const Json& j, const std::string& field) {
  if (!j.is_string()) return j;  // vLLM takes the text of a schema or a structural tag as well
  Json out = Json::parse(j.get_ref<const std::string&>(), nullptr, false);
  if (out.is_discarded()) throw ApiError(400, field + " is not JSON", field);
  return out;
}

const Json kAnyObject = {{"type", "object"}};

// OpenAI's {"type": "json_schema", "json_schema": {"schema": ...}}, llama.cpp's {"type": "json_object",
// "schema": ...}.
std::optional<Wish> response_format(const Fields& f) {
  const Json* j = f.find("response_format");
  if (!j) return {};
  if (!j->is_object()) f.fail("response_format", "an object");
  const Fields format(*j, "response_format.");
  const std::string type = format.get_string("type", "text");
  if (type == "text") return {};
  if (type == "json_object") {
    const Json* schema = format.find("schema");
    return Wish{Wish::Kind::schema, schema ? *schema : kAnyObject, "response_format"};
  }
  if (type == "structural_tag") return Wish{Wish::Kind::tag, *j, "response_format"};  // vLLM's
  if (type != "json_schema")
    format.fail("type", "\"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
  const Json* outer = format.find("json_schema");
  if (!outer) outer = format.find("schema") ? j : nullptr;
  if (!outer || !outer->is_object()) format.fail("json_schema", "an object with a schema");
  const Json* schema = Fields(*outer).find("schema");
  return Wish{Wish::Kind::schema, schema ? *schema : kAnyObject, "response_format.json_schema.schema"};
}

void add_field(std::vector<Wish>& out, const Fields& f, const char* name, Wish::Kind kind,
               const std::string& field) {
  const Json* j = f.find(name);
  if (!j) return;
  if ((kind == Wish::Kind::regex || kind == Wish::Kind::gbnf) && !j->is_string()) f.fail(name, "a string");
  if (kind == Wish::Kind::choice &&
      (!j->is_array() || j->empty() || j->size() > kMaxChoices ||
       !std::all_of(j->begin(), j->end(), [](const Json& c) { return c.is_string(); })))
    f.fail(name, fmt::format("an array of 1 to {} strings", kMaxChoices));
  if (kind == Wish::Kind::gbnf && j->get_ref<const std::string&>().empty()) return;
  const bool parsed = kind == Wish::Kind::schema || kind == Wish::Kind::compact || kind == Wish::Kind::tag;
  out.push_back({kind, parsed ? parse_text(*j, field) : *j, field});
}

std::optional<Wish> read_wish(const Json& body) {
  using Kind = Wish::Kind;
  const Fields f(body);
  std::vector<Wish> all;
  if (auto format = response_format(f)) all.push_back(std::move(*format));
  add_field(all, f, "grammar", Kind::gbnf, "grammar");
  add_field(all, f, "json_schema", Kind::schema, "json_schema");
  add_field(all, f, "guided_json", Kind::schema, "guided_json");
  add_field(all, f, "guided_regex", Kind::regex, "guided_regex");
  add_field(all, f, "guided_choice", Kind::choice, "guided_choice");
  add_field(all, f, "guided_grammar", Kind::gbnf, "guided_grammar");
  if (const Json* j = f.find("structured_outputs")) {
    if (!j->is_object()) f.fail("structured_outputs", "an object");
    const std::string at = "structured_outputs.";
    static constexpr std::string_view kKnown[] = {"json",
                                                  "regex",
                                                  "choice",
                                                  "grammar",
                                                  "structural_tag",
                                                  "json_object",
                                                  "disable_any_whitespace",
                                                  "disable_fallback",
                                                  "disable_additional_properties"};
    for (const auto& [key, value] : j->items())
      if (!value.is_null() && std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
        throw ApiError(
            400,
            fmt::format("{}{:.50} is not supported; use json, regex, choice, grammar, structural_tag or "
                        "json_object",
                        at, key),
            at + key);
    const Fields o(*j, at);
    const Kind schema = o.get_bool("disable_any_whitespace", false) ? Kind::compact : Kind::schema;
    add_field(all, o, "json", schema, at + "json");
    add_field(all, o, "regex", Kind::regex, at + "regex");
    add_field(all, o, "choice", Kind::choice, at + "choice");
    add_field(all, o, "grammar", Kind::gbnf, at + "grammar");
    add_field(all, o, "structural_tag", Kind::tag, at + "structural_tag");
    if (o.get_bool("json_object", false)) all.push_back({schema, kAnyObject, at + "json_object"});
  }
  if (all.empty()) return {};
  if (all.size() > 1)
    throw ApiError(400,
                   fmt::format("{} and {}: one form of the answer is enough", all[0].field, all[1].field),
                   all[1].field);
  return std::move(all[0]);
}

Expr expression(GrammarBuilder& b, const Wish& wish) {
  switch (wish.kind) {
    case Wish::Kind::schema: return schema_grammar(b, wish.value, SchemaDialect::json);
    case Wish::Kind::compact: return schema_grammar(b, wish.value, SchemaDialect::compact_json);
    case Wish::Kind::regex:
      return regex_grammar(b, wish.value.get_ref<const std::string&>(), Spelling::plain, false);
    case Wish::Kind::gbnf: return gbnf_grammar(b, wish.value.get_ref<const std::string&>());
    case Wish::Kind::tag: return structural_tag_grammar(b, wish.value);
    case Wish::Kind::choice: break;
  }
  std::vector<std::string> choices;
  for (const Json& c : wish.value) choices.push_back(c.get<std::string>());
  return b.literals(std::move(choices));
}

[[noreturn]] void refuse(const Error& e, const std::string& field) {
  throw ApiError(400, fmt::format("{}: {}{}", field, e.what(), e.hint().empty() ? "" : " (" + e.hint() + ")"),
                 field);
}

// Whether calls of either family can carry the name.
bool can_be_called(std::string_view name) {
  const auto fits = [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return std::isalnum(u) || u >= 0x80 || std::string_view("_-.:/").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 256 &&
         std::string_view(".:/").find(name[0]) == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), fits);
}

std::string name_of(const Json& tool) { return tool["function"]["name"].get<std::string>(); }

}  // namespace

bool ToolUse::constrains() const {
  if (tools.is_null()) return false;
  const auto strict = [](const Json& t) {
    return t["function"].contains("strict") && t["function"]["strict"] == true;
  };
  return must_call || !parallel || some || std::any_of(tools.begin(), tools.end(), strict);
}

namespace {

// {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}, or as
// /v1/responses has it, without the inner object.
ToolUse only_allowed(ToolUse use, const Fields& f, const Json& choice) {
  const Json* inner = Fields(choice).find("allowed_tools");
  const Json& allowed = inner && inner->is_object() ? *inner : choice;
  const Json* tools = Fields(allowed).find("tools");
  const std::string mode = Fields(allowed, "tool_choice.").get_string("mode", "auto");
  if (!tools || !tools->is_array() || (mode != "auto" && mode != "required"))
    f.fail("tool_choice", "of the type allowed_tools with a mode (\"auto\", \"required\") and tools");
  Json kept = Json::array();
  for (const Json& t : use.tools) {
    const bool named = std::any_of(tools->begin(), tools->end(), [&](const Json& a) {
      if (!a.is_object()) return false;
      const Json* function = Fields(a).find("function");
      return (function && function->is_object() ? *function : a).value("name", "") == name_of(t);
    });
    if (named) kept.push_back(t);
  }
  if (kept.empty()) f.fail("tool_choice", "made of names of the tools");
  use.some = kept.size() < use.tools.size();
  use.must_call = mode == "required";
  use.tools = std::move(kept);
  return use;
}

}  // namespace

ToolUse read_tool_use(const Json& body) {
  const Fields f(body);
  ToolUse use;
  if (const Json* tools = f.find("tools")) {
    if (!tools->is_array()) f.fail("tools", "an array");
    for (const Json& t : *tools)
      if (!t.is_object() || !t.contains("function") || !t["function"].is_object() ||
          !t["function"].contains("name") || !t["function"]["name"].is_string())
        f.fail("tools", "made of objects {\"type\": \"function\", \"function\": {\"name\": ...}}");
    for (const Json& t : *tools)
      if (!can_be_called(name_of(t)))
        throw ApiError(
            400,
            fmt::format("tools: '{:.100}' cannot be called: a name is made of letters, digits and _ - . : /, "
                        "and begins with none of the last three",
                        name_of(t)),
            "tools");
    if (!tools->empty()) use.tools = use.declared = *tools;
  }
  use.parallel = f.get_bool("parallel_tool_calls", true);
  const Json* choice = f.find("tool_choice");
  if (!choice || *choice == "auto") return use;
  if (choice->is_object() && Fields(*choice).get_string("type", "") == "allowed_tools")
    return only_allowed(std::move(use), f, *choice);
  if (*choice == "none") {
    use.tools = use.declared = nullptr;
    return use;
  }
  use.must_call = true;
  if (use.tools.is_null()) f.fail("tool_choice", "\"auto\" or \"none\" where there are no tools");
  if (*choice == "required") return use;
  const Json* function = choice->is_object() ? Fields(*choice).find("function") : nullptr;
  if (!function || !function->is_object() || !function->contains("name") || !(*function)["name"].is_string())
    f.fail("tool_choice",
           "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
  const std::string name = (*function)["name"];
  Json named = Json::array();
  for (const Json& t : use.tools)
    if (name_of(t) == name) named.push_back(t);
  if (named.empty()) f.fail("tool_choice", "the name of one of the tools");
  use.tools = std::move(named);
  return use;
}

std::shared_ptr<const TokenGrammar> Constraints::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(kept_.begin(), kept_.end(), [&](const auto& k) { return k.first == key; });
  if (it == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, it);
  return it->second;
}

std::shared_ptr<const TokenGrammar> Constraints::keep(const std::string& key,
                                                      std::shared_ptr<const Grammar> grammar) {
  const std::lock_guard lock(mutex_);
  if (!trie_) trie_ = std::make_shared<TokenTrie>(tokenizer_);
  kept_.emplace_front(key, std::make_shared<TokenGrammar>(std::move(grammar), trie_));
  if (kept_.size() > kKept) kept_.pop_back();
  return kept_.front().second;
}

std::shared_ptr<const TokenGrammar> Constraints::of_text(const Json& body) {
  const auto wish = read_wish(body);
  if (!wish) return nullptr;
  const std::string key = fmt::format("text {} {}", static_cast<int>(wish->kind), dump_json(wish->value));
  if (auto known = find(key)) return known;
  try {
    GrammarBuilder b(&tokenizer_);
    return keep(key, b.build(expression(b, *wish)));
  } catch (const Error& e) {
    refuse(e, wish->field);
  }
}

std::shared_ptr<const TokenGrammar> Constraints::of_chat(const Json& body, const ToolUse& use,
                                                         const ChatFormat& format, const std::string& prompt,
                                                         bool thinking) {
  const auto wish = read_wish(body);
  if (!wish && !use.constrains()) return nullptr;
  AnswerForm form;
  form.tools = use.tools;
  form.must_call = use.must_call;
  form.parallel = use.parallel;
  form.thinking = thinking;
  // Of the prompt only its end matters: whether a thought is open.
  const std::string key =
      fmt::format("chat {} {} {} {} {} {} {} {}", wish ? static_cast<int>(wish->kind) : -1,
                  wish ? dump_json(wish->value) : "", dump_json(use.tools), use.must_call, use.parallel,
                  thinking, format.thought(prompt).value_or(ThoughtMarks{}).opened,
                  prompt.substr(prompt.size() - std::min<size_t>(prompt.size(), 40)));
  if (auto known = find(key)) return known;
  const std::string field = wish && !use.must_call ? wish->field : use.must_call ? "tool_choice" : "tools";
  // Schemas that make a grammar too large are let go, as far as the functions are not strict.
  for (form.loose = false;; form.loose = true) {
    try {
      GrammarBuilder b(&tokenizer_);
      if (wish) form.content = expression(b, *wish);
      const std::optional<Expr> answer = format.answer(b, form, prompt);
      if (!answer) break;
      return keep(key, b.build(*answer));
    } catch (const Error& e) {
      if (form.loose || form.tools.is_null()) refuse(e, field);
    }
  }
  if (!use.must_call && !wish) return nullptr;  // strictness in a format that cannot be constrained
  throw ApiError(400, field + ": this model's way of calling tools is not known, so calls cannot be demanded",
                 field);
}

}  // namespace carat
