#include "serve/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/http/answering.h"
#include "serve/http/status.h"

namespace carat {
namespace {

constexpr size_t kPipelined = size_t{64} << 10;  // read while an answer is under way
constexpr size_t kProgress = 1024;               // bytes of a body that a time's window must bring
constexpr size_t kMaxWaste = size_t{16} << 20;   // read of a request that was refused
constexpr std::chrono::seconds kLinger{1};       // for an answer to arrive before the connection is reset
constexpr std::chrono::milliseconds kLastWords{1000};  // to be written behind the cut-off

Clock::time_point in_seconds(double s) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

}  // namespace

Connection::Connection(std::shared_ptr<LoopState> loop, std::unique_ptr<Wire> wire, std::string remote,
                       bool spare)
    : loop_(std::move(loop)), wire_(std::move(wire)), remote_(std::move(remote)), spare_(spare) {}
Connection::~Connection() = default;

void Connection::start() {
  deadline_ = in_seconds(loop_->config.read_seconds);
  wire_->open([self = shared_from_this()](const Wire::Error& error) {
    if (self->closed()) return;
    if (error) return self->close();
    self->stage_ = Stage::head;
    self->since_ = Clock::now();
    self->deadline_ = in_seconds(self->loop_->config.idle_seconds);
    self->read();
  });
}

std::optional<Clock::time_point> Connection::resting() const {
  if (stage_ == Stage::opening || (stage_ == Stage::head && in_.empty())) return since_;
  return {};
}

bool Connection::arriving() const {
  return stage_ == Stage::body || stage_ == Stage::dropping || (stage_ == Stage::head && !in_.empty());
}

void Connection::close() {
  if (stage_ == Stage::closed) return;
  stage_ = Stage::closed;
  wire_->close();
  in_ = {};
  if (!writing_) out_ = {};  // the wire looks at it
  held_ = {};
  if (const auto a = std::exchange(answering_, nullptr)) {
    a->gone_ = true;
    a->connection_.reset();
    a->wake();
  }
}

// A client that is slow is cut by what it does not do, never for how long a large request takes.
void Connection::look(Clock::time_point now) {
  const bool over = loop_->cut_off.passed();
  if (answering_ && answering_->abandoned_) return close();
  if (answering_ && (over || now - since_ > std::chrono::seconds(2))) {
    since_ = now;
    answering_->wake();
  }
  if (stage_ == Stage::closed) return;
  if (loop_->stopping) {
    const bool at_rest = stage_ == Stage::head && in_.empty() && out_at_ == out_.size();
    if ((at_rest || stage_ == Stage::opening) && loop_->last_call.passed()) return close();
    if (over && arriving()) return fail({503, std::string(kTakesNoMore)});
    if (over && now - kLastWords > loop_->cut_off.get()) return close();
  }
  if (out_at_ < out_.size() && now > sent_by_) {
    log_debug("{} takes nothing of its answer and is cut off", remote_);
    return close();
  }
  if (stage_ == Stage::answering || now < deadline_) return;
  if (stage_ == Stage::body && window_ >= kProgress) {
    window_ = 0;
    deadline_ = in_seconds(loop_->config.read_seconds);
    return;
  }
  if (arriving()) return fail({408, "the request did not arrive in time"});
  close();
}

void Connection::read() {
  if (reading_ || eof_ || closed()) return;
  if (stage_ == Stage::answering && in_.size() >= kPipelined) return;
  reading_ = true;
  wire_->read([self = shared_from_this()](const Wire::Error& error, std::string_view data) {
    self->reading_ = false;
    if (self->closed()) return;
    try {
      if (error) return self->on_end();
      self->on_read(data);
      self->read();
    } catch (const std::exception& e) {  // no memory: this client loses, not all
      log_error("a connection is given up: {}", e.what());
      self->close();
    }
  });
}

// The client has ended its side: of half a request nothing more comes; one that is answered has lost
// interest.
void Connection::on_end() {
  eof_ = true;
  if (stage_ == Stage::answering && answering_) {
    answering_->gone_ = true;
    answering_->wake();
    return;
  }
  if (stage_ == Stage::body || (stage_ == Stage::head && !in_.empty()))
    return fail({400, "the connection ended within the request"});
  if (stage_ == Stage::ending && out_at_ < out_.size()) return;
  close();
}

void Connection::on_read(std::string_view data) {
  if (stage_ == Stage::ending) {
    wasted_ += data.size();
    if (wasted_ > kMaxWaste) close();
    return;
  }
  if (stage_ == Stage::head && in_.empty()) deadline_ = in_seconds(loop_->config.read_seconds);
  window_ += data.size();
  in_.append(data);
  advance();
}

// Goes as far as what has come allows.
void Connection::advance() {
  while (stage_ == Stage::head || stage_ == Stage::body || stage_ == Stage::dropping) {
    if (stage_ == Stage::head) {
      while (scanner_.size() == 0 && in_.starts_with("\r\n")) in_.erase(0, 2);
      if (in_.empty()) return;
      const auto state = scanner_.scan(in_);
      if (state == HeadScanner::State::more) return;
      if (state == HeadScanner::State::wrong) return fail(scanner_.fault());
      if (!begin_request()) return;
    }
    read_body();
    if (stage_ == Stage::body || stage_ == Stage::dropping) return;
  }
}

// From a whole head to a stage that knows what to do with the body; false: it has ended.
bool Connection::begin_request() {
  parser_.emplace();
  RequestParser::Head head;
  request_ = {};
  const auto fault = parser_->read_head(std::string_view(in_).substr(0, scanner_.size()), head);
  in_.erase(0, scanner_.size());
  request_.method = head.method;
  version_1_0_ = head.version_1_0;
  head_only_ = head.method == "HEAD";
  keep_ = head.keep_alive;
  if (fault) return fail(*fault), false;
  auto target = parse_target(head.target, head.method);
  if (!target) return fail({400, "the request's target is none that this server reads"}), false;
  request_.path = std::move(target->path);
  request_.target = head.target.substr(0, std::min(head.target.find('?'), head.target.size()));
  request_.remote = remote_;
  for (auto& [name, value] : head.fields) request_.headers.emplace(std::move(name), std::move(value));
  if (!target->host.empty()) request_.headers["host"] = target->host;
  for (size_t at = 0; at < target->query.size();) {
    const size_t end = std::min(target->query.find('&', at), target->query.size());
    const std::string_view pair = std::string_view(target->query).substr(at, end - at);
    const size_t equals = std::min(pair.find('='), pair.size());
    const auto name = percent_decoded(pair.substr(0, equals), true);
    const auto value = percent_decoded(pair.substr(std::min(equals + 1, pair.size())), true);
    if (!name || !value) return fail({400, "the query is malformed"}), false;
    if (!name->empty()) request_.query.emplace(*name, *value);
    at = end + 1;
  }
  Verdict verdict = loop_->hooks.admit(request_);
  const bool body = head.framing.chunked || head.framing.length.value_or(0) > 0;
  if (spare_ && !verdict.urgent) {
    verdict.refusal = std::make_unique<HttpResponse>(
        loop_->hooks.error(503, "all connections of this server are in use", request_.path));
    keep_ = false;
  }
  if (spare_) keep_ = false;
  const uint64_t length = head.framing.length.value_or(0);
  if (verdict.refusal) {
    const bool short_body = !head.framing.chunked && length <= kMaxIdleBody && !head.framing.wants_continue;
    if (body && !short_body) return refuse(std::move(*verdict.refusal), false), false;
    refusal_ = std::move(verdict.refusal);
    max_body_ = kMaxIdleBody;
  } else {
    max_body_ = verdict.max_body;
  }
  if (length > max_body_)
    return fail({413, fmt::format("the body is larger than {} bytes", max_body_)}), false;
  parser_->set_max_body(max_body_);
  if (head.framing.wants_continue && body && in_.empty()) out("HTTP/1.1 100 Continue\r\n\r\n");
  stage_ = refusal_ ? Stage::dropping : Stage::body;
  window_ = 0;
  deadline_ = in_seconds(loop_->config.read_seconds);
  return true;
}

void Connection::read_body() {
  size_t used = 0;
  const auto fault = parser_->read_body(in_, used);
  in_.erase(0, used);
  if (fault)
    return fail(fault->status == 413
                    ? HttpFault{413, fmt::format("the body is larger than {} bytes", max_body_)}
                    : *fault);
  if (!parser_->done()) {
    // What is left is part of a chunk's line or of trailers.
    if (in_.size() > kMaxLine) fail({400, "a line between the body's chunks is longer than 16 KiB"});
    return;
  }
  if (refusal_) {
    const auto refusal = std::move(refusal_);
    return refuse(std::move(*refusal), true);
  }
  serve();
}

void Connection::refuse(HttpResponse response, bool can_go_on) {
  loop_->hooks.refused(request_, response);
  const bool keep = keep_ && can_go_on && !loop_->closing && !loop_->stopping;
  std::string text = head_text(response, {false, version_1_0_, keep, loop_->config.idle_seconds});
  if (!head_only_ && has_body(response.status)) text += response.body;
  out(std::move(text));
  finish(keep);
}

void Connection::fail(const HttpFault& fault) {
  refusal_.reset();
  refuse(loop_->hooks.error(fault.status, fault.message, request_.path), false);
}

void Connection::serve() {
  request_.body = parser_->take_body();
  parser_.reset();
  stage_ = Stage::answering;
  since_ = Clock::now();
  const auto a = std::make_shared<Answering>(loop_, shared_from_this());
  a->head_only_ = head_only_;
  a->version_1_0_ = version_1_0_;
  a->can_keep_ = keep_;
  a->request = std::move(request_);
  request_ = {};
  a->request.gone = [weak = std::weak_ptr(a)] {
    const auto whose = weak.lock();
    return !whose || whose->gone();
  };
  answering_ = a;
  loop_->hooks.serve(a);
}

// The answer is handed over as a whole.
void Connection::finish(bool keep) {
  if (closed()) return;
  answering_.reset();
  parser_.reset();
  if (!keep || eof_) return end();
  next_request();
}

void Connection::next_request() {
  stage_ = Stage::head;
  scanner_ = {};
  request_ = {};
  head_only_ = version_1_0_ = false;
  if (in_.capacity() > kMaxLine && in_.empty()) in_ = {};
  since_ = Clock::now();
  deadline_ = in_seconds(in_.empty() ? loop_->config.idle_seconds : loop_->config.read_seconds);
  if (!in_.empty())  // not from within itself, however many requests came at once
    boost::asio::post(loop_->io, [self = shared_from_this()] { self->advance(); });
  read();
}

// Closing at once would reset the connection if more is to be read, and could destroy the answer.
void Connection::end() {
  stage_ = Stage::ending;
  in_ = {};
  deadline_ = Clock::time_point::max();
  flush();
  read();
}

void Connection::out(std::string text) {
  if (closed()) return;
  if (held_.empty())
    held_ = std::move(text);
  else
    held_ += text;
  flush();
}

// Writes until the client takes no more; what waits meanwhile stays in held_, as the wire looks at out_.
void Connection::flush() {
  while (!writing_ && !closed()) {
    if (out_at_ == out_.size()) {
      out_ = std::exchange(held_, {});
      out_at_ = 0;
      if (out_.empty()) break;
      sent_by_ = in_seconds(loop_->config.write_seconds);
    }
    writing_ = true;
    const auto at_once = wire_->write(std::string_view(out_).substr(out_at_),
                                      [self = shared_from_this()](const Wire::Error& error, size_t n) {
                                        self->writing_ = false;
                                        if (self->closed()) return;
                                        if (error) return self->close();
                                        self->sent(n);
                                        self->flush();
                                      });
    if (!at_once) return;
    writing_ = false;
    if (*at_once == 0) return close();
    sent(*at_once);
  }
  if (closed() || writing_ || stage_ != Stage::ending || ended_) return;
  ended_ = true;
  wire_->end_writing();
  deadline_ = Clock::now() + kLinger;
  if (eof_) close();
}

void Connection::sent(size_t n) {
  out_at_ += n;
  sent_by_ = in_seconds(loop_->config.write_seconds);
  if (!answering_) return;
  const size_t before = answering_->unsent_;
  answering_->unsent_ -= std::min(n, before);
  if (before > kStreamAhead && answering_->unsent_ <= kStreamAhead) answering_->wake();
}

}  // namespace carat
