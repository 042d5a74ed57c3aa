#include "apps/devices.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <numeric>

#include "apps/offload.h"
#include "apps/progress.h"
#include "base/error.h"
#include "tools/type_mix.h"

namespace carat {
namespace {

int device_number(const std::string& one) {
  if (one == "cpu") return -1;
  if (one == "cuda") return 0;
  int n = 0;
  const char *from = one.data() + 5, *end = one.data() + one.size();
  if (one.starts_with("cuda:") && from < end) {
    const auto [p, error] = std::from_chars(from, end, n);
    if (error == std::errc() && p == end && n >= 0) return n;
  }
  throw Error(fmt::format("unknown device '{}'", one),
              "choose cpu, cuda, cuda:N (N from 0), several like cuda:0,cuda:1, or auto");
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

}  // namespace

void add_split_flags(CLI::App& app, SplitFlags& f) {
  app.add_option(
         "--split-mode", f.mode,
         "Several GPUs (-sm): layer: each has some layers; tensor: each computes some outputs of every "
         "product; none: one GPU; auto: one if the model fits, else tensor where GPUs are alike and "
         "reach each other")
      ->transform([](std::string mode) { return mode == "row" ? "tensor" : mode; })  // llama.cpp's older word
      ->check(CLI::IsMember({"auto", "none", "layer", "tensor"}))
      ->capture_default_str();
  app.add_option("--tensor-split", f.shares, "Shares of the model by GPU, like 3,1 (-ts)")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  app.add_option("--main-gpu", f.main, "The GPU where the model is not split (-mg)")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  app.add_option("--peer", f.peer,
                 "How GPUs meet: auto: in each other's memory where a test of the pair passes; host: in the "
                 "host's")
      ->check(CLI::IsMember({"auto", "host"}))
      ->capture_default_str();
}

std::vector<int> device_numbers(const std::string& text) {
  std::vector<int> all;
  if (text == "auto") return all;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    all.push_back(device_number(text.substr(at, end - at)));
    at = end + 1;
  }
  for (size_t i = 1; i < all.size(); ++i) {
    if ((all[i] < 0) != (all[0] < 0))
      throw Error(fmt::format("'{}' names GPUs and the CPU", text),
                  "name GPUs alone: what they have no room for stays with the CPU only beside one GPU");
    if (all[i] >= 0 && std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), all[i]) !=
                           all.begin() + static_cast<std::ptrdiff_t>(i))
      throw Error(fmt::format("'{}' names cuda:{} twice", text, all[i]));
  }
  if (all.size() > static_cast<size_t>(kMaxParts))
    throw Error(fmt::format("'{}' names {} devices", text, all.size()),
                fmt::format("a model is split over {} at most", kMaxParts));
  return all;
}

int64_t SplitModel::products() const {
  return std::accumulate(layers.begin(), layers.end(), int64_t{0}) + head;
}

SplitModel split_model(const WeightSource& source) {
  SplitModel m;
  for (const TensorInfo& t : source.tensors()) {
    const auto bytes = static_cast<int64_t>(t.bytes);
    if (const int32_t l = layer_of(t.name); l >= 0) {
      m.layers.resize(std::max(m.layers.size(), static_cast<size_t>(l) + 1));
      m.layers[static_cast<size_t>(l)] += bytes;
      m.experts |= t.name.find("_exps.") != std::string::npos;
    } else if (t.name == "output.weight") {
      m.head += bytes;
    } else {
      m.table += bytes;
      m.small |= t.name == "per_layer_token_embd.weight";
    }
  }
  if (!source.find("output.weight"))
    if (const TensorInfo* t = source.find("token_embd.weight")) m.head = static_cast<int64_t>(t->bytes);
  return m;
}

int64_t SplitPlan::cache(size_t d, const std::vector<std::pair<int32_t, int64_t>>& layers,
                         int64_t states) const {
  double sum = 0;
  const int32_t first = first_layer[d], end = d + 1 < first_layer.size() ? first_layer[d + 1] : INT32_MAX;
  for (const auto& [layer, bytes] : layers)
    if (mode == SplitMode::tensor)
      sum += shares[d] * static_cast<double>(bytes);
    else if (layer >= first && layer < end)
      sum += static_cast<double>(bytes);
  return static_cast<int64_t>(sum) +
         (mode == SplitMode::tensor ? states : static_cast<int64_t>(shares[d] * static_cast<double>(states)));
}

SplitPlan plan_split(const SplitModel& model, const std::vector<DeviceRoom>& devices, const SplitFlags& flags,
                     bool direct) {
  SplitPlan p;
  const size_t n = devices.size();
  for (const DeviceRoom& d : devices) p.names.push_back(d.name);
  const bool alike = std::all_of(devices.begin(), devices.end(), [&](const DeviceRoom& d) {
    return d.name == devices[0].name && d.total == devices[0].total;
  });
  p.shares = flags.shares;
  if (p.shares.empty())
    for (const DeviceRoom& d : devices) p.shares.push_back(alike ? 1.0 : static_cast<double>(d.free));
  if (p.shares.size() != n)
    throw Error(fmt::format("{} shares for {} devices", p.shares.size(), n), "give each device one: -ts 3,1");
  const double sum = std::accumulate(p.shares.begin(), p.shares.end(), 0.0);
  if (sum <= 0) throw Error("no device has a share of the model", "give each device one: -ts 3,1");
  for (double& s : p.shares) s /= sum;
  const bool tensor =
      flags.mode == "tensor" || (flags.mode == "auto" && alike && direct && !model.experts && !model.small);
  // On GPUs their uneven parts were seen to have other bits than the whole
  // (docs/lab/2026-11-26-several-gpus.md).
  if (tensor && model.small)
    throw Error("models with per-layer embeddings (E2B, E4B) are not split in tensor mode",
                "use -sm layer, or one device");
  p.mode = tensor ? SplitMode::tensor : SplitMode::layer;
  std::vector<int64_t> layers = model.layers;
  if (!layers.empty()) layers.front() += model.table, layers.back() += model.head;
  p.first_layer = deal_layers(layers, p.shares);
  for (size_t d = 0; d < n; ++d) {
    if (tensor) {
      p.weights.push_back(model.table +
                          static_cast<int64_t>(p.shares[d] * static_cast<double>(model.products())));
      continue;
    }
    const size_t first = static_cast<size_t>(p.first_layer[d]),
                 end = d + 1 < n ? static_cast<size_t>(p.first_layer[d + 1]) : layers.size();
    p.weights.push_back(std::accumulate(layers.begin() + static_cast<std::ptrdiff_t>(first),
                                        layers.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0}));
  }
  std::vector<std::string> each;
  for (size_t d = 0; d < n; ++d)
    each.push_back(
        tensor ? percent(p.shares[d])
               : fmt::format("{}", (d + 1 < n ? p.first_layer[d + 1] : static_cast<int32_t>(layers.size())) -
                                       p.first_layer[d]));
  p.text = tensor ? fmt::format("tensor: {} of every product", fmt::join(each, " and "))
                  : fmt::format("layer: {} of {} layers", fmt::join(each, " and "), layers.size());
  for (size_t d = 0; d < n; ++d) {
    const int64_t room = weights_room({devices[d].name, devices[d].total, devices[d].free});
    if (devices[d].free > 0 && p.weights[d] > room)
      throw Error(
          fmt::format("the part of {} takes {}, which has room for {}", devices[d].name,
                      human_bytes(static_cast<double>(p.weights[d])), human_bytes(static_cast<double>(room))),
          "give it a smaller share (-ts), name more GPUs (--device cuda:0,cuda:1), or one GPU, beside "
          "which the CPU keeps what does not fit");
  }
  return p;
}

}  // namespace carat
