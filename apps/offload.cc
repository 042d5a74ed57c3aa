#include "apps/offload.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <regex>

#include "apps/progress.h"
#include "base/error.h"
#include "tools/type_mix.h"

namespace carat {
namespace {

constexpr int32_t kAll = 1 << 20;
constexpr std::string_view kHead = "token_embd.weight", kTables[] = {kHead, "per_layer_token_embd.weight"};

bool is_expert(std::string_view name) { return name.find("_exps.") != std::string_view::npos; }
// Small and of floats, whose sums have the device's order: the same experts are chosen wherever they are.
bool is_router(std::string_view name) { return name.find(".ffn_gate_inp.") != std::string_view::npos; }
bool is_table(std::string_view name) {
  return std::find(std::begin(kTables), std::end(kTables), name) != std::end(kTables);
}

// Layers whose experts, and layers that are wholly, with the host; or what is named.
struct Placing {
  int32_t experts = 0, layers = 0;
  bool tables = false, head = false;
  std::vector<std::regex> named;
  bool any() const { return tables || experts > 0 || layers > 0 || head || !named.empty(); }
};

class Planner {
 public:
  Planner(const WeightSource& source, bool fetches) : source_(source), fetches_(fetches) {
    for (const TensorInfo& t : source.tensors()) {
      const int32_t layer = layer_of(t.name);
      layers_ = std::max(layers_, layer + 1);
      if (is_expert(t.name)) with_experts_ = std::max(with_experts_, layer + 1);
    }
    tied_ = !source.find("output.weight");
  }
  int32_t layers() const { return layers_; }

  // A tied table is the output head too, which products read.
  bool on_host(const Placing& c, const TensorInfo& t) const {
    const int32_t layer = layer_of(t.name);
    if (layer >= 0 && layer < (is_expert(t.name) ? std::max(c.experts, c.layers) : c.layers))
      return !is_router(t.name);
    if (c.head && (t.name == "output.weight" || (tied_ && t.name == kHead))) return true;
    return std::any_of(c.named.begin(), c.named.end(),
                       [&](const std::regex& r) { return std::regex_search(t.name, r); });
  }
  Offload offload(const Placing& c) const {
    Offload o;
    std::vector<std::pair<const std::byte*, const std::byte*>> kept;
    std::vector<int64_t> come(static_cast<size_t>(layers_));  // to the device for a layer's feed-forward part
    for (const TensorInfo& t : source_.tensors()) {
      const auto bytes = static_cast<int64_t>(t.bytes);
      const bool host = on_host(c, t), twice = tied_ && t.name == kHead;
      if (host && t.name.find(".ffn_") != std::string::npos)
        come[static_cast<size_t>(layer_of(t.name))] += bytes;
      if (!is_table(t.name) || twice) (host ? o.host : o.device) += bytes;  // products
      if (is_table(t.name)) (host || c.tables ? o.host : o.device) += twice && host ? 0 : bytes;
      if (host) kept.emplace_back(t.data, t.data + t.bytes);
    }
    if (!c.any()) return o;
    if (fetches_ && !come.empty()) o.come = *std::max_element(come.begin(), come.end());
    std::sort(kept.begin(), kept.end());
    o.text = text(c);
    o.keeps = [kept = std::move(kept), tables = c.tables](const Tensor& file, WeightUse use) {
      if (use == WeightUse::rows && tables) return true;
      const auto after = std::upper_bound(kept.begin(), kept.end(), file.data,
                                          [](const std::byte* p, const auto& k) { return p < k.first; });
      return after != kept.begin() && file.data < std::prev(after)->second;
    };
    return o;
  }
  // The least that makes the rest fit; nothing if no choice does.
  std::optional<Placing> fitting(int64_t room) const {
    Placing c;
    const auto fits = [&] {
      const Offload o = offload(c);
      return o.device + o.come <= room;
    };
    if (fits()) return c;
    c.tables = true;
    if (fits()) return c;
    while (c.experts < with_experts_) {
      ++c.experts;
      if (fits()) return c;
    }
    while (c.layers < layers_) {
      ++c.layers;
      if (fits()) return c;
    }
    return {};
  }

 private:
  std::string text(const Placing& c) const {
    std::string s;
    const auto add = [&](const std::string& part) { s += (s.empty() ? "" : ", ") + part; };
    if (c.tables) add("tables");
    if (c.experts > c.layers)
      add(fmt::format("experts of {} of {} layers", std::min(c.experts, layers_), layers_));
    if (c.layers > 0) add(fmt::format("{} of {} layers", c.layers, layers_));
    if (c.head) add("the output head");
    if (!c.named.empty()) add("what -ot names");
    return s;
  }

  const WeightSource& source_;
  bool fetches_;
  int32_t layers_ = 0, with_experts_ = 0;
  bool tied_ = false;
};

Placing placing_of(const OffloadFlags& flags, const Planner& planner) {
  Placing c;
  c.tables = flags.given();
  c.experts = std::min(flags.cpu_moe, planner.layers());
  if (flags.gpu_layers) {
    c.layers = std::max(0, planner.layers() - *flags.gpu_layers);
    c.head = *flags.gpu_layers == 0;
    if (c.layers == 0 && flags.cpu_moe == 0 && flags.tensors.empty()) c.tables = false;  // -ngl 99
  }
  for (const std::string& t : flags.tensors) {
    const size_t eq = t.rfind('=');
    if (eq == std::string::npos || eq == 0 || t.substr(eq + 1) != "CPU")
      throw Error(fmt::format("'{}' does not say which tensors stay with the CPU", t),
                  "give a regular expression of names, like -ot 'ffn_(up|gate|down)_exps=CPU'");
    try {
      c.named.emplace_back(t.substr(0, eq));
    } catch (const std::regex_error& e) {
      throw Error(fmt::format("'{}' is no regular expression: {}", t.substr(0, eq), e.what()));
    }
  }
  return c;
}

std::string flags_of(const Placing& c, int32_t layers) {
  if (c.layers > 0) return fmt::format("-ngl {}", layers - c.layers);
  return c.experts > 0 ? fmt::format("--n-cpu-moe {}", c.experts) : "-ot token_embd=CPU";
}

}  // namespace

void add_offload_flags(CLI::App& app, OffloadFlags& f) {
  app.add_option(
         "--n-gpu-layers,--gpu-layers", f.gpu_layers,
         "Put the weights of the last N layers on the GPU; the others stay with the CPU (-ngl; default: "
         "as many as fit)")
      ->check(CLI::Range(0, kAll));
  app.add_option("--n-cpu-moe", f.cpu_moe, "Keep the experts of the first N layers with the CPU (-ncmoe)")
      ->check(CLI::Range(0, kAll));
  app.add_flag_callback(
      "--cpu-moe", [&f] { f.cpu_moe = kAll; }, "Keep all experts with the CPU (-cmoe)");
  app.add_option("--override-tensor", f.tensors, "REGEX=CPU: keep tensors with such names with the CPU (-ot)")
      ->delimiter(',');
  app.add_flag_callback(
      "--no-op-offload", [&f] { f.fetches = false; },
      "The CPU computes prompts, too, where it has the weights (default: the weights are copied to the GPU)");
}

int64_t weights_room(const DeviceInfo& device) {
  return static_cast<int64_t>(0.9 * static_cast<double>(device.mem_free));
}

Offload plan_offload(const WeightSource& source, const OffloadFlags& flags, int64_t room) {
  const Planner planner(source, flags.fetches);
  const std::optional<Placing> fits = planner.fitting(room);
  Offload o = planner.offload(flags.given() ? placing_of(flags, planner) : fits.value_or(Placing()));
  if (o.device <= room) return o;
  throw Error(fmt::format("the weights take {} of the device, which has room for {}",
                          human_bytes(static_cast<double>(o.device)), human_bytes(static_cast<double>(room))),
              fits
                  ? fmt::format("{} would fit", flags_of(*fits, planner.layers()))
                  : "use a smaller model or more tightly quantized weights, another device, or --device cpu");
}

}  // namespace carat
