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

#include "base/error.h"

namespace carat {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int32_t kFirstToken = 256;  // those before it are bytes and control tokens in most vocabularies
constexpr size_t kLongestEvent = size_t{16} << 20;

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

struct Address {
  std::string host, base;  // http://host:port, and the path in front of /v1
};

Address address_of(std::string url) {
  if (url.find("://") == std::string::npos) url.insert(0, "http://");
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  const size_t path = url.find('/', url.find("://") + 3);
  return {url.substr(0, path), path == std::string::npos ? "" : url.substr(path)};
}

httplib::Client client_of(const LoadOptions& o) {
  const std::string host = address_of(o.url).host;
  httplib::Client c(host);
  if (!c.is_valid())
    throw Error(fmt::format("'{}' is no address of a server", host), "http://127.0.0.1:8080, say");
  c.set_connection_timeout(10);
  c.set_read_timeout(3600);
  c.set_keep_alive(true);
  c.set_tcp_nodelay(true);
  if (!o.key.empty()) c.set_bearer_token_auth(o.key);
  return c;
}

std::string complaint(int status, const std::string& body) {
  const Json j = Json::parse(body, nullptr, false);
  const Json::json_pointer at("/error/message");
  if (j.is_object() && j.contains(at) && j[at].is_string())
    return fmt::format("status {}: {}", status, j[at].get<std::string>());
  return fmt::format("status {}", status);
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
      sample_.error = complaint(200, std::string(data));
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
    sample.error = complaint(status, refusal);
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

void ask_server(LoadOptions& o) {
  httplib::Client c = client_of(o);
  const Address at = address_of(o.url);
  const auto r = c.Get(at.base + "/v1/models");
  if (!r)
    throw Error(fmt::format("{} does not answer: {}", at.host, httplib::to_string(r.error())),
                "is the server running? (carat serve)");
  if (r->status != 200)
    throw Error(fmt::format("{}: {}", at.host, complaint(r->status, r->body)),
                r->status == 401 ? "give the key with --api-key" : "");
  const Json list = Json::parse(r->body, nullptr, false);
  const Json::json_pointer first("/data/0");
  const Json model = list.is_object() && list.contains(first) ? list[first] : Json::object();
  if (o.model.empty()) o.model = model.value("id", "");
  if (o.vocab > 0) return;
  const Json::json_pointer vocab("/meta/n_vocab");  // as llama.cpp says it
  o.vocab = model.contains(vocab) && model[vocab].is_number() ? model[vocab].get<int32_t>() : 1024;
}

LoadResult run_load(const LoadOptions& o, const std::function<void(int32_t)>& tick) {
  const std::string path = address_of(o.url).base + "/v1/completions";
  const std::vector<double> at = arrivals(o);
  LoadResult result;
  result.samples.resize(at.size());
  std::atomic<int32_t> next{0}, done{0};
  const Clock::time_point began = Clock::now();
  std::vector<std::thread> clients;
  for (int32_t s = 0; s < std::min(o.streams, o.requests); ++s)
    clients.emplace_back([&] {
      try {
        httplib::Client client = client_of(o);
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
  const auto failed = std::find_if(result.samples.begin(), result.samples.end(),
                                   [](const LoadSample& s) { return !s.error.empty(); });
  const bool all = std::all_of(result.samples.begin(), result.samples.end(),
                               [](const LoadSample& s) { return !s.error.empty(); });
  if (all && failed != result.samples.end())
    throw Error(fmt::format("no request was answered: {}", failed->error));
  return result;
}

}  // namespace carat
