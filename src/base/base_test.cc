#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/log.h"
#include "base/read_mapped.h"
#include "base/rng.h"

using namespace carat;
namespace fs = std::filesystem;

TEST_CASE("philox4x32-10 known answers (Random123 kat_vectors)") {
  CHECK(philox4x32({0, 0, 0, 0}, 0, 0) ==
        std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t f = 0xffffffff;
  CHECK(philox4x32({f, f, f, f}, f, f) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("AtomicFile leaves the old file or the new one, never a part") {
  const fs::path dir = fs::temp_directory_path() / fmt::format("carat-base-test-{}", ::getpid());
  fs::create_directories(dir);
  const std::string path = (dir / "x").string();
  {
    AtomicFile f(path);
    f.write("one");
    f.commit();
  }
  {
    AtomicFile f(path);
    f.write("tw");
  }  // not committed
  CHECK(read_file(path) == "one");
  CHECK(std::distance(fs::directory_iterator(dir), {}) == 1);
  CHECK(MappedFile(path).bytes().size() == 3);
  CHECK_THROWS_AS(MappedFile(dir.string()), Error);
  CHECK_THROWS_AS(MappedFile((dir / "none").string()), Error);
  CHECK_THROWS_AS(AtomicFile((dir / "no" / "x").string()), Error);
  CHECK_THROWS_AS(read_file(path, 2), Error);
  fs::remove_all(dir);
}

TEST_CASE("a file that a link does not lead to is told from one that is not there") {
  const fs::path dir = fs::temp_directory_path() / fmt::format("carat-hints-test-{}", ::getpid());
  fs::create_directories(dir);
  fs::create_symlink("loop", dir / "loop");
  fs::create_symlink("not-there", dir / "dead");
  const auto hint = [&](const char* name) -> std::string {
    try {
      read_file((dir / name).string());
    } catch (const Error& e) {
      return e.hint();
    }
    return "it was read";
  };
  CHECK(hint("loop") == "the link leads back to itself");
  CHECK(hint("dead") == "it is a link to a file that is not there");
  CHECK(hint("none") == "check the path; relative paths start at the current directory");
  fs::remove_all(dir);
}

TEST_CASE("AtomicFile follows links, and replaces nothing that is no file") {
  const fs::path dir = fs::temp_directory_path() / fmt::format("carat-links-test-{}", ::getpid());
  fs::create_directories(dir / "sub");
  const auto write = [&](const fs::path& path, std::string_view text) {
    AtomicFile f(path.string());
    f.write(text);
    f.commit();
  };
  write(dir / "sub" / "target", "old");
  fs::create_symlink("sub/target", dir / "link");
  fs::create_symlink(dir / "link", dir / "link2");
  fs::create_symlink("sub/new", dir / "dangling");
  fs::create_symlink("loop", dir / "loop");
  write(dir / "link2", "new");
  write(dir / "dangling", "made");
  CHECK(fs::is_symlink(dir / "link2"));
  CHECK(read_file((dir / "sub" / "target").string()) == "new");
  CHECK(read_file((dir / "sub" / "new").string()) == "made");
  CHECK(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  for (const fs::path& path : {dir / "fifo", dir / "sub", dir / "loop", fs::path("/dev/null")}) {
    CAPTURE(path);
    CHECK_THROWS_AS(AtomicFile(path.string()), WriteError);
  }
  CHECK(fs::is_fifo(dir / "fifo"));
  // what stands at the temporary name is another's: it is neither followed nor removed
  const fs::path temp = dir / fmt::format("x.tmp.{}", ::getpid());
  fs::create_symlink("sub/target", temp);
  write(dir / "x", "one");
  CHECK(fs::is_symlink(temp));
  CHECK(read_file((dir / "sub" / "target").string()) == "new");
  CHECK(read_file((dir / "x").string()) == "one");
  const MappedFile mapped((dir / "x").string());
  fs::create_hard_link(dir / "x", dir / "y");
  fs::create_symlink("y", dir / "z");
  CHECK(is_mapped_file((dir / "z").string()));
  CHECK_FALSE(is_mapped_file((dir / "sub" / "target").string()));
  CHECK_FALSE(is_mapped_file((dir / "none").string()));
  fs::remove_all(dir);
}

TEST_CASE("Ctrl-C and SIGTERM leave no temporary file") {
  const fs::path dir = fs::temp_directory_path() / fmt::format("carat-signal-test-{}", ::getpid());
  fs::create_directories(dir);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(number);
    const pid_t child = ::fork();
    if (child == 0) {
      std::signal(number, SIG_DFL);
      AtomicFile a((dir / "a").string()), b((dir / "b").string()), c((dir / "c").string());
      a.write("whole");
      a.commit();
      b.write("half");
      std::raise(number);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == number);
    CHECK(std::distance(fs::directory_iterator(dir), {}) == 1);
    CHECK(read_file((dir / "a").string()) == "whole");
  }
  fs::remove_all(dir);
}

TEST_CASE("what is taken for a model is said by name") {
  using namespace std::string_view_literals;
  const std::string tar = std::string(257, 'a') + "ustar" + std::string(100, ' '), zeros(100000, '\0');
  const std::pair<std::string_view, std::string_view> kinds[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n", "Git LFS"},
      {"\n <!DOCTYPE html><html>", "HTML"},
      {"<HTML lang=en>", "HTML"},
      {"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "XML"},
      {"{\"error\": \"Repository not found\"}", "JSON"},
      {"PK\x03\x04", "ZIP"},
      {"\x1f\x8b\x08", "gzip"},
      {"\x80\x02\x8a\x0a", "pickle"},
      {"tjgg", "GGJT"},
      {"\x20\0\0\0\0\0\0\0{\"a\":"sv, "safetensors"},
      {tar, "tar"},
      {zeros, "zeros"},
      {"", "empty"}};
  for (const auto& want : kinds) {
    CAPTURE(want.second);
    const FileKind* kind = foreign_kind(want.first);
    REQUIRE(kind);
    CHECK(kind->is.find(want.second) != kind->is.npos);
    CHECK_FALSE(kind->hint.empty());
  }
  for (const std::string_view other : {"GGU", "some text", "\x01\0\0\0"}) CHECK_FALSE(foreign_kind(other));
  require_json_text("{}", "config.json");
  CHECK_THROWS_AS(require_json_text(kinds[0].first, "config.json"), Error);
}

TEST_CASE("what is let go of a mapped file is read again; other memory is left alone") {
  const std::string path =
      (fs::temp_directory_path() / fmt::format("carat-map-test-{}", ::getpid())).string();
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)), n = 8 * page;
  {
    AtomicFile f(path);
    for (size_t i = 0; i < n; ++i) f.write(std::string_view(i % 251 < 100 ? "a" : "b"));
    f.commit();
  }
  const auto expected = [](size_t i) { return static_cast<std::byte>(i % 251 < 100 ? 'a' : 'b'); };
  MappedFile first(path);
  const MappedFile file = std::move(first);
  const auto wrong = [&] {
    size_t bad = 0;
    for (size_t i = 0; i < n; ++i) bad += file.bytes()[i] != expected(i);
    return bad;
  };
  CHECK(wrong() == 0);
  release_mapped(file.bytes().data() + 10, n - 20);
  drop_file_cache(file.bytes().data() + page);
  CHECK(wrong() == 0);
  std::vector<std::byte> read(n - 20);
  CHECK(read_mapped(read.data(), file.bytes().data() + 10, n - 20, true));
  CHECK(std::equal(read.begin(), read.end(), file.bytes().begin() + 10));
  CHECK_FALSE(read_mapped(read.data(), file.bytes().data() + 21, n - 20, false));  // a byte too many
  std::vector<std::byte> heap(16 * page, std::byte{7});
  CHECK_FALSE(read_mapped(read.data(), heap.data(), page, false));
  release_mapped(heap.data(), heap.size());
  drop_file_cache(heap.data());
  CHECK(std::count(heap.begin(), heap.end(), std::byte{7}) == static_cast<std::ptrdiff_t>(heap.size()));
  fs::remove(path);
}

namespace {

struct Kept {  // a file of some pages that is gone in the end
  std::string path;
  size_t size;
  explicit Kept(const char* name = "test", size_t bytes = 8 * static_cast<size_t>(::sysconf(_SC_PAGESIZE)))
      : path((fs::temp_directory_path() / fmt::format("carat-kept-{}-{}", name, ::getpid())).string()),
        size(bytes) {
    write(std::string(size, 'a'));
  }
  ~Kept() { fs::remove(path); }
  void write(const std::string& text) const { std::ofstream(path, std::ios::binary) << text; }
};

// As touch(1) does: both times.
void touch(const std::string& path, int hours) {
  struct stat st {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  st.st_mtim.tv_sec += hours * 3600;
  const timespec times[2] = {st.st_mtim, st.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

void write_through_mapping(const std::string& path, size_t at) {
  const int fd = ::open(path.c_str(), O_RDWR);
  REQUIRE(fd >= 0);
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)), begin = at / page * page;
  void* const p = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(begin));
  REQUIRE(p != MAP_FAILED);
  static_cast<char*>(p)[at - begin] = 'c';
  ::msync(p, page, MS_SYNC);
  ::munmap(p, page);
  ::close(fd);
}

}  // namespace

TEST_CASE("a mapped file that is written to has changed; one that is replaced or touched has not") {
  const Kept kept;
  const auto old = std::make_unique<MappedFile>(kept.path);
  CHECK(changed_file().empty());
  touch(kept.path, 1);
  CHECK(changed_file().empty());
  {
    AtomicFile next(kept.path);
    next.write(std::string(kept.size, 'b'));
    next.commit();
  }
  CHECK(changed_file().empty());
  CHECK(old->bytes()[0] == std::byte{'a'});
  {
    // One byte of many, and the time that the file had before.
    const Kept large("large", size_t{4} << 20);
    const auto time = fs::last_write_time(large.path);
    const MappedFile file(large.path), again(large.path);
    touch(large.path, 1);
    CHECK(changed_file().empty());
    std::fstream out(large.path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp((size_t{4} << 20) / 3);
    out.put('c');
    out.close();
    fs::last_write_time(large.path, time);
    CHECK(changed_file() == large.path);
    CHECK(changed_file() == large.path);
  }
  CHECK(changed_file().empty());
  const MappedFile file(kept.path);
  const auto time = fs::last_write_time(kept.path);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  write_through_mapping(kept.path, kept.size / 2);
  // Not every file system (tmpfs does not) sets a time then.
  if (fs::last_write_time(kept.path) != time) CHECK(changed_file() == kept.path);
}

// In a process of its own: what is lost stays lost.
TEST_CASE("a mapped file that is cut reads as zeros and is named; nothing is written from it") {
  const Kept kept;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int failed = 0;
    {
      const MappedFile file(kept.path);
      const volatile std::byte* const at = file.bytes().data();
      fs::resize_file(kept.path, 10);
      failed |= at[0] == std::byte{'a'} && lost_file().empty() ? 0 : 1;
      failed |= at[kept.size - 1] == std::byte{0} ? 0 : 2;
      failed |= lost_file() == kept.path && changed_file() == kept.path ? 0 : 4;
      try {
        AtomicFile out(kept.path + ".out");
        out.write("x");
        out.commit();
        failed |= 8;
      } catch (const Error&) {}
    }
    ::_exit(failed);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("pipes are not mapped, and not waited for") {
  const std::string path =
      (fs::temp_directory_path() / fmt::format("carat-pipe-test-{}", ::getpid())).string();
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_AS(MappedFile{path}, Error);
  fs::remove(path);
}

namespace {

// What is written to stderr meanwhile.
std::string stderr_of(const std::function<void()>& what) {
  std::FILE* const file = std::tmpfile();
  const int kept = ::dup(2);
  ::dup2(::fileno(file), 2);
  what();
  ::dup2(kept, 2);
  ::close(kept);
  std::string all(4096, 0);
  const ssize_t n = ::pread(::fileno(file), all.data(), all.size(), 0);
  std::fclose(file);
  return all.substr(0, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

}  // namespace

TEST_CASE("what a log line tells does not steer a terminal, and stays one line") {
  const auto told = [](std::string_view text) {
    const std::string line = stderr_of([&] { log_info("{}", text); });
    const std::string begin = " info ";
    return line.substr(line.find(begin) + begin.size());
  };
  CHECK(told("GET /\x1b[2J 404") == "GET /\\x1b[2J 404\n");
  CHECK(told("a\r\n\tforged\x7f") == "a\\x0d\\x0a\\x09forged\\x7f\n");
  CHECK(told("\xc2\x9b"
             "2J") == "\\xc2\\x9b2J\n");  // U+009B begins what ESC [ begins
  CHECK(told("\x9b \xff \xe4\xb8") == "\\x9b \\xff \\xe4\\xb8\n");
  CHECK(told("\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80 \\ \"") ==
        "\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80 \\ \"\n");
}
