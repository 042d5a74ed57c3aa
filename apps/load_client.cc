#include "apps/load_client.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <thread>

#include "apps/server_address.h"
#include "base/error.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int32_t kFirstToken = 256;  // those before it are bytes and control tokens in most vocabularies
constexpr size_t kLongestEvent = size_t{16} << 20;

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

httplib::Client load_client_of(const ServerAddress& address, const std::string& key) {
  httplib::Client c = client_of(address, key);
  c.set_keep_alive(true);
  c.set_tcp_nodelay(true);
  return c;
}

std::vector<int32_t> random_tokens(std::mt19937_64& rng, int32_t n, int32_t vocab) {
  std::uniform_int_distribution<int32_t> any(kFirstToken, std::max(kFirstToken, vocab - 1));
  std::vector<int32_t> t(static_cast<size_t>(n));
  for (int32_t& x : t) x = any(rng);
  return t;
}

std::string body_of(const LoadOptions& o, int32_t number) {
  std::mt19937_64 all(o.seed), own(o.seed * 1000003 + static_cast<uint64_t>(number) + 1);
  std::vector<int32_t> prompt = random_tokens(all, o.shared, o.vocab);
  const std::vector<int32_t> rest = random_tokens(own, o.input, o.vocab);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  return Json{{"model", o.model},
              {"prompt", prompt},
              {"max_tokens", o.output},
              {"temperature", 0},
              {"ignore_eos", true},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}}}
      .dump();
}

// The events of one answer as they come.
class Events {
 public:
  explicit Events(LoadSample& sample) : sample_(sample), last_(Clock::now()), began_(last_) {}
  bool push(std::string_view piece) {
    held_ += piece;
    if (held_.size() > kLongestEvent) {
      sample_.error = "the server sends an event without end";
      return false;
    }
    size_t from = 0;
    for (size_t end; (end = held_.find("\n\n", from)) != std::string::npos; from = end + 2)
      take(std::string_view(held_).substr(from, end - from));
    held_.erase(0, from);
    return true;
  }
  void end() {
    if (sample_.error.empty() && !usage_) sample_.error = "the stream ended before its last event";
    sample_.e2el = milliseconds(began_, last_);
  }

 private:
  void take(std::string_view event) {
    if (!event.starts_with("data: ") || event == "data: [DONE]") return;
    const std::string_view data = event.substr(6);
    if (data.find("\"completion_tokens\"") != std::string_view::npos ||
        data.find("\"error\"") != std::string_view::npos)
      if (read_last(data)) return;
    // The event that only says why it ended brings no token.
    if (data.find(R"("text":"")") != data.npos || data.find(R"("text": "")") != data.npos) return;
    const Clock::time_point now = Clock::now();
    if (sample_.ttft == 0)
      sample_.ttft = milliseconds(began_, now);
    else
      sample_.itl.push_back(milliseconds(last_, now));
    last_ = now;
  }
  // Whether there is no token in it.
  bool read_last(std::string_view data) {
    const Json j = Json::parse(data, nullptr, false);
    if (!j.is_object()) return true;
    if (j.contains("error")) {
      sample_.error = refusal_of(200, std::string(data));
      return true;
    }
    const auto usage = j.find("usage");
    if (usage != j.end() && usage->is_object()) {
      sample_.prompt = usage->value("prompt_tokens", 0);
      sample_.output = usage->value("completion_tokens", 0);
      usage_ = true;
    }
    return !j.contains("choices") || j["choices"].empty();
  }

  LoadSample& sample_;
  Clock::time_point last_, began_;
  std::string held_;
  bool usage_ = false;
};

LoadSample ask(httplib::Client& client, const std::string& path, const std::string& body) {
  LoadSample sample;
  Events events(sample);
  httplib::Request request;
  request.method = "POST";
  request.path = path;
  request.headers.emplace("Content-Type", "application/json");
  request.body = body;
  int status = 0;
  std::string refusal;
  request.response_handler = [&](const httplib::Response& r) {
    status = r.status;
    return true;
  };
  request.content_receiver = [&](const char* data, size_t n, uint64_t, uint64_t) {
    if (status != 200) {
      refusal.append(data, std::min(n, kLongestEvent - std::min(kLongestEvent, refusal.size())));
      return true;
    }
    return events.push({data, n});
  };
  const auto result = client.send(request);
  if (!result)
    sample.error = httplib::to_string(result.error());
  else if (status != 200)
    sample.error = refusal_of(status, refusal);
  else
    events.end();
  return sample;
}

// When each request goes out, in seconds from the first: a Poisson process, or all at once.
std::vector<double> arrivals(const LoadOptions& o) {
  std::vector<double> at(static_cast<size_t>(o.requests), 0);
  if (o.rate <= 0) return at;
  std::mt19937_64 rng(o.seed + 1);
  std::exponential_distribution<double> wait(o.rate);
  for (size_t i = 1; i < at.size(); ++i) at[i] = at[i - 1] + wait(rng);
  return at;
}

}  // namespace

LoadResult run_load(const LoadOptions& o, const std::function<void(int32_t)>& tick) {
  const ServerAddress address = server_address(o.url);
  const std::string path = address.base + "/v1/completions";
  const std::vector<double> at = arrivals(o);
  LoadResult result;
  result.samples.resize(at.size());
  std::atomic<int32_t> next{0}, done{0};
  const Clock::time_point began = Clock::now();
  std::vector<std::thread> clients;
  for (int32_t s = 0; s < std::min(o.streams, o.requests); ++s)
    clients.emplace_back([&] {
      try {
        httplib::Client client = load_client_of(address, o.key);
        for (int32_t i; (i = next++) < o.requests; ++done) {
          const std::string body = body_of(o, i);
          const auto when = std::chrono::duration<double>(at[static_cast<size_t>(i)]);
          std::this_thread::sleep_until(began + std::chrono::duration_cast<Clock::duration>(when));
          result.samples[static_cast<size_t>(i)] = ask(client, path, body);
        }
      } catch (const std::exception& e) {
        for (int32_t i; (i = next++) < o.requests; ++done)
          result.samples[static_cast<size_t>(i)].error = e.what();
      }
    });
  while (done < o.requests) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    tick(done);
  }
  for (std::thread& c : clients) c.join();
  result.seconds = milliseconds(began, Clock::now()) / 1e3;
  const auto failed = [](const LoadSample& s) { return !s.error.empty(); };
  if (std::all_of(result.samples.begin(), result.samples.end(), failed))
    throw Error(fmt::format("no request was answered: {}", result.samples.front().error));
  return result;
}

}  // namespace carat
