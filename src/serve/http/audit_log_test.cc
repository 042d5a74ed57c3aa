#include "serve/http/audit_log.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"

using namespace carat;

TEST_CASE("the audit log has a line a request, is its owner's, and goes on when it is moved away") {
  const auto dir = std::filesystem::temp_directory_path() / ("audit-" + std::to_string(::getpid()));
  std::filesystem::create_directory(dir);
  const auto path = dir / "audit.log", moved = dir / "audit.log.1";
  const auto lines = [](const std::filesystem::path& p) {
    std::ifstream in(p);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  };
  {
    AuditLog log(path.string());
    log.write({"req-1", "POST", "/v1/completions", "anna", "10.0.0.7", 200, 12.34, ""});
    log.write({"req-2", "POST", "/v1/\x1b[1m\"\n", "", "10.0.0.8", 401, 0, ""});
    struct stat st {};
    REQUIRE(::stat(path.c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0600);
    std::filesystem::rename(path, moved);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    log.write({"req-3", "POST", "/v1/completions", "anna", "10.0.0.7", 200, 1, "cut"});
  }
  AuditLog(path.string()).write({"req-4", "GET", "/slots", "anna", "10.0.0.7", 200, 1, ""});  // appends
  REQUIRE(lines(moved).size() == 2);
  REQUIRE(lines(path).size() == 2);
  const auto first = nlohmann::json::parse(lines(moved)[0]), second = nlohmann::json::parse(lines(moved)[1]);
  CHECK(first["client"] == "anna");
  CHECK(first["address"] == "10.0.0.7");
  CHECK(first["status"] == 200);
  CHECK(first["ms"] == 12.3);
  CHECK_FALSE(second.contains("client"));
  CHECK(second["path"] == "/v1/\x1b[1m\"\n");  // escaped in the file
  CHECK(nlohmann::json::parse(lines(path)[0])["stream"] == "cut");
  CHECK_THROWS_AS(AuditLog((dir / "none" / "x").string()), Error);
  std::filesystem::remove_all(dir);
}
