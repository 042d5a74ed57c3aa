// Calls and schemas that are demanded of a model that says anything: both families, all ways to demand them.
#include <doctest/doctest.h>

#include <set>

#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Speaker {
  const char* arch;
  std::vector<std::string> marks;
};
const Speaker kFamilies[] = {
    {"gemma4", {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|tool_response>"}},
    {"qwen35", {"<think>", "</think>", "<tool_call>", "</tool_call>"}}};

using Fits = bool (*)(const Json&);
struct Parameter {
  const char* name;
  Json schema;
  Fits fits;
};
bool is_small(const Json& v) { return v.is_number_integer() && v >= 1 && v <= 9; }
bool is_colour(const Json& v) { return v == "red" || v == "dark blue" || v == 7 || v == nullptr; }
bool is_place(const Json& v) {
  return v.is_object() && v.size() == 2 && v["x"].is_number() && v["kind"].is_string() &&
         v["kind"] == "place";
}

const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter> all = {
      {"any_of",
       Json::parse(R"({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}]})"),
       [](const Json& v) { return v.is_null() || is_small(v); }},
      {"one_of",
       Json::parse(R"({"oneOf": [{"type": "boolean"}, {"type": "string", "enum": ["a", "5", "null"]}]})"),
       [](const Json& v) { return v.is_boolean() || v == "a" || v == "5" || v == "null"; }},
      {"by_ref", Json::parse(R"({"$ref": "#/$defs/Place"})"), is_place},
      {"all_of", Json::parse(R"({"allOf": [{"$ref": "#/$defs/Place"}]})"), is_place},
      {"choice", Json::parse(R"({"enum": ["red", "dark blue", 7, null]})"), is_colour},
      {"constant", Json::parse(R"({"const": 12345678901234567890})"),
       [](const Json& v) { return v.dump() == "12345678901234567890"; }},
      {"big", Json::parse(R"({"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740995})"),
       [](const Json& v) { return v >= int64_t{9007199254740993} && v <= int64_t{9007199254740995}; }},
      {"two_types", Json::parse(R"({"type": ["boolean", "null"]})"),
       [](const Json& v) { return v.is_boolean() || v.is_null(); }},
      {"list",
       Json::parse(
           R"({"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "integer", "minimum": 1,
                               "maximum": 9}})"),
       [](const Json& v) {
         return v.is_array() && !v.empty() && v.size() < 4 && std::all_of(v.begin(), v.end(), is_small);
       }},
      {"code", Json::parse(R"({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"})"),
       [](const Json& v) {
         return v.is_string() && v.get<std::string>().size() == 6 && v.get<std::string>()[2] == '-';
       }},
      {"text", Json::parse(R"({"type": "string", "minLength": 2, "maxLength": 6})"),
       [](const Json& v) { return v.is_string(); }},
      {"day", Json::parse(R"({"type": "string", "format": "date"})"),
       [](const Json& v) { return v.is_string() && v.get<std::string>().size() == 10; }}};
  return all;
}

Json function_of(const Parameter& p, bool strict) {
  const Json place = Json::parse(
      R"({"type": "object", "properties": {"x": {"type": "number", "minimum": 0, "maximum": 10}, "kind": {"const": "place"}},
          "required": ["x", "kind"], "additionalProperties": false})");
  Json f = {{"name", std::string("set_") + p.name},
            {"parameters",
             {{"type", "object"},
              {"properties", {{p.name, p.schema}}},
              {"required", {p.name}},
              {"additionalProperties", false},
              {"$defs", {{"Place", place}}}}}};
  if (strict) f["strict"] = true;
  return {{"type", "function"}, {"function", f}};
}

struct Asked {
  TestServer& server;
  std::string family;
  int finished = 0, calls = 0;

  Json choice(Json more, uint64_t seed) {
    Json body = {{"messages", user("Go")},
                 {"temperature", 1.2},
                 {"seed", seed},
                 {"max_tokens", 300},
                 {"enable_thinking", false}};
    body.update(more);
    const auto [status, answer] = server.post("/v1/chat/completions", body);
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer["choices"][0];
  }
  // All calls of an answer that has ended are of these functions, and keep their schemas.
  void check(const Json& c, const std::vector<const Parameter*>& of) {
    const Json& m = c["message"];
    const std::string& dump = c.dump();
    CAPTURE(dump);
    if (c["finish_reason"] == "length") return;
    ++finished;
    CHECK(c["finish_reason"] == "tool_calls");
    REQUIRE(m.contains("tool_calls"));
    for (const Json& call : m["tool_calls"]) {
      ++calls;
      const std::string name = call["function"]["name"];
      const auto p = std::find_if(of.begin(), of.end(),
                                  [&](const Parameter* q) { return name == std::string("set_") + q->name; });
      REQUIRE(p != of.end());
      const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>(), nullptr, false);
      REQUIRE(arguments.is_object());
      REQUIRE(arguments.size() == 1);
      REQUIRE(arguments.contains((*p)->name));
      CHECK((*p)->fits(arguments[(*p)->name]));
    }
  }
};

}  // namespace

TEST_CASE("forced calls keep every kind of schema, whatever the model says") {
  for (const Speaker& family : kFamilies) {
    CAPTURE(family.arch);
    TestServer t({.context = 8192, .sequences = 2, .prefill_chunk = 256}, {}, family.marks,
                 make_chat_format(family.arch, ""), make_cpu_backend(1, ""));
    Asked asked{t, family.arch};
    std::vector<const Parameter*> all;
    Json tools = Json::array();
    for (const Parameter& p : parameters()) {
      all.push_back(&p);
      tools.push_back(function_of(p, true));
    }
    for (const Parameter& p : parameters()) {
      CAPTURE(p.name);
      const Json named = {{"type", "function"}, {"function", {{"name", std::string("set_") + p.name}}}};
      asked.check(asked.choice({{"tools", {function_of(p, false)}},
                                {"tool_choice", "required"},
                                {"parallel_tool_calls", false}},
                               1),
                  {&p});
      if ((&p - parameters().data()) % 4 == 0)  // among all of them: long prompts, long grammars
        asked.check(
            asked.choice({{"tools", tools}, {"tool_choice", named}, {"parallel_tool_calls", false}}, 2),
            {&p});
    }
    const int before = asked.calls, ended = asked.finished;
    asked.check(
        asked.choice({{"tools", tools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}}, 1),
        all);
    CHECK(asked.calls - before == asked.finished - ended);  // one, not more
    asked.check(asked.choice({{"tools", tools}, {"tool_choice", "required"}, {"max_tokens", 1200}}, 1), all);
    const Json none = asked.choice({{"tools", tools}, {"tool_choice", "none"}, {"max_tokens", 60}}, 1);
    CHECK_FALSE(none["message"].contains("tool_calls"));
    // Strict functions bind calls that nothing demands, too.
    const Json free = asked.choice({{"tools", tools}, {"max_tokens", 60}}, 1);
    if (free["finish_reason"] == "tool_calls") asked.check(free, all);
    MESSAGE(family.arch << ": " << asked.finished << " answers ended, " << asked.calls << " calls");
    CHECK(asked.finished > 10);
  }
}

TEST_CASE("forced calls come behind a thought, too") {
  for (const Speaker& family : kFamilies) {
    CAPTURE(family.arch);
    TestServer t({.context = 8192, .sequences = 2, .prefill_chunk = 256}, {}, family.marks,
                 make_chat_format(family.arch, ""), make_cpu_backend(1, ""));
    Asked asked{t, family.arch};
    const Parameter& p = parameters()[0];
    for (uint64_t seed = 1; seed <= 4; ++seed)
      asked.check(asked.choice({{"tools", {function_of(p, true)}},
                                {"tool_choice", "required"},
                                {"enable_thinking", true},
                                {"thinking_token_budget", 10},
                                {"parallel_tool_calls", false}},
                               seed),
                  {&p});
    CHECK(asked.finished == 4);
  }
}

TEST_CASE("schemas of answers are kept by both families over three APIs") {
  const Json schema = Json::parse(
      R"({"type": "object", "properties": {"a": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}]},
          "b": {"enum": ["x", "y"]}}, "required": ["a", "b"], "additionalProperties": false})");
  const auto fits = [](const std::string& text) {
    const Json v = Json::parse(text, nullptr, false);
    return v.is_object() && v.size() == 2 && (v["a"].is_null() || is_small(v["a"])) &&
           (v["b"] == "x" || v["b"] == "y");
  };
  for (const Speaker& family : kFamilies) {
    CAPTURE(family.arch);
    TestServer t({.context = 8192, .sequences = 2, .prefill_chunk = 256}, {}, family.marks,
                 make_chat_format(family.arch, ""), make_cpu_backend(1, ""));
    const auto ask = [&](const std::string& path, Json body) {
      body.update({{"model", "tiny"}, {"temperature", 1.2}, {"seed", 3}});
      const auto [status, answer] = t.post(path, body);
      INFO(answer.dump());
      REQUIRE(status == 200);
      return answer;
    };
    const Json format = {{"type", "json_schema"}, {"schema", schema}};
    for (const Json& wish :
         {Json{{"output_config", {{"format", format}}}}, Json{{"output_format", format}}}) {
      Json body = {{"messages", user("Go")}, {"max_tokens", 200}, {"thinking", {{"type", "disabled"}}}};
      body.update(wish);
      CHECK(fits(ask("/v1/messages", body)["content"][0]["text"]));
    }
    CHECK(fits(ask("/v1/responses",
                   {{"input", "Go"},
                    {"reasoning", {{"effort", "none"}}},
                    {"max_output_tokens", 200},
                    {"text", {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", schema}}}}}})
                   ["output"][0]["content"][0]["text"]));
    CHECK(fits(ask("/api/chat", {{"messages", user("Go")},
                                 {"think", false},
                                 {"stream", false},
                                 {"format", schema}})["message"]["content"]));
    // A tag that begins a part with a schema of its own; text is free around it.
    const Json tag = {{"type", "structural_tag"},
                      {"format",
                       {{"type", "tag"},
                        {"begin", "<v>"},
                        {"content", {{"type", "json_schema"}, {"json_schema", schema}}},
                        {"end", "</v>"}}}};
    const Json tagged =
        ask("/v1/chat/completions", {{"messages", user("Go")},
                                     {"enable_thinking", false},
                                     {"max_tokens", 200},
                                     {"response_format", tag}})["choices"][0]["message"]["content"];
    const std::string text = tagged;
    CAPTURE(text);
    REQUIRE(text.starts_with("<v>"));
    REQUIRE(text.ends_with("</v>"));
    CHECK(fits(text.substr(3, text.size() - 7)));
  }
}
