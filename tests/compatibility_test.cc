// label: plain
// What five APIs' requests get, by sending each of tests/data/compatibility.json to a server; the tables of
// docs/compatibility.md are made of that.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

const std::vector<std::pair<const char*, const char*>> kApis = {{"openai", "OpenAI"},
                                                                {"vllm", "vLLM"},
                                                                {"llama.cpp", "llama.cpp"},
                                                                {"ollama", "Ollama"},
                                                                {"anthropic", "Anthropic"}};

std::string text_of_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}
// In the file's order: a row's names are told as they stand there.
using Rows = nlohmann::ordered_json;
Rows data() { return Rows::parse(text_of_file(CARAT_TEST_DATA "/compatibility.json")); }

std::string usual_path(const std::string& api) {
  if (api == "llama.cpp") return "/completion";
  if (api == "ollama") return "/api/chat";
  return api == "anthropic" ? "/v1/messages" : "/v1/chat/completions";
}

// A request that each path answers with a few tokens drawn with a seed; a script ends by itself.
Json usual_body(const std::string& path, const Rows& row) {
  const int limit = row.value("limit", row.contains("says") ? 24 : 6);
  Json sampling = {{"temperature", row.value("temperature", 1.5)}, {"seed", 7}};
  Json body = sampling;
  if (path.starts_with("/api/")) {
    sampling["num_predict"] = limit;
    body = {{"options", sampling}, {"stream", false}};
  } else {
    body[path == "/v1/responses" ? "max_output_tokens"
         : path == "/completion" ? "n_predict"
                                 : "max_tokens"] = limit;
  }
  if (path == "/v1/responses")
    body["input"] = "Hi";
  else if (path == "/api/generate" || path == "/completion" || path == "/v1/completions")
    body["prompt"] = "Hi";
  else
    body["messages"] = user("Hi");
  return body;
}

std::string answer_of(const std::string& path, const Json& r) {
  if (path == "/v1/chat/completions") return r["choices"][0]["message"]["content"];
  if (path == "/v1/completions") return r["choices"][0]["text"];
  if (path == "/completion") return r["content"];
  if (path == "/api/chat") return r["message"]["content"];
  if (path == "/api/generate") return r["response"];
  std::string out;
  if (path == "/v1/messages")
    for (const Json& block : r["content"]) out += block.value("text", "");
  else
    for (const Json& item : r["output"])
      for (const Json& part : item.value("content", Json::array())) out += part.value("text", "");
  return out;
}

struct Asked {
  std::string path, must, never;  // texts that the answer holds, and does not
  Json body;
};
// Where a request is sent; the first is the one that the table names.
std::vector<std::string> paths_of(const std::string& api, const Rows& fields) {
  if (!fields.contains("@")) return {usual_path(api)};
  if (fields["@"].is_string()) return {fields["@"].get<std::string>()};
  return fields["@"].get<std::vector<std::string>>();
}
Json own_fields(const Rows& fields) {
  std::string text = fields.dump();
  if (const size_t at = text.find("LONG"); at != text.npos) text.replace(at, 4, std::string(4000, 'y'));
  Json own = Json::parse(text);
  for (const char* mark : {"@", "#", "!", "="}) own.erase(mark);
  return own;
}
Asked asked_of(const std::string& path, const Rows& row, const Rows& fields) {
  Asked a{path, fields.value("#", ""), fields.value("!", ""), usual_body(path, row)};
  const Json own = own_fields(fields);
  for (const auto& field : own.items()) {
    Json& there = a.body[field.key()];
    if (there.is_object() && field.value().is_object())
      there.update(field.value());
    else
      there = field.value();
  }
  return a;
}

class Server {
 public:
  Server() : server_({.context = 512, .sequences = 2, .prefill_chunk = 256}) {}

  std::pair<int, std::string> send(const std::string& path, const Json& body, const Rows& row) {
    server_.script(row.value("says", ""), row.contains("says"));
    if (!row.contains("says")) server_.script(std::vector<Token>());
    return server_.post_text(path, body.dump());
  }
  // The answer without any field of the row.
  const std::string& usual(const std::string& path, const Rows& row) {
    const Json body = usual_body(path, row);
    const auto [at, missing] = usual_.try_emplace(path + body.dump());
    if (missing) at->second = send(path, body, row).second;
    return at->second;
  }
  // To an endpoint, with the example of the description.
  int status_of(const std::string& endpoint) {
    const size_t space = endpoint.find(' ');
    const std::string method = endpoint.substr(0, space), path = endpoint.substr(space + 1);
    if (method == "GET") return server_.get(path).first;
    static const Json described = Json::parse(server_.get("/openapi.json").second)["paths"];
    Json body = Json::object();
    static const Json::json_pointer kExample("/post/requestBody/content/application~1json/example");
    if (described.contains(path) && described[path].contains(kExample)) body = described[path][kExample];
    server_.script("ab");
    if (method == "POST") return server_.post_text(path, body.dump()).first;
    httplib::Client c = server_.client();
    return c.Delete(path, "{}", "application/json")->status;
  }

 private:
  TestServer server_;
  std::map<std::string, std::string> usual_;
};

void check(Server& server, const std::string& path, const Rows& row, const Rows& fields) {
  const Asked a = asked_of(path, row, fields);
  CAPTURE(path);
  CAPTURE(fields.dump());
  const std::string outcome = row["outcome"];
  const auto answered = server.send(a.path, a.body, row);
  const int status = answered.first;
  const std::string& text = answered.second;
  CAPTURE(text);
  if (outcome != "works" && outcome != "nothing") {
    CHECK(std::to_string(status) == outcome);
    CHECK(text.find(a.must) != std::string::npos);
    return;
  }
  REQUIRE(status == 200);
  CHECK(text.find(a.must) != std::string::npos);
  CHECK((a.never.empty() || text.find(a.never) == std::string::npos));
  const bool differs = row.value("differs", false), marked = !a.must.empty() || !a.never.empty();
  REQUIRE((outcome == "nothing" || differs || row.contains("answer") || marked));  // it is seen to work
  if (row.contains("answer")) CHECK(answer_of(a.path, Json::parse(text)) == row["answer"].get<std::string>());
  if (outcome == "works" && !differs) return;
  CHECK((answer_of(a.path, Json::parse(server.usual(a.path, row))) != answer_of(a.path, Json::parse(text))) ==
        differs);
}

constexpr std::string_view kInside[] = {"options", "structured_outputs", "output_config", "reasoning"};

// `a`, `options.b`: the names that a request shows.
std::string names_of(const std::string& api, const Rows& fields) {
  std::string out;
  if (fields.contains("=")) {
    out = "`" + fields["="].get<std::string>() + "`";
  } else {
    for (const auto& [key, value] : fields.items()) {
      if (key == "@" || key == "#" || key == "!") continue;
      std::vector<std::string> names = {key};
      if (std::find(std::begin(kInside), std::end(kInside), key) != std::end(kInside)) {
        names.clear();
        for (const auto& [inner, unused] : value.items()) names.push_back(key + "." + inner);
      }
      for (const std::string& name : names) out += (out.empty() ? "`" : ", `") + name + "`";
    }
  }
  const std::vector<std::string> paths = paths_of(api, fields);
  if (std::find(paths.begin(), paths.end(), usual_path(api)) == paths.end())
    out += " (" + paths.front() + ")";
  return out;
}

// The names of a request's fields, as `fields_of` has them.
std::set<std::string> fields_in(const Rows& fields) {
  std::set<std::string> out;
  const Json own = own_fields(fields);
  for (const auto& [key, value] : own.items()) {
    out.insert(key);
    if (value.is_object())
      for (const auto& [inner, unused] : value.items()) out.insert(key + "." + inner);
  }
  return out;
}

// "GET /v1/models/tiny" -> "GET /v1/models/{id}"
std::string general(std::string endpoint) {
  for (const std::string_view id : {"/tiny", "/resp_1"})
    if (endpoint.ends_with(id)) endpoint.replace(endpoint.size() - id.size(), id.size(), "/{id}");
  return endpoint;
}

std::string outcome_of(const Rows& row) {
  const std::string outcome = row["outcome"], note = row["note"];
  std::string out = row.value("shown", outcome == "nothing" ? "taken, changes no token" : outcome);
  if (out == "400") out = "refused (400)";
  return note.empty() ? out : out + ": " + note;
}

std::string table(const Rows& rows) {
  std::string out, rule;
  for (const auto& [key, name] : kApis) out += fmt::format("| {} ", name), rule += "| --- ";
  out += "| Carat |\n" + rule + "| --- |\n";
  for (const Rows& row : rows) {
    for (const auto& [key, name] : kApis) {
      std::string cell;
      if (row.contains(key))
        for (const Rows& asked : row[key]) {
          const std::string one = asked.is_string() ? "`" + general(asked) + "`" : names_of(key, asked);
          if (cell.find(one) == std::string::npos) cell += (cell.empty() ? "" : ", ") + one;
        }
      out += "| " + cell + (cell.empty() ? "" : " ");
    }
    out += "| " + outcome_of(row) + " |\n";
  }
  return out;
}

}  // namespace

TEST_CASE("endpoints of five APIs are there or not, as docs/compatibility.md has it") {
  Server server;
  const Rows all = data();
  for (const Rows& row : all["endpoints"])
    for (const auto& [api, name] : kApis) {
      if (!row.contains(api)) continue;
      for (const Rows& endpoint : row[api]) {
        CAPTURE(endpoint.get<std::string>());
        const std::string outcome = row["outcome"];
        CHECK(std::to_string(server.status_of(endpoint)) == (outcome == "works" ? "200" : outcome));
      }
    }
}

TEST_CASE("fields of five APIs do what docs/compatibility.md says") {
  Server server;
  const Rows all = data();
  for (const Rows& row : all["fields"])
    for (const auto& [api, name] : kApis)
      if (row.contains(api))
        for (const Rows& fields : row[api])
          for (const std::string& path : paths_of(api, fields)) check(server, path, row, fields);
}

// vLLM and llama.cpp have OpenAI's fields as well.
TEST_CASE("every field of five APIs stands in a row, for each path that has it") {
  const Rows all = data();
  std::map<std::string, std::set<std::string>> known;  // by API and path
  for (const Rows& row : all["fields"])
    for (const auto& [api, name] : kApis)
      if (row.contains(api))
        for (const Rows& fields : row[api])
          for (const std::string& path : paths_of(api, fields)) known[api + path].merge(fields_in(fields));
  for (const Rows& list : all["fields_of"]) {
    const std::string api = list["api"], path = list["path"];
    CAPTURE(api);
    CAPTURE(path);
    const Json plain = usual_body(path, Rows::object());
    for (const std::string field : list["fields"]) {
      CAPTURE(field);
      const bool answered = plain.contains(field) && (plain[field].is_string() || plain[field].is_array());
      CHECK((answered || field == "model" || known[api + path].contains(field) ||
             known["openai" + path].contains(field)));
    }
  }
}

TEST_CASE("docs/compatibility.md is made of those") {
  const Rows all = data();
  const std::string text = text_of_file("docs/compatibility.md");
  std::string right = text;
  for (const char* part : {"endpoints", "fields"}) {
    const std::string begin = fmt::format("<!-- {}: made by tests/compatibility_test.cc -->\n", part);
    const size_t at = right.find(begin), to = right.find("<!-- end -->", at);
    REQUIRE(at != std::string::npos);
    right = right.substr(0, at + begin.size()) + table(all[part]) + right.substr(to);
  }
  if (text != right) {
    std::ofstream("build/compatibility.md") << right;
    MESSAGE("as it should be: build/compatibility.md");
  }
  CHECK((text == right));
}
