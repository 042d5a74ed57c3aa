// Which beginnings of texts this server knows, as vLLM tells it (vllm/distributed/kv_events.py): batches in
// MessagePack on a ZeroMQ PUB socket, for routers that send requests where their prompt is known. What was
// missed can be asked for again on a ROUTER socket.
#pragma once
#include <memory>
#include <string>

#include "state/prefix_changes.h"

namespace carat {

struct KvEventConfig {
  std::string endpoint;   // tcp://*:5557
  std::string replay;     // likewise; empty: nothing is sent again
  std::string topic;      // kv@ADDRESS:PORT@MODEL
  bool connect = false;   // to a router that listens there; else this server listens
  bool as_array = false;  // events as vLLM encoded them before its pull request 42892; else as maps
};

// One batch: [seconds since 1970, [events], 0].
std::string encode_kv_events(const PrefixChanges& changes, int32_t page_tokens, bool as_array, double now);
// kv@ADDRESS:PORT@MODEL; what a topic separates its parts with is replaced in the name.
std::string kv_event_topic(const std::string& address, int port, const std::string& model);
// The library's version, or nothing where this program was built without it.
std::string zmq_version();

class KvEvents {
 public:
  // Listens (or connects) at once. Error if it cannot, or without ZeroMQ. What is told first is that all
  // that was told before this counts no more.
  KvEvents(const KvEventConfig& config, int32_t page_tokens);
  ~KvEvents();
  // Any thread; does not wait. False: too much waits to be sent, so tell everything anew.
  bool tell(PrefixChanges changes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
