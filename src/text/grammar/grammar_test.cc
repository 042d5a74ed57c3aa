#include "text/grammar/grammar.h"

#include <doctest/doctest.h>

#include <random>
#include <regex>

#include "tests/grammar_texts.h"
#include "text/chat/gemma.h"
#include "text/chat/qwen.h"

using namespace carat;
using namespace carat::test;

namespace {

std::shared_ptr<const Grammar> of_gbnf(std::string_view text) {
  GrammarBuilder b;
  return b.build(gbnf_grammar(b, text));
}
std::shared_ptr<const Grammar> of_regex(std::string_view text) {
  GrammarBuilder b;
  return b.build(regex_grammar(b, text, Spelling::plain, false));
}

}  // namespace

TEST_CASE("regular expressions accept what std::regex accepts") {
  std::mt19937 random(7);
  const std::vector<std::string> atoms = {"a",     "b",        "ab",  "[ab]", "[^a]", ".",
                                          "(a|b)", "(?:ab|c)", "\\w", "\\d",  "c"};
  const std::vector<std::string> counts = {"", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"};
  const auto some = [&](const auto& list) { return list[random() % list.size()]; };
  int matched = 0;
  for (int i = 0; i < 400; ++i) {
    std::string pattern;
    for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) pattern += some(atoms) + some(counts);
    if (random() % 4 == 0) pattern.append("|").append(some(atoms));
    const auto g = of_regex(pattern);
    const std::regex reference(pattern);
    for (int k = 0; k < 20; ++k) {
      std::string text;
      for (int n = static_cast<int>(random() % 7); n > 0; --n) text += "abc1 "[random() % 5];
      const bool expected = std::regex_match(text, reference);
      matched += expected;
      INFO(pattern, " on ", text);
      REQUIRE(accepts(g, text) == expected);
    }
  }
  CHECK(matched > 500);
}

TEST_CASE("regular expressions: characters, anchors, errors") {
  CHECK(accepts(of_regex("[α-ω]+\\u00e9\\x41"), "αω\u00e9A"));
  CHECK_FALSE(accepts(of_regex("[α-ω]+"), "aω"));
  CHECK(accepts(of_regex("."), "👋"));
  CHECK_FALSE(accepts(of_regex("."), "\n"));
  CHECK_FALSE(accepts(of_regex("."), "\xF0\x9F\x91"));
  CHECK_FALSE(accepts(of_regex("."), "\xED\xA0\x80"));  // a surrogate
  CHECK(accepts(of_regex("^a{2}$"), "aa"));
  CHECK(accepts(of_regex("a{,2}"), "a{,2}"));
  GrammarBuilder b;
  const auto searched = b.build(regex_grammar(b, "^a|b$|c", Spelling::plain, true));
  for (const char* text : {"axx", "xxb", "xcx", "c"}) CHECK(accepts(searched, text));
  for (const char* text : {"xax", "bx", ""}) CHECK_FALSE(accepts(searched, text));
  for (const char* bad :
       {"(", ")", "[a", "*a", "a**", "(?<=a)", "\\1", "a{3,2}", "[z-a]", "a*^", "a++", "\\"})
    CHECK(holds(error_of([&] { of_regex(bad); }), "regular expression"));
  CHECK(holds(error_of([] { of_regex("\\p{Nope}"); }), "is not known"));
  CHECK(holds(error_of([] { of_regex("x^"); }), "no text"));
  CHECK(holds(error_of([] { of_regex("(((((a{99}){99}){99}){99}){99})"); }), "too large"));
  CHECK(holds(error_of([] { of_regex(std::string(5000, '(')); }), "nested"));
}

TEST_CASE("GBNF") {
  const auto sums = of_gbnf(R"gbnf(
# sums
root  ::= (expr "=" ws num "\n")+
expr  ::= term ([-+*/] term)*
term  ::= num | "(" ws expr ")" ws
num   ::= [0-9]{1,3} ws
ws    ::= [ \t\n]*
)gbnf");
  CHECK(accepts(sums, "1+(2*3)=7\n"));
  CHECK(accepts(sums, "1 +22 = 7 \n4=4\n"));
  CHECK_FALSE(accepts(sums, "1+=7\n"));
  CHECK_FALSE(accepts(sums, "1234=1\n"));
  CHECK(accepts(of_gbnf("root ::= \"\\u4f60\" [^a-c\\]]? .\n"), "你d好"));
  CHECK_FALSE(accepts(of_gbnf("root ::= [^a-c]"), "b"));
  CHECK(accepts(of_gbnf("root ::= ( \"a\" |\n  \"b\" ){2,} x\nx ::= | \"x\""), "abab"));
  CHECK(accepts(of_gbnf("root ::= \"a\" root \"b\" | \"\""), "aaabbb"));
  CHECK_FALSE(accepts(of_gbnf("root ::= \"a\" root \"b\" | \"\""), "aaabb"));
  const std::pair<const char*, const char*> bad[] = {
      {"x ::= \"a\"", "no rule 'root'"},
      {"root ::= a", "'a' is not defined"},
      {"root ::= \"a", "'\"' is missing"},
      {"root = \"a\"", "'::=' is missing"},
      {"root ::= root \"a\" | \"b\"", "left-recursive"},
      {"root ::= x\nx ::= [a]* y\ny ::= x \"b\" | \"c\"", "left-recursive"},
      {"root ::= \"a\" root", "no text"},
      {"root ::= \"a\"{2,1}", "before its beginning"},
      {"root ::= (\"a\"", "')' is missing"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"root ::= [b-a]", "ends before"},
      {"root ::= \"\\q\"", "escape"},
      {"root ::= <|nothing|>", "no token"}};
  for (const auto& [text, error] : bad) {
    INFO(std::string(text));
    CHECK(holds(error_of([&, t = text] { of_gbnf(t); }), error));
  }
}

TEST_CASE("ambiguous and deep grammars stay small") {
  const auto ambiguous = of_gbnf("root ::= \"a\" x | \"a\" y | \"\"\nx ::= root \"x\"\ny ::= root [xy]");
  Automaton a(ambiguous);
  Automaton::Config c = a.step_bytes(a.start(), std::string(300, 'a'));
  CHECK(a.entries(c).size() < 10);
  c = a.step_bytes(c, std::string(300, 'x'));
  CHECK(a.ended(c));
  // A list that is right-recursive does not grow its stack.
  Automaton list(of_gbnf("root ::= \"a\" | \"a,\" root"));
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "a,";
  CHECK(list.ended(list.step_bytes(list.start(), text + "a")));
  CHECK(list.size() < 20);
  // Nesting ends before memory does, and what is open can still be closed.
  Automaton json(of_schema("{}"));
  const Automaton::Config deep = json.step_bytes(json.start(), std::string(100'000, '['));
  CHECK(deep == Automaton::kDead);
  CHECK(json.ended(json.step_bytes(json.start(), std::string(300, '[') + std::string(300, ']'))));
}

TEST_CASE("Gemma's answers: thoughts, text and calls where they are allowed") {
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"add","strict":true,"parameters":{
      "properties":{"b":{"type":"integer"},"a":{"type":"integer"}},"required":["a","b"]}}},
    {"type":"function","function":{"name":"now"}}])");
  const auto grammar = [&](AnswerForm form, std::string_view prompt = "<|turn>model\n") {
    GrammarBuilder b;
    if (form.content) form.content = b.text("{}");
    return b.build(gemma4_answer(b, form, prompt));
  };
  const std::string add = "<|tool_call>call:add{a:1,b:2}<tool_call|>",
                    now = "<|tool_call>call:now{}<tool_call|>",
                    thought = "<|channel>thought\nhm <b> so\n<channel|>";
  const auto must = grammar({.content = {}, .tools = tools, .must_call = true});
  CHECK(accepts(must, add));
  CHECK(accepts(must, add + now + add));
  for (const std::string& bad : {std::string("Hello"), std::string(), "Hello" + add, thought + add,
                                 std::string("<|tool_call>call:sub{}<tool_call|>"),
                                 std::string("<|tool_call>call:add{a:1}<tool_call|>")})
    CHECK_FALSE(accepts(must, bad));
  CHECK_FALSE(
      accepts(grammar({.content = {}, .tools = tools, .must_call = true, .parallel = false}), add + now));
  const auto may = grammar({.content = {}, .tools = tools});
  for (const std::string& good : {std::string("Hello <|"), add, "Let me see. " + add + now})
    CHECK(accepts(may, good));
  CHECK_FALSE(accepts(may, "Hello <|tool_call>call:add{}<tool_call|>"));
  const auto either = grammar({.content = 0, .tools = tools, .thinking = true});
  for (const std::string& good : {std::string("{}"), add, thought + "{}", thought + now})
    CHECK(accepts(either, good));
  CHECK_FALSE(accepts(either, "Hello"));
  const auto inside = grammar({.content = 0, .tools = {}, .thinking = true}, "x<|channel>thought\n");
  CHECK(accepts(inside, "hm\n<channel|>{}"));
  CHECK_FALSE(accepts(inside, "{}"));
  Json strict = tools;
  strict[0]["function"]["parameters"]["properties"]["a"] = {{"not", {{"type", "string"}}}};
  CHECK(holds(error_of([&] { grammar({.content = {}, .tools = strict, .must_call = true}); }), "tool 'add'"));
  strict[0]["function"]["strict"] = false;
  const auto loose = grammar({.content = {}, .tools = strict, .must_call = true});  // the rest is kept
  CHECK(accepts(loose, "<|tool_call>call:add{a:<|\"|>x<|\"|>,b:1}<tool_call|>"));
  CHECK_FALSE(accepts(loose, "<|tool_call>call:add{z:<|\"|>q<|\"|>}<tool_call|>"));
  CHECK_FALSE(accepts(loose, "<|tool_call>call:add{a:1,b:<|\"|>q<|\"|>}<tool_call|>"));
}

TEST_CASE("Qwen's answers: thoughts, text and calls where they are allowed") {
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"add","strict":true,"parameters":{
      "type":"object","properties":{"a":{"type":"integer"},"unit":{"enum":["m","km"]},"note":{"type":"string"},
      "tags":{"type":"array","items":{"type":"string"}},"n":{"anyOf":[{"type":"integer"},{"type":"null"}]}},
      "required":["a","unit"]}}},
    {"type":"function","function":{"name":"now"}}])");
  const auto grammar = [&](AnswerForm form, std::string_view prompt = "<think>\n\n</think>\n\n") {
    GrammarBuilder b;
    if (form.content) form.content = b.text("{}");
    return b.build(*qwen_answer(b, form, prompt));
  };
  const auto call = [](const std::string& name, const std::vector<std::pair<std::string, std::string>>& all) {
    std::string out = "<tool_call>\n<function=" + name + ">\n";
    for (const auto& [key, value] : all) out += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
    return out + "</function>\n</tool_call>";
  };
  const std::string add = call("add", {{"a", "1"}, {"unit", "km"}}), now = call("now", {});
  const auto must = grammar({.content = {}, .tools = tools, .must_call = true});
  for (const std::string& good :
       {add, now, add + "\n" + now,
        call("add", {{"a", "-2"}, {"unit", "m"}, {"note", "two\n</para> <b>\nlines"}}),
        call("add", {{"a", "1"}, {"unit", "m"}, {"tags", R"(["x", "y"])"}, {"n", "null"}})}) {
    INFO(good);
    CHECK(accepts(must, good));
  }
  for (const std::string& bad :
       {std::string("Hello"), std::string(), "Hello" + add, call("sub", {}), call("add", {{"a", "1"}}),
        call("add", {{"a", "x"}, {"unit", "m"}}), call("add", {{"a", "1"}, {"unit", "mm"}}), add + now,
        call("add", {{"a", "1"}, {"unit", "m"}, {"other", "1"}}), call("now", {{"x", "1"}}),
        call("add", {{"a", "1"}, {"unit", "m"}, {"n", "\"x\""}})}) {
    INFO(bad);
    CHECK_FALSE(accepts(must, bad));
  }
  const auto one = grammar({.content = {}, .tools = tools, .must_call = true, .parallel = false});
  CHECK(accepts(one, add));
  CHECK_FALSE(accepts(one, add + "\n" + add));
  const auto may = grammar({.content = {}, .tools = tools});
  for (const std::string& good : {std::string("Hello <b>"), add, "Let me see.\n\n" + add + "\n" + now})
    CHECK(accepts(may, good));
  CHECK_FALSE(accepts(may, "Hello " + call("add", {})));
  const auto either = grammar({.content = 0, .tools = tools});
  CHECK(accepts(either, "{}"));
  CHECK(accepts(either, add));
  CHECK_FALSE(accepts(either, "Hello"));
  const auto inside =
      grammar({.content = 0, .tools = tools, .must_call = true, .thinking = true}, "<think>\n");
  CHECK(accepts(inside, "hm\n</think>\n\n" + add));
  CHECK_FALSE(accepts(inside, "hm\n</think>\n\n{}"));
  CHECK_FALSE(accepts(inside, add));
  Json strict = tools;
  strict[0]["function"]["parameters"]["properties"]["a"] = {{"not", {{"type", "string"}}}};
  CHECK(holds(error_of([&] { grammar({.content = {}, .tools = strict, .must_call = true}); }), "tool 'add'"));
  strict[0]["function"]["strict"] = false;
  const auto loose = grammar({.content = {}, .tools = strict, .must_call = true});
  CHECK(accepts(loose, call("add", {{"a", "anything"}, {"unit", "m"}})));
  CHECK_FALSE(accepts(loose, call("add", {{"a", "anything"}, {"unit", "cm"}})));
  // A length holds, and the text does not spell its own end.
  const Json limited = Json::parse(R"([{"function":{"name":"f","parameters":{"type":"object","properties":
      {"s":{"type":"string","minLength":2,"maxLength":30}},"required":["s"]}}}])");
  const auto length = grammar({.content = {}, .tools = limited, .must_call = true});
  CHECK(accepts(length, call("f", {{"s", "ab"}})));
  CHECK_FALSE(accepts(length, call("f", {{"s", "a"}})));
  CHECK_FALSE(accepts(length, call("f", {{"s", std::string(31, 'a')}})));
  CHECK_FALSE(accepts(length, call("f", {{"s", "a\n</parameter>\nb"}})));
}
