#include "serve/page.h"

#include <fmt/format.h>

// The linker's names of a file's first byte and of the end.
#define CARAT_EMBED(symbol, file)                                                                          \
  __asm__(".pushsection .rodata\n.global carat_file_" #symbol "\ncarat_file_" #symbol ":\n.incbin \"" file \
          "\"\n.global carat_file_" #symbol "_end\ncarat_file_" #symbol "_end:\n.byte 0\n.popsection\n");  \
  extern "C" const char carat_file_##symbol[], carat_file_##symbol##_end[];

// As it is, and as gzip packed it when the program was built.
#define CARAT_EMBED_BOTH(symbol, folder, name)          \
  CARAT_EMBED(symbol, CARAT_SOURCE "/" folder "/" name) \
  CARAT_EMBED(symbol##_gz, CARAT_PACKED "/" name ".gz")

CARAT_EMBED(html, CARAT_SOURCE "/web/dist/index.html")
CARAT_EMBED_BOTH(js, "web/dist", "app.js")
CARAT_EMBED_BOTH(css, "web/dist", "app.css")
CARAT_EMBED(preview, CARAT_SOURCE "/web/dist/preview.html")
CARAT_EMBED(manifest, CARAT_SOURCE "/web/dist/manifest.webmanifest")
CARAT_EMBED(icon, CARAT_SOURCE "/web/dist/icon.svg")
CARAT_EMBED(icon_png, CARAT_SOURCE "/web/dist/icon.png")
CARAT_EMBED_BOTH(notices, "web/dist", "licenses.txt")
CARAT_EMBED_BOTH(openapi, "deploy", "openapi.json")

namespace carat {
namespace {

// Nothing but the page's own files and this server, no code within the text, in nobody's frame.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{}; img-src 'self' data: "
    "blob:; media-src blob:; "  // pictures and sounds that the reader attaches
    "frame-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// The frame in which the page shows HTML of a model: scripts run there, in an origin that is nobody's, and
// reach nothing.
constexpr const char* kPreviewPolicy =
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; media-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'";

struct PageFile {
  const char *path, *type, *begin, *end;
  const char *packed = nullptr, *packed_end = nullptr;
  std::string_view text() const { return {begin, static_cast<size_t>(end - begin)}; }
};

#define CARAT_FILE(symbol) carat_file_##symbol, carat_file_##symbol##_end

const PageFile kFiles[] = {
    {"/", "text/html; charset=utf-8", CARAT_FILE(html)},
    {"/app.js", "text/javascript; charset=utf-8", CARAT_FILE(js), CARAT_FILE(js_gz)},
    {"/app.css", "text/css; charset=utf-8", CARAT_FILE(css), CARAT_FILE(css_gz)},
    {"/preview.html", "text/html; charset=utf-8", CARAT_FILE(preview)},
    {"/manifest.webmanifest", "application/manifest+json", CARAT_FILE(manifest)},
    {"/icon.svg", "image/svg+xml", CARAT_FILE(icon)},
    {"/icon.png", "image/png", CARAT_FILE(icon_png)},
    {"/licenses.txt", "text/plain; charset=utf-8", CARAT_FILE(notices), CARAT_FILE(notices_gz)},
    {"/openapi.json", "application/json", CARAT_FILE(openapi), CARAT_FILE(openapi_gz)},
};

// Changes with the contents (FNV-1a).
std::string tag_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("W/\"{:016x}\"", hash);
}

// Whether a list of codings names gzip, and not to refuse it.
bool takes_gzip(std::string_view accepted) {
  const size_t at = accepted.find("gzip");
  if (at == std::string_view::npos) return false;
  const std::string_view rest = accepted.substr(at + 4, accepted.find(',', at) - at - 4);
  const size_t q = rest.find("q=");
  return q == std::string_view::npos || rest.find_first_of("123456789", q) != std::string_view::npos;
}

HttpResponse serve_file(const PageFile& file, const std::string& tag, const std::string& policy,
                        const HttpRequest& request) {
  HttpResponse r;
  r.type = file.type;
  r.headers = {{"Content-Security-Policy", policy},
               {"X-Content-Type-Options", "nosniff"},
               {"Referrer-Policy", "no-referrer"},
               {"Cache-Control", "no-cache"},
               {"ETag", tag}};
  if (file.packed) r.headers.emplace("Vary", "Accept-Encoding");
  if (request.header("if-none-match") == tag) {
    r.status = 304;
  } else if (file.packed && takes_gzip(request.header("accept-encoding"))) {
    r.headers.emplace("Content-Encoding", "gzip");
    r.body.assign(file.packed, file.packed_end);
  } else {
    r.body = file.text();
  }
  return r;
}

}  // namespace

void add_page(HttpServer& http, const ServeConfig& config) {
  std::string origins;
  for (const std::string& o : config.page_origins) origins += ' ' + o;
  const std::string page = fmt::format(kPolicy, origins);
  for (const PageFile& file : kFiles) {
    const std::string_view path = file.path;
    if (config.page || path == "/openapi.json")
      http.route("GET", file.path,
                 [&file, tag = tag_of(file.text()),
                  policy = path == "/preview.html" ? std::string(kPreviewPolicy) : page](
                     const HttpRequest& r) { return serve_file(file, tag, policy, r); });
  }
}

bool is_page(std::string_view path) {
  for (const PageFile& file : kFiles)
    if (path == file.path) return true;
  return false;
}

}  // namespace carat
