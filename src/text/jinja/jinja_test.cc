#include "text/jinja/jinja.h"

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/file.h"

using namespace carat;
using Json = nlohmann::ordered_json;

namespace {

const std::string kData = CARAT_TEST_DATA "/templates/";

std::string render(std::string_view text, const char* variables = "{}") {
  return JinjaTemplate(text).render(Json::parse(variables));
}

std::string error_of(std::string_view text, const char* variables = "{}") {
  try {
    return "rendered: " + render(text, variables);
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("published templates render as the real Jinja2 renders them") {
  const Json conversations = Json::parse(read_file(kData + "conversations.json"));
  const Json expected = Json::parse(read_file(kData + "rendered.json"));
  std::tm day{};
  day.tm_year = 126, day.tm_mon = 10, day.tm_mday = 20;
  int renders = 0;
  for (const auto& [name, results] : expected.items()) {
    const JinjaTemplate tpl(read_file(kData + "jinja/" + name));
    for (const auto& [conversation, result] : results.items()) {
      Json variables = conversations[conversation];
      if (!variables.contains("add_generation_prompt")) variables["add_generation_prompt"] = true;
      variables["bos_token"] = name.starts_with("gemma") ? "<bos>" : "";
      variables["eos_token"] = "<eos>";
      CAPTURE(name);
      CAPTURE(conversation);
      if (result.contains("error")) {
        CHECK_THROWS_AS(tpl.render(variables, {}, &day), Error);
      } else {
        CHECK(tpl.render(variables, {}, &day) == result["text"].get<std::string>());
      }
      ++renders;
    }
  }
  CHECK(renders == 6 * 18);
}

// Each line after the first: [template, text], or [template, null, what Jinja2 says] where it refuses.
TEST_CASE("the language agrees with the real Jinja2, construct by construct") {
  const std::string file = read_file(CARAT_TEST_DATA "/../golden/jinja.txt");
  Json variables;
  std::tm day{};
  day.tm_year = 126, day.tm_mon = 10, day.tm_mday = 20;
  int cases = 0;
  for (size_t at = 0; at < file.size(); ++cases) {
    const size_t end = file.find('\n', at);
    const Json line = Json::parse(file.substr(at, end - at));
    at = end + 1;
    if (line.is_object()) {
      variables = line["variables"];
      continue;
    }
    const std::string source = line[0].get<std::string>();
    CAPTURE(source);
    std::string got;
    try {
      got = JinjaTemplate(source).render(variables, {}, &day);
      if (line[1].is_null())
        CHECK_MESSAGE(false, "rendered: " << got << "; Jinja2: " << line[2]);
      else
        CHECK(got == line[1].get<std::string>());
    } catch (const Error& e) {
      CHECK_MESSAGE(line[1].is_null(), e.what());
      CHECK(*e.what() != '\0');
    }
  }
  CHECK(cases > 150);
}

TEST_CASE("what templates may not do is an error that names it and its line") {
  CHECK(error_of("a\n{{ x | frobnicate }}").find("line 2: the filter 'frobnicate' is not supported") !=
        std::string::npos);
  CHECK(error_of("\n\n{% include 'x' %}").find("line 3: the statement 'include' is not supported") !=
        std::string::npos);
  CHECK(error_of("{{ x is frob }}").find("the test 'frob'") != std::string::npos);
  CHECK(error_of("{% if 1 %}\n\n{{ nosuch.x }}{% endif %}").find("line 3: 'nosuch' is undefined") !=
        std::string::npos);
  CHECK(error_of("{{ [1].append(2) }}").find("list.append") != std::string::npos);
  CHECK(error_of("{{ cycler(1) }}").find("'cycler' is undefined") != std::string::npos);
  CHECK(error_of("{{ raise_exception('Roles must alternate') }}") == "Roles must alternate");
  CHECK(error_of("{% for x in [1] %}{% if x %}").find("'endif' is missing") != std::string::npos);
  CHECK(error_of("\xff{{ '\xfe' | upper }}\xc3") == "rendered: \xff\xfe\xc3");
}

TEST_CASE("a template that ends inside an escape is an error") {
  // Exact-size copies, so that a sanitizer sees one byte too far.
  for (const std::string_view text :
       {"{{ '\\u2", "{{ '\\u0", "{{ '\\x", "{{ '\\", "{{ '\\7", "{{ '\\U0010FFF"}) {
    const std::vector<char> bytes(text.begin(), text.end());
    CHECK_THROWS_AS(JinjaTemplate({bytes.data(), bytes.size()}), Error);
  }
}

TEST_CASE("hostile templates end soon") {
  const auto start = std::chrono::steady_clock::now();
  const auto repeated = [](std::string_view text, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  const std::string forever = "{% for a in range(100000) %}{% for b in range(100000) %}";
  for (const std::string& source : std::vector<std::string>{
           forever + "{% endfor %}{% endfor %}",
           forever + "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
           "{% set n = namespace(x='ab') %}" + forever + "{% set n.x = n.x + n.x %}{% endfor %}{% endfor %}",
           "{% set n = namespace(x=[1]) %}" + forever + "{% set n.x = n.x + n.x %}{% endfor %}{% endfor %}",
           "{% set n = namespace(x=[1]) %}" + forever + "{% set n.x = [n.x] %}{% endfor %}{% endfor %}",
           "{% set n = namespace(x=[1]) %}{% for i in range(150) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ "
           "n.x == n.x + [] }}{{ n.x }}",
           "{% set n = namespace(x=[1]) %}{% for i in range(150) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ "
           "n.x | tojson }}",
           std::string("{{ 'x' * 100000000000 }}"),
           std::string("{{ [0] * 100000000000 }}"),
           std::string("{{ 'x'.center(1000000000000) }}"),
           std::string("{{ '%1000000000d' % 1 }}"),
           std::string("{{ 7 ** 1000000000000 }}"),
           std::string("{{ range(1000000000000) }}"),
           std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
           std::string("{% macro m(x) %}{{ m(m(x)) }}{% endmacro %}{{ m(1) }}"),
           std::string("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}"),
           repeated("{% if 1 %}", 100'000),
           "{{ " + repeated("(", 100'000),
           "{{ " + repeated("not ", 100'000) + "1 }}",
           "{{ " + repeated("-", 100'000) + "1 }}",
           "{{ 1" + repeated("+1", 100'000) + " }}",
           "{{ x" + repeated(".a", 100'000) + " }}",
           "{{ 1" + repeated("|abs", 100'000) + " }}",
           "{{ " + repeated("[", 100'000),
           "{{ 1" + repeated(" if 1 else 1", 100'000) + "}}",
           "{% for i in range(100000) %}" + repeated("{{ 'a' * 1000000 }}", 100) + "{% endfor %}",
           "{% set a = 'a' * 1000000 %}{% for i in range(100000) %}{{ (a + 'b') in a * 2 }}{% endfor %}",
       }) {
    CAPTURE(source.substr(0, 200));
    CHECK_THROWS_AS(render(source), Error);
  }
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  CHECK_THROWS_AS(JinjaTemplate("{{ x }}").render(Json{{"x", deep}}), Error);
  JinjaLimits small;
  small.steps = 1000;
  CHECK_THROWS_AS(JinjaTemplate("{% for i in range(600) %}{{ i }}{% endfor %}").render(Json::object(), small),
                  Error);
  small = {};
  small.output_bytes = 10;
  CHECK(JinjaTemplate("{{ 'x' * 10 }}").render(Json::object(), small) == "xxxxxxxxxx");
  CHECK_THROWS_AS(JinjaTemplate("{{ 'x' * 10 }}y").render(Json::object(), small), Error);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}
