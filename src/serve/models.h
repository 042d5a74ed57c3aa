// Which models the server has: one, or a folder of them that are opened when somebody asks for them and
// closed when memory is short. Any thread.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/openai.h"

namespace carat {

// A model that answers, and everything that answers for it.
struct LiveModel {
  LiveModel(ServedModel m, ServeConfig c, std::shared_ptr<const void> what_it_refers_to = nullptr)
      : owner(std::move(what_it_refers_to)),
        model(std::move(m)),
        config(std::move(c)),
        metrics(config.names.at(0)),
        constraints(model.tokenizer),
        api{model, config, metrics, constraints} {}
  LiveModel(const LiveModel&) = delete;
  LiveModel& operator=(const LiveModel&) = delete;

  const std::shared_ptr<const void> owner;
  const ServedModel model;
  const ServeConfig config;
  Metrics metrics;
  Constraints constraints;
  const ApiContext api;
};

class ModelHost {
 public:
  struct Known {
    std::string name;
    int64_t bytes = 0;  // of memory that it will take, about
  };
  using Report = std::function<void(double share)>;
  struct Source {
    std::function<std::vector<Known>()> list;
    // Takes as long as it takes. Error if the model cannot be opened.
    std::function<std::shared_ptr<LiveModel>(const std::string& name, const Report& report)> open;
    int64_t memory_limit = 0;  // bytes of all open models
    bool folder = false;       // requests choose by name; else there is one, whatever they call it
    double patience = 30;      // seconds that a request waits for models in use to become free
  };
  struct Status {
    std::string name;
    const char* state = "unloaded";  // "loading", "loaded"
    double progress = 0;
    std::shared_ptr<LiveModel> live;  // if loaded
  };

  explicit ModelHost(Source source) : source_(std::move(source)) {}
  explicit ModelHost(std::shared_ptr<LiveModel> only);

  // The model of that name, opened if it is not; the caller waits. "" is the one used last, or the first.
  // ApiError 404 if there is none of that name, 503 while the only model is being opened or no memory can be
  // freed for this one.
  std::shared_ptr<LiveModel> get(const std::string& name);
  // Opens the only model. Error if it cannot.
  void open_only();
  std::vector<Status> list() const;
  std::vector<std::shared_ptr<LiveModel>> live() const;
  bool folder() const { return source_.folder; }

 private:
  struct Entry {
    Status status;
    int64_t file_bytes = 0, bytes = 0;  // bytes: once it is open, caches too
    uint64_t used = 0;                  // when; larger is later
    bool busy() const { return status.live.use_count() > 1; }
  };
  Entry* find(const std::string& name);
  Entry& choose(const std::string& name);
  void refresh();
  void make_room(std::unique_lock<std::mutex>& lock, int64_t bytes, const std::string& name);
  std::shared_ptr<LiveModel> open(std::unique_lock<std::mutex>& lock, const std::string& name);

  const Source source_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Entry>> entries_;
  uint64_t clock_ = 0;
  bool opening_ = false;  // one at a time
};

}  // namespace carat
