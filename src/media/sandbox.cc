#include "media/sandbox.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

// Sanitizers map terabytes and call what the filter forbids.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CARAT_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CARAT_SANITIZED
#endif
#endif

#if defined(__x86_64__)
#define CARAT_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define CARAT_AUDIT_ARCH AUDIT_ARCH_AARCH64
#endif

namespace carat {
namespace {

void limit(int what, rlim_t value) {
  const rlimit both = {value, value};
  setrlimit(static_cast<__rlimit_resource>(what), &both);
}

void close_all_others() {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0) return;
#endif
  rlimit open{};
  getrlimit(RLIMIT_NOFILE, &open);
  for (rlim_t fd = 3; fd < open.rlim_cur && fd < 65'536; ++fd) close(static_cast<int>(fd));
}

#if defined(CARAT_AUDIT_ARCH) && !defined(CARAT_SANITIZED)
// Memory, the two pipes, the clock, locks of malloc, and the end. Mapping memory that can run is not among
// it.
bool filter_calls() {
  constexpr uint32_t kAllowed[] = {
      SYS_read,    SYS_write,        SYS_exit,  SYS_exit_group, SYS_munmap, SYS_mremap,        SYS_brk,
      SYS_madvise, SYS_rt_sigreturn, SYS_futex, SYS_lseek,      SYS_close,  SYS_clock_gettime, SYS_getrandom,
      SYS_sysinfo,  // qsort asks how much memory there is
  };
  // Libraries look for what they can do without: no, but no death.
  constexpr uint32_t kRefused[] = {
#ifdef SYS_open
      SYS_open,   SYS_stat,       SYS_access,
#endif
      SYS_openat, SYS_newfstatat, SYS_fstat,  SYS_ioctl,
  };
  const auto load = [](size_t at) {
    return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(at));
  };
  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES);
  const sock_filter kill = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  std::vector<sock_filter> program = {load(offsetof(seccomp_data, arch)),
                                      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CARAT_AUDIT_ARCH, 1, 0), kill,
                                      load(offsetof(seccomp_data, nr))};
  const auto answer = [&](uint32_t call, const sock_filter& with) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(with);
  };
  for (const uint32_t call : kAllowed) answer(call, allow);
  for (const uint32_t call : kRefused) answer(call, refuse);
  // mmap and mprotect: their third argument must not hold PROT_EXEC (4).
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 1, 0));
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3));
  program.push_back(load(offsetof(seccomp_data, args) + 2 * sizeof(uint64_t)));
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 4, 1, 0));
  program.push_back(allow);
  program.push_back(kill);
  const sock_fprog all = {static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all, 0, 0) == 0;
}
#else
bool filter_calls() { return false; }
#endif

}  // namespace

std::string enter_sandbox([[maybe_unused]] uint64_t memory_bytes) {
  close_all_others();
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_NPROC, 0);
#ifndef CARAT_SANITIZED
  limit(RLIMIT_AS, memory_bytes);
#endif
  return filter_calls() ? "" : "no filter of system calls";
}

}  // namespace carat
