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
        metrics(config.names.at(0), config.version),
        constraints(model.tokenizer),
        api{model, config, metrics, constraints} {
    metrics.joules = config.joules;
  }
  LiveModel(const LiveModel&) = delete;
  LiveModel& operator=(const LiveModel&) = delete;

  const std::shared_ptr<const void> owner;
  const ServedModel model;
  const ServeConfig config;
  Metrics metrics;
  Constraints constraints;
  const ApiContext api;
};

// What a model's file says, for those who list models.
struct ModelFacts {
  std::string path, format, family, parameters, quantization;  // "gguf", ..., "4.7B", "Q5_K"
  int64_t bytes = 0, modified = 0;                             // of the file; seconds since 1970
  int64_t context = 0;                                         // that the model was made for
  std::string chat_template;
  bool calls = false, thinks = false;  // tools may be called; there may be a thought
  Json metadata = Json::object();      // of the file, without long arrays
};

class ModelHost {
 public:
  // A file's name, and its bytes there and in all.
  using PullReport = std::function<void(const std::string& file, int64_t done, int64_t total)>;
  struct Known {
    std::string name;
    int64_t bytes = 0;                      // of memory that it will take, about
    std::vector<std::string> aliases = {};  // further names
  };
  using Report = std::function<void(double share)>;
  struct Source {
    std::function<std::vector<Known>()> list;
    // Takes as long as it takes. Error if the model cannot be opened.
    std::function<std::shared_ptr<LiveModel>(const std::string& name, const Report& report)> open;
    // What is known of a model without opening it; may throw what reading its file does. None: nothing is.
    std::function<ModelFacts(const std::string& name)> facts;
    // Loads a model of that name from elsewhere, so that `list` has it. None: this server loads nothing.
    std::function<void(const std::string& name, const PullReport& report)> pull;
    int64_t memory_limit = 0;  // bytes of all open models
    bool folder = false;       // requests choose by name; else there is one, whatever they call it
    double patience = 30;      // seconds that a request waits for models in use to become free
  };
  struct Status {
    std::string name;
    std::vector<std::string> aliases;
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
  // The only model is this one from now on, and these (null: none) are open beside it. What runs goes on.
  void show(std::shared_ptr<LiveModel> only, std::vector<std::shared_ptr<LiveModel>> beside);
  // Closes a model of a folder. ApiError 404 if there is none of that name, 409 if it answers.
  void close(const std::string& name);
  std::vector<Status> list() const;
  std::vector<std::shared_ptr<LiveModel>> live(bool those_beside = true) const;
  bool folder() const { return source_.folder; }
  const Source& source() const { return source_; }
  ModelFacts facts(const std::string& name) const;  // empty where nothing is known

 private:
  struct Entry {
    Status status;
    int64_t file_bytes = 0, bytes = 0;  // bytes: once it is open, caches too
    uint64_t used = 0;                  // when; larger is later
    bool busy() const { return status.live.use_count() > 1; }
  };
  Entry* named(const std::string& name);
  Entry* find(const std::string& name);  // by an alias too
  Entry& choose(const std::string& name);
  void refresh();
  void make_room(std::unique_lock<std::mutex>& lock, int64_t bytes, const std::string& name);
  std::shared_ptr<LiveModel> open(std::unique_lock<std::mutex>& lock, const std::string& name);

  const Source source_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::shared_ptr<LiveModel>> beside_;
  uint64_t clock_ = 0;
  bool opening_ = false;  // one at a time
};

}  // namespace carat
