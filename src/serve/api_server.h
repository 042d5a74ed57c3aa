// All endpoints of the models served.
#pragma once
#include "serve/models.h"

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
  void stop();  // any thread; what runs may go on for grace_seconds
  void set_grace(double seconds);
  ModelHost& models();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
