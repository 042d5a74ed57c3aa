// What Debian 12's static C++ library asks of glibc, and glibc 2.31 does not have yet (portable.cmake).
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

// 2.32: whether a program has one thread, which saves atomic counts. No is always right.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// 2.36: the number that std::random_device gives.
std::uint32_t arc4random() {
  std::uint32_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
  return value;
}
}
