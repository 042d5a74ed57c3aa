#include "serve/api/slots.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "serve/api/json.h"
#include "serve/http/workers.h"

namespace carat {
namespace {

constexpr size_t kLongestName = 128;

// The file of that name in the directory. A name is letters, digits and ._-, so it leads nowhere else.
std::string file_of(const std::string& directory, const HttpRequest& request) {
  if (directory.empty())
    throw ApiError(501, "this server saves no slots; start it with --slot-save-path DIRECTORY", {},
                   "not_supported");
  const Json body = parse_body(request.body);
  const std::string name = Fields(body).get_string("filename", "");
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
  if (name.empty() || name.size() > kLongestName || !plain || name.front() == '.')
    throw ApiError(400, "filename must be a name of letters, digits, '.', '_' and '-', and no path",
                   "filename");
  return (std::filesystem::path(directory) / name).string();
}

}  // namespace

HttpResponse slot_action(const ApiContext& api, const HttpRequest& request) {
  Engine& engine = api.model.engine;
  const std::string& directory = api.config.slot_save_path;
  const std::string number = request.path.substr(request.path.rfind('/') + 1);
  if (number.size() > 4 || std::stoi(number) >= engine.config().sequences)
    throw ApiError(404,
                   fmt::format("there is no slot {}; this model has {}", number, engine.config().sequences));
  const int32_t slot = std::stoi(number);
  const auto action = request.query.find("action");
  const std::string what = action == request.query.end() ? "" : action->second;
  const Workers::Waits waits;
  const auto ms = [](const SlotResult& r) { return 1e3 * r.seconds; };
  Json out = {{"id_slot", slot}};
  try {
    if (what == "save") {
      const std::string path = file_of(directory, request);
      const SlotResult r = engine.save_slot(slot, path);
      out["n_saved"] = r.tokens;
      out["n_written"] = r.bytes;
      out["timings"] = {{"save_ms", ms(r)}};
      out["filename"] = std::filesystem::path(path).filename().string();
    } else if (what == "restore") {
      const std::string path = file_of(directory, request);
      const SlotResult r = engine.restore_slot(slot, path);
      out["n_restored"] = r.tokens;
      out["n_read"] = r.bytes;
      out["timings"] = {{"restore_ms", ms(r)}};
      out["filename"] = std::filesystem::path(path).filename().string();
    } else if (what == "erase") {
      out["n_erased"] = engine.erase_slot(slot).tokens;
    } else {
      throw ApiError(400, "action must be save, restore or erase", "action");
    }
  } catch (const ApiError&) {
    throw;
  } catch (const Unavailable&) {
    throw;
  } catch (const Error& e) {
    const bool ours = dynamic_cast<const WriteError*>(&e) != nullptr;
    throw ApiError(ours ? 500 : 400,
                   e.hint().empty() ? e.what() : fmt::format("{} ({})", e.what(), e.hint()));
  }
  return json_response(out);
}

}  // namespace carat
