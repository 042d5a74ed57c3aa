// A streamed answer under way: goes on in a worker thread when it is woken, in one at a time.
#pragma once
#include <functional>
#include <memory>
#include <mutex>

#include "serve/http/transport.h"
#include "serve/http/workers.h"

namespace carat {

class RunningStream : public std::enable_shared_from_this<RunningStream> {
 public:
  // done: the body has all been said (or not: an error, or the client went).
  RunningStream(std::shared_ptr<Exchange> exchange, HttpResponse response, Workers& workers,
                std::function<void(bool whole, const std::exception* error)> done);
  void start();

 private:
  void wake();
  void work();
  bool resume();

  std::shared_ptr<Exchange> exchange_;
  HttpResponse response_;
  Workers& workers_;
  std::function<void(bool, const std::exception*)> done_;
  bool heard_ = true;  // the client took all so far
  HttpWrite write_;
  HttpStream body_;
  std::mutex mutex_;
  bool queued_ = false, again_ = false, over_ = false;
};

}  // namespace carat
