// The process that Decoder starts: reads files from its standard input, which is a socket, and answers there.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/inner_command.h"
#include "media/decoder.h"
#include "media/decoder_protocol.h"
#include "media/sandbox.h"

namespace carat {

bool receive_all(int fd, void* data, size_t n) {
  auto* p = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t done = ::read(fd, p, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    p += done, n -= static_cast<size_t>(done);
  }
  return true;
}

namespace {

constexpr int kSocket = 0;

// write, not send: the sandbox grants no more.
bool send_all(int fd, const void* data, size_t n) {
  const auto* p = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t done = ::write(fd, p, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    p += done, n -= static_cast<size_t>(done);
  }
  return true;
}

struct Answer {
  DecodeReply head;
  std::vector<uint8_t> bytes;
};

void misbehave(int what) {
  switch (static_cast<Decoder::Misdeed>(what)) {
    case Decoder::Misdeed::crash: *static_cast<volatile int*>(nullptr) = 1; break;
    case Decoder::Misdeed::spin:
      for (volatile unsigned n = 0;;) n = n + 1;
    case Decoder::Misdeed::allocate: std::vector<Picture>(size_t{2} << 30); break;
    case Decoder::Misdeed::open_file:
      if (::open("/etc/passwd", O_RDONLY) < 0) throw Error("a file cannot be opened", "that is right");
      break;
    case Decoder::Misdeed::start_program: ::execl("/bin/true", "true", nullptr); break;
    case Decoder::Misdeed::map_code:
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      break;
  }
}

Answer answer(const DecodeRequest& r, const std::vector<uint8_t>& file) {
  Answer a;
  const PictureLimits picture{r.pixels, r.side};
  if (r.task == DecodeTask::misbehave) {
    misbehave(r.side);
  } else if (r.task == DecodeTask::info) {
    const PictureInfo info = picture_info(file, picture);
    a.head.width = info.width, a.head.height = info.height, a.head.animated = info.animated;
    info.format.copy(a.head.format, sizeof a.head.format - 1);
  } else if (r.task == DecodeTask::picture) {
    Picture p = decode_picture(file, picture);
    a.head.width = p.width, a.head.height = p.height;
    a.bytes = std::move(p.rgb);
  } else {
    const Sound s = decode_sound(file, {r.seconds});
    a.bytes.resize(s.samples.size() * sizeof(float));
    std::memcpy(a.bytes.data(), s.samples.data(), a.bytes.size());
  }
  return a;
}

Answer failed(const std::string& what, const std::string& hint) {
  const std::string text = what + '\0' + hint;
  Answer a;
  a.head.failed = 1;
  a.bytes.assign(text.begin(), text.end());
  return a;
}

Answer answer_or_error(const DecodeRequest& r, const std::vector<uint8_t>& file) {
  try {
    return answer(r, file);
  } catch (const Error& e) {
    return failed(e.what(), e.hint());
  } catch (const std::bad_alloc&) {
    return failed("the file needs more memory than its decoder may have", "make it smaller");
  } catch (const std::exception& e) {
    return failed(std::string("the file cannot be read: ") + e.what(), "save it again with another program");
  }
}

// What libraries do once, by calls that are forbidden later: the unwinder looks for its tables, qsort asks
// for the memory's size.
void do_once() {
  try {
    throw Error("once");
  } catch (const Error&) {}
  std::vector<double> much(1000);
  std::qsort(much.data(), much.size(), sizeof much[0], [](const void* a, const void* b) {
    const double x = *static_cast<const double*>(a), y = *static_cast<const double*>(b);
    return (x > y) - (x < y);
  });
  resample(std::vector<float>(1000), 48'000);
}

int decode_files() {
  DecoderHello hello;
  if (!receive_all(kSocket, &hello, sizeof hello)) return 1;
  do_once();
  const std::string missing = enter_sandbox(hello.memory_bytes);
  missing.copy(hello.missing, sizeof hello.missing - 1);
  if (!send_all(kSocket, &hello, sizeof hello)) return 1;
  DecodeRequest request;
  std::vector<uint8_t> file;
  while (receive_all(kSocket, &request, sizeof request)) {
    file.resize(static_cast<size_t>(request.size));
    if (!receive_all(kSocket, file.data(), file.size())) break;
    Answer a = answer_or_error(request, file);
    a.head.size = a.bytes.size();
    if (!send_all(kSocket, &a.head, sizeof a.head) || !send_all(kSocket, a.bytes.data(), a.bytes.size()))
      break;
    file = {};
  }
  ::_exit(0);  // nothing of main() is wanted
}

const InnerCommand registered(kDecoderArgument, decode_files);

}  // namespace
}  // namespace carat
