// All endpoints of the models served.
#pragma once
#include "serve/promotion.h"

namespace carat {

class ApiServer {
 public:
  // Both listen at once; Error if they cannot. Everything in `model` must outlive the server.
  ApiServer(ServedModel model, ServeConfig config);
  ApiServer(ModelHost::Source models, ServeConfig config);
  ~ApiServer();
  int port() const;
  std::string url() const;                                          // "http://127.0.0.1:8080"
  std::vector<std::pair<std::string, std::string>> routes() const;  // methods and paths
  void run();                                                       // until stop()
  // Opens the only model, while the server runs already and says how far it is. Error if it cannot.
  void open_model();
  // Any thread. Both let what runs go on for the grace (30 s): drain() answers 503 to new requests meanwhile
  // and returns when it is over, stop() takes no new connections and returns at once.
  void drain();
  void stop();
  void set_grace(double seconds);
  void set_drain_delay(double seconds);  // drain() goes on serving so long while /ready says 503 already
  ModelHost& models();
  // Versions of the only model (before run()): what it chooses answers.
  void set_promotion(std::shared_ptr<Promotion> promotion);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
