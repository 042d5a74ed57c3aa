#include "text/grammar/schema.h"

#include <doctest/doctest.h>

#include <random>
#include <regex>

#include "tests/grammar_texts.h"
#include "text/chat/gemma_call.h"
#include "text/tokenizer/tokenizer.h"

using namespace carat;
using namespace carat::test;

namespace {

// A vocabulary with the quoting mark, and what a text of its grammar shows.
std::unique_ptr<Tokenizer> gemma_names() { return std::make_unique<Tokenizer>(small_vocabulary({"<|\"|>"})); }
std::string with_names(std::string text, const Tokenizer& names) {
  const std::string mark = special_bytes(names.find("<|\"|>"));
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark))
    text.replace(at, mark.size(), "<|\"|>");
  return text;
}

// ---- JSON Schema said a second time: what is valid, and random valid values.

size_t length_of(const std::string& s) {
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool valid(const Json& s, const Json& v, const Json& root) {
  if (s.is_boolean()) return s.get<bool>();
  if (s.contains("$ref")) {
    const std::string ref = s["$ref"];
    if (!valid(ref == "#" ? root : root.at(Json::json_pointer(ref.substr(1))), v, root)) return false;
  }
  const auto is = [&](const std::string& t) {
    return (t == "object" && v.is_object()) || (t == "array" && v.is_array()) ||
           (t == "string" && v.is_string()) || (t == "number" && v.is_number()) ||
           (t == "null" && v.is_null()) || (t == "boolean" && v.is_boolean()) ||
           (t == "integer" && v.is_number() && v.get<double>() == std::floor(v.get<double>()));
  };
  if (s.contains("type")) {
    if (s["type"].is_string() && !is(s["type"])) return false;
    if (s["type"].is_array() &&
        std::none_of(s["type"].begin(), s["type"].end(), [&](const Json& t) { return is(t); }))
      return false;
  }
  if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end()) return false;
  if (s.contains("const") && s["const"] != v) return false;
  if (s.contains("anyOf") &&
      std::none_of(s["anyOf"].begin(), s["anyOf"].end(), [&](const Json& x) { return valid(x, v, root); }))
    return false;
  if (s.contains("oneOf") && std::count_if(s["oneOf"].begin(), s["oneOf"].end(),
                                           [&](const Json& x) { return valid(x, v, root); }) != 1)
    return false;
  if (s.contains("allOf"))
    for (const Json& x : s["allOf"])
      if (!valid(x, v, root)) return false;
  if (v.is_number()) {
    const double d = v.get<double>();
    if (s.contains("minimum") && d < s["minimum"].get<double>()) return false;
    if (s.contains("maximum") && d > s["maximum"].get<double>()) return false;
    if (s.contains("exclusiveMinimum") && d <= s["exclusiveMinimum"].get<double>()) return false;
    if (s.contains("exclusiveMaximum") && d >= s["exclusiveMaximum"].get<double>()) return false;
    if (s.contains("multipleOf") && v.is_number_integer() &&
        v.get<int64_t>() % s["multipleOf"].get<int64_t>() != 0)
      return false;
  }
  if (v.is_string()) {
    const std::string text = v;
    if (s.contains("minLength") && length_of(text) < s["minLength"].get<size_t>()) return false;
    if (s.contains("maxLength") && length_of(text) > s["maxLength"].get<size_t>()) return false;
    if (s.contains("pattern") && !std::regex_search(text, std::regex(s["pattern"].get<std::string>())))
      return false;
  }
  if (v.is_array()) {
    if (s.contains("minItems") && v.size() < s["minItems"].get<size_t>()) return false;
    if (s.contains("maxItems") && v.size() > s["maxItems"].get<size_t>()) return false;
    const size_t fixed = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    for (size_t i = 0; i < v.size(); ++i)
      if (i < fixed ? !valid(s["prefixItems"][i], v[i], root)
                    : s.contains("items") && !valid(s["items"], v[i], root))
        return false;
  }
  if (v.is_object()) {
    const Json required = s.value("required", Json::array());
    for (const Json& name : required)
      if (!v.contains(name.get<std::string>())) return false;
    const Json properties = s.value("properties", Json::object());
    for (const auto& [name, x] : v.items()) {
      if (properties.contains(name) && !valid(properties[name], x, root)) return false;
      if (!properties.contains(name) && s.contains("additionalProperties") &&
          !valid(s["additionalProperties"], x, root))
        return false;
    }
  }
  return true;
}

class SchemaMaker {
 public:
  explicit SchemaMaker(std::mt19937& random) : random_(random) {}

  Json root() {
    Json s = schema(3);
    while (!s.is_object() || s.empty()) s = schema(3);
    s["$defs"] = {
        {"tree",
         {{"type", "object"},
          {"properties",
           {{"v", schema(0)}, {"kids", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}}}}},
          {"required", {"v"}}}},
        {"leaf", schema(0)}};
    return s;
  }

  Json schema(int depth) {
    switch (roll(depth > 0 ? 14 : 9)) {
      case 0: return {{"type", "string"}};
      case 1: return {{"type", "string"}, {"minLength", roll(3)}, {"maxLength", 3 + roll(4)}};
      case 2: return {{"type", "string"}, {"pattern", roll(2) ? "^[a-c]{2,4}$" : "^x[0-9]\"?"}};
      case 3: return {{"type", "integer"}, {"minimum", roll(200) - 100}, {"maximum", 100 + roll(3000)}};
      case 4:
        return {{"type", "number"},
                {"exclusiveMinimum", (roll(200) - 100) / 8.0},
                {"maximum", 13 + roll(100) / 16.0}};
      case 5:
        return {{"enum", Json::array({"a", "ab", 1, nullptr, "é\"\n",
                                      Json::array({1, Json::object({{"k", "v"}})})})}};
      case 6: return {{"type", roll(2) ? "boolean" : "null"}};
      case 7: return {{"type", "integer"}, {"multipleOf", 1 + roll(40)}};
      case 8: return {{"type", Json::array({"integer", "null", "string"})}};
      case 9: return {{"$ref", roll(2) ? "#/$defs/tree" : "#/$defs/leaf"}};
      case 10: {
        Json s = {{"type", "array"}, {"items", schema(depth - 1)}};
        if (roll(2)) s["minItems"] = roll(3);
        if (roll(2)) s["maxItems"] = 2 + roll(3);
        if (roll(3) == 0) s["prefixItems"] = Json::array({schema(0), schema(0)});
        return s;
      }
      case 11: return {{"anyOf", Json::array({schema(depth - 1), schema(depth - 1)})}};
      case 12: return {{"type", "object"}, {"additionalProperties", schema(depth - 1)}};
      default: return object(depth);
    }
  }

  // Nothing where the schema allows no value that this knows to make.
  std::optional<Json> value(const Json& s, const Json& root, int depth = 0) {
    if (depth > 8) return {};
    if (s.contains("$ref"))
      return value(root.at(Json::json_pointer(s["$ref"].get<std::string>().substr(1))), root, depth + 1);
    if (s.contains("anyOf")) return value(s["anyOf"][static_cast<size_t>(roll(2))], root, depth + 1);
    if (s.contains("enum")) return s["enum"][static_cast<size_t>(roll(static_cast<int>(s["enum"].size())))];
    if (s["type"].is_array()) return roll(2) ? Json(nullptr) : Json(roll(1000) - 500);
    const std::string type = s["type"];
    if (type == "string" && s.contains("pattern")) return s["pattern"] == "^x[0-9]\"?" ? "x7\"\\" : "abc";
    if (type == "string") return text(s.value("minLength", 0), s.value("maxLength", 12));
    if (type == "integer" && s.contains("multipleOf")) return (roll(200) - 100) * s["multipleOf"].get<int>();
    if (type == "integer")
      return s["minimum"].get<int>() + roll(s["maximum"].get<int>() - s["minimum"].get<int>() + 1);
    if (type == "number") return s["maximum"].get<double>() - roll(4) / 32.0;
    if (type == "boolean") return roll(2) == 1;
    if (type == "null") return nullptr;
    return type == "array" ? array(s, root, depth) : map(s, root, depth);
  }

 private:
  int roll(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::string text(int least, int most) {
    static const std::vector<std::string> kChars = {"a", "\"", "\\", "\n", "ü", "你", "👋", "\x01", " ", "/"};
    std::string out;
    for (int i = least + roll(most - least + 1); i > 0; --i) out += kChars[static_cast<size_t>(roll(10))];
    return out;
  }
  Json object(int depth) {
    Json s = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (const char* name : {"b", "a", "key \"x\"", "ä"}) {
      if (roll(3) == 0) continue;
      s["properties"][name] = schema(depth - 1);
      if (roll(2)) s["required"].push_back(name);
    }
    const int rest = roll(3);
    if (rest == 0) s["additionalProperties"] = false;
    if (rest == 1) s["additionalProperties"] = schema(0);
    return s;
  }
  std::optional<Json> array(const Json& s, const Json& root, int depth) {
    const Json prefix = s.value("prefixItems", Json::array());
    const int least = s.value("minItems", 0), most = s.value("maxItems", 4);
    Json out = Json::array();
    const int n = depth > 4 ? least : least + roll(most - least + 1);
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      auto v = value(i < prefix.size() ? prefix[i] : s["items"], root, depth + 1);
      if (!v) return {};
      out.push_back(std::move(*v));
    }
    return out;
  }
  std::optional<Json> map(const Json& s, const Json& root, int depth) {
    Json out = Json::object();
    const Json required = s.value("required", Json::array());
    const Json properties = s.value("properties", Json::object());
    for (const auto& [name, property] : properties.items()) {
      const bool needed = std::find(required.begin(), required.end(), name) != required.end();
      if (!needed && (depth > 4 || roll(2))) continue;
      auto v = value(property, root, depth + 1);
      if (!v) return {};
      out[name] = std::move(*v);
    }
    if (s.contains("additionalProperties") && s["additionalProperties"].is_object())
      for (const char* name : {"bb", "key", "", "äö\n"})
        if (auto v = value(s["additionalProperties"], root, depth + 1); v && roll(2))
          out[name] = std::move(*v);
    return out;
  }
  std::mt19937& random_;
};

}  // namespace

TEST_CASE("integers within bounds") {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const int64_t scale = i % 3 == 0 ? 30 : i % 3 == 1 ? 3000 : 2'000'000;
    const auto any = [&] {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(scale)) - scale / 2;
    };
    int64_t low = any(), high = any();
    if (low > high) std::swap(low, high);
    NumberBounds bounds;
    if (i % 5 != 0) bounds.low = static_cast<double>(low);
    if (i % 7 != 0) bounds.high = static_cast<double>(high);
    GrammarBuilder b;
    const auto g = b.build(integer_grammar(b, bounds));
    for (int k = 0; k < 40; ++k) {
      const int64_t v = k == 0 ? low : k == 1 ? high : k == 2 ? low - 1 : k == 3 ? high + 1 : any();
      const bool expected = (!bounds.low || v >= low) && (!bounds.high || v <= high);
      INFO(v, " in ", low, " .. ", high);
      REQUIRE(accepts(g, std::to_string(v)) == expected);
    }
  }
  CHECK_FALSE(accepts(of_schema(R"({"type":"integer"})"), "01"));
  CHECK_FALSE(accepts(of_schema(R"({"type":"integer"})"), "1.5"));
}

TEST_CASE("numbers within bounds") {
  std::mt19937 random(5);
  for (int i = 0; i < 400; ++i) {
    const auto any = [&] { return (static_cast<double>(random() % 4001) - 2000) / (i % 2 ? 16 : 100); };
    double low = any(), high = any();
    if (low > high) std::swap(low, high);
    NumberBounds bounds{low, high, random() % 2 == 0, random() % 2 == 0};
    if (i % 5 == 0) bounds.low.reset();
    if (i % 7 == 0) bounds.high.reset();
    if (low == high) continue;
    GrammarBuilder b;
    const auto g = b.build(number_grammar(b, bounds));
    const auto inside = [&](double v) {
      return (!bounds.low || v > low || (v == low && !bounds.low_open)) &&
             (!bounds.high || v < high || (v == high && !bounds.high_open));
    };
    for (int k = 0; k < 40; ++k) {
      const double v = k == 0 ? low : k == 1 ? high : k == 2 ? low - 0.01 : k == 3 ? high + 0.01 : any();
      const std::string text = fmt::format("{}", v);
      if (v == 0 || text.find('e') != std::string::npos) continue;
      INFO(text, " in ", low, " .. ", high, " open ", bounds.low_open, bounds.high_open);
      REQUIRE(accepts(g, text) == inside(v));
    }
    for (int k = 0; k < 5; ++k) {
      const std::string text = random_text(g, random);
      INFO(text, " in ", low, " .. ", high);
      REQUIRE(inside(std::stod(text)));
    }
  }
}

TEST_CASE("schemas: what is allowed and what is not") {
  struct Case {
    const char* schema;
    std::vector<const char*> good, bad;
  };
  const Case cases[] = {
      {R"({})",
       {"1", "null", R"({"a": [1, {"b": "\u00e9\ud83d\ude00"}]})", "[]", "-1.5e10", "{\n  \"a\": 1\n}"},
       {"", "nul", "[1,]", "{a:1}", R"("\ud83d")", "\"\n\"", "01", "1 2"}},
      {R"({"type":"object","properties":{"n":{"type":"string"},"a":{"type":"integer"}},"required":["n"]})",
       {R"({"n":"x"})", R"({"n": "x", "a": 3})"},
       {"{}", R"({"a":3,"n":"x"})", R"({"n":"x","b":1})", R"({"n":1})"}},
      {R"({"type":"object","properties":{"a":{},"ab":{}},"additionalProperties":{"type":"null"}})",
       {R"({"a":1,"ab":2,"b":null,"abc":null,"":null})", R"({"x":null})", "{}"},
       {R"({"b":1})", R"({"a":1,"a":null})", R"({"\u0061":null})"}},
      {R"({"type":"object","properties":{}})", {"{}", "{ }"}, {R"({"a":1})"}},
      {R"({"type":"object"})", {"{}", R"({"a":1})"}, {"[]"}},
      {R"({"type":"object","propertyNames":{"pattern":"^k[0-9]$"},"additionalProperties":{"type":"integer"}})",
       {R"({"k1":2,"k3":4})"},
       {R"({"q":2})"}},
      {R"({"type":"object","patternProperties":{"^k":{"const":1}},"additionalProperties":false,"minProperties":1})",
       {R"({"kx":1})"},
       {R"({"kx":2})", "{}", R"({"x":1})"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":1})",
       {"[1]", R"([1,"a"])"},
       {"[]", R"(["a"])", R"([1,"a",2])"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1, 2, 3]", "[\n  1,\n  2\n]"},
       {"[1]", "[1,2,3,4]", "[1,\"a\"]"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("\u00e9\n")", R"("你好👋")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"^[^\"]\\d$"})",
       {R"("a1")", R"("\\1")", R"("\n2")"},
       {R"("a")", R"("\"1")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2023-12-31")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2023-13-01")"}},
      {R"({"enum":["a",{"b":[1]},null]})", {R"("a")", R"({"b":[1]})", "null"}, {"1", R"("b")"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "-14", "700007"}, {"8", "07"}},
      {R"({"type":"integer","multipleOf":5,"minimum":0})", {"0", "1005"}, {"-5", "3"}},
      {R"({"type":"number","multipleOf":0.01})", {"1.25", "3", "-0.5"}, {"1.255"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"number"}}},{"properties":{"a":{"minimum":3},"b":{}},"required":["a"]}]})",
       {R"({"a":3})", R"({"a":4,"b":[]})"},
       {R"({"a":2})", R"({"b":1})"}},
      {R"({"$defs":{"n":{"type":"integer","minimum":1}},"anyOf":[{"$ref":"#/$defs/n"},{"$ref":"#/$defs/n","maximum":5},{"type":"null"}]})",
       {"1", "77", "null"},
       {"0", "\"\""}},
      {R"({"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["v","next"]})",
       {R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1,"next":{"v":2}})"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","x":1})", R"({"k":"b"})"},
       {R"({"k":"b","x":1})", R"({"k":"a"})"}},
      {R"({"type":["string","null"]})", {"\"\"", "null"}, {"1"}},
      {R"({"type":"object"})", {"{}", R"({"a":[{}]})"}, {"[]", "1"}},
      {R"({"type":"array"})", {"[]", R"([1,[2]])"}, {"{}"}},
  };
  for (const Case& c : cases) {
    const auto g = of_schema(c.schema);
    for (const char* text : c.good) {
      INFO(std::string(c.schema), " ", std::string(text));
      CHECK(accepts(g, text));
    }
    for (const char* text : c.bad) {
      INFO(std::string(c.schema), " ", std::string(text));
      CHECK_FALSE(accepts(g, text));
    }
  }
}

TEST_CASE("schemas that cannot be kept are refused with their place") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties":{"a":{"not":{"type":"null"}}}})", "schema.properties.a: 'not'"},
      {R"({"not":{}})", "no text"},
      {R"({"if":{}})", "'if'"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"text"})", "type \"text\""},
      {R"({"$ref":"#/nowhere"})", "points nowhere"},
      {R"({"$ref":"http://example.org/x"})", "not supported"},
      {R"({"$ref":"#"})", "no text"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "left-recursive"},
      {R"({"allOf":[{"$ref":"#"}]})", "circles"},
      {R"({"enum":[]})", "no text"},
      {R"({"type":"string","pattern":"("})", "regular expression"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf"},
      {R"({"type":"object","required":["a"],"properties":{"a":false}})", "no text"},
      {R"({"properties":[]})", "properties must be"},
      {R"({"minimum":"a"})", "minimum must be"},
      {R"({"type":"array","maxItems":1000000000,"items":{}})", "too large"},
      {R"([1])", "must be an object"}};
  for (const auto& [schema, error] : cases) {
    INFO(std::string(schema));
    CHECK(holds(error_of([&, s = schema] { of_schema(s); }), error));
  }
  Json deep = {{"type", "integer"}};
  for (int i = 0; i < 100; ++i) deep = {{"type", "array"}, {"items", deep}};
  CHECK(holds(error_of([&] { of_schema(deep); }), "nested too deeply"));
}

TEST_CASE("random schemas: what is generated is valid, what is valid is allowed") {
  std::mt19937 random(11);
  SchemaMaker maker(random);
  int texts = 0, values = 0;
  for (int i = 0; i < 250; ++i) {
    const Json schema = maker.root();
    INFO(schema.dump());
    const auto g = of_schema(schema);
    for (int k = 0; k < 4; ++k, ++texts) {
      const std::string text = random_text(g, random);
      INFO(text);
      Json v;
      REQUIRE_NOTHROW(v = Json::parse(text));
      REQUIRE(valid(schema, v, schema));
    }
    for (int k = 0; k < 6; ++k) {
      const auto v = maker.value(schema, schema);
      if (!v) continue;
      INFO(v->dump());
      REQUIRE(valid(schema, *v, schema));
      REQUIRE(accepts(g, v->dump()));
      REQUIRE(accepts(g, v->dump(2)));
      ++values;
    }
  }
  CHECK(texts == 1000);
  CHECK(values > 700);
}

TEST_CASE("arguments of Gemma's calls are read back as what the schema says") {
  std::mt19937 random(13);
  SchemaMaker maker(random);
  const auto names = gemma_names();
  for (int i = 0; i < 150; ++i) {
    Json schema = maker.root();
    schema = {{"type", "object"},
              {"properties", {{"z", schema}, {"A b", {{"type", "string"}}}, {"m", {{"type", "integer"}}}}},
              {"required", {"z", "m"}},
              {"$defs", schema["$defs"]}};
    INFO(schema.dump());
    GrammarBuilder b(names.get());
    const auto g = b.build(schema_grammar(b, schema, SchemaDialect::gemma_call));
    const DeclaredTools tools(Json::array({{{"function", {{"name", "f"}, {"parameters", schema}}}}}));
    for (int k = 0; k < 4; ++k) {
      const std::string text = with_names(random_text(g, random, "\xFF]}"), *names);
      INFO(text);
      // As the model says it: control tokens are marked.
      std::string said = "call:f" + text;
      for (size_t at = 0; (at = said.find("<|\"|>", at)) != std::string::npos; at += 6)
        said.insert(at, 1, '\xFF');
      const GemmaCalls read = read_gemma_calls(said, tools);
      REQUIRE(read.calls.size() == 1);
      REQUIRE(read.rest.empty());
      // A text made of random characters may carry anything but the quoting mark; the reader gives it back.
      REQUIRE(valid(schema, Json::parse(read.calls[0].arguments), schema));
    }
  }
  const auto g = of_schema(
      Json::parse(R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},
                                           "required":["city"]})"),
      SchemaDialect::gemma_call);
  CHECK(accepts(g, R"({city:<|"|>Oslo "x" <|<|"|>,days:2})"));
  CHECK_FALSE(accepts(g, R"({city:<|"|>Oslo<|"|>,city:<|"|>a<|"|>})"));
  CHECK_FALSE(accepts(g, R"({"city":"Oslo"})"));
}
