// What xgrammar's documentation says of each format.
#include "text/grammar/structural_tag.h"

#include <doctest/doctest.h>

#include "tests/grammar_texts.h"
#include "text/tokenizer/tokenizer.h"

using namespace carat;
using namespace carat::test;

namespace {

// A vocabulary of bytes and some control tokens.
const Tokenizer& names() {
  static const Tokenizer tokenizer(small_vocabulary({"<tool_call>", "</tool_call>", "<other>"}));
  return tokenizer;
}
std::string marked(const char* name) { return special_bytes(names().find(name)); }

std::shared_ptr<const Grammar> of_tag(const char* text, bool vocabulary = false) {
  GrammarBuilder b(vocabulary ? &names() : nullptr);
  return b.build(structural_tag_grammar(b, Json::parse(text)));
}
void check(const char* tag, std::initializer_list<const char*> right,
           std::initializer_list<const char*> wrong) {
  CAPTURE(tag);
  const auto g = of_tag(tag);
  for (const char* text : right) CHECK_MESSAGE(accepts(g, text), text);
  for (const char* text : wrong) CHECK_FALSE_MESSAGE(accepts(g, text), text);
}
std::string refusal(const char* tag, bool vocabulary = false) {
  return error_of([&] { of_tag(tag, vocabulary); });
}

}  // namespace

TEST_CASE("structural tags: single texts and what is made of them") {
  check(R"({"type": "structural_tag", "format": {"type": "const_string", "value": "Hello!"}})", {"Hello!"},
        {"Hello", "Hello!!", "", "x"});
  check(R"({"type": "const_string", "value": ""})", {""}, {"x"});
  check(R"({"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"]}})",
        {R"({"a": 5})"}, {R"({"a": "5"})", "{}"});
  check(R"({"type": "json_schema", "style": "qwen_xml", "json_schema": {"type": "object",
            "properties": {"a": {"type": "string"}}, "required": ["a"]}})",
        {"<parameter=a>\nx</y>\n</parameter>\n"}, {"<parameter=b>\nx\n</parameter>\n"});
  check(R"({"type": "regex", "pattern": "[A-Z]{3}-[0-9]{4}"})", {"ABC-1234"}, {"ABC-123", "xABC-1234"});
  check(R"({"type": "grammar", "grammar": "root ::= \"yes\" | \"no\""})", {"yes", "no"}, {"maybe", ""});
  check(R"({"type": "any_text"})", {"", "anything at all\n", "日本"}, {"\xff"});
  check(R"({"type": "any_text", "excludes": ["<f=", "ab"]})", {"<f", "a", "<<f", "b a"},
        {"x<f=", "aab", "<f<f="});
  check(R"({"type": "any_text", "max_chars": 2})", {"", "日本"}, {"abc"});
  check(R"({"type": "any_text", "max_chars": 3, "excludes": ["ab"]})", {"", "bba", "aaa"},
        {"ab", "xab", "aaaa"});
  check(
      R"({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "end"}]})",
      {"end", "x end", "endend"}, {"en", "end."});
  check(
      R"({"type": "or", "elements": [{"type": "const_string", "value": "a"}, {"type": "const_string", "value": "b"}]})",
      {"a", "b"}, {"ab", ""});
  check(R"({"type": "optional", "content": {"type": "const_string", "value": "a"}})", {"", "a"}, {"aa"});
  check(R"({"type": "plus", "content": {"type": "const_string", "value": "a"}})", {"a", "aa"}, {""});
  check(R"({"type": "star", "content": {"type": "const_string", "value": "a"}})", {"", "aaa"}, {"b"});
  check(R"({"type": "repeat", "min": 1, "max": 2, "content": {"type": "const_string", "value": "a"}})",
        {"a", "aa"}, {"", "aaa"});
  check(R"({"type": "repeat", "min": 2, "max": -1, "content": {"type": "const_string", "value": "a"}})",
        {"aa", "aaaaa"}, {"a"});
}

TEST_CASE("structural tags: free text inside a tag ends where the tag ends") {
  check(R"({"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"})",
        {"<t></t>", "<t>a </ b</t>"}, {"<t>a</t></t>", "<t>a", "a</t>"});
  check(R"({"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": ["</t>", "."]})",
        {"<t>a</t>", "<t>a."}, {"<t>a.</t>", "<t>a"});
  check(R"({"type": "sequence", "elements": [
             {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
             {"type": "triggered_tags", "triggers": ["<function="], "tags": [
               {"type": "tag", "begin": "<function=f>", "content": {"type": "const_string", "value": "1"}, "end": "</function>"}]}]})",
        {"<think>hm</think>", "<think>hm</think>So <function=f>1</function>.",
         "<think></think><function=f>1</function>"},
        {"So <function=f>1</function>", "<think>hm</think><function=f>2</function>"});
}

namespace {

constexpr const char* kTwo = R"("triggers": ["<f="], "tags": [
  {"type": "tag", "begin": "<f=a>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</f>"},
  {"type": "tag", "begin": "<f=bc>", "content": {"type": "const_string", "value": "x"}, "end": "</f>"}])";

std::string triggered(const char* more) {
  return std::string(R"({"type": "triggered_tags", )") + kTwo + more + "}";
}

}  // namespace

TEST_CASE("structural tags: triggers lead into tags, with text around them or without") {
  check(triggered("").c_str(),
        {"", "text", "<f", "<f=a>1</f>", "I call <f=a>12</f>, then <f=bc>x</f> <f=a>3</f>", "<<f=bc>x</f><"},
        {"<f=", "<f=d>1</f>", "<f=a>x</f>", "<f=bc>1</f>", "<f=a>1"});
  check(triggered(R"(, "at_least_one": true)").c_str(), {"<f=a>1</f>", "<f=a>1</f> and <f=bc>x</f>."},
        {"", "text <f=a>1</f>"});
  check(triggered(R"(, "stop_after_first": true)").c_str(), {"", "text", "text <f=a>1</f>"},
        {"<f=a>1</f>.", "<f=a>1</f><f=a>1</f>"});
  check(triggered(R"(, "at_least_one": true, "stop_after_first": true)").c_str(),
        {"<f=a>1</f>", "<f=bc>x</f>"}, {"", "x<f=a>1</f>", "<f=a>1</f>."});
  check(triggered(R"(, "excludes": ["stop"])").c_str(), {"sto", "go <f=bc>x</f>"},
        {"stop", "<f=a>1</f> stop"});
  // The older form, and OpenAI's way to send it.
  check(R"({"type": "structural_tag", "triggers": ["<f="], "structures": [
             {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}]})",
        {"see <f=a>1</f>"}, {"see <f=a>x</f>"});
  check(
      R"({"type": "dispatch", "rules": [["a=", {"type": "regex", "pattern": "[0-9]"}], ["b=", {"type": "const_string", "value": "!"}]],
            "excludes": ["z"]})",
      {"", "so a=1, b=!"}, {"a=", "a=x", "b=1", "z"});
  check(R"({"type": "dispatch", "loop": false, "rules": [["a=", {"type": "regex", "pattern": "[0-9]"}]]})",
        {"x a=1"}, {"a=1 "});
  check(R"({"type": "tags_with_separator", "separator": ",", "tags": [
             {"type": "tag", "begin": "<i>", "content": {"type": "any_text"}, "end": "</i>"}]})",
        {"", "<i>a</i>", "<i>a</i>,<i></i>"}, {",", "<i>a</i>,", "<i>a</i><i>b</i>"});
  check(
      R"({"type": "tags_with_separator", "separator": ",", "at_least_one": true, "stop_after_first": true, "tags": [
             {"type": "tag", "begin": "<i>", "content": {"type": "any_text"}, "end": "</i>"}]})",
      {"<i>a</i>"}, {"", "<i>a</i>,<i>b</i>"});
}

TEST_CASE("structural tags: marks of the vocabulary are control tokens or spelled; tokens are tokens") {
  const auto call = of_tag(R"({"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [
    {"type": "tag", "begin": "<tool_call>{", "content": {"type": "const_string", "value": "1"}, "end": "}</tool_call>"}]})",
                           true);
  CHECK(accepts(call, "a <tool_call>{1}</tool_call>"));
  CHECK(accepts(call, "a " + marked("<tool_call>") + "{1}" + marked("</tool_call>") + "b"));
  CHECK_FALSE(accepts(call, "a <tool_call>b"));
  CHECK_FALSE(accepts(call, "a " + marked("<tool_call>") + "b"));
  CHECK_FALSE(accepts(call, "a " + marked("<other>")));

  const auto tokens = of_tag(R"({"type": "sequence", "elements": [
    {"type": "tag", "begin": {"type": "token", "token": "<other>"}, "content": {"type": "any_tokens"}, "end": {"type": "token", "token": "</tool_call>"}},
    {"type": "token_triggered_tags", "trigger_tokens": ["<tool_call>"], "exclude_tokens": ["<other>"], "tags": [
      {"type": "tag", "begin": {"type": "token", "token": "<tool_call>"}, "content": {"type": "const_string", "value": "1"},
       "end": {"type": "token", "token": "</tool_call>"}}]}]})",
                             true);
  const std::string head = marked("<other>") + "x" + marked("<other>") + marked("</tool_call>");
  CHECK(accepts(tokens, head));
  CHECK(accepts(tokens, head + "text " + marked("<tool_call>") + "1" + marked("</tool_call>") + "b"));
  CHECK_FALSE(accepts(tokens, head + marked("<tool_call>") + "2" + marked("</tool_call>")));
  CHECK_FALSE(accepts(tokens, head + marked("<other>")));
  CHECK_FALSE(accepts(tokens, "<other>x</tool_call>"));
  const auto by_token = of_tag(
      R"({"type": "token_dispatch", "rules": [["<tool_call>", {"type": "token", "token": "ab"}]]})", true);
  CHECK(accepts(by_token, "x" + marked("<tool_call>") + "aby"));
  CHECK_FALSE(accepts(by_token, "x" + marked("<tool_call>") + "b"));
}

TEST_CASE("structural tags that cannot be kept are refused by name") {
  CHECK(holds(refusal(R"({"type": "nonsense"})"), "'nonsense' is not known"));
  CHECK(holds(refusal(R"({})"), "'type' is missing"));
  CHECK(holds(refusal(R"([1])"), "not an object"));
  CHECK(holds(refusal(R"({"type": 5})"), "'type' is not a string"));
  CHECK(holds(refusal(R"({"type": "json_schema", "json_schema": {}, "style": "glm_xml"})"), "'glm_xml'"));
  CHECK(refusal(R"({"type": "json_schema", "json_schema": {"pattern": "("}})") != "no error");
  CHECK(holds(refusal(R"({"type": "any_text", "max_tokens": 5})"), "max_tokens"));
  CHECK(holds(refusal(R"({"type": "tag", "begin": "a", "content": {"type": "any_text"}})"), "'end'"));
  CHECK(holds(refusal(R"({"type": "triggered_tags", "triggers": ["<a", "<ab"], "tags": [
    {"type": "tag", "begin": "<ab>", "content": {"type": "any_text"}, "end": "."}]})"),
              "exactly one"));
  CHECK(holds(refusal(R"({"type": "triggered_tags", "triggers": [""], "tags": [
    {"type": "tag", "begin": "<ab>", "content": {"type": "any_text"}, "end": "."}]})"),
              "empty"));
  CHECK(holds(refusal(R"({"type": "token", "token": "<none>"})", true), "no token"));
  CHECK(holds(refusal(R"({"type": "token", "token": 99999999999})", true), "no token"));
  CHECK(holds(refusal(R"({"type": "any_tokens", "exclude_tokens": ["ab"]})", true), "no control token"));
  CHECK(
      holds(refusal(R"({"type": "repeat", "min": 3, "max": 2, "content": {"type": "any_text"}})"), "range"));
  std::string deep = R"({"type": "any_text"})";
  for (int i = 0; i < 60; ++i) deep = R"({"type": "optional", "content": )" + deep + "}";
  CHECK(holds(refusal(deep.c_str()), "too deeply"));
}
