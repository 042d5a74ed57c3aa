#include "apps/curl.h"

#include <unistd.h>

#include <string>

#include "base/error.h"
#include "serve/config.h"

namespace carat {
namespace {

// A program that runs on many systems looks for their certificates itself.
void set_certificates([[maybe_unused]] CURL* curl) {
#ifdef CARAT_PORTABLE
  static const std::string file = [] {
    if (const auto own = environment("SSL_CERT_FILE")) return *own;
    for (const char* name : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                             "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
      if (::access(name, R_OK) == 0) return std::string(name);
    return std::string();
  }();
  if (!file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, file.c_str());
#endif
}

}  // namespace

Curl new_curl() {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  Curl curl(curl_easy_init(), curl_easy_cleanup);
  if (ready != CURLE_OK || !curl) throw Error("libcurl cannot be used");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  set_certificates(curl.get());
  return curl;
}

}  // namespace carat
