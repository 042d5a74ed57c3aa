// Schemas as Zod 4 and Pydantic write them, every kind of them that JSON Schema can say, with values that
// keep them and values that do not.
#include <doctest/doctest.h>

#include <map>

#include "base/file.h"
#include "tests/grammar_texts.h"
#include "text/grammar/derive.h"

using namespace carat;
using namespace carat::test;

namespace {

bool can_be(const Json& schema) {
  return !holds(error_of([&] { of_schema(schema); }), "no text at all");
}

// One of the shortest texts of the grammar.
std::string shortest_text(const std::shared_ptr<const Grammar>& g) {
  Automaton a(g);
  std::map<Automaton::Config, std::string> texts = {{a.start(), ""}};
  std::vector<Automaton::Config> order = {a.start()};
  for (size_t i = 0; i < order.size() && i < 20'000; ++i) {
    const std::string text = texts[order[i]];
    if (a.ended(order[i])) return text;
    for (int byte = 0; byte < 256; ++byte) {
      const auto to = a.step(order[i], g->class_of[static_cast<size_t>(byte)]);
      if (to == Automaton::kDead || !texts.try_emplace(to, text + static_cast<char>(byte)).second) continue;
      order.push_back(to);
    }
  }
  FAIL("no end");
  return {};
}

// As the schema of a call's argument: what its references name stands at the document's root.
Json as_argument(Json schema) {
  Json tool = {{"type", "object"}, {"required", {"a"}}};
  for (const char* key : {"$defs", "definitions"})
    if (schema.contains(key)) tool[key] = schema[key], schema.erase(key);
  tool["properties"]["a"] = std::move(schema);
  return tool;
}

void check_kinds(const std::string& file, size_t least) {
  const Json kinds = Json::parse(read_file(std::string(CARAT_TEST_DATA) + file));
  CHECK(kinds.size() >= least);
  for (const Json& k : kinds) {
    const Json& schema = k["schema"];
    INFO(k["kind"].get<std::string>(), " ", schema.dump());
    if (!can_be(schema)) {
      CHECK(k["good"].empty());
      continue;
    }
    const auto g = of_schema(schema);
    for (const Json& v : k["good"]) {
      INFO(v.dump());
      CHECK(accepts(g, v.dump()));
      CHECK(accepts(g, v.dump(2)));
    }
    for (const Json& v : k["bad"]) {
      INFO(v.dump());
      CHECK_FALSE(accepts(g, v.dump()));
    }
    const std::string text = shortest_text(g);
    INFO(text);
    CHECK(Json::accept(text));
    // The same as arguments of a call.
    const Json tool = as_argument(schema);
    for (const SchemaDialect dialect : {SchemaDialect::gemma_call, SchemaDialect::tag_call}) {
      GrammarBuilder b;
      CHECK_NOTHROW(b.build(schema_grammar(b, tool, dialect)));
    }
  }
}

bool matches(std::string_view pattern, std::string_view text, bool search = true) {
  GrammarBuilder b;
  return accepts(b.build(regex_grammar(b, pattern, Spelling::plain, search)), text);
}

}  // namespace

TEST_CASE("every kind of Zod's schemas") { check_kinds("/zod_schemas.json", 100); }
TEST_CASE("Pydantic's schemas") { check_kinds("/pydantic_schemas.json", 26); }

TEST_CASE("patterns that look ahead, and anchors anywhere") {
  CHECK(matches("^(?!.*\\.\\.)[a.]+$", "a.a"));
  CHECK_FALSE(matches("^(?!.*\\.\\.)[a.]+$", "a..a"));
  CHECK(matches("^(?=.*[0-9])(?=.*[a-z]).{4,}$", "ab12"));
  CHECK_FALSE(matches("^(?=.*[0-9])(?=.*[a-z]).{4,}$", "abcd"));
  CHECK_FALSE(matches("^(?=.*[0-9])(?=.*[a-z]).{4,}$", "a1"));
  CHECK(matches("a(?=b)", "xab"));
  CHECK_FALSE(matches("a(?=b)", "xac"));
  CHECK(matches("^$|^(?:ab)+$", ""));
  CHECK(matches("^$|^(?:ab)+$", "abab"));
  CHECK_FALSE(matches("^$|^(?:ab)+$", "aba"));
  CHECK(matches("(^a|b$)", "xxb"));
  CHECK_FALSE(matches("(^a|b$)", "xax"));
  CHECK(matches("^(a(?!b)){1,3}$", "aaa"));
  CHECK(matches("^\\p{Lu}\\p{L}*$", "Äöz"));
  CHECK_FALSE(matches("^\\p{Lu}\\p{L}*$", "äöz"));
  CHECK(matches("^\\P{L}+$", "12!"));
  CHECK(matches("^[\\p{N}_]+$", "1_²"));
}

TEST_CASE("long patterns that look ahead end with an error, not with the stack") {
  std::string optional, twice = "(?=a)(";
  for (int i = 0; i < 30'000; ++i) optional += "a?", twice += "a";
  CHECK(holds(error_of([&] { matches("(?=a)" + optional, "a"); }), "too large"));
  CHECK(holds(error_of([&] { matches(twice + "){2}", "a"); }), "too large"));
}

TEST_CASE("patterns with lengths and with each other: all of them hold") {
  const auto text = [](const char* schema, const char* value) { return accepts(of_schema(schema), value); };
  const char* code = R"({"type":"string","pattern":"^[a-z]+$","minLength":3,"maxLength":6})";
  CHECK(text(code, "\"abcdef\""));
  CHECK_FALSE(text(code, "\"ab\""));
  CHECK_FALSE(text(code, "\"abcdefg\""));
  const char* quoted = R"({"type":"string","pattern":"^[\"\\\\\n]+$","maxLength":2})";
  CHECK(text(quoted, R"("\"\\")"));
  CHECK(text(quoted, R"("\n")"));
  CHECK_FALSE(text(quoted, R"("\n\n\n")"));
  const char* both = R"({"allOf":[{"pattern":"a"},{"pattern":"b"},{"maxLength":3}],"type":"string"})";
  CHECK(text(both, "\"bäa\""));
  CHECK_FALSE(text(both, "\"aa\""));
  CHECK_FALSE(text(both, "\"bxxa\""));
  const char* day = R"({"type":"string","format":"date","minLength":10})";
  CHECK(text(day, "\"2025-01-31\""));
  CHECK_FALSE(text(day, "\"2025-01-32\""));
  CHECK(
      holds(error_of([] { of_schema(R"({"type":"string","pattern":"^a{5}$","maxLength":3})"); }), "no text"));
  // What would be too large is cut at the far end: what is left keeps the schema.
  const char* large = R"({"type":"string","pattern":"^[a-z]+$","maxLength":100000})";
  CHECK(text(large, "\"abcdef\""));
  CHECK(text(R"({"type":"string","maxLength":524288})", "\"abc\""));
}

TEST_CASE("integers of 64 bits are exact") {
  const auto number = [](const char* schema, const char* value) { return accepts(of_schema(schema), value); };
  const char* one = R"({"type":"integer","minimum":9007199254740993,"maximum":9007199254740993})";
  CHECK(number(one, "9007199254740993"));
  CHECK_FALSE(number(one, "9007199254740992"));
  CHECK_FALSE(number(one, "9007199254740994"));
  const char* open =
      R"({"type":"integer","exclusiveMinimum":9007199254740992,"exclusiveMaximum":9007199254740994})";
  CHECK(number(open, "9007199254740993"));
  CHECK_FALSE(number(open, "9007199254740992"));
  const char* most = R"({"type":"integer","minimum":-9223372036854775807,"maximum":9223372036854775807})";
  CHECK(number(most, "9223372036854775807"));
  CHECK(number(most, "-9223372036854775807"));
  CHECK_FALSE(number(most, "9223372036854775808"));
  CHECK(number(R"({"type":"integer"})", "1234567890123456789"));
}

TEST_CASE("tools that are not strict keep what can be kept of their schemas") {
  const auto lenient = [](const char* schema) {
    GrammarBuilder b;
    return b.build(schema_grammar(b, Json::parse(schema), SchemaDialect::json, true));
  };
  const auto unique =
      lenient(R"({"type":"object","properties":{"n":{"type":"integer","maximum":9,"minimum":1},
      "tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":2,"uniqueItems":true}},"required":["n","tags"]})");
  CHECK(accepts(unique, R"({"n":1,"tags":["a","a"]})"));
  CHECK_FALSE(accepts(unique, R"({"n":1,"tags":["c"]})"));
  CHECK_FALSE(accepts(unique, R"({"n":1,"tags":["a","a","a"]})"));
  CHECK_FALSE(accepts(unique, R"({"n":10,"tags":[]})"));
  CHECK_FALSE(accepts(unique, R"({"command":"x"})"));
  for (const char* keyword : {R"("if":{"required":["a"]},"then":{})", R"("not":{"required":["z"]})",
                              R"("dependentRequired":{"a":["b"]})", R"("unevaluatedProperties":false)"}) {
    const std::string schema =
        std::string(R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],)") + keyword +
        "}";
    const auto g = lenient(schema.c_str());
    CHECK(accepts(g, R"({"a":1})"));
    CHECK_FALSE(accepts(g, R"({"a":"x"})"));
    CHECK_FALSE(accepts(g, "{}"));
    CHECK(error_of([&] { of_schema(schema.c_str()); }) != "no error");
  }
  const auto pattern = lenient(R"({"type":"object","properties":{"a":{"type":"string","pattern":"(a)\\1"},
      "b":{"type":"string","maxLength":524288},"c":{"oneOf":[{"type":"integer"},{"type":"number"}]}},"required":["a"]})");
  CHECK(accepts(pattern, R"({"a":"x","b":"y","c":1})"));
  CHECK_FALSE(accepts(pattern, R"({"a":1})"));
  CHECK_FALSE(accepts(pattern, R"({"a":"x","c":"y"})"));
}
