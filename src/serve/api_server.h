// All endpoints of one served model.
#pragma once
#include "serve/openai.h"

namespace carat {

class ApiServer {
 public:
  // Listens at once; Error if it cannot. Everything in `model` must outlive the server.
  ApiServer(ServedModel model, ServeConfig config);
  ~ApiServer();
  int port() const;
  std::string url() const;  // "http://127.0.0.1:8080"
  void run();               // until stop()
  void stop();              // any thread; what runs may go on for grace_seconds
  void set_grace(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
