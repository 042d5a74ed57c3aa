#include "serve/models.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "serve/http/workers.h"

namespace carat {

ModelHost::ModelHost(std::shared_ptr<LiveModel> only) {
  auto entry = std::make_unique<Entry>();
  entry->status = {only->config.names.front(), {}, "loaded", 1, only};
  entries_.push_back(std::move(entry));
}

ModelHost::Entry* ModelHost::named(const std::string& name) {
  for (const auto& e : entries_)
    if (e->status.name == name) return e.get();
  return nullptr;
}

ModelHost::Entry* ModelHost::find(const std::string& name) {
  if (Entry* e = named(name)) return e;
  for (const auto& e : entries_)
    if (std::find(e->status.aliases.begin(), e->status.aliases.end(), name) != e->status.aliases.end())
      return e.get();
  constexpr std::string_view kLatest = ":latest";  // what clients of Ollama say where no tag was given
  return name.ends_with(kLatest) ? find(name.substr(0, name.size() - kLatest.size())) : nullptr;
}

// Under the mutex: new files come in, those that are gone leave unless they are open.
void ModelHost::refresh() {
  if (!source_.list) return;
  const std::vector<Known> known = source_.list();
  for (const Known& k : known) {
    if (Entry* e = named(k.name)) {
      e->file_bytes = k.bytes;
      e->status.aliases = k.aliases;
      continue;
    }
    auto entry = std::make_unique<Entry>();
    entry->status.name = k.name;
    entry->status.aliases = k.aliases;
    entry->file_bytes = k.bytes;
    entries_.push_back(std::move(entry));
  }
  std::erase_if(entries_, [&](const auto& e) {
    return e->status.state == std::string_view("unloaded") &&
           std::none_of(known.begin(), known.end(), [&](const Known& k) { return k.name == e->status.name; });
  });
  std::sort(entries_.begin(), entries_.end(),
            [](const auto& a, const auto& b) { return a->status.name < b->status.name; });
}

std::vector<ModelHost::Status> ModelHost::list() const {
  std::vector<Status> out;
  auto* self = const_cast<ModelHost*>(this);
  const std::lock_guard lock(mutex_);
  self->refresh();
  for (const auto& e : entries_) out.push_back(e->status);
  return out;
}

ModelFacts ModelHost::facts(const std::string& name) const {
  if (!source_.facts) return {};
  try {
    return source_.facts(name);
  } catch (const Error&) {  // the file is gone or being written
    return {};
  }
}

std::vector<std::shared_ptr<LiveModel>> ModelHost::live(bool those_beside) const {
  std::vector<std::shared_ptr<LiveModel>> out;
  const std::lock_guard lock(mutex_);
  for (const auto& e : entries_)
    if (e->status.live) out.push_back(e->status.live);
  if (those_beside) out.insert(out.end(), beside_.begin(), beside_.end());
  return out;
}

void ModelHost::show(std::shared_ptr<LiveModel> only, std::vector<std::shared_ptr<LiveModel>> beside) {
  std::erase(beside, nullptr);
  const std::lock_guard lock(mutex_);
  std::swap(beside_, beside);  // what leaves is closed behind the lock
  std::swap(entries_.at(0)->status.live, only);
}

void ModelHost::open_only() {
  std::unique_lock lock(mutex_);
  refresh();
  open(lock, entries_.at(0)->status.name);
}

std::shared_ptr<LiveModel> ModelHost::get(const std::string& name) {
  std::unique_lock lock(mutex_);
  if (!folder()) {
    if (entries_.empty()) refresh();  // asked before it began to open
    const Status& only = entries_.at(0)->status;
    if (only.live) return only.live;
    throw ApiError(503, fmt::format("the model is being loaded ({:.0f} %)", 100 * only.progress), {},
                   "loading");
  }
  for (;;) {
    Entry& e = choose(name);
    if (e.status.live) {
      e.used = ++clock_;
      return e.status.live;
    }
    const Workers::Waits waits;
    if (opening_) {
      changed_.wait(lock);
      continue;
    }
    try {
      return open(lock, std::string(e.status.name));
    } catch (const ApiError&) {
      throw;
    } catch (const Error& error) {
      throw ApiError(503, fmt::format("{} cannot be opened: {}", name, error.what()), "model",
                     "model_failed");
    }
  }
}

// Under the mutex.
ModelHost::Entry& ModelHost::choose(const std::string& name) {
  Entry* e = find(name);
  if (!e) refresh(), e = find(name);
  if (!e && name.empty() && !entries_.empty())
    e = std::max_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
          return a->used < b->used;
        })->get();
  if (!e)
    throw ApiError(404, fmt::format("there is no model '{}'; /v1/models lists them", name), "model",
                   "model_not_found");
  return *e;
}

void ModelHost::close(const std::string& name) {
  std::shared_ptr<LiveModel> gone;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  std::unique_lock lock(mutex_);
  for (;;) {
    Entry& e = choose(name);
    if (!e.status.live) return;
    if (!e.busy()) {
      log_info("closing {}", e.status.name);
      gone = std::move(e.status.live);
      e.status.live = nullptr;
      e.status.state = "unloaded";
      lock.unlock();
      gone.reset();
      return;
    }
    if (std::chrono::steady_clock::now() > until)
      throw ApiError(409, fmt::format("{} is answering a request; close it when that has ended", name),
                     "model", "model_busy");
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    lock.lock();
  }
}

// Closes models that nobody uses, the one used longest ago first, until there is room.
void ModelHost::make_room(std::unique_lock<std::mutex>& lock, int64_t bytes, const std::string& name) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(source_.patience));
  for (;;) {
    int64_t taken = 0;
    Entry* oldest = nullptr;
    for (const auto& e : entries_) {
      if (!e->status.live) continue;
      taken += e->bytes;
      if (!e->busy() && (!oldest || e->used < oldest->used)) oldest = e.get();
    }
    if (taken == 0 || taken + bytes <= source_.memory_limit) return;
    if (oldest) {
      log_info("closing {} to make room for {}", oldest->status.name, name);
      std::shared_ptr<LiveModel> gone = std::move(oldest->status.live);
      oldest->status.live = nullptr;
      oldest->status.state = "unloaded";
      lock.unlock();
      gone.reset();
      lock.lock();
      continue;
    }
    if (Clock::now() > until)
      throw ApiError(503, fmt::format("there is no memory for {}: the models that are open are in use", name),
                     {}, "models_busy");
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    lock.lock();
  }
}

std::shared_ptr<LiveModel> ModelHost::open(std::unique_lock<std::mutex>& lock, const std::string& name) {
  opening_ = true;
  const auto finish = [&](std::shared_ptr<LiveModel> live) {
    opening_ = false;
    if (Entry* e = find(name)) {
      e->status.state = live ? "loaded" : "unloaded";
      e->status.progress = live ? 1 : 0;
      e->used = ++clock_;
      if (live) e->bytes = e->file_bytes + live->model.engine.memory_bytes();
      e->status.live = live;
    }
    changed_.notify_all();
    return live;
  };
  try {
    find(name)->status.state = "loading";
    make_room(lock, find(name)->file_bytes, name);
    lock.unlock();
    std::shared_ptr<LiveModel> live = source_.open(name, [&](double share) {
      const std::lock_guard inner(mutex_);
      if (Entry* e = find(name)) e->status.progress = share;
    });
    lock.lock();
    return finish(std::move(live));
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    finish(nullptr);
    throw;
  }
}

}  // namespace carat
