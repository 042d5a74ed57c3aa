// One client: heads and bodies in, answers out, one after the other; its time and its memory are bounded.
#pragma once
#include <mutex>

#include "serve/http/parser.h"
#include "serve/http/transport.h"
#include "serve/http/wire.h"

namespace carat {

// What connections have in common. The loop's thread, but for what says otherwise.
struct LoopState {
  HttpConfig config;
  TransportHooks hooks;
  const CutOff& cut_off;
  boost::asio::io_context io;
  std::atomic<bool> stopping{false}, closing{false};
  std::atomic<int> exchanges{0};  // that are being answered
  std::atomic<int> arriving{0};   // requests of which a part is here
  CutOff last_call;               // until then connections that rest are kept, of a server that stops

  LoopState(const HttpConfig& c, TransportHooks h, const CutOff& end)
      : config(c), hooks(std::move(h)), cut_off(end), io(1) {}
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // spare: beyond the number of connections that are served, for urgent requests alone.
  Connection(std::shared_ptr<LoopState> loop, std::unique_ptr<Wire> wire, std::string remote, bool spare);
  ~Connection();
  void start();
  void look(Clock::time_point now);  // every tenth of a second: cuts it if its time is up
  void close();
  bool closed() const { return stage_ == Stage::closed; }
  bool arriving() const;  // a part of a request is here
  // Since when it rests between requests; nothing while it does not.
  std::optional<Clock::time_point> resting() const;

 private:
  friend class Answering;
  enum class Stage : uint8_t { opening, head, body, dropping, answering, ending, closed };

  void read();
  void on_read(std::string_view data);
  void on_end();
  void advance();
  bool begin_request();
  void read_body();
  void refuse(HttpResponse response, bool can_go_on);
  void fail(const HttpFault& fault);
  void serve();
  void finish(bool keep);
  void next_request();
  void end();

  void out(std::string text);
  void flush();
  void sent(size_t bytes);

  const std::shared_ptr<LoopState> loop_;
  const std::unique_ptr<Wire> wire_;
  const std::string remote_;
  const bool spare_;
  Stage stage_ = Stage::opening;
  bool reading_ = false, writing_ = false, keep_ = false, eof_ = false;
  bool version_1_0_ = false, head_only_ = false, ended_ = false;
  std::string in_, out_, held_;
  size_t out_at_ = 0, window_ = 0, wasted_ = 0;
  Clock::time_point since_ = Clock::now(), deadline_{}, sent_by_{};
  HeadScanner scanner_;
  std::optional<RequestParser> parser_;
  std::unique_ptr<HttpResponse> refusal_;
  HttpRequest request_;
  size_t max_body_ = 0;
  std::shared_ptr<class Answering> answering_;
};

}  // namespace carat
