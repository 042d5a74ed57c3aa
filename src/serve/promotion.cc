#include "serve/promotion.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/log.h"
#include "serve/http/workers.h"

namespace carat {
namespace {

constexpr size_t kMostShadows = 16;
constexpr std::string_view kCompared[] = {"/v1/chat/completions", "/chat/completions", "/v1/completions",
                                          "/completions",         "/completion",       "/v1/messages"};

bool is_compared(std::string_view path) {
  return std::find(std::begin(kCompared), std::end(kCompared), path) != std::end(kCompared);
}

// A streamed answer, of which a copy is kept until it has ended.
struct Tapped {
  std::function<HttpStream(const HttpWrite&)> stream;
  std::shared_ptr<std::string> text;
  std::shared_ptr<HttpWrite> write = {};
  HttpStream operator()(const HttpWrite& out) {
    *write = [&out, copy = text](std::string_view piece) {
      copy->append(piece);
      return out(piece);
    };
    return stream(*write);
  }
};

double speed_of(const Metrics::Tally& t) { return t.seconds > 0 ? t.tokens / t.seconds : 0; }

}  // namespace

Promotion::Promotion(const std::string& directory, std::vector<std::string> flags, Open open)
    : store_(directory), open_(std::move(open)), key_(random_id(32)), state_(store_.load()) {
  if (state_.serving != 0 && state_.command_line == flags) return;
  const bool fresh = state_.serving == 0;
  state_.fallback = std::exchange(state_.serving, state_.add(flags));
  state_.command_line = std::move(flags);
  state_.candidate = 0, state_.promoted = 0;
  state_.note("started", state_.serving, fresh ? "" : "the server was started with other flags");
  store_.save(state_);
}

Promotion::~Promotion() { stop(); }

void Promotion::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    shadows_come_.notify_all();
  }
  if (opener_.joinable()) opener_.join();
  if (shadower_.joinable()) shadower_.join();
}

std::shared_ptr<LiveModel> Promotion::open_serving(const ModelHost::Report& report) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const Version version = *state_.find(state_.serving);
    lock.unlock();
    std::string fault;
    std::shared_ptr<LiveModel> live;
    try {
      live = open_(version.flags, version.id, report);
    } catch (const Error& e) {
      lock.lock();
      if (!state_.find(state_.fallback)) throw;
      fault = e.what();
    }
    if (live) {
      lock.lock();
      return serving_ = live;
    }
    log_error("version {} cannot be opened: {}", version.id, fault);
    state_.serving = std::exchange(state_.fallback, 0);
    state_.promoted = 0;
    state_.note("rolled back", state_.serving, fmt::format("version {}: {}", version.id, fault));
    store_.save(state_);
  }
}

void Promotion::attach(ModelHost& host, const std::string& url) {
  const std::lock_guard lock(mutex_);
  host_ = &host;
  shadower_ = std::thread([this] { run_shadows(); });
  if (state_.find(state_.candidate)) open_in_thread(state_.candidate, false);
  store_.save_server(url, key_);
}

// Under the mutex.
void Promotion::show() {
  if (host_) host_->show(serving_, {candidate_, fallback_});
}

// Under the mutex.
void Promotion::open_in_thread(int id, bool fallback) {
  if (opening_ != 0) throw ApiError(409, fmt::format("version {} is being opened", opening_), {}, "opening");
  if (opener_.joinable()) opener_.join();
  opening_ = id;
  progress_ = 0;
  opener_ = std::thread([this, version = *state_.find(id), fallback] {
    std::shared_ptr<LiveModel> live;
    std::string fault;
    try {
      live = open_(version.flags, version.id, [this](double share) { progress_ = share; });
    } catch (const std::exception& e) {
      fault = e.what();
      if (const auto* error = dynamic_cast<const Error*>(&e); error && !error->hint().empty())
        fault += " (" + error->hint() + ")";
    }
    opened(version.id, fallback, std::move(live), fault);
  });
}

void Promotion::opened(int id, bool fallback, std::shared_ptr<LiveModel> live, const std::string& fault) {
  const std::lock_guard lock(mutex_);
  opening_ = 0;
  try {
    if (fallback) {
      fallback_ = live;
      if (live && state_.fallback == id) return roll_back(std::exchange(rolling_back_, {}));
      state_.note("failed", id, fault);
      rolling_back_.clear();
      return store_.save(state_);
    }
    if (state_.candidate != id) return;  // withdrawn meanwhile
    candidate_ = std::move(live);
    compared_ = {};
    if (!candidate_) return withdraw("failed", fault);
    log_info("version {} stands beside version {}", id, state_.serving);
    show();
  } catch (const Error& e) {
    log_error("promotion: {}", e.what());
  }
}

// Under the mutex.
void Promotion::begin(const Json& body) {
  if (state_.candidate != 0)
    throw ApiError(409,
                   fmt::format("version {} is a candidate already; promote or cancel it", state_.candidate),
                   {}, "candidate");
  if (opening_ != 0) throw ApiError(409, "a version is being opened", {}, "opening");
  const Json* flags = Fields(body).find("flags");
  if (!flags || !flags->is_array() || flags->empty())
    throw ApiError(400, "'flags' must be an array of flags of `carat serve`", "flags");
  PromotionState next = state_;
  next.candidate = next.add(flags->get<std::vector<std::string>>());
  next.canary = Fields(body).get_number("canary", 0, 0, 1);
  next.shadow = Fields(body).get_bool("shadow", false);
  next.rules = parse_rules(Fields(body).get_string("rollback_on", ""));
  next.note("candidate", next.candidate);
  store_.save(next);
  state_ = std::move(next);
  open_in_thread(state_.candidate, false);
}

// Under the mutex. The file is written first: a server that is killed here starts with one of the two.
void Promotion::promote(const std::string& why) {
  if (!candidate_) throw ApiError(409, "there is no candidate that is open", {}, "no_candidate");
  PromotionState next = state_;
  next.fallback = std::exchange(next.serving, std::exchange(next.candidate, 0));
  next.canary = 0, next.shadow = false;
  next.promoted = std::time(nullptr);
  next.speed_before = speed_of(serving_->metrics.tally());
  next.note("promoted", next.serving, why);
  std::erase_if(next.versions,
                [&](const Version& v) { return v.id != next.serving && v.id != next.fallback; });
  store_.save(next);
  state_ = std::move(next);
  fallback_ = std::exchange(serving_, std::exchange(candidate_, nullptr));
  serving_->metrics.forget();  // of its trial
  show();
  log_info("version {} serves, version {} stands by", state_.serving, state_.fallback);
}

// Under the mutex.
void Promotion::withdraw(const char* event, const std::string& why) {
  PromotionState next = state_;
  next.note(event, std::exchange(next.candidate, 0), why);
  next.canary = 0, next.shadow = false;
  store_.save(next);
  state_ = std::move(next);
  candidate_ = nullptr;
  show();
  log_warn("the candidate is withdrawn: {}", why);
}

// Under the mutex.
void Promotion::roll_back(const std::string& why) {
  if (!state_.find(state_.fallback))
    throw ApiError(409, "there is no version before this one", {}, "no_fallback");
  if (!fallback_) {
    rolling_back_ = why;
    return open_in_thread(state_.fallback, true);
  }
  PromotionState next = state_;
  const int gone = std::exchange(next.serving, std::exchange(next.fallback, 0));
  next.promoted = 0;
  next.note("rolled back", next.serving, fmt::format("version {}: {}", gone, why));
  store_.save(next);
  state_ = std::move(next);
  serving_ = std::exchange(fallback_, nullptr);
  show();
  log_warn("version {} serves again: {}", state_.serving, why);
}

// Why a version should not go on; empty: it may.
std::string Promotion::fault_of(const LiveModel& live, bool speed) const {
  if (live.model.engine.stats().failed) return "its device has failed";
  const Metrics::Tally t = live.metrics.tally();
  if (t.requests < static_cast<uint64_t>(std::max(1, state_.rules.requests))) return {};
  const double share = static_cast<double>(t.errors) / static_cast<double>(t.requests);
  if (share > state_.rules.errors) return fmt::format("{} of {} answers failed", t.errors, t.requests);
  if (speed && state_.rules.speed > 0 && speed_of(t) < state_.rules.speed * state_.speed_before)
    return fmt::format("{:.1f} tok/s, {:.1f} before", speed_of(t), state_.speed_before);
  return {};
}

// Under the mutex, now and then: whether one goes back by itself.
void Promotion::look() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < std::chrono::milliseconds(100)) return;
  looked_ = now;
  try {
    if (candidate_)
      if (const std::string fault = fault_of(*candidate_, false); !fault.empty())
        withdraw("withdrawn", fault);
    const double since = static_cast<double>(std::time(nullptr) - state_.promoted) / 60;
    if (state_.promoted == 0 || since > state_.rules.minutes || opening_ != 0 ||
        !state_.find(state_.fallback))
      return;
    if (const std::string fault = fault_of(*serving_, true); !fault.empty()) roll_back(fault);
  } catch (const Error& e) {
    log_error("promotion: {}", e.what());
  }
}

std::shared_ptr<LiveModel> Promotion::choose(const HttpRequest& r) {
  const std::string_view wanted = r.header("carat-version");
  const std::lock_guard lock(mutex_);
  look();
  if (!wanted.empty()) {
    if (wanted == "serving") return serving_;
    if (wanted == "candidate" && candidate_) return candidate_;
    for (const auto& live : {serving_, candidate_, fallback_})
      if (live && std::to_string(live->config.version) == wanted) return live;
    throw ApiError(409, fmt::format("version '{}' is not open", wanted), {}, "version_not_open");
  }
  if (!candidate_ || state_.canary <= 0 || r.method != "POST") return serving_;
  constexpr uint64_t kParts = 1'000'000;
  const bool tried = conversation_hash(r) % kParts < static_cast<uint64_t>(state_.canary * kParts);
  return tried ? candidate_ : serving_;
}

HttpResponse Promotion::watch(HttpResponse answer, const HttpRequest& r, const LiveModel& from, Answer make) {
  answer.headers["Carat-Version"] = std::to_string(from.config.version);
  {
    const std::lock_guard lock(mutex_);
    if (!state_.shadow || !candidate_ || answer.status != 200 || &from != serving_.get()) return answer;
  }
  if (!is_compared(r.path)) return answer;
  if (!answer.stream) {
    add_shadow(r, make, answer.body);
    return answer;
  }
  const std::shared_ptr<std::string> text(new std::string, [this, r, make](std::string* whole) {
    const std::unique_ptr<std::string> owned(whole);
    if (answered_text(*whole)) add_shadow(r, make, *whole);
  });
  answer.stream = Tapped{std::move(answer.stream), text, std::make_shared<HttpWrite>()};
  return answer;
}

void Promotion::add_shadow(const HttpRequest& r, Answer make, std::string text) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || !candidate_) return;
  if (shadows_.size() >= kMostShadows) {
    ++compared_.dropped;
    return;
  }
  shadows_.push_back({r, make, std::move(text)});
  shadows_.back().request.gone = [this] { return stopping_.load(); };
  shadows_come_.notify_one();
}

void Promotion::run_shadows() {
  std::unique_lock lock(mutex_);
  for (;;) {
    shadows_come_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_ || !shadows_.empty(); });
    if (stopping_) return;
    look();
    if (shadows_.empty()) continue;
    const Shadow s = std::move(shadows_.front());
    shadows_.pop_front();
    lock.unlock();
    compare(s);
    lock.lock();
  }
}

void Promotion::compare(const Shadow& s) {
  std::shared_ptr<LiveModel> live;
  {
    const std::lock_guard lock(mutex_);
    if (!(live = candidate_)) return;
  }
  std::optional<std::string> mine;
  try {
    HttpRequest request = s.request;
    Json body = parse_body(request.body);
    body["stream"] = false;
    body.erase("stream_options");
    request.body = body.dump();
    mine = answered_text(s.make(live->api, request).body);
  } catch (const std::exception& e) {
    log_debug("the candidate's answer: {}", e.what());
  }
  const std::string theirs = answered_text(s.text).value_or("");
  const std::lock_guard lock(mutex_);
  if (stopping_ || live != candidate_) return;
  if (!mine) {
    ++compared_.failed;
    return;
  }
  ++(*mine == theirs ? compared_.same : compared_.other);
  const auto end = std::mismatch(mine->begin(), mine->end(), theirs.begin(), theirs.end()).first;
  const size_t longer = std::max(mine->size(), theirs.size());
  compared_.shared +=
      longer == 0 ? 1 : static_cast<double>(end - mine->begin()) / static_cast<double>(longer);
}

bool Promotion::is_key(std::string_view given) const {
  unsigned char differs = given.size() != key_.size();  // the time tells nothing
  for (size_t i = 0; i < given.size(); ++i)
    differs |= static_cast<unsigned char>(given[i] ^ key_[i % key_.size()]);
  return differs == 0;
}

Json Promotion::status() {
  const std::lock_guard lock(mutex_);
  if (serving_) look();
  Json s = state_.json();
  const auto add = [&](const char* role, const std::shared_ptr<LiveModel>& live) {
    if (!live) return;
    const Metrics::Tally t = live->metrics.tally();
    s["open"][role] = {{"version", live->config.version},
                       {"requests", t.requests},
                       {"errors", t.errors},
                       {"tok_s", speed_of(t)}};
  };
  s["open"] = Json::object();
  add("serving", serving_), add("candidate", candidate_), add("fallback", fallback_);
  s["opening"] = opening_;
  if (opening_ != 0) s["progress"] = progress_.load();
  const uint64_t answers = compared_.same + compared_.other;
  s["compared"] = {{"same", compared_.same},
                   {"other", compared_.other},
                   {"failed", compared_.failed},
                   {"dropped", compared_.dropped},
                   {"shared", answers ? compared_.shared / static_cast<double>(answers) : 0}};
  return s;
}

Json Promotion::act(const Json& body) {
  const std::string action = Fields(body).get_string("action", ""), why = Fields(body).get_string("why", "");
  {
    const std::lock_guard lock(mutex_);
    if (action == "start")
      begin(body);
    else if (action == "promote")
      promote(why);
    else if (action == "rollback")
      roll_back(why.empty() ? "by command" : why);
    else if (action == "cancel" && state_.candidate != 0)
      withdraw("withdrawn", why.empty() ? "by command" : why);
    else if (action == "cancel")
      throw ApiError(409, "there is no candidate", {}, "no_candidate");
    else
      Fields(body).fail("action", "start, promote, rollback or cancel");
  }
  return status();
}

std::string Promotion::metrics() {
  const std::lock_guard lock(mutex_);
  std::string out =
      "# HELP carat:version Which version serves, stands by or is tried; 0: none.\n# TYPE carat:version "
      "gauge\n";
  for (const auto& [role, id] : {std::pair{"serving", state_.serving}, std::pair{"fallback", state_.fallback},
                                 std::pair{"candidate", state_.candidate}})
    out += fmt::format("carat:version{{role=\"{}\"}} {}\n", role, id);
  out +=
      "# HELP carat:shadow_answers_total Copies of requests that the candidate answered, and whether as the "
      "serving version did.\n# TYPE carat:shadow_answers_total counter\n";
  for (const auto& [result, n] :
       {std::pair{"same", compared_.same}, std::pair{"other", compared_.other},
        std::pair{"failed", compared_.failed}, std::pair{"dropped", compared_.dropped}})
    out += fmt::format("carat:shadow_answers_total{{result=\"{}\"}} {}\n", result, n);
  return out;
}

}  // namespace carat
