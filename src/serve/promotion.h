// A candidate beside the version that serves: which of them answers a request, whether they answer the same,
// and how one takes the other's place while requests run. Any thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "serve/models.h"
#include "serve/promotion_state.h"

namespace carat {

// The text of an answer in any of the APIs, whole or streamed: content, thoughts and calls in their order.
// Nothing if it is no whole answer.
std::optional<std::string> answered_text(std::string_view body);
// What the turns of one conversation have in common: client and first question.
uint64_t conversation_hash(const HttpRequest& r);

class Promotion {
 public:
  using Answer = HttpResponse (*)(const ApiContext&, const HttpRequest&);
  using Open = std::function<std::shared_ptr<LiveModel>(const std::vector<std::string>& flags, int version,
                                                        const ModelHost::Report& report)>;
  // flags: what the command line says. Where they are not those of the last start, they are a new version.
  Promotion(const std::string& directory, std::vector<std::string> flags, Open open);
  ~Promotion();

  // Opens the version that serves, the fallback where that one cannot be opened any more.
  std::shared_ptr<LiveModel> open_serving(const ModelHost::Report& report);
  // The server runs at this address: `carat promote` may come, and a candidate from before is opened again.
  void attach(ModelHost& host, const std::string& url);
  // Ends threads; what is open goes with the host.
  void stop();

  // Which version answers. ApiError 409 if the request asks for one (Carat-Version) that is not open.
  std::shared_ptr<LiveModel> choose(const HttpRequest& r);
  // The answer of the serving version, of which the candidate may make its own for comparison.
  HttpResponse watch(HttpResponse answer, const HttpRequest& r, const LiveModel& from, Answer make);

  bool is_key(std::string_view given) const;
  Json status();
  Json act(const Json& body);  // {"action": "start" | "promote" | "rollback" | "cancel", ...}
  std::string metrics();

 private:
  struct Shadow {
    HttpRequest request;
    Answer make;
    std::string text;
  };
  struct Compared {
    uint64_t same = 0, other = 0, failed = 0, dropped = 0;
    double shared = 0;  // of the longer text, the sum
  };
  void begin(const Json& body);
  void promote(const std::string& why);
  void withdraw(const char* event, const std::string& why);
  void roll_back(const std::string& why);
  void look();
  std::string fault_of(const LiveModel& live, bool speed) const;
  void open_in_thread(int id, bool fallback);
  void opened(int id, bool fallback, std::shared_ptr<LiveModel> live, const std::string& fault);
  void show();  // to the host, what is open
  void compare(const Shadow& s);
  void add_shadow(const HttpRequest& r, Answer make, std::string text);
  void run_shadows();

  PromotionStore store_;
  const Open open_;
  const std::string key_;
  ModelHost* host_ = nullptr;
  mutable std::mutex mutex_;
  PromotionState state_;
  std::shared_ptr<LiveModel> serving_, fallback_, candidate_;
  Compared compared_;
  int opening_ = 0;  // version
  std::string rolling_back_;
  std::atomic<double> progress_{0};
  std::chrono::steady_clock::time_point looked_{};
  std::thread opener_, shadower_;
  std::condition_variable shadows_come_;
  std::deque<Shadow> shadows_;
  std::atomic<bool> stopping_{false};
};

}  // namespace carat
