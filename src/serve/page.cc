#include "serve/page.h"

#include <fmt/format.h>

// The linker's names of a file's first byte and of the end.
#define CARAT_EMBED(symbol, file)                                                     \
  __asm__(".pushsection .rodata\n.global carat_file_" #symbol "\ncarat_file_" #symbol \
          ":\n.incbin \"" CARAT_SOURCE "/" file "\"\n.global carat_file_" #symbol     \
          "_end\ncarat_file_" #symbol "_end:\n.byte 0\n.popsection\n");               \
  extern "C" const char carat_file_##symbol[], carat_file_##symbol##_end[];

CARAT_EMBED(html, "web/dist/index.html")
CARAT_EMBED(js, "web/dist/app.js")
CARAT_EMBED(css, "web/dist/app.css")
CARAT_EMBED(notices, "web/dist/licenses.txt")
CARAT_EMBED(openapi, "deploy/openapi.json")

namespace carat {
namespace {

// Nothing but the page's own files and this server, no code within the text, in nobody's frame.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct PageFile {
  const char *path, *type, *begin, *end;
  std::string_view text() const { return {begin, static_cast<size_t>(end - begin)}; }
};

const PageFile kFiles[] = {
    {"/", "text/html; charset=utf-8", carat_file_html, carat_file_html_end},
    {"/app.js", "text/javascript; charset=utf-8", carat_file_js, carat_file_js_end},
    {"/app.css", "text/css; charset=utf-8", carat_file_css, carat_file_css_end},
    {"/licenses.txt", "text/plain; charset=utf-8", carat_file_notices, carat_file_notices_end},
    {"/openapi.json", "application/json", carat_file_openapi, carat_file_openapi_end},
};

// Changes with the contents (FNV-1a).
std::string tag_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("\"{:016x}\"", hash);
}

HttpResponse serve_file(const PageFile& file, const std::string& tag, const HttpRequest& request) {
  HttpResponse r;
  r.type = file.type;
  r.headers = {{"Content-Security-Policy", kPolicy},
               {"X-Content-Type-Options", "nosniff"},
               {"Referrer-Policy", "no-referrer"},
               {"Cache-Control", "no-cache"},
               {"ETag", tag}};
  if (request.header("if-none-match") == tag)
    r.status = 304;
  else
    r.body = file.text();
  return r;
}

}  // namespace

void add_page(HttpServer& http, bool page) {
  for (const PageFile& file : kFiles)
    if (page || std::string_view(file.path) == "/openapi.json")
      http.route("GET", file.path, [&file, tag = tag_of(file.text())](const HttpRequest& r) {
        return serve_file(file, tag, r);
      });
}

bool is_page(std::string_view path) {
  for (const PageFile& file : kFiles)
    if (path == file.path) return true;
  return false;
}

}  // namespace carat
