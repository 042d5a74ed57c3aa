// The raw forms by which servers are attacked, and the right answer to each: what is ambiguous is refused and
// the connection closed, so that a proxy before this server and the server agree on where each request ends.
#include <doctest/doctest.h>

#include <filesystem>
#include <regex>

#include "tests/raw_client.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

const std::string kKey = "Authorization: Bearer sekret1\r\n";
const std::string kBody = R"({"content":"a"})";
const std::string kPost = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + kKey;
const std::string kNext = "GET /no_such_path HTTP/1.1\r\nHost: localhost\r\n\r\n";

std::string length(size_t n) { return fmt::format("Content-Length: {}\r\n\r\n", n); }
std::string chunked(const std::string& body) {
  return fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body);
}
std::string get(const std::string& target, const std::string& headers = "Host: localhost\r\n") {
  return "GET " + target + " HTTP/1.1\r\n" + headers + "\r\n";
}
std::string with_body(const char* method) {
  return fmt::format("{} /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", method,
                     kNext.size(), kNext);
}

struct Form {
  std::string name, bytes;
  std::vector<int> answers;  // statuses in order
  bool closes = false;       // the connection ends by itself
  bool half_close = false;   // the client ends its side
};

std::vector<Form> hosts() {
  std::vector<Form> out;
  const auto add = [&](const std::string& host, int status) {
    out.push_back({"host " + host, get("/health", "Host: " + host + "\r\n"), {status}});
  };
  for (const char* good :
       {"localhost", "127.0.0.1", "127.1.2.3:80", "[::1]:18360", "LOCALHOST", "localhost:"})
    add(good, 200);
  for (const char* bad : {"evil.com", "127.evil.com", "127.0.0.1.evil.com:18360", "localhost.evil.com",
                          "127.", "", "192.168.0.1", "[::2]", "0x7f.1", "2130706433"})
    add(bad, 403);
  for (const char* none : {"localhost:99999", "localhost@evil.com", "[::1", "a b", "localhost:80:80"})
    add(none, 400);
  const std::string good = "Host: localhost\r\n", evil = "Host: evil.com\r\n";
  out.push_back({"two hosts", get("/health", good + evil), {400}, true});
  out.push_back({"two hosts, the other way", get("/health", evil + good), {400}, true});
  out.push_back({"absolute form, foreign", get("http://evil.com/health"), {403}});
  out.push_back({"absolute form", get("http://localhost/health"), {200}});
  out.push_back({"no host", get("/health", ""), {400}, true});
  out.push_back({"no host, 1.0", "GET /health HTTP/1.0\r\n\r\n", {200}, true});
  for (const char* origin :
       {"http://evil.com", "null", "https://localhost:1", "http://127.evil.com", "file://"})
    out.push_back(
        {std::string("origin ") + origin, get("/health", good + "Origin: " + origin + "\r\n"), {403}});
  out.push_back({"own origin", get("/health", good + "Origin: http://localhost\r\n"), {200}});
  return out;
}

std::vector<Form> lengths() {
  const std::string n = std::to_string(kBody.size());
  const auto te = [](const std::string& value) { return "Transfer-Encoding: " + value + "\r\n"; };
  std::vector<Form> out = {
      {"GET with a body", with_body("GET"), {200}},
      {"HEAD with a body", with_body("HEAD"), {200}},
      {"OPTIONS with a body", with_body("OPTIONS"), {405}},
      {"DELETE with a body", with_body("DELETE"), {405}},
      {"GET, chunked body", get("/health", "Host: localhost\r\n" + te("chunked")) + chunked(kNext), {200}},
      {"both framings", kPost + te("chunked") + length(3) + chunked(kBody) + kNext, {400}, true},
      {"both, the other way",
       kPost + "Content-Length: 4\r\n" + te("chunked") + "\r\n" + chunked(kBody) + kNext,
       {400},
       true},
      {"gzip, chunked", kPost + te("gzip, chunked") + "\r\n" + chunked(kBody) + kNext, {501}, true},
      {"xchunked", kPost + te("xchunked") + length(kBody.size()) + kBody + kNext, {501}, true},
      {"chunked, then identity",
       kPost + te("chunked") + te("identity") + "\r\n" + chunked(kBody) + kNext,
       {400},
       true},
      {"space before the colon",
       kPost + "Transfer-Encoding : chunked\r\n" + length(kBody.size()) + kBody + kNext,
       {400},
       true},
      {"chunked in 1.0",
       "POST /tokenize HTTP/1.0\r\n" + kKey + te("chunked") + "\r\n" + chunked(kBody),
       {400},
       true},
      {"two lengths",
       kPost + "Content-Length: " + n + "\r\n" + length(kBody.size() + 10) + kBody + kNext,
       {400},
       true},
      {"two equal lengths",
       kPost + "Content-Length: " + n + "\r\n" + length(kBody.size()) + kBody + kNext,
       {400},
       true},
  };
  for (const std::string& value :
       std::vector<std::string>{"+" + n, n + "abc", "0xf", n + ", " + n, "-1", "18446744073709551631",
                                "99999999999999999999999", "", "1 5"})
    out.push_back(
        {"length " + value, kPost + "Content-Length: " + value + "\r\n\r\n" + kBody + kNext, {400}, true});
  out.push_back({"no length", kPost + "\r\n", {400}});
  out.push_back(
      {"no length, then what is no request", kPost + "\r\n" + kBody + "\r\n\r\n", {400, 400}, true});
  out.push_back({"half a body", kPost + length(kBody.size() + 50) + kBody, {400}, true, true});
  return out;
}

std::vector<Form> chunks() {
  const std::string head = kPost + "Transfer-Encoding: chunked\r\n\r\n";
  std::vector<Form> out;
  for (const char* size : {"-5", "zz", "", "0x5", "5 5"})
    out.push_back({std::string("chunk of ") + size, head + size + "\r\n" + kBody, {400}, true, true});
  for (const char* size : {"ffffffffffffffff", "7fffffff"})
    out.push_back({std::string("chunk of ") + size, head + size + "\r\n" + kBody, {413}, true, true});
  out.push_back({"no line's end behind a chunk", head + "5\r\nhelloXX0\r\n\r\n", {400}, true, true});
  out.push_back(
      {"a chunk's extension",
       head + fmt::format("{:x};{}\r\n", kBody.size(), std::string(7000, 'a')) + kBody + "\r\n0\r\n\r\n",
       {200}});
  out.push_back({"an extension without end", head + "5;" + std::string(40000, 'a'), {400}, true});
  out.push_back({"trailers",
                 head + fmt::format("{:x}\r\n{}\r\n0\r\nX-A: b\r\n\r\n", kBody.size(), kBody) + kNext,
                 {200, 404}});
  out.push_back({"a trailer that would be a key",
                 "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
                     fmt::format("{:x}\r\n{}\r\n0\r\n{}\r\n", kBody.size(), kBody, kKey),
                 {401},
                 true});
  const std::string whole = kPost + length(kBody.size()) + kBody;
  out.push_back({"three in one", whole + whole + whole, {200, 200, 200}});
  out.push_back({"expect", kPost + "Expect: 100-continue\r\n" + length(kBody.size()) + kBody, {200}});
  out.push_back(
      {"another expectation", kPost + "Expect: 999\r\n" + length(kBody.size()) + kBody, {417}, true});
  out.push_back({"gzip", kPost + "Content-Encoding: gzip\r\n" + length(kBody.size()) + kBody, {415}, true});
  out.push_back({"40 MB announced, no key",
                 "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + length(40000000) + "x",
                 {401},
                 true});
  out.push_back({"40 MB announced", kPost + length(40000000) + "x", {413}, true});
  return out;
}

std::vector<Form> heads() {
  const std::string host = "Host: localhost\r\n";
  std::string many = host;
  for (int i = 0; i < 2000; ++i) many += "a:b\r\n";
  std::vector<Form> out = {
      {"bare line feeds", "GET /health HTTP/1.1\nHost: localhost\n\n", {400}, true},
      {"a bare carriage return", get("/health", host + "X-A: b\rX-B: c\r\n"), {400}, true},
      {"a header of two lines", get("/health", host + "X-A: b\r\n c\r\n"), {400}, true},
      {"a header without a name", get("/health", host + ": b\r\n"), {400}, true},
      {"NUL in a header", get("/health", host + "X-A: b" + std::string(1, '\0') + "c\r\n"), {400}, true},
      {"NUL in a path", get("/health" + std::string(1, '\0') + "x"), {400}, true},
      {"escaped NUL", get("/health%00"), {404}},
      {"half an escape", get("/health%4"), {400}, true},
      {"two slashes", get("//health"), {404}},
      {"dots", get("/%2e%2e/%2e%2e/etc/passwd"), {404}},
      {"a path behind the query", get("/props?/health"), {401}},
      {"a path through another", get("/health/../props"), {404}},
      {"an escaped letter", get("/%70rops"), {401}},
      {"HEAD", "HEAD /props HTTP/1.1\r\n" + host + "\r\n", {401}},
      {"/v1/health", get("/v1/health"), {200}},
      {"/live", get("/live"), {200}},
      {"/metrics", get("/metrics"), {401}},
      {"a key in the query", get("/props?api_key=sekret1&key=sekret1"), {401}},
      {"HTTP/0.9", "GET /health\r\n\r\n", {400}, true},
      {"HTTP/2.0", "GET /health HTTP/2.0\r\n" + host + "\r\n", {505}, true},
      {"HTTP/2's preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {505}, true},
      {"1.0 with keep-alive", "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", {200}},
      {"a long path", get("/" + std::string(100000, 'a')), {414}, true},
      {"a long number",
       "POST /slots/" + std::string(8100, '1') + " HTTP/1.1\r\n" + host + kKey + length(2) + "{}",
       {404}},
      {"a long header", get("/health", host + "X: " + std::string(100000, 'a') + "\r\n"), {431}, true},
      {"many headers", get("/health", many), {431}, true},
      {"TLS",
       std::string("\x16\x03\x01\0\xa5\x01\0\0\xa1\x03\x03", 11) + std::string(160, '\0'),
       {400},
       true},
      {"a form",
       kPost + "Content-Type: multipart/form-data; boundary=x\r\n" + length(kBody.size()) + kBody,
       {200}},
      {"line ends in an id", get("/health", host + "X-Request-Id: a%0d%0aX: y\r\n"), {200}},
      {"line ends in a path", get("/health%0a13:00:00.000%20error%20forged"), {404}},
  };
  for (const char* range : {"0-1", "5-1", "99999999999999999999999999-1"})
    out.push_back({std::string("range ") + range,
                   get("/licenses.txt", host + "Range: bytes=" + range + "\r\n"),
                   {200}});
  for (const std::string method :
       {"TRACE", "CONNECT", "PUT", "DELETE", "PATCH", "PRI", "FOO", "get", "PROPFIND"})
    out.push_back({"method " + method, method + " /health HTTP/1.1\r\n" + host + "\r\n", {405}});
  const auto key = [&](const std::string& header, int status, bool closes = false) {
    out.push_back({"key " + header, get("/props", host + header + "\r\n"), {status}, closes});
  };
  for (const char* good :
       {"Authorization: bearer sekret1", "Authorization: Bearer sekret1 ", "X-Api-Key: sekret1"})
    key(good, 200);
  for (const char* bad :
       {"Authorization: Bearer  sekret1", "Authorization: Bearer sekret", "Authorization: Bearer ",
        "Authorization: sekret1", "Authorization: Basic c2VrcmV0MQ==",
        "Authorization: Bearer bad\r\nX-Api-Key: sekret1", "Authorization: Bearer sekret1sekret1"})
    key(bad, 401);
  key("Authorization: Bearer bad\r\nAuthorization: Bearer sekret1", 400, true);
  return out;
}

std::vector<int> statuses(const std::string& text) {
  static const std::regex pattern(R"(HTTP/1\.1 (\d{3}))");
  std::vector<int> out;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    out.push_back(std::stoi((*it)[1]));
  return out;
}

}  // namespace

TEST_CASE("every raw form of the attack has the right answer") {
  ServeConfig config;
  config.api_keys = {"sekret1"};
  config.http.idle_seconds = 0.4;  // what stays open shows it by ending late
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, config);
  std::vector<Form> forms;
  for (const auto& group : {hosts(), lengths(), chunks(), heads()})
    forms.insert(forms.end(), group.begin(), group.end());
  constexpr size_t kAtOnce = 16;  // most only wait for the end
  for (size_t first = 0; first < forms.size(); first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, forms.size());
    std::vector<std::unique_ptr<RawClient>> clients;
    const auto began = std::chrono::steady_clock::now();
    for (size_t i = first; i < end; ++i) {
      clients.push_back(std::make_unique<RawClient>(t.server->port()));
      clients.back()->send(forms[i].bytes);
      if (forms[i].half_close) clients.back()->half_close();
    }
    for (size_t i = first; i < end; ++i) {
      const Form& form = forms[i];
      CAPTURE(form.name);
      const std::string all = clients[i - first]->read_until("never");
      CHECK(statuses(all) == form.answers);
      if (form.closes) CHECK(all.find("Connection: close") != std::string::npos);
      if (form.closes) CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
      CHECK(all.find("forged\r\n") == std::string::npos);
    }
  }
  CHECK(forms.size() >= 111);
}

TEST_CASE("the bytes of a request may come one by one") {
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64});
  RawClient raw(t.server->port());
  const std::string all =
      "\r\nPOST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
      chunked(kBody) + "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
      "0\r\nA: b\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const char c : all) raw.send(std::string(1, c));
  CHECK(raw.read_until("{\"status\":\"ok\"}").find("\"count\":") != std::string::npos);
}

TEST_CASE("slow clients are cut by what they do not do, not for how long they take") {
  ServeConfig config;
  config.http.read_seconds = 0.4;
  TestServer t({.context = 512, .sequences = 1, .prefill_chunk = 64}, config);
  RawClient steady(t.server->port()), drip(t.server->port());
  const std::string body = R"({"content":")" + std::string(10000, ' ') + "\"}";
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + length(body.size());
  steady.send(head);
  drip.send(head);
  for (size_t at = 0; at < body.size(); at += 1000) {  // 2 s in all, 2 KiB in each 0.4 s
    std::this_thread::sleep_for(std::chrono::milliseconds(180));
    steady.send(body.substr(at, 1000));
    drip.send(" ");
  }
  CHECK(statuses(steady.read_until("\"count\"")) == std::vector<int>{200});
  CHECK(statuses(drip.read_until("never")) == std::vector<int>{408});
}

TEST_CASE("when all connections are in use, health and metrics still answer, and resting ones make room") {
  ServeConfig config;
  config.http.max_connections = 3;
  TestServer t({.context = 8192, .sequences = 2, .prefill_chunk = 64}, config);
  std::vector<std::unique_ptr<RawClient>> busy;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(std::make_unique<RawClient>(t.server->port()));
    busy.back()->post("/v1/completions",
                      R"({"prompt": "x", "ignore_eos": true, "stream": true, "max_tokens": 8000})");
  }
  t.wait_generating();
  for (const char* path : {"/health", "/live", "/ready", "/metrics"}) {
    RawClient raw(t.server->port());
    raw.send(get(path));
    CHECK(statuses(raw.read_until("\r\n\r\n")) == std::vector<int>{200});
  }
  RawClient other(t.server->port());
  other.send(get("/v1/models"));
  const std::string refused = other.read_until("\r\n\r\n");
  CHECK(statuses(refused) == std::vector<int>{503});
  CHECK(refused.find("Retry-After") != std::string::npos);
  busy.clear();
  REQUIRE(t.idle());
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(std::make_unique<RawClient>(t.server->port()));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  RawClient late(t.server->port());
  late.send(get("/v1/models"));
  CHECK(statuses(late.read_until("\r\n\r\n")) == std::vector<int>{200});
}
