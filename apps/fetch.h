// HTTP over libcurl, as much as loading models needs: a small answer as text, a large one into a file that
// grows.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"

namespace carat {

struct FetchOptions {
  std::string token;          // shown to the first host alone, not to those it redirects to
  int tries = 6;              // without a byte of progress between them
  double first_pause = 0.5;   // seconds; doubled each time, up to 30
  double stalled_after = 60;  // seconds below 1 kB/s: the connection counts as broken
  int connections = 4;        // for a file of several parts
  int64_t part = int64_t{32} << 20;
};

// A status that no further try changes.
class HttpError : public Error {
 public:
  using Error::Error;
};

// The body. HttpError for 4xx, Error when nothing answers.
std::string fetch_text(const std::string& url, const FetchOptions& options);

// Appends the rest of what url has to the open file fd, which holds the first `have` of `size` bytes; after a
// break it goes on where that stopped, and where the server cannot do that, from the start. progress(bytes
// there).
void fetch_file(const std::string& url, const FetchOptions& options, int fd, int64_t have, int64_t size,
                const std::function<void(int64_t)>& progress);

// The same over several connections, a part each. `map` names a file beside it that says what of each part is
// there: it goes on from that. The caller removes it once the file has its name, so that an end before, while
// it is checked, loses nothing. False: the server sends no parts, nothing of the file counts, the map is
// gone.
bool fetch_parts(const std::string& url, const FetchOptions& options, int fd, int64_t size,
                 const std::string& map, const std::function<void(int64_t)>& progress);

}  // namespace carat
