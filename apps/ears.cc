#include <algorithm>
#include <filesystem>
#include <utility>

#include "apps/eyes.h"
#include "apps/media_hosts.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace carat {

std::unique_ptr<Ears> open_served_ears(const Opened& opened, const OpenOptions& open, const EyesFlags& flags,
                                       std::string& deaf) {
  if (flags.closed) {
    deaf = "this server does not hear: it was started with --no-mmproj";
    return nullptr;
  }
  std::shared_ptr<const WeightSource> towers;
  try {
    towers = open_towers(tower_path(opened.model->source->path(), flags.mmproj));
    if (!towers || !holds_ears(*towers)) return nullptr;
    if (!opened.backend->takes_soft_rows())
      throw Error(fmt::format("{} takes no sound yet", opened.backend->info().name), "--device cpu does");
    std::string where;
    auto encoder =
        open_beside(opened, open, flags, [&](const std::shared_ptr<Backend>& backend, bool on_device) {
          where = backend->info().name;
          auto e = std::make_unique<SoundEncoder>(backend, load_ears(towers, *opened.model, *backend));
          if (on_device) e->prepare();
          return e;
        });
    EarsOptions options;
    options.seconds = flags.seconds;
    options.tower = tower_identity(*towers);
    if (const auto hosts = std::make_shared<const MediaHosts>(flags.hosts, flags.http); !hosts->empty())
      options.load = [hosts](const std::string& url) { return hosts->load(url); };
    auto ears = std::make_unique<Ears>(std::move(encoder), *opened.tokenizer, options);
    log_info("sound: {}, {}", towers->path(), where);
    return ears;
  } catch (const Error& e) {
    if (towers && !flags.mmproj.empty() && flags.mmproj != "auto") throw;
    deaf = fmt::format("this server does not hear: {}", e.what());
    log_info("no sound: {}{}", e.what(), e.hint().empty() ? "" : " (" + e.hint() + ")");
    return nullptr;
  }
}

Heard hear(const Opened& opened, const EyesFlags& flags) {
  const std::string path = tower_path(opened.model->source->path(), flags.mmproj);
  const std::shared_ptr<const WeightSource> towers = open_towers(path);
  if (!towers)
    throw Error(fmt::format("'{}' holds no tower for sound, and none lies beside it", path),
                "give the directory of a model that hears, or its projector with --mmproj FILE");
  SoundEncoder encoder(opened.backend, load_ears(towers, *opened.model, *opened.backend));
  const SoundTower::Shape& shape = encoder.tower().shape();
  Heard out;
  out.place = place_token(opened, shape.token, shape.mark);
  for (const std::string& file : flags.sounds) {
    const std::string bytes = read_file(file, size_t{256} << 20);
    try {
      const Sound sound = decode_sound({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                       {.seconds = flags.seconds});
      for (const Piece& p : split_sound(sound.samples, shape.seconds))
        out.rows.push_back(encoder.encode(std::span(sound.samples).subspan(p.begin, p.end - p.begin)));
    } catch (const Error& e) {
      throw Error(fmt::format("'{}': {}", file, e.what()), e.hint());
    }
  }
  return out;
}

}  // namespace carat
