// What is kept of promotions survives a process that is killed.
#include "serve/promotion.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "base/error.h"

using namespace carat;

namespace {

std::string directory() {
  const auto dir = std::filesystem::temp_directory_path() / fmt::format("carat-promotion-{}", ::getpid());
  std::filesystem::remove_all(dir);
  return dir.string();
}

}  // namespace

TEST_CASE("a process killed at any moment leaves a whole state") {
  const std::string dir = directory();
  std::mt19937 random(7);
  int last = 0;
  for (int kill = 0; kill < 20; ++kill) {
    int saved[2];
    REQUIRE(::pipe(saved) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::close(saved[0]);
      PromotionStore store(dir);
      PromotionState s = store.load();
      for (;;) {
        s.fallback = std::exchange(s.serving, s.add({"-m", std::string(1000, 'x')}));
        s.note("promoted", s.serving);
        while (s.versions.size() > 2) s.versions.erase(s.versions.begin());
        store.save(s);
        if (saved[1] >= 0) ::close(std::exchange(saved[1], -1));
      }
    }
    ::close(saved[1]);
    // On a slow disk one save may take longer than the delay, so every second kill waits for the first save.
    char end;
    if (kill % 2 == 1) CHECK(::read(saved[0], &end, 1) == 0);
    ::usleep(2000 + random() % 15000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(saved[0]);
    const PromotionState s = PromotionStore(dir).load();  // the lock went with the process
    CHECK(s.serving >= last);
    CHECK(s.next == s.serving + 1);
    if (s.serving > 0) CHECK(s.find(s.serving));
    last = s.serving;
  }
  CHECK(last > 0);
  std::filesystem::remove_all(dir);
}

TEST_CASE("rules, shares, broken states") {
  CHECK(parse_share("5%") == doctest::Approx(0.05));
  CHECK(parse_share("0.25") == 0.25);
  for (const char* wrong : {"", "x", "101%", "-1", "5 %"}) CHECK_THROWS_AS(parse_share(wrong), Error);
  const RollbackRules r = parse_rules("errors=1%,speed=80%,requests=5,minutes=2");
  CHECK(r.errors == doctest::Approx(0.01));
  CHECK(r.speed == doctest::Approx(0.8));
  CHECK(r.requests == 5);
  CHECK(r.minutes == 2);
  CHECK(parse_rules("none").errors == 1);
  CHECK_THROWS_AS(parse_rules("moon=full"), Error);
  for (const char* broken : {"null", "[]", "{}", R"({"schema": "carat.promotion", "version": 2})"})
    CHECK_THROWS_AS(PromotionState::parse(Json::parse(broken)), Error);
  PromotionState s;
  s.serving = s.add({"-m", "x"});
  s.note("started", 1, "why");
  CHECK(PromotionState::parse(s.json()).json() == s.json());
  s.serving = 9;
  CHECK_THROWS_AS(PromotionState::parse(s.json()), Error);
}

TEST_CASE("answers are compared as text, whole or streamed") {
  CHECK(answered_text(R"({"choices": [{"message": {"reasoning_content": "t", "content": "ab"}}]})") == "tab");
  CHECK(answered_text("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
                      "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\ndata: [DONE]\n\n") == "ab");
  CHECK(answered_text(R"({"choices": [{"text": "ab"}]})") == "ab");
  CHECK(
      answered_text(
          R"({"choices": [{"message": {"content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]})") ==
      "f{}");
  CHECK(answered_text(R"({"type": "message", "content": [{"type": "text", "text": "ab"}]})") == "ab");
  CHECK(answered_text("event: content_block_delta\ndata: {\"type\": \"content_block_delta\", \"delta\": "
                      "{\"text\": \"ab\"}}\n\n"
                      "data: {\"type\": \"message_stop\"}\n\n") == "ab");
  CHECK_FALSE(answered_text("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"));  // it was cut
  CHECK_FALSE(answered_text(R"({"error": {"message": "no"}})"));
  CHECK_FALSE(answered_text("data: {\"error\": {}}\n\ndata: [DONE]\n\n"));
  HttpRequest first, next, other;
  first.body = R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]})";
  next.body =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]})";
  other.body = R"({"messages": [{"role": "user", "content": "r"}]})";
  CHECK(conversation_hash(first) == conversation_hash(next));
  CHECK(conversation_hash(first) != conversation_hash(other));
}
