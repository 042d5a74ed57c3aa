// What the server is told at its start, and the one place that reads the environment.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "serve/http/http.h"

namespace carat {

struct ServeConfig {
  HttpConfig http;
  std::vector<std::string> api_keys;  // empty: everybody may
  std::string api_keys_file;          // named keys, read again when it changes
  double requests_per_minute = 0;     // of a key, or of an address where no key is needed; 0: any number
  bool salt_per_key = true;           // cached texts of one key are of no use to another
  std::vector<std::string> names;     // how the model is called; the first is what answers say
  std::string model_path;
  std::string slot_save_path;            // where slots are saved; empty: nowhere
  SampleParams sample;                   // where a request says nothing
  int32_t max_tokens = -1;               // likewise
  std::optional<bool> think;             // likewise; nothing: as the template does
  int32_t reasoning_budget = -1;         // likewise: tokens of thought; -1: no bound
  std::string reasoning_budget_message;  // what a thought that is cut ends with
  std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};  // likewise, llama.cpp's
  int64_t seed = -1;                                               // likewise; -1: another one each time
  bool metrics_open = false;                                       // /metrics needs no key
  bool page = true;                                                // the page at /
  std::vector<std::string> page_origins;                           // that the page may ask beside this server
  double stuck_seconds = 300;      // a step that takes longer is taken for stuck
  int version = 0;                 // of what is promoted (promotion.h); 0: nothing is
  std::string build;               // version, for /props
  std::function<double()> joules;  // that the machine has drawn so far; empty: nothing here tells
};

// The socket that systemd listens on for this process (sd_listen_fds(3)); nothing: none. Error if several.
std::optional<int> handed_listener();

std::optional<std::string> environment(const std::string& name);

// "a,b" and, if not empty, one key per line of a file.
std::vector<std::string> read_api_keys(const std::string& list, const std::string& file);

}  // namespace carat
