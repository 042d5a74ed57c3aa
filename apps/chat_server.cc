#include "apps/chat_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/error.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof a;
  const bool bound = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&a), n) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &n) == 0;
  if (fd >= 0) ::close(fd);
  if (!bound) throw Error("no free port on 127.0.0.1");
  return ntohs(a.sin_port);
}

int start(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const int child = ::fork();
  if (child < 0) throw Error("no process could be started");
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, 0);
    ::dup2(null, 1);  // what it says on stderr is wanted where it ends before it is ready
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  return child;
}

std::string words(const httplib::Result& r, const std::string& host) {
  if (!r) return fmt::format("{} does not answer: {}", host, httplib::to_string(r.error()));
  return refusal_of(r->status, r->body);
}

}  // namespace

std::unique_ptr<ChatServer> ChatServer::at(const std::string& url, const std::string& key, std::string model,
                                           const std::vector<std::string>& headers) {
  std::unique_ptr<ChatServer> s(new ChatServer());
  for (const std::string& h : headers) {
    const size_t colon = h.find(':');
    if (colon == std::string::npos) throw Error(fmt::format("'{}' is no header", h), "'Name: value'");
    s->headers_.emplace_back(h.substr(0, colon), h.substr(h.find_first_not_of(' ', colon + 1)));
  }
  s->address_ = server_address(url);
  s->key_ = key;
  const std::string served = served_model(s->address_, key);
  s->model_ = model.empty() ? served : std::move(model);
  return s;
}

std::unique_ptr<ChatServer> ChatServer::of_file(const std::string& file,
                                                const std::vector<std::string>& flags, double seconds) {
  const int port = free_port();
  std::vector<std::string> all{"carat",  "serve",     "-m",     file,
                               "--host", "127.0.0.1", "--port", std::to_string(port)};
  all.insert(all.end(), flags.begin(), flags.end());
  all.insert(all.end(), {"--log-level", "warn"});
  std::unique_ptr<ChatServer> s(new ChatServer());
  s->child_ = start(all);
  s->address_ = server_address(fmt::format("127.0.0.1:{}", port));
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    int status = 0;
    if (::waitpid(s->child_, &status, WNOHANG) == s->child_) {
      s->child_ = -1;
      throw Error(fmt::format("carat serve ended before it was ready ('{}')", file),
                  "its own error stands above");
    }
    const auto r = client_of(s->address_, "").Get("/ready");
    if (r && r->status == 200) break;
    if (std::chrono::steady_clock::now() > until) throw Error("carat serve is not ready in time");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  s->model_ = served_model(s->address_, "");
  return s;
}

ChatServer::~ChatServer() {
  if (child_ < 0) return;
  ::kill(child_, SIGTERM);
  for (int i = 0; i < 200 && ::waitpid(child_, nullptr, WNOHANG) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  if (::kill(child_, 0) == 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
}

Json ChatServer::post(const std::string& path, const Json& body) const {
  const auto r = client_of(address_, key_)
                     .Post(address_.base + "/v1" + path, httplib::Headers(headers_.begin(), headers_.end()),
                           body.dump(-1, ' ', false, Json::error_handler_t::replace), "application/json");
  if (!r || r->status != 200) throw Error(words(r, address_.host));
  const Json j = Json::parse(r->body, nullptr, false);
  if (!j.is_object()) throw Error(fmt::format("{} answers with no JSON object", address_.host));
  return j;
}

Json ChatServer::get(const std::string& path) const {
  const auto r = client_of(address_, key_).Get(address_.base + path);
  if (!r || r->status != 200) return nullptr;
  return Json::parse(r->body, nullptr, false);
}

}  // namespace carat
