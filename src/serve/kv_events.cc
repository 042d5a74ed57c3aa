#include "serve/kv_events.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "serve/msgpack.h"

#ifdef CARAT_ZMQ
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#endif

namespace carat {
namespace {

// The event's tag and fields in order, as an array or as a map.
class EventPacker {
 public:
  EventPacker(Msgpack& out, bool as_array, size_t fields, std::string_view tag)
      : out_(out), array_(as_array) {
    if (array_)
      out_.array(fields + 1);
    else
      out_.map(fields + 1), out_.text("type");
    out_.text(tag);
  }
  Msgpack& field(std::string_view name) {
    if (!array_) out_.text(name);
    return out_;
  }

 private:
  Msgpack& out_;
  const bool array_;
};

void put_hashes(Msgpack& out, const std::vector<uint64_t>& hashes) {
  out.array(hashes.size());
  for (const uint64_t h : hashes) out.number(h);
}

void put_stored(Msgpack& out, const PrefixRun& run, int32_t page_tokens, bool as_array) {
  EventPacker e(out, as_array, 7, "BlockStored");
  put_hashes(e.field("block_hashes"), run.hashes);
  if (Msgpack& p = e.field("parent_block_hash"); run.parent)
    p.number(run.parent);
  else
    p.nil();
  Msgpack& tokens = e.field("token_ids");
  tokens.array(run.tokens.size());
  for (const int32_t t : run.tokens) tokens.number(static_cast<uint32_t>(t));
  e.field("block_size").number(static_cast<uint32_t>(page_tokens));
  e.field("lora_id").nil();
  e.field("medium").text("GPU");
  e.field("lora_name").nil();
}

void put_removed(Msgpack& out, const std::vector<uint64_t>& hashes, bool as_array) {
  EventPacker e(out, as_array, 2, "BlockRemoved");
  put_hashes(e.field("block_hashes"), hashes);
  e.field("medium").text("GPU");
}

}  // namespace

std::string encode_kv_events(const PrefixChanges& c, int32_t page_tokens, bool as_array, double now) {
  Msgpack out;
  out.array(3);
  out.real(now);
  out.array(c.anew + !c.removed.empty() + c.stored.size());
  if (c.anew) EventPacker(out, as_array, 0, "AllBlocksCleared");
  if (!c.removed.empty()) put_removed(out, c.removed, as_array);
  for (const PrefixRun& run : c.stored) put_stored(out, run, page_tokens, as_array);
  out.number(0);
  return out.take();
}

std::string kv_event_topic(const std::string& address, int port, const std::string& model) {
  std::string name = model;
  std::replace(name.begin(), name.end(), '@', '_');
  return fmt::format("kv@{}:{}@{}", address, port, name);
}

#ifdef CARAT_ZMQ

std::string zmq_version() {
  int major = 0, minor = 0, patch = 0;
  ::zmq_version(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

namespace {

constexpr size_t kMostWaiting = 1000;  // batches for the thread that sends
constexpr size_t kKept = 10'000;       // batches that can be asked for again
constexpr int kHighWater = 100'000;    // batches for a subscriber that is slow

std::string big_endian(int64_t n) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(static_cast<uint64_t>(n) >> (56 - 8 * i));
  return out;
}

int64_t from_big_endian(const std::string& s) {
  uint64_t n = 0;
  for (const char c : s) n = n << 8 | static_cast<uint8_t>(c);
  return static_cast<int64_t>(n);
}

class Socket {
 public:
  Socket(void* context, int type, const std::string& endpoint, bool connect, const char* flag)
      : socket_(::zmq_socket(context, type)) {
    const int linger = 500, high = kHighWater;
    ::zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    ::zmq_setsockopt(socket_, ZMQ_SNDHWM, &high, sizeof high);
    if ((connect ? ::zmq_connect : ::zmq_bind)(socket_, endpoint.c_str()) == 0) return;
    const std::string why = ::zmq_strerror(::zmq_errno());
    ::zmq_close(socket_);
    throw Error(
        fmt::format("{} {}: {}", flag, endpoint, why),
        "tcp://*:PORT or tcp://ADDRESS:PORT, where nothing else listens; with --kv-events-connect the "
        "address of a router that listens");
  }
  ~Socket() { ::zmq_close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  void* get() const { return socket_; }
  // Never waits: what cannot be sent now is dropped, as a subscriber sees by the sequence.
  bool send(const std::vector<std::string>& frames) const {
    for (size_t i = 0; i < frames.size(); ++i)
      if (::zmq_send(socket_, frames[i].data(), frames[i].size(),
                     ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0)) < 0)
        return false;
    return true;
  }
  std::vector<std::string> receive() const {  // empty: nothing is there
    std::vector<std::string> frames;
    for (int more = 1; more;) {
      zmq_msg_t m;
      ::zmq_msg_init(&m);
      if (::zmq_msg_recv(&m, socket_, ZMQ_DONTWAIT) < 0) return {};
      frames.emplace_back(static_cast<const char*>(::zmq_msg_data(&m)), ::zmq_msg_size(&m));
      more = ::zmq_msg_more(&m);
      ::zmq_msg_close(&m);
    }
    return frames;
  }

 private:
  void* const socket_;
};

// Ends the context when everything that uses it is gone.
struct Context {
  void* const get = ::zmq_ctx_new();
  ~Context() { ::zmq_ctx_term(get); }
};

}  // namespace

struct KvEvents::Impl {
  Impl(const KvEventConfig& c, int32_t tokens)
      : config(c), page_tokens(tokens), pub(context.get, ZMQ_PUB, c.endpoint, c.connect, "--kv-events") {
    if (!c.replay.empty())
      replay = std::make_unique<Socket>(context.get, ZMQ_ROUTER, c.replay, false, "--kv-events-replay");
    wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake < 0) throw Error("cannot create an eventfd");
    waiting.push_back({.anew = true, .removed = {}, .stored = {}});
    thread = std::thread([this] { run(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      waiting.push_back({.anew = true, .removed = {}, .stored = {}});  // what was known goes with the process
      stop = true;
    }
    signal();
    thread.join();
    ::close(wake);
  }
  void signal() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake, &one, sizeof one);
  }
  bool tell(PrefixChanges changes) {
    {
      const std::lock_guard lock(mutex);
      if (waiting.size() >= kMostWaiting) return false;
      waiting.push_back(std::move(changes));
    }
    signal();
    return true;
  }
  void run();
  void send(const PrefixChanges& changes);
  void answer(const std::vector<std::string>& asked) const;

  const KvEventConfig config;
  const int32_t page_tokens;
  Context context;
  Socket pub;
  std::unique_ptr<Socket> replay;
  int wake = -1;
  std::mutex mutex;
  std::deque<PrefixChanges> waiting;
  bool stop = false;
  std::thread thread;
  // The thread's own.
  int64_t next = 0;              // the sequence number of the next batch
  std::deque<std::string> kept;  // the last ones, up to it
};

void KvEvents::Impl::run() {
  for (bool over = false;;) {
    std::deque<PrefixChanges> news;
    {
      const std::lock_guard lock(mutex);
      news.swap(waiting);
      over = stop;
    }
    for (const PrefixChanges& c : news) send(c);
    if (over) return;
    zmq_pollitem_t items[2] = {{nullptr, wake, ZMQ_POLLIN, 0},
                               {replay ? replay->get() : nullptr, 0, ZMQ_POLLIN, 0}};
    ::zmq_poll(items, replay ? 2 : 1, -1);
    uint64_t count = 0;
    if (items[0].revents) [[maybe_unused]]
      const ssize_t n = ::read(wake, &count, sizeof count);
    if (!replay) continue;
    for (auto asked = replay->receive(); !asked.empty(); asked = replay->receive()) answer(asked);
  }
}

void KvEvents::Impl::send(const PrefixChanges& changes) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string payload = encode_kv_events(changes, page_tokens, config.as_array, now);
  pub.send({config.topic, big_endian(next++), payload});
  kept.push_back(std::move(payload));
  if (kept.size() > kKept) kept.pop_front();
}

// Asked: the client's identity, nothing, the first batch wanted.
void KvEvents::Impl::answer(const std::vector<std::string>& asked) const {
  if (asked.size() != 3 || asked[2].size() != 8) {
    log_debug("a replay of KV events was asked for in {} frames that this server does not know",
              asked.size());
    return;
  }
  const int64_t first = next - static_cast<int64_t>(kept.size());
  for (int64_t n = std::max(first, from_big_endian(asked[2])); n < next; ++n)
    if (!replay->send({asked[0], "", big_endian(n), kept[static_cast<size_t>(n - first)]})) return;
  replay->send({asked[0], "", big_endian(-1), ""});
}

KvEvents::KvEvents(const KvEventConfig& config, int32_t page_tokens)
    : impl_(std::make_unique<Impl>(config, page_tokens)) {}
KvEvents::~KvEvents() = default;
bool KvEvents::tell(PrefixChanges changes) { return impl_->tell(std::move(changes)); }

#else

std::string zmq_version() { return {}; }
struct KvEvents::Impl {};
KvEvents::KvEvents(const KvEventConfig&, int32_t) {
  throw Error("this program was built without ZeroMQ, which --kv-events needs",
              "install libzmq3-dev and build again");
}
KvEvents::~KvEvents() = default;
bool KvEvents::tell(PrefixChanges) { return true; }

#endif

}  // namespace carat
