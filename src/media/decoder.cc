#include "media/decoder.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "media/decoder_protocol.h"

namespace carat {
namespace {

constexpr size_t kLongestMessage = 4096;
constexpr int kFilesEach = 256;  // then a new process: libraries leak on broken files (libvorbis 5.8 KB each)

// A process may be hijacked: its words are printed as plain text.
std::string plain(std::string text) {
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

// A process that has ended is no signal to us.
bool send_all(int fd, const void* data, size_t n) {
  const auto* p = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t done = ::send(fd, p, n, MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    p += done, n -= static_cast<size_t>(done);
  }
  return true;
}

void set_wait(int fd, int seconds) {
  const timeval wait = {seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
}

// This program again, with one end of a socket as its standard input and nothing else of ours.
pid_t start_again(int socket) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, socket, 0);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&files, 1, 2);  // libraries chatter
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  sigset_t none, all;
  sigemptyset(&none), sigfillset(&all);
  posix_spawnattr_setsigmask(&how, &none);
  posix_spawnattr_setsigdefault(&how, &all);
  // A group of its own: Ctrl-C is for the program.
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string name = "carat", argument = kDecoderArgument;
  char* const arguments[] = {name.data(), argument.data(), nullptr};
  // Where the loader found this program's libraries; nothing else of the environment.
  char* environment[] = {nullptr, nullptr};
  for (char** e = environ; *e; ++e)
    if (std::string_view(*e).starts_with("LD_LIBRARY_PATH=")) environment[0] = *e;
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, "/proc/self/exe", &files, &how, arguments, environment);
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  return failed ? 0 : pid;
}

}  // namespace

class Decoder::Process {
 public:
  explicit Process(const DecoderLimits& limits) : limits_(limits) {}
  ~Process() {
    if (pid_) end();
  }

  // The reply's head; its bytes are in `bytes`, at most `most` of them.
  template <class T>
  DecodeReply ask(DecodeRequest request, std::span<const uint8_t> file, size_t most, std::vector<T>& bytes) {
    const std::lock_guard lock(mutex_);
    if (pid_ && ++files_ % kFilesEach == 0) end();
    if (!pid_) start();
    request.size = file.size();
    allow_time();
    DecodeReply reply;
    if (!send_all(socket_, &request, sizeof request) || !send_all(socket_, file.data(), file.size()) ||
        !receive_all(socket_, &reply, sizeof reply))
      throw_end();
    if (reply.failed) throw_message(reply);
    if (reply.size > most || reply.size % sizeof(T) != 0) throw_end();
    bytes.resize(static_cast<size_t>(reply.size) / sizeof(T));
    if (!receive_all(socket_, bytes.data(), static_cast<size_t>(reply.size))) throw_end();
    return reply;
  }
  std::string missing() {
    const std::lock_guard lock(mutex_);
    if (!pid_) start();
    return missing_;
  }
  [[noreturn]] void throw_nonsense() {
    const std::lock_guard lock(mutex_);
    throw_end();
  }

 private:
  void start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_no_start();
    pid_ = start_again(ends[1]);
    close(ends[1]);
    socket_ = ends[0];
    set_wait(socket_, limits_.wait_seconds);
    DecoderHello hello;
    hello.memory_bytes = limits_.memory_bytes;
    if (!pid_ || !send_all(socket_, &hello, sizeof hello) || !receive_all(socket_, &hello, sizeof hello)) {
      end();
      throw_no_start();
    }
    hello.missing[sizeof hello.missing - 1] = 0;
    missing_ = plain(hello.missing);
    if (!missing_.empty())
      log_warn("decoding pictures and sound runs with less protection here: {}", missing_);
  }
  [[noreturn]] static void throw_no_start() {
    throw Error("the process that reads pictures and sound cannot be started",
                "it is this program again: look whether /proc is mounted, and at limits on processes");
  }

  // Seconds of the processor that this file may take, beside what files before it took.
  void allow_time() const {
    clockid_t clock;
    timespec used = {};
    if (clock_getcpuclockid(pid_, &clock) == 0) clock_gettime(clock, &used);
    const rlimit cpu = {static_cast<rlim_t>(used.tv_sec + 1 + limits_.cpu_seconds), RLIM_INFINITY};
    prlimit(pid_, RLIMIT_CPU, &cpu, nullptr);
  }

  int end() {
    int status = 0;
    if (socket_ >= 0) close(socket_);
    if (pid_) {
      kill(pid_, SIGKILL);
      while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
    }
    socket_ = -1, pid_ = 0;
    return status;
  }
  [[noreturn]] void throw_end() {
    const int status = end();
    std::string why = "it gave no answer in time";
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (signal == SIGXCPU)
      why = fmt::format("it took more than {} s of the processor", limits_.cpu_seconds);
    else if (signal && signal != SIGKILL)
      why = fmt::format("it ended with signal {}{}", signal,
                        signal == SIGSYS ? ", for a call that it may not make" : "");
    else if (WIFEXITED(status))
      why = fmt::format("it ended with code {}", WEXITSTATUS(status));
    log_warn("a decoder was stopped: {}", why);
    throw Error("the file broke its decoder: " + why,
                "the file may be damaged; save it again with another program");
  }
  [[noreturn]] void throw_message(const DecodeReply& reply) {
    if (reply.size > kLongestMessage) throw_end();
    std::string text(static_cast<size_t>(reply.size), '\0');
    if (!receive_all(socket_, text.data(), text.size())) throw_end();
    const size_t zero = text.find('\0');
    if (zero == text.npos) throw_end();
    throw Error(plain(text.substr(0, zero)), plain(text.substr(zero + 1)));
  }

  const DecoderLimits limits_;
  std::mutex mutex_;
  pid_t pid_ = 0;
  int socket_ = -1;
  std::string missing_;
  int files_ = 0;
};

Decoder::Decoder(const DecoderLimits& limits)
    : pictures_(std::make_unique<Process>(limits)), sounds_(std::make_unique<Process>(limits)) {}
Decoder::~Decoder() = default;

PictureInfo Decoder::info(std::span<const uint8_t> bytes, const PictureLimits& limits) {
  std::vector<uint8_t> none;
  DecodeRequest request{DecodeTask::info, limits.side, limits.pixels, 0, 0};
  const DecodeReply r = pictures_->ask(request, bytes, 0, none);
  PictureInfo info{{}, r.width, r.height, r.animated != 0};
  for (const std::string_view format : {"JPEG", "PNG", "WebP", "GIF"})
    if (std::memcmp(format.data(), r.format, format.size() + 1) == 0) info.format = format;
  if (info.format.empty() || r.width < 1 || r.height < 1 || r.width > limits.side || r.height > limits.side)
    pictures_->throw_nonsense();
  return info;
}

Picture Decoder::picture(std::span<const uint8_t> bytes, const PictureLimits& limits) {
  Picture p;
  DecodeRequest request{DecodeTask::picture, limits.side, limits.pixels, 0, 0};
  const DecodeReply r = pictures_->ask(request, bytes, static_cast<size_t>(limits.pixels) * 3, p.rgb);
  if (r.width < 1 || r.height < 1 || r.width > limits.side || r.height > limits.side ||
      p.rgb.size() != static_cast<size_t>(r.width) * r.height * 3)
    pictures_->throw_nonsense();
  p.width = r.width, p.height = r.height;
  return p;
}

Sound Decoder::sound(std::span<const uint8_t> bytes, const SoundLimits& limits) {
  Sound s;
  DecodeRequest request{DecodeTask::sound, 0, 0, limits.seconds, 0};
  const auto most = static_cast<size_t>((limits.seconds + 1) * kSoundRate) * sizeof(float);
  sounds_->ask(request, bytes, most, s.samples);
  if (s.samples.size() < kSoundLeast) sounds_->throw_nonsense();
  return s;
}

void Decoder::misbehave(Misdeed what) {
  std::vector<uint8_t> none;
  DecodeRequest request{DecodeTask::misbehave, static_cast<int>(what), 0, 0, 0};
  pictures_->ask(request, {}, 0, none);
}

std::string Decoder::missing() const { return pictures_->missing(); }

}  // namespace carat
