#include "serve/http/address.h"

#include <doctest/doctest.h>

#include "serve/http/framing.h"

using namespace carat;

TEST_CASE("addresses are parsed, not compared by how they begin") {
  for (const char* yes : {"localhost", "127.0.0.1", "127.255.1.2", "::1", "0:0:0:0:0:0:0:1"})
    CHECK(is_loopback(yes));
  for (const char* no :
       {"127.evil.com", "127.", "127", "127.1", "127.0.0.1.evil.com", "128.0.0.1", "::2", "", "0x7f.0.0.1"})
    CHECK_FALSE(is_loopback(no));
  CHECK(parse_host("[::1]:80")->port == 80);
  CHECK(parse_host("Example.ORG:8080")->name == "example.org");
  for (const char* none : {"", "[::1", "[1.2.3.4]", "a b", "a@b", "a:99999", "a:1:2", "a:-1", "a/b"})
    CHECK_FALSE(parse_host(none));
}

TEST_CASE("targets") {
  CHECK(parse_target("/a%20b?c=d", "GET")->path == "/a b");
  CHECK(parse_target("http://h:1/x", "GET")->host == "h:1");
  CHECK(parse_target("http://h", "GET")->path == "/");
  for (const char* none : {"", "a", "ftp://a/b", "/a%4", "/a%zz", "/a#b", "*", "http:///a"})
    CHECK_FALSE(parse_target(none, "GET"));
  CHECK(parse_target("*", "OPTIONS")->path == "*");
}
