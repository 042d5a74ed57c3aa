// A model's eyes and ears, and the pictures and sounds on the command line.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/open.h"
#include "base/error.h"
#include "base/log.h"
#include "model/tower.h"
#include "serve/api/ears.h"
#include "serve/api/eyes.h"

namespace CLI {
class App;
}

namespace carat {

struct EyesFlags {
  std::vector<std::string> images, sounds;
  std::string mmproj;  // empty or auto: what is with the model
  int32_t budget = 0;  // rows a picture; 0: the model's usual
  std::string resize = "torch";
  double seconds = 600;  // of sound in a request
  bool closed = false;   // the model's eyes and ears stay shut
  bool on_cpu = false;   // towers stay with the CPU, wherever the model is
  std::string hosts;     // that files are loaded from (apps/media_hosts.h); http: without encryption, too
  bool http = false;
};
void add_eyes_flags(CLI::App& app, EyesFlags& flags);
// Those of who gets its pictures from elsewhere.
void add_tower_flags(CLI::App& app, EyesFlags& flags);
void add_media_host_flags(CLI::App& app, EyesFlags& flags);  // a server's

// The eyes that a server gives to a model: it comes with a tower, or the flags name one. Null, and why in
// `blind`, if it has none; Error if the one that is named is not for it.
std::unique_ptr<Eyes> open_served_eyes(const Opened& opened, const OpenOptions& open, const EyesFlags& flags,
                                       int32_t prefill_chunk, std::string& blind);
// The ears, likewise.
std::unique_ptr<Ears> open_served_ears(const Opened& opened, const OpenOptions& open, const EyesFlags& flags,
                                       std::string& deaf);

// Where a model's towers are, and what tells their file from others.
std::string tower_path(const std::string& model, const std::string& mmproj);
std::string tower_identity(const WeightSource& towers);
std::shared_ptr<Backend> tower_on_device(const Opened& opened, const EyesFlags& flags);
std::shared_ptr<Backend> tower_on_cpu(const OpenOptions& o);
void leave_room_for_steps(const Backend& device);  // Error if too little is left for those to come
// open(backend, on_device), for a tower beside the model: on its GPU, between its steps, if there is room
// there; else on the CPU.
template <class Open>
auto open_beside(const Opened& opened, const OpenOptions& o, const EyesFlags& flags, Open open) {
  if (const std::shared_ptr<Backend> device = tower_on_device(opened, flags)) {
    try {
      auto tower = open(device, true);
      leave_room_for_steps(*device);
      return tower;
    } catch (const Error& e) {
      log_info("not on the GPU: {}", e.what());
    }
  }
  return open(tower_on_cpu(o), false);
}
// The token that stands where a row belongs: the one that is known, or the vocabulary's `mark`.
Token place_token(const Opened& opened, Token known, std::string_view mark);

// What stands in the places of tokens: pointers as Stepper::Part::soft takes them, and what they point into.
struct Seen {
  std::vector<const float*> soft;  // as many as tokens
  std::vector<int32_t> place;      // three for each token, where positions have axes; else none
  std::vector<std::vector<float>> rows;
};
// Fills the tokens' places for pictures and sounds with the rows of those files, in order; a sound's pieces
// one behind the other. Error if the model has no eyes or ears, a file is neither, or the places are not as
// many as the rows.
Seen see(const Opened& opened, const EyesFlags& flags, std::span<const Token> tokens);
// The rows of --audio's files, each piece's one behind the other, and the token of their places.
struct Heard {
  std::vector<std::vector<float>> rows;
  Token place = -1;
};
Heard hear(const Opened& opened, const EyesFlags& flags);

}  // namespace carat
