// label: slow
// HTTPS as users set it up: a certificate made with openssl, a server that has it, and curl that trusts it or
// does not.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/raw_client.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Ran {
  int code = -1;
  std::string out;
};
Ran shell(const std::string& command) {
  Ran r;
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) r.out.append(buffer.data(), n);
  r.code = WEXITSTATUS(::pclose(pipe));
  return r;
}

// Two certificates for localhost and 127.0.0.1, each with its key.
struct Certificates {
  std::filesystem::path dir =
      std::filesystem::temp_directory_path() / fmt::format("carat-tls-{}", ::getpid());
  Certificates() {
    std::filesystem::create_directories(dir);
    for (const char* name : {"own", "other"}) {
      const Ran r = shell(
          fmt::format("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
                      "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 "
                      "-keyout {0}/{1}.key -out {0}/{1}.pem",
                      dir.string(), name));
      REQUIRE_MESSAGE(r.code == 0, r.out);
    }
    std::ofstream(dir / "text.pem") << "no certificate\n";
  }
  ~Certificates() { std::filesystem::remove_all(dir); }
  std::string path(const std::string& name) const { return (dir / name).string(); }
};
const Certificates& files() {
  static const Certificates c;
  return c;
}

ServeConfig https() {
  ServeConfig config;
  config.http.tls_cert = files().path("own.pem");
  config.http.tls_key = files().path("own.key");
  config.http.read_seconds = 0.5;
  return config;
}

}  // namespace

TEST_CASE("curl trusts the certificate it is given, and gets answers and streams") {
  TestServer t({.context = 128, .sequences = 2, .prefill_chunk = 64}, https());
  const std::string url = fmt::format("https://localhost:{}", t.server->port());
  const std::string curl = "curl -sS -m 60 ", trusting = curl + "--cacert " + files().path("own.pem") + " ";
  const Ran health = shell(trusting + url + "/health " + url + "/v1/models -w '%{num_connects}'");
  CHECK(health.code == 0);
  CHECK(health.out.find(R"({"status":"ok"})") != std::string::npos);
  CHECK(health.out.find(R"("object":"list")") != std::string::npos);
  CHECK(health.out.ends_with("0"));  // both on one connection
  t.script("one two three");
  const Ran stream =
      shell(trusting + "-N " + url + R"(/v1/chat/completions -d '{"stream":true,"max_tokens":20,)" +
            R"("messages":[{"role":"user","content":"x"}]}')");
  CHECK(stream.code == 0);
  CHECK(stream.out.find("data: {") != std::string::npos);
  CHECK(stream.out.find("data: [DONE]") != std::string::npos);
  // A large body, in and out, in many records.
  std::ofstream(files().dir / "large.json") << Json{{"content", std::string(1 << 20, 'a')}};
  const Ran large = shell(trusting + url + "/tokenize -d @" + files().path("large.json") + " | wc -c");
  CHECK(std::stol(large.out) > 100'000);
  CHECK(shell(curl + url + "/health").code == 60);  // not trusted
  CHECK(shell(trusting + "--tls-max 1.1 " + url + "/health").code != 0);
}

TEST_CASE("what is no TLS ends alone") {
  TestServer t({.context = 128, .sequences = 1, .prefill_chunk = 64}, https());
  RawClient plain(t.server->port()), silent(t.server->port()), cut(t.server->port());
  plain.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  cut.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));  // the beginning of a hello
  CHECK(plain.read_until("never").find("HTTP/1.1 200") == std::string::npos);
  CHECK(silent.read_until("never").empty());  // cut off after read_seconds
  cut.read_until("never");
  const Ran health = shell(fmt::format("curl -sS -m 60 --cacert {} https://127.0.0.1:{}/health",
                                       files().path("own.pem"), t.server->port()));
  CHECK(health.out == R"({"status":"ok"})");
}

TEST_CASE("files that do not fit are one clear error") {
  const auto error_of = [](const std::string& cert, const std::string& key) -> std::string {
    HttpConfig config;
    config.port = 0;
    config.tls_cert = cert.empty() ? "" : files().path(cert);
    config.tls_key = key.empty() ? "" : files().path(key);
    try {
      const HttpServer server(config);
    } catch (const Error& e) {
      CHECK_FALSE(e.hint().empty());
      return e.what();
    }
    return "none";
  };
  CHECK(error_of("own.pem", "own.key") == "none");
  CHECK(error_of("own.pem", "") == "TLS needs a certificate and its key");
  CHECK(error_of("", "own.key") == "TLS needs a certificate and its key");
  for (const char* cert : {"text.pem", "missing.pem", "own.key"}) {
    CAPTURE(cert);
    CHECK(error_of(cert, "own.key").find("is no certificate") != std::string::npos);
  }
  for (const char* key : {"text.pem", "missing.key", "own.pem", "other.key"}) {
    CAPTURE(key);
    CHECK(error_of("own.pem", key).find("is no private key of that certificate") != std::string::npos);
  }
}
