// libcurl's handles, as this program makes them.
#pragma once
#include <curl/curl.h>

#include <memory>

namespace carat {

using Curl = std::unique_ptr<CURL, void (*)(CURL*)>;
// With this system's certificates, and without signals. Error if libcurl cannot be used.
Curl new_curl();

}  // namespace carat
