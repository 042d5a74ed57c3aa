#include "apps/fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "apps/curl.h"
#include "apps/part_map.h"
#include "base/log.h"

namespace carat {
namespace {

constexpr size_t kMostText = size_t{64} << 20;

struct Transfer {
  CURL* curl = nullptr;
  std::string text;  // a small answer, or the body of an error
  int fd = -1;       // -1: into text
  int64_t from = 0, at = 0, size = 0;
  int64_t end = 0;                           // of a part; 0: to the file's end
  int64_t range_from = -1, range_size = -1;  // what the server says of the range that it sends
  bool whole = false;                        // the server sends all of it although the rest was asked for
  bool too_long = false;                     // it sends more than it said
  bool no_parts = false;                     // it sends other bytes than those asked for
  int disk_error = 0;
  long retry_after = -1;
  const std::function<void(int64_t)>* progress = nullptr;
  const std::atomic<bool>* stop = nullptr;
};

size_t on_header(char* data, size_t, size_t n, void* user) {
  auto& t = *static_cast<Transfer*>(user);
  const std::string line(data, n);
  if (line.size() > 12 && ::strncasecmp(line.c_str(), "retry-after:", 12) == 0)
    t.retry_after = std::atol(line.c_str() + 12);
  long long from = 0, last = 0, size = 0;  // "content-range: bytes 5-9/10"
  if (line.size() > 14 && ::strncasecmp(line.c_str(), "content-range:", 14) == 0 &&
      std::sscanf(line.c_str() + 14, " bytes %lld-%lld/%lld", &from, &last, &size) == 3)
    t.range_from = from, t.range_size = size;
  return n;
}

size_t on_body(char* data, size_t, size_t n, void* user) {
  auto& t = *static_cast<Transfer*>(user);
  if (t.stop && *t.stop) return 0;
  long status = 0;
  curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &status);
  if (t.fd < 0 || status >= 300) {
    if (t.text.size() + n > kMostText) return 0;
    t.text.append(data, n);
    return n;
  }
  if ((status == 206 && t.range_from != t.from && t.at == t.from) || (status == 200 && t.end > 0))
    return t.no_parts = true, 0;
  if (status == 200 && t.at > 0 && !t.whole && t.at == t.from) {  // it knows no ranges
    if (::ftruncate(t.fd, 0) != 0) return t.disk_error = errno, 0;
    t.at = 0;
    t.whole = true;
  }
  if (t.at + static_cast<int64_t>(n) > t.size) return t.too_long = true, 0;
  const size_t taken = t.end > 0 ? std::min(n, static_cast<size_t>(t.end - t.at)) : n;
  for (size_t done = 0; done < taken;) {
    const ssize_t wrote = ::pwrite(t.fd, data + done, taken - done, t.at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return t.disk_error = errno, 0;
    done += static_cast<size_t>(wrote);
    t.at += wrote;
  }
  if (t.progress && *t.progress) (*t.progress)(t.at);
  return taken;
}

struct Result {
  CURLcode code = CURLE_OK;
  long status = 0;
};

Result perform(Transfer& t, const std::string& url, const FetchOptions& o) {
  const Curl curl = new_curl();
  t.curl = curl.get();
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(t.curl, option, value); };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, url.starts_with("https:") ? "https" : "http,https");
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, 10L);
  set(CURLOPT_CONNECTTIMEOUT, 20L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1000L);
  set(CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(o.stalled_after)));
  set(CURLOPT_USERAGENT, "carat/" CARAT_VERSION);
  set(CURLOPT_HEADERFUNCTION, on_header);
  set(CURLOPT_HEADERDATA, &t);
  set(CURLOPT_WRITEFUNCTION, on_body);
  set(CURLOPT_WRITEDATA, &t);
  if (!o.token.empty()) {  // libcurl shows it to no other host
    set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set(CURLOPT_XOAUTH2_BEARER, o.token.c_str());
  }
  if (t.end > 0)
    set(CURLOPT_RANGE, fmt::format("{}-{}", t.at, t.end - 1).c_str());
  else if (t.at > 0)
    set(CURLOPT_RANGE, fmt::format("{}-", t.at).c_str());
  Result r;
  t.from = t.at;
  t.whole = false;
  t.text.clear();
  t.retry_after = t.range_from = t.range_size = -1;
  t.no_parts = false;
  r.code = curl_easy_perform(t.curl);
  curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &r.status);
  return r;
}

[[noreturn]] void refuse(int status, const std::string& url) {
  const std::string what = fmt::format("{} answers {}", url, status);
  if (status == 401 || status == 403)
    throw HttpError(what,
                    "the repository is private, needs its terms accepted on its page, or does not exist: set "
                    "HF_TOKEN (or --hf-token) "
                    "to an access token of an account that may read it");
  if (status == 404) throw HttpError(what, "check the name; OWNER/REPO as it stands on the model's page");
  throw HttpError(what);
}

// Whether another try may help; waits before it. `tries` counts those without progress.
void pause_or_throw(const Result& r, const Transfer& t, const FetchOptions& o, const std::string& url,
                    int& tries) {
  if (t.disk_error) throw Error(fmt::format("cannot write what is loaded: {}", std::strerror(t.disk_error)));
  const bool busy = r.status == 429 || r.status == 408 || r.status >= 500;
  if (r.code == CURLE_OK && r.status >= 400 && !busy) refuse(static_cast<int>(r.status), url);
  const bool hopeless = r.code == CURLE_URL_MALFORMAT || r.code == CURLE_UNSUPPORTED_PROTOCOL ||
                        r.code == CURLE_PEER_FAILED_VERIFICATION || r.code == CURLE_TOO_MANY_REDIRECTS;
  if (t.at > t.from) tries = 0;
  const std::string why =
      r.code != CURLE_OK ? curl_easy_strerror(r.code) : fmt::format("it answers {}", r.status);
  if (hopeless || ++tries >= o.tries)
    throw Error(fmt::format("cannot load {}: {}", url, why),
                "run the same again: what is there already stays; HF_ENDPOINT names another server, "
                "--offline uses what is here");
  double seconds = std::min(30.0, o.first_pause * static_cast<double>(1 << std::min(tries - 1, 10)));
  if (t.retry_after >= 0) seconds = std::min(300.0, static_cast<double>(t.retry_after));
  log_info("{}: {}; again in {:.1f} s", url, why, seconds);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

std::string fetch_text(const std::string& url, const FetchOptions& options) {
  for (int tries = 0;;) {
    Transfer t;
    const Result r = perform(t, url, options);
    if (r.code == CURLE_OK && r.status == 200) return std::move(t.text);
    pause_or_throw(r, t, options, url, tries);
  }
}

void fetch_file(const std::string& url, const FetchOptions& options, int fd, int64_t have, int64_t size,
                const std::function<void(int64_t)>& progress) {
  Transfer t;
  t.fd = fd;
  t.at = have;
  t.size = size;
  t.progress = &progress;
  for (int tries = 0; t.at < t.size;) {
    const Result r = perform(t, url, options);
    if (t.too_long)
      throw Error(fmt::format("{} is longer than the {} bytes that its repository says", url, size),
                  "try again later");
    if (r.code == CURLE_OK && (r.status == 200 || r.status == 206)) {
      if (t.at == t.size) return;
      if (t.at < t.size && t.at == t.from)
        throw Error(fmt::format("{} ends after {} of {} bytes", url, t.at, size), "try again later");
      continue;  // shorter than it said: the rest is asked for
    }
    if (r.code == CURLE_OK && r.status == 416) {
      if (::ftruncate(fd, 0) != 0) t.disk_error = errno;
      throw Error(fmt::format("{} has no more than {} bytes, its repository says {}", url, t.at, size),
                  "try again later");
    }
    pause_or_throw(r, t, options, url, tries);
  }
}

namespace {

// One part, over as many connections as it takes; false: the server sends no parts, or another worker failed.
bool fetch_part(const std::string& url, const FetchOptions& options, int fd, int64_t size, PartMap& map,
                int64_t part, const std::atomic<bool>& stop, const std::function<void(int64_t)>& progress) {
  Transfer t;
  t.fd = fd;
  t.at = map.at(part);
  t.end = map.end(part);
  t.size = size;
  const std::function<void(int64_t)> grown = [&](int64_t at) { progress(map.grow(part, at)); };
  t.progress = &grown;
  t.stop = &stop;
  for (int tries = 0; t.at < t.end && !stop;) {
    const Result r = perform(t, url, options);
    if (r.status == 206 && t.range_size >= 0 && t.range_size != size)
      throw Error(fmt::format("{} has {} bytes, its repository says {}", url, t.range_size, size),
                  "try again later");
    if (t.no_parts) return false;
    if (t.at == t.end) return true;
    if (r.code == CURLE_OK && r.status == 416)
      throw Error(fmt::format("{} has no more than {} bytes, its repository says {}", url, t.at, size),
                  "try again later");
    if (r.code == CURLE_OK && r.status == 206 && t.at > t.from) continue;
    if (!stop) pause_or_throw(r, t, options, url, tries);
  }
  return t.at == t.end;
}

}  // namespace

bool fetch_parts(const std::string& url, const FetchOptions& options, int fd, int64_t size,
                 const std::string& path, const std::function<void(int64_t)>& progress) {
  std::atomic<bool> stop = false, whole = true;
  std::exception_ptr failure;
  {
    PartMap map(path, size, options.part);
    std::mutex mutex;  // of the progress bar, and of the failure
    const auto report = [&](int64_t all) {
      const std::lock_guard lock(mutex);
      if (progress) progress(all);
    };
    const auto work = [&] {
      try {
        for (int64_t part; !stop && (part = map.take()) >= 0;)
          if (!fetch_part(url, options, fd, size, map, part, stop, report)) stop = true, whole = false;
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
    };
    std::vector<std::thread> workers;
    for (int i = 0; i < options.connections; ++i) workers.emplace_back(work);
    for (std::thread& w : workers) w.join();
  }
  if (failure) std::rethrow_exception(failure);
  if (!whole) ::unlink(path.c_str());
  return whole;
}

}  // namespace carat
