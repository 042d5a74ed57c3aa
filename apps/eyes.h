// A model's eyes and the pictures on the command line.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "apps/open.h"
#include "model/tower.h"
#include "serve/api/eyes.h"

namespace CLI {
class App;
}

namespace carat {

struct EyesFlags {
  std::vector<std::string> images;
  std::string mmproj;  // empty or auto: what is with the model
  int32_t budget = 0;  // rows a picture; 0: the model's usual
  std::string resize = "torch";
  bool closed = false;  // the model's eyes stay shut
  std::string hosts;    // that pictures are loaded from (apps/media_hosts.h); http: without encryption, too
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

// What stands in the places of tokens: pointers as Stepper::Part::soft takes them, and what they point into.
struct Seen {
  std::vector<const float*> soft;  // as many as tokens
  std::vector<int32_t> place;      // three for each token, where positions have axes; else none
  std::vector<std::vector<float>> rows;
};
// Fills the tokens' places for pictures with the rows of those pictures, in order. Error if the model has no
// eyes, a file is no picture, or the places are not as many as the rows.
Seen see(const Opened& opened, const EyesFlags& flags, std::span<const Token> tokens);

}  // namespace carat
