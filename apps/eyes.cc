#include "apps/eyes.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "apps/media_hosts.h"
#include "apps/towers.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "cuda/guest.h"
#include "media/picture.h"

namespace carat {
namespace {

constexpr int32_t kMostServed = 1120;  // rows
constexpr size_t kMostBytes = size_t{256} << 20;

std::unique_ptr<Encoder> open_eyes(const Opened& opened, const std::string& mmproj) {
  const std::string path = mmproj.empty() || mmproj == "auto" ? opened.model->source->path() : mmproj;
  std::shared_ptr<const WeightSource> towers = open_towers(path);
  if (!towers)
    throw Error(fmt::format("'{}' holds no tower for pictures, and none lies beside it", path),
                "give the directory of a model that sees, or its projector with --mmproj FILE");
  return std::make_unique<Encoder>(opened.backend, load_vision(towers, *opened.model, *opened.backend));
}

Picture prepared(const std::string& path, const VisionTower& tower, const EyesFlags& flags) {
  const std::string bytes = read_file(path, kMostBytes);
  Picture p;
  try {
    p = decode_picture({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  } catch (const Error& e) {
    throw Error(fmt::format("'{}': {}", path, e.what()), e.hint());
  }
  const GridSize size = tower.size(p, flags.budget);
  return resize(p, size.width, size.height, flags.resize == "pillow" ? Resize::pillow : Resize::torch);
}

// Of a prompt with these pictures.
std::vector<int32_t> places_in(std::span<const float* const> soft, std::vector<SoftRows> pictures) {
  int32_t at = 0;
  for (SoftRows& s : pictures) {
    while (!soft[static_cast<size_t>(at)]) ++at;
    s.begin = std::exchange(at, at + s.rows);
  }
  std::vector<int32_t> positions(soft.size());
  std::iota(positions.begin(), positions.end(), 0);
  return places_of(pictures, positions);
}

}  // namespace

std::string tower_path(const std::string& model, const std::string& mmproj) {
  if (mmproj.empty() || mmproj == "auto") return model;
  const auto beside = std::filesystem::path(model).parent_path() / mmproj;  // a repository's file
  return std::filesystem::exists(mmproj) || !std::filesystem::exists(beside) ? mmproj : beside.string();
}

std::string tower_identity(const WeightSource& towers) {
  std::error_code ec;
  const auto modified = std::filesystem::last_write_time(towers.path(), ec).time_since_epoch().count();
  return fmt::format("{} {} {}", towers.path(), towers.total_bytes(), modified);
}

std::shared_ptr<Backend> tower_on_device(const Opened& opened, const EyesFlags& flags) {
  return flags.on_cpu ? nullptr : make_cuda_guest(*opened.backend);
}

// Programs of the model's larger steps take their memory when they first run.
void leave_room_for_steps(const Backend& device) {
  constexpr int64_t kSteps = int64_t{1} << 30;
  if (const int64_t left = device.info().mem_free; left < kSteps)
    throw Error(fmt::format("{} MiB would be left there for the model's steps, and they may need {}",
                            left >> 20, kSteps >> 20));
}

// The tower runs beside the model's backend, which leaves it a core.
std::shared_ptr<Backend> tower_on_cpu(const OpenOptions& o) {
  if (o.backend == "ref") return make_ref_backend();
  return make_cpu_backend(o.threads ? o.threads : std::max(1, available_cpus() - 1), o.isa);
}

std::unique_ptr<Eyes> open_served_eyes(const Opened& opened, const OpenOptions& open, const EyesFlags& flags,
                                       int32_t prefill_chunk, std::string& blind) {
  const bool named = !flags.mmproj.empty() && flags.mmproj != "auto";
  if (flags.closed) {
    blind = "this server reads text only, no images: it was started with --no-mmproj";
    return nullptr;
  }
  try {
    const std::shared_ptr<const WeightSource> towers =
        open_towers(tower_path(opened.model->source->path(), flags.mmproj));
    if (!towers) {
      if (named)
        throw Error(fmt::format("'{}' holds no tower for pictures", flags.mmproj),
                    "give the projector (mmproj) that was published beside the model");
      return nullptr;
    }
    if (!towers->meta().get_bool_or("clip.has_vision_encoder", true)) return nullptr;
    if (!opened.backend->takes_soft_rows())
      throw Error(fmt::format("{} takes no pictures yet", opened.backend->info().name),
                  "--device cpu reads them");
    std::string where;
    auto encoder =
        open_beside(opened, open, flags, [&](const std::shared_ptr<Backend>& backend, bool on_device) {
          where = backend->info().name;
          auto e = std::make_unique<Encoder>(backend, load_vision(towers, *opened.model, *backend));
          // Memory for the largest picture is allocated now, so that no request fails for want of it.
          if (on_device) e->prepare(largest_picture(opened.model->spec.blocks, prefill_chunk));
          return e;
        });
    EyesOptions options;
    // A tower without a usual size would look at a large photo for minutes.
    options.budget = flags.budget == 0 && opened.model->spec.axes ? kMostServed : flags.budget;
    options.most_rows = opened.model->spec.blocks ? prefill_chunk : 0;
    options.resize = flags.resize == "pillow" ? Resize::pillow : Resize::torch;
    options.tower = tower_identity(*towers);
    if (const auto hosts = std::make_shared<const MediaHosts>(flags.hosts, flags.http); !hosts->empty())
      options.load = [hosts](const std::string& url) { return hosts->load(url); };
    auto eyes = std::make_unique<Eyes>(std::move(encoder), *opened.tokenizer, options);
    log_info("pictures: {}, {}", towers->path(), where);
    return eyes;
  } catch (const Error& e) {
    if (named) throw;
    blind = fmt::format("this server reads text only, no images: {}", e.what());
    log_info("no pictures: {}{}", e.what(), e.hint().empty() ? "" : " (" + e.hint() + ")");
    return nullptr;
  }
}

void add_eyes_flags(CLI::App& app, EyesFlags& flags) {
  app.add_option("--image", flags.images, "A picture for the prompt; several are shown in order")
      ->check(CLI::ExistingFile)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--audio", flags.sounds,
                 "A sound for the prompt (WAV, FLAC, MP3, Ogg); several are played in order, behind pictures")
      ->check(CLI::ExistingFile)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_tower_flags(app, flags);
}

void add_tower_flags(CLI::App& app, EyesFlags& flags) {
  app.add_option(
      "--mmproj", flags.mmproj,
      "The projector of pictures and sound, if it is not with the model; with -hf auto: the repository's");
  app.add_flag("--no-mmproj", flags.closed, "Leave the projector out: the model reads text alone");
  app.add_flag("--no-mmproj-offload", flags.on_cpu,
               "The CPU looks at pictures and hears sounds, also for a model on a GPU");
  app.add_option("--image-tokens", flags.budget, "Tokens of a picture at most; default: the model's usual")
      ->check(CLI::IsMember({70, 140, 280, 560, 1120}));
  app.add_option("--image-resize", flags.resize, "How pictures are scaled: as torchvision does, or as Pillow")
      ->check(CLI::IsMember({"torch", "pillow"}))
      ->capture_default_str();
  app.add_option("--audio-max-seconds", flags.seconds, "Sound in a request at most, all of it together")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
}

void add_media_host_flags(CLI::App& app, EyesFlags& flags) {
  auto* hosts = app.add_option(
      "--media-hosts", flags.hosts,
      "Load pictures and sounds by address from these hosts alone: HOST or HOST:PORT, with commas "
      "between; public addresses, no redirects, 20 MB and 10 s each");
  app.add_flag("--media-http", flags.http, "From them without encryption, too (http:)")->needs(hosts);
}

Token place_token(const Opened& opened, Token known, std::string_view mark) {
  if (known >= 0) return known;
  const Token t = opened.tokenizer ? opened.tokenizer->find(mark) : -1;
  if (t < 0)
    throw Error(fmt::format("the vocabulary of '{}' has no token '{}'", opened.model->source->path(), mark),
                "pictures and sounds stand in the places of such tokens");
  return t;
}

namespace {

// Rows that stand in the places of one token.
struct Fill {
  Token place = -1;
  std::vector<const float*> rows;
  size_t next = 0;  // more than there are rows: as many places
  void add(const std::vector<float>& values, int32_t width) {
    for (size_t at = 0; at < values.size(); at += static_cast<size_t>(width)) rows.push_back(&values[at]);
  }
};

Fill fill_pictures(const Opened& opened, const EyesFlags& flags, Seen& out, std::vector<SoftRows>& pictures) {
  const std::unique_ptr<Encoder> encoder = open_eyes(opened, flags.mmproj);
  const VisionTower& tower = encoder->tower();
  Fill fill{place_token(opened, tower.shape().token, tower.shape().mark), {}};
  for (const std::string& path : flags.images) {
    const Picture picture = prepared(path, tower, flags);
    out.rows.push_back(encoder->encode(picture));
    SoftRows& s = pictures.emplace_back();
    s.rows = encoder->rows_of(picture);
    s.high = picture.height / tower.shape().cell, s.wide = picture.width / tower.shape().cell;
    fill.add(out.rows.back(), tower.shape().dim);
  }
  return fill;
}

}  // namespace

Seen see(const Opened& opened, const EyesFlags& flags, std::span<const Token> tokens) {
  Seen out;
  if (flags.images.empty() && flags.sounds.empty()) return out;
  if (flags.closed) throw Error("--no-mmproj leaves out what --image and --audio need");
  std::vector<SoftRows> pictures;
  std::vector<Fill> fills;
  if (!flags.images.empty()) fills.push_back(fill_pictures(opened, flags, out, pictures));
  if (!flags.sounds.empty()) {
    Heard heard = hear(opened, flags);
    Fill& fill = fills.emplace_back(Fill{heard.place, {}});
    for (std::vector<float>& rows : heard.rows) {
      fill.add(rows, opened.model->spec.dim);
      out.rows.push_back(std::move(rows));  // which leaves its values where they are
    }
  }
  for (const Token t : tokens) {
    const float* row = nullptr;
    for (Fill& f : fills)
      if (t == f.place && f.next++ < f.rows.size()) row = f.rows[f.next - 1];
    out.soft.push_back(row);
  }
  for (const Fill& f : fills)
    if (f.next != f.rows.size())
      throw Error(fmt::format("the tokens have {} places of token {}, but the files become {} rows", f.next,
                              f.place, f.rows.size()),
                  "a picture's rows follow from its size and --image-tokens, a sound's from its length");
  if (opened.model->spec.axes) out.place = places_in(out.soft, std::move(pictures));
  return out;
}

}  // namespace carat
