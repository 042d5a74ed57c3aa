// Pictures by address: from the hosts that are named, and from nowhere else, against a real server on this
// machine.
#include "apps/media_hosts.h"

#include <doctest/doctest.h>
#include <httplib.h>

#include <thread>

#include "base/error.h"

using namespace carat;

namespace {

class Site {
 public:
  Site() {
    const std::string large(60'000, 'x');
    server_.Get("/a.png", [this](const httplib::Request& r, httplib::Response& out) {
      ++asked;
      headers = r.headers;
      out.set_content("picture", "image/png");
    });
    server_.Get("/large", [large](const httplib::Request&, httplib::Response& out) {
      out.set_content(large, "image/png");
    });
    server_.Get("/away", [](const httplib::Request&, httplib::Response& out) { out.set_redirect("/a.png"); });
    server_.Get("/slow", [](const httplib::Request&, httplib::Response& out) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      out.set_content("late", "image/png");
    });
    port = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~Site() {
    server_.stop();
    thread_.join();
  }
  std::string url(const std::string& path, const std::string& host = "127.0.0.1") const {
    return fmt::format("http://{}:{}{}", host, port, path);
  }
  int port = 0, asked = 0;
  httplib::Headers headers;

 private:
  httplib::Server server_;
  std::thread thread_;
};

std::string refusal(const MediaHosts& hosts, const std::string& url) {
  try {
    hosts.load(url);
  } catch (const Error& e) {
    return e.what();
  }
  return "loaded";
}
bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

}  // namespace

TEST_CASE("media hosts: addresses inside are known in every form") {
  for (const char* inside : {"127.0.0.1",
                             "127.255.0.9",
                             "0.0.0.0",
                             "10.1.2.3",
                             "100.64.0.1",
                             "100.127.255.255",
                             "169.254.169.254",
                             "172.16.0.1",
                             "172.31.255.255",
                             "192.168.1.1",
                             "198.18.0.1",
                             "224.0.0.1",
                             "255.255.255.255",
                             "::",
                             "::1",
                             "::ffff:8.8.8.8",
                             "::ffff:127.0.0.1",
                             "fe80::1",
                             "fc00::1",
                             "fd12::1",
                             "ff02::1",
                             "2002:7f00:1::",
                             "2001:0:53aa::1",
                             "2001:db8::1",
                             "64:ff9b::7f00:1",
                             "no address"})
    CHECK_MESSAGE(is_inside_address(inside), inside);
  for (const char* outside :
       {"8.8.8.8", "100.63.255.255", "100.128.0.1", "172.32.0.1", "192.169.0.1", "1.1.1.1", "223.255.255.255",
        "2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888"})
    CHECK_MESSAGE(!is_inside_address(outside), outside);
}

TEST_CASE("media hosts: a picture comes from a host that is named, and is not asked of another") {
  Site site;
  CHECK(MediaHosts("", true).empty());
  const MediaHosts hosts(fmt::format("example.org,127.0.0.1:{}", site.port), true);
  const std::vector<uint8_t> got = hosts.load(site.url("/a.png"));
  CHECK(std::string(got.begin(), got.end()) == "picture");
  CHECK(site.headers.count("Authorization") == 0);
  CHECK(site.headers.count("Cookie") == 0);
  CHECK(site.asked == 1);
  // Another port, another name, another spelling of the address, a password: nothing is asked.
  for (const std::string& url :
       {fmt::format("http://127.0.0.1:{}/a.png", site.port ^ 1), site.url("/a.png", "localhost"),
        site.url("/a.png", "[::1]"), site.url("/a.png", "127.0.0.2"),
        site.url("/a.png", "example.org@127.0.0.1"), site.url("/a.png", "example.org:80@127.0.0.1"),
        std::string("file:///etc/passwd"), std::string("ftp://127.0.0.1/a.png"),
        std::string("gopher://127.0.0.1/"), std::string("http://"),
        fmt::format("https://127.0.0.1:{}/a.png", site.port)})
    CHECK_MESSAGE(refusal(hosts, url) != "loaded", url);
  CHECK(site.asked == 1);
  CHECK(has(refusal(hosts, "https://evil.example/x"),
            "not among the hosts that pictures are loaded from: example.org, 127.0.0.1:"));
  CHECK(has(refusal(MediaHosts(fmt::format("127.0.0.1:{}", site.port), false), site.url("/a.png")),
            "scheme is not https"));
  CHECK(site.asked == 1);
}

TEST_CASE("media hosts: a name that means an address inside loads nothing") {
  Site site;
  const MediaHosts hosts(fmt::format("localhost:{}", site.port), true);
  CHECK(refusal(hosts, site.url("/a.png", "localhost")) ==
        "localhost has no public address, so nothing is loaded from it");
  CHECK(site.asked == 0);
}

TEST_CASE("media hosts: no redirect is followed, and neither size nor time is boundless") {
  Site site;
  MediaHosts::Limits limits;
  limits.bytes = 50'000, limits.seconds = 0.3;
  const MediaHosts hosts(fmt::format("127.0.0.1:{}", site.port), true, limits);
  CHECK(has(refusal(hosts, site.url("/away")), "answers 302: redirects are not followed"));
  CHECK(site.asked == 0);
  CHECK(has(refusal(hosts, site.url("/large")), "is larger than"));
  CHECK(has(refusal(hosts, site.url("/slow")), "does not come within 0.3 s"));
  CHECK(has(refusal(hosts, site.url("/none")), "answers 404"));
  CHECK_THROWS_AS(MediaHosts("http://a.org", true), Error);
  CHECK_THROWS_AS(MediaHosts("a.org:99999", true), Error);
}
